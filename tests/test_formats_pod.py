"""Kubernetes pods as requests."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ledger.formats.asks import Options
from ledger.formats.documents import NotTheFormat, written
from ledger.formats.pod import read_pods
from schemas.requests import RequestSubmit


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod of containers with resources."""
    made = [{"name": f"c{at}", "resources": each} for at, each in enumerate(containers)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "run-42",
            "namespace": "vision",
            "labels": {"kueue.x-k8s.io/queue-name": "train"},
        },
        "spec": {"containers": made, **spec},
    }


def limits(**amounts: Any) -> dict[str, Any]:
    """Return limits; ``gpu`` is nvidia.com/gpu."""
    names = {"gpu": "nvidia.com/gpu", "shared": "nvidia.com/gpu.shared"}
    return {"limits": {names.get(name, name): amount for name, amount in amounts.items()}}


def read(*objects: Any, **options: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the requests of the objects, checked, and the reasons of the notes."""
    found, notes = read_pods(written(objects), Options(**options))
    for one in found:
        RequestSubmit.model_validate_json(orjson.dumps(one))
    return found, [f"{note.path.partition(':')[2]}: {note.reason}" for note in notes]


def test_a_pod_by_hand() -> None:
    """Two devices of a model; namespace, queue label and deadline are the request's."""
    given = pod(
        {"limits": {"nvidia.com/gpu": 2, "cpu": "1500m"}, "requests": {"memory": "1.5Gi"}},
        {"requests": {"cpu": "100m", "memory": "1"}},
        activeDeadlineSeconds=3600,
        nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "zone": "a"},
        priority=7,
    )

    requests, notes = read(given)

    assert [
        {
            "tenant": "vision",
            "queue": "train",
            "task": {"id": "run-42"},
            "ask": {
                "mode": "whole",
                "count": 2,
                "nodes": 1,
                "memory_mib": 0,
                "models": ["NVIDIA H100 80GB HBM3"],
                "labels": {"zone": "a"},
            },
            "beside": {"cpu_milli": 1600, "memory_mib": 1537},
            "priority": 7,
            "max_run_s": 3600,
        }
    ] == requests
    assert [] == notes


def test_json_is_read_as_yaml_is() -> None:
    """`kubectl get -o json` gives the same request, in a List too."""
    one = pod(limits(gpu=1))
    listed = {"apiVersion": "v1", "kind": "List", "items": [one, one]}

    assert read(one)[0] * 2 == read_pods(orjson.dumps(listed).decode())[0]


def test_init_containers_and_sidecars_count_at_their_hungriest_moment() -> None:
    """Sidecars run on; an init container counts with those started before it; then the apps.

    By hand, in CPU: the first sidecar 1, then an init container 4 beside it is 5; a
    second sidecar makes 1+2 = 3, an init container of 1 beside both is 4; the apps are
    1 beside both, which is 4. So 5, and of devices the init container's 2.
    """
    inits = [
        {"name": "s1", "restartPolicy": "Always", "resources": {"requests": {"cpu": 1}}},
        {"name": "i1", "resources": {"requests": {"cpu": 4}, **limits(gpu=2)}},
        {"name": "s2", "restartPolicy": "Always", "resources": {"requests": {"cpu": 2}}},
        {"name": "i2", "resources": {"requests": {"cpu": 1}}},
    ]

    requests, _ = read(pod({"requests": {"cpu": 1}, **limits(gpu=1)}, initContainers=inits))

    assert 5000 == requests[0]["beside"]["cpu_milli"]
    assert 2 == requests[0]["ask"]["count"]


def test_the_pods_own_resources_and_overhead() -> None:
    """What a pod says for itself goes before its containers; overhead comes on top."""
    given = pod(
        {"requests": {"cpu": 1, "memory": "1Gi"}, **limits(gpu=1)},
        resources={"requests": {"cpu": 3}},
        overhead={"cpu": "250m", "memory": "120Mi"},
    )

    requests, _ = read(given)

    assert {"cpu_milli": 3250, "memory_mib": 1144} == requests[0]["beside"]


def test_a_sum_is_rounded_once_and_up() -> None:
    """Three parts of a thousandth and of a MiB are one more together, not three (C15)."""
    part = {"requests": {"cpu": "333333n", "memory": "400Ki"}}

    requests, _ = read(pod(part, part, part))

    assert {"cpu_milli": 1, "memory_mib": 2} == requests[0]["beside"]


@pytest.mark.parametrize(
    ("resources", "product", "options", "ask"),
    {
        "no device": ({}, None, {}, {"mode": "whole", "count": 0}),
        "slices": (
            {"limits": {"nvidia.com/mig-1g.10gb": 2}},
            None,
            {},
            {"mode": "mig", "profile": "1g.10gb", "count": 2},
        ),
        "slices with media engines": (
            {"limits": {"nvidia.com/mig-1g.10gb.me": "1"}},
            None,
            {},
            {"mode": "mig", "profile": "1g.10gb+me", "count": 1},
        ),
        "slices under the strategy single": (
            limits(gpu=2),
            "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
            {},
            {"mode": "mig", "profile": "1g.5gb", "models": ["NVIDIA A100-SXM4-40GB"]},
        ),
        "a third of a device": (limits(shared=1), None, {"shares": 3}, {"gpu_milli": 334}),
        "a shared product": (limits(gpu=1), "Tesla-T4-SHARED", {"shares": 4}, {"gpu_milli": 250}),
        "only requests": ({"requests": {"nvidia.com/gpu": 3}}, None, {}, {"count": 3}),
    }.values(),
)
def test_devices_become_one_mode(
    resources: dict[str, Any], product: str | None, options: dict[str, Any], ask: dict[str, Any]
) -> None:
    """Each resource of NVIDIA's device plugin has its mode."""
    selector = {} if product is None else {"nvidia.com/gpu.product": product}

    requests, _ = read(pod(resources, nodeSelector=selector), **options)

    assert ask.items() <= requests[0]["ask"].items()


@pytest.mark.parametrize(
    ("resources", "options", "reason"),
    {
        "whole and slices": (
            {"limits": {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 1}},
            {},
            "a request has one kind",
        ),
        "two profiles": (
            {"limits": {"nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-1g.10gb": 1}},
            {},
            "1g.10gb and 2g.20gb",
        ),
        "a share of no known size": (limits(shared=1), {}, "how large a share is"),
        "more shares than a device": (limits(shared=5), {"shares": 4}, "more than one device"),
        "more than a node has": (limits(gpu=17), {}, "at most 16"),
        "more slices than a request": (
            {"limits": {"nvidia.com/mig-1g.10gb": 65}},
            {},
            "at most 64",
        ),
    }.values(),
)
def test_what_one_request_cannot_say_is_none(
    resources: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    """There is a note that says why, and no request that asks for something else."""
    requests, notes = read(pod(resources), **options)

    assert [] == requests
    assert 1 == sum(reason in note for note in notes)


@pytest.mark.parametrize(
    ("change", "reason"),
    {
        "affinity": ({"affinity": {}}, "spec.affinity: not read"),
        "claims": ({"resourceClaims": []}, "missing from the request"),
        "the rest": ({"restartPolicy": "Never", "hostNetwork": True}, "restartPolicy, hostNetwork"),
        "another label of nodes": (
            {"nodeSelector": {"kubernetes.io/os": "linux"}},
            "'kubernetes.io/os' left out",
        ),
        "a class of no known worth": ({"priorityClassName": "high"}, "what 'high' is worth"),
        "a priority beyond the scale": ({"priority": 2_000_000_000}, "becomes 1000000"),
        "an unknown model": (
            {"nodeSelector": {"nvidia.com/gpu.product": "New-GPU"}},
            "as the label spells it",
        ),
    }.values(),
)
def test_what_does_not_map_has_a_note(change: dict[str, Any], reason: str) -> None:
    """The request stands, and the note says what is not in it."""
    requests, notes = read(pod(limits(gpu=1), **change))

    assert 1 == len(requests)
    assert 1 == sum(reason in note for note in notes)


def test_claims_and_other_devices_are_told() -> None:
    """A request that lacks devices says so."""
    _, notes = read(
        pod({"claims": [{"name": "x"}], "limits": {"amd.com/gpu": 1, "hugepages-2Mi": 1}})
    )

    assert 1 == sum("devices asked for by claims" in note for note in notes)
    assert 2 == sum("'amd.com/gpu'" in note or "'hugepages-2Mi'" in note for note in notes)


def test_priorities_come_from_classes() -> None:
    """An object in the text, or what the user says; Kueue's own class goes first."""
    one = pod(limits(gpu=1), priorityClassName="high")
    classes = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "high"},
        "value": 500,
    }

    assert 500 == read(classes, one)[0][0]["priority"]
    assert 9 == read(classes, one, priorities={"high": 9})[0][0]["priority"]
    one["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "low"
    assert -3 == read(classes, one, priorities={"low": -3})[0][0]["priority"]


def test_the_shorter_of_two_limits_of_time() -> None:
    """The pod's own deadline and Kueue's label."""
    one = pod(limits(gpu=1), activeDeadlineSeconds=100)
    one["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "60"

    assert 60 == read(one)[0][0]["max_run_s"]


def test_what_a_request_needs_and_a_pod_may_lack() -> None:
    """Tenant, queue and task come from options, or a note asks for them."""
    bare = pod(limits(gpu=1))
    bare["metadata"] = {"generateName": "run-"}

    found, notes = read_pods(written([bare]))
    filled, none = read(bare, tenant="t", queue="q", task="x", task_type="evaluation")

    assert ["names no tenant", "names no queue", "names nothing that can be"] == [
        note.reason.partition(";")[0].partition(" a task")[0] for note in notes[-3:]
    ]
    assert "tenant" not in found[0]
    assert {"id": "x", "type": "evaluation"} == filled[0]["task"]
    assert 1 == len(none)


@pytest.mark.parametrize(
    ("given", "reason"),
    {
        "no pod": ({"apiVersion": "apps/v1", "kind": "Deployment"}, "holds no Pod"),
        "no spec": ({"apiVersion": "v1", "kind": "Pod", "metadata": {}}, "is missing"),
        "half a device": (pod(limits(gpu="500m")), "whole number"),
        "memory beyond any machine": (pod({"requests": {"memory": "9E"}}), "larger than any"),
        "a list for a mapping": (pod(limits(gpu=[1])), "must be a quantity"),
    }.values(),
)
def test_what_is_no_pod_is_refused(given: dict[str, Any], reason: str) -> None:
    """The error says what and where."""
    with pytest.raises(NotTheFormat, match=reason):
        read(given)
