"""Kueue's objects read as policy, and policy written as Kueue's objects."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.quotas.quota import available
from ledger.formats.documents import NotTheFormat, written
from ledger.formats.kueue import read_kueue
from ledger.formats.kueue_write import kueue_yaml, write_kueue
from ledger.formats.names import part_milli
from ledger.log.memory import MemoryLog
from schemas.catalogue import TYPES
from tests.ledgers import OPERATOR, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-40GB"

#: Two teams of one cohort under a root, and a research queue that two namespaces share.
SITE = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: h100}
spec: {nodeLabels: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: slices}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: org}
spec: {fairSharing: {weight: "2"}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Cohort
metadata: {name: teams}
spec:
  parentName: org
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: h100
      resources: [{name: nvidia.com/gpu, nominalQuota: 4, lendingLimit: 1}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: vision-cq}
spec:
  cohortName: teams
  namespaceSelector: {}
  queueingStrategy: StrictFIFO
  preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}
  fairSharing: {weight: "0.5"}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: h100
      resources: [{name: nvidia.com/gpu, nominalQuota: 8, borrowingLimit: 2, lendingLimit: 6}]
  - coveredResources: [nvidia.com/mig-1g.10gb]
    flavors:
    - name: slices
      resources: [{name: nvidia.com/mig-1g.10gb, nominalQuota: 7, borrowingLimit: 0}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: research}
spec:
  cohortName: teams
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: h100
      resources: [{name: nvidia.com/gpu, nominalQuota: 0}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: main, namespace: vision}
spec: {clusterQueue: vision-cq}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lab, namespace: alice}
spec: {clusterQueue: research}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lab, namespace: bob}
spec: {clusterQueue: research}
"""


def limit(
    resource: str, nominal: int, borrowing: int | None = None, lending: int | None = None
) -> Any:
    """Return a limit of a quota."""
    return {"resource": resource, "nominal": nominal, "borrowing": borrowing, "lending": lending}


def quota(
    tenant: str, parent: str | None, gpu: tuple[int, int | None, int | None], **more: Any
) -> Any:
    """Return a record of a quota: nominal, borrowing and lending in thousandths."""
    names = ("nominal_gpu_milli", "borrowing_gpu_milli", "lending_gpu_milli")
    data = {"tenant": tenant, "parent": parent, **dict(zip(names, gpu, strict=True))}
    return {"type": "quota.apply", "data": {**data, "limits": [], "weight": 1, **more}}


def queue(name: str, tenants: list[str], **rules: str) -> Any:
    """Return a record of a queue."""
    data = {"queue": name, "ordering": "best-effort", "tenants": tenants}
    return {
        "type": "queue.apply",
        "data": {**data, "preemption": "never", "reclaim": "never", **rules},
    }


def check_valid(records: list[Any]) -> None:
    """Assert that the ledger takes each record, once its author and reason are said."""
    for record in records:
        whole = {"author": "tester", "reason": "", **record["data"]}
        TYPES[record["type"], 1].model.model_validate_json(orjson.dumps(whole))


def documents(text: str) -> list[Any]:
    """Return the documents of a text, for a test to change."""
    return [each for each in yaml.safe_load_all(text) if each is not None]


def reasons(text: str) -> list[str]:
    """Return the notes of a text, without lines."""
    return [f"{note.path}: {note.reason}" for note in read_kueue(text)[1]]


def test_a_site_by_hand() -> None:
    """Cohorts are totals, tenants are namespaces, weights keep their ratio."""
    records, notes = read_kueue(SITE)

    h100, mig = f"model:{H100}", "profile:1g.10gb"
    part = 7 * 143  # each slice is a seventh of a device, rounded up
    assert [
        # 4 of its own beside 8 of vision, 0 of research, and vision's slices
        quota(
            "org", None, (12000 + part, None, None), weight=4,
            limits=[limit(h100, 12000), limit(mig, 7)],
        ),
        quota(
            "teams", "org", (12000 + part, None, None), weight=2,
            limits=[limit(h100, 12000, None, 1000), limit(mig, 7)],
        ),
        quota(
            "vision", "teams", (8000 + part, 2000, None), weight=1,
            limits=[limit(h100, 8000, 2000, 6000), limit(mig, 7, 0, None)],
        ),
        # Two namespaces share it. It lists no slices, so it can borrow none.
        quota(
            "research", "teams", (0, None, None), weight=2,
            limits=[limit(h100, 0), limit(mig, 0, 0, 0)],
        ),
        quota("alice", "research", (0, None, None)),
        quota("bob", "research", (0, None, None)),
        queue("main", ["vision"], ordering="strict", preemption="same-tenant", reclaim="any"),
        queue("lab", ["alice", "bob"]),
    ] == records  # fmt: skip
    assert ["times 2 to be whole", "a slice of 1g.10gb counts 143 thousandths"] == [
        note.reason.partition(":")[0].partition(";")[0] for note in reversed(notes)
    ]
    check_valid(records)


def test_a_parents_total_is_written_as_what_a_cohort_has_beside_its_members() -> None:
    """Ours 12 with members of 8 and 3 is 1 there, and 12 again when read back."""
    records = [
        quota("org", None, (12000, None, None)),
        quota("a", "org", (8000, 4000, None)),
        quota("b", "org", (3000, None, 1000)),
    ]

    objects, notes = write_kueue(records)

    cohort = next(one for one in objects if one["kind"] == "Cohort")
    group = cohort["spec"]["resourceGroups"][0]
    assert [{"name": "nvidia.com/gpu", "nominalQuota": 1}] == group["flavors"][0]["resources"]
    assert ["ResourceFlavor", "Cohort", "ClusterQueue", "ClusterQueue"] == [
        one["kind"] for one in objects
    ]
    assert [] == notes
    assert records == read_kueue(kueue_yaml(objects))[0]


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_both_versions_name_the_cohort_their_way(version: str) -> None:
    """v1beta1 says cohort and parent where v1beta2 says cohortName and parentName."""
    records, _ = read_kueue(SITE)

    objects, notes = write_kueue(records, version)

    names = {key for one in objects for key in one["spec"]}
    cohort, parent = {"v1beta1": ("cohort", "parent"), "v1beta2": ("cohortName", "parentName")}[
        version
    ]
    assert {cohort, parent} <= names
    assert not names & ({"cohort", "parent", "cohortName", "parentName"} - {cohort, parent})
    assert {f"kueue.x-k8s.io/{version}"} == {one["apiVersion"] for one in objects}
    assert [] == notes
    back = {str(one["data"].get("tenant")): one for one in read_kueue(kueue_yaml(objects))[0]}
    assert records[:4] == [back[one["data"]["tenant"]] for one in records[:4]]


def test_who_is_silent_may_still_borrow() -> None:
    """Silence about a model means all that is above here, and nothing there; so zero is written."""
    records, _ = read_kueue(SITE)

    objects, _ = write_kueue(records)

    alice = next(one for one in objects if one["metadata"]["name"] == "alice")
    amounts = [
        (flavor["name"], each)
        for group in alice["spec"]["resourceGroups"]
        for flavor in group["flavors"]
        for each in flavor["resources"]
    ]
    assert [
        ("nvidia-h100-80gb-hbm3", {"name": "nvidia.com/gpu", "nominalQuota": 0}),
        ("mig-slices", {"name": "nvidia.com/mig-1g.10gb", "nominalQuota": 0}),
    ] == amounts


def test_the_other_versions_field_is_reported_and_not_believed() -> None:
    """A cohort given as in v1beta1 is no cohort in v1beta2, and is not lost in silence."""
    text = SITE.replace("cohortName: teams", "cohort: teams")

    assert "ClusterQueue/research:spec: cohort: no field of a ClusterQueue" in reasons(text)


async def test_the_ledger_lends_what_kueue_would() -> None:
    """The records are taken in their order, and what may be held is what Kueue would admit.

    The cohort has 4 devices beside its members; vision keeps 2 of its 8 and may borrow
    2; research lists no slices.
    """
    site = Site(MemoryLog())
    await site.start()
    for record in read_kueue(SITE)[0]:
        await site.says(record["type"], **record["data"], **OPERATOR)

    room = {
        (name, what): available(site.state, name, what)
        for name in ("vision", "alice")
        for what in (f"model:{H100}", "profile:1g.10gb")
    }

    assert {
        ("vision", f"model:{H100}"): 8000 + 2000,
        ("alice", f"model:{H100}"): 4000 + 6000,
        ("vision", "profile:1g.10gb"): 7,
        ("alice", "profile:1g.10gb"): 0,
    } == room
    assert ("vision",) == tuple(site.state.queues["main"].tenants)


# -- round trips --------------------------------------------------------------------------

MODELS = st.lists(
    st.sampled_from([H100, A100, "AMD Instinct MI300X", "Some New GPU"]), unique=True, max_size=3
)
PROFILES = st.lists(st.sampled_from(["1g.10gb", "3g.40gb", "1g.10gb+me"]), unique=True, max_size=2)
LIMITS = st.one_of(st.none(), st.integers(0, 20))


def factor(resource: str) -> int:
    """Return what one unit of a resource counts in all, in thousandths."""
    return part_milli(resource[8:]) if resource.startswith("profile:") else 1


@st.composite
def leaves(draw: Any, name: str, parent: str | None, kinds: list[str], *, rest: bool) -> Any:
    """Draw a quota that says something of each kind, and of devices of any model if ``rest``."""
    free = parent is None
    limits = []
    for kind in sorted(kinds):
        unit = 1 if kind.startswith("profile:") else 1000
        borrowing, lending = (None, None) if free else (draw(LIMITS), draw(LIMITS))
        limits.append(
            limit(
                kind,
                draw(st.integers(0, 20)) * unit,
                None if borrowing is None else borrowing * unit,
                None if lending is None else lending * unit,
            )
        )
    total = sum(each["nominal"] * factor(each["resource"]) for each in limits)
    total += draw(st.integers(0, 9)) * 1000 if rest else 0
    both: list[int | None] = []
    for name_ in ("borrowing", "lending"):
        parts = [each[name_] and each[name_] * factor(each["resource"]) for each in limits]
        if free or None in parts:
            both.append(None)
        else:
            own = sum(part or 0 for part in parts)
            both.append(draw(st.sampled_from([None, own, own + 3000])) if rest else own)
    return quota(
        name, parent, (total, both[0], both[1]), limits=limits, weight=draw(st.integers(1, 9))
    )


@st.composite
def policies(draw: Any) -> list[Any]:
    """Draw policy that Kueue can say: pools, a tree of two levels or tenants alone, queues.

    Every quota of the tree speaks of the same models and profiles; a silent one would
    mean another thing on each side (docs/formats.md).
    """
    kinds = [f"model:{name}" for name in draw(MODELS)]
    kinds += [f"profile:{name}" for name in draw(PROFILES)]
    rest = draw(st.booleans()) or not kinds
    names = draw(st.lists(st.sampled_from(["a", "b-1", "c.x", "team"]), unique=True, max_size=4))
    parent = draw(st.sampled_from([None, "org"])) if names else None
    tenants = [draw(leaves(name, parent, kinds, rest=rest)) for name in names]
    records: list[Any] = []
    if parent:
        top = draw(leaves("org", None, kinds, rest=rest))["data"]
        for each in tenants:
            top["nominal_gpu_milli"] += each["data"]["nominal_gpu_milli"]
            for mine, theirs in zip(top["limits"], each["data"]["limits"], strict=True):
                mine["nominal"] += theirs["nominal"]
        records.append({"type": "quota.apply", "data": top})
    rules = {
        "ordering": draw(st.sampled_from(["strict", "best-effort"])),
        "preemption": draw(st.sampled_from(["never", "same-tenant"])),
        "reclaim": draw(st.sampled_from(["never", "lower-priority", "any"])),
    }
    waiting = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    queues = [queue("main", sorted(waiting, key=names.index), **rules)] if waiting else []
    pools = draw(
        st.dictionaries(st.sampled_from(["p1", "p2"]), st.just({"zone": "x", "rack": "r 1"}))
    )
    found = [{"type": "pool.apply", "data": {"pool": k, "labels": v}} for k, v in pools.items()]
    return [*found, *records, *tenants, *queues]


@given(policies(), st.sampled_from(["v1beta1", "v1beta2"]))
def test_ours_to_theirs_to_ours_is_the_same(records: list[Any], version: str) -> None:
    """Whatever both can say comes back as it was; what is written has no aliases or line breaks."""
    check_valid(records)
    objects, _ = write_kueue(records, version)
    if not objects:
        assert [] == records
        return

    back, _ = read_kueue(kueue_yaml(objects), ["AMD Instinct MI300X", "Some New GPU"])

    assert records == back


@given(policies())
def test_what_is_written_keeps_kueues_own_rules(records: list[Any]) -> None:
    """No limit without a cohort, every flavor lists what its group covers, and has an object."""
    objects, _ = write_kueue(records)

    flavors = {one["metadata"]["name"] for one in objects if one["kind"] == "ResourceFlavor"}
    for one in objects:
        spec = one["spec"]
        alone = not spec.get("cohortName") and not spec.get("parentName")
        for group in spec.get("resourceGroups", []):
            for flavor in group["flavors"]:
                assert flavor["name"] in flavors
                assert group["coveredResources"] == [each["name"] for each in flavor["resources"]]
                for each in flavor["resources"]:
                    assert each["nominalQuota"] >= 0
                    assert not (alone and each.keys() & {"borrowingLimit", "lendingLimit"})


# -- what does not map ---------------------------------------------------------------------


def mappings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every mapping in a document."""
    if isinstance(value, dict):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        if isinstance(each, (dict, list)):
            yield from mappings(each, (*path, key))


FULL = [
    each for each in documents(SITE) if each["metadata"]["name"] in ("vision-cq", "h100", "main")
]
PLACES = [(at, path) for at, one in enumerate(FULL) for path in mappings(one)]


@pytest.mark.parametrize(("at", "path"), PLACES, ids=[f"{at}-{path}" for at, path in PLACES])
def test_no_field_is_dropped_in_silence(at: int, path: tuple[Any, ...]) -> None:
    """A field that nobody knows, put anywhere at all, is in a note with the path to it."""
    objects = copy.deepcopy(FULL)
    place = objects[at]
    for key in path:
        place = place[key]
    place["unheardOf"] = "1"

    records, notes = read_kueue(written(objects))
    told: list[object] = [note for note in notes if "unheardOf" in str(note)]

    if path and path[-1] == "nodeLabels":
        told = [one for one in records if "unheardOf" in str(one)]  # a label is the user's own
    assert 1 == len(told)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    {
        "stop policy": ("stopPolicy", "Hold", "does not hold a queue back"),
        "checks": ("admissionChecks", ["a"], "asks nobody else"),
        "fungibility": (
            "flavorFungibility",
            {"whenCanBorrow": "TryNextFlavor"},
            "not tried in turn",
        ),
        "borrowing preemption": (
            "preemption",
            {"reclaimWithinCohort": "Any", "borrowWithinCohort": {"policy": "LowerPriority"}},
            "who borrows evicts nobody",
        ),
        "newer of equal priority": (
            "preemption",
            {"withinClusterQueue": "LowerOrNewerEqualPriority"},
            "newer leases of the same priority",
        ),
        "namespaces by label": (
            "namespaceSelector",
            {"matchLabels": {"team": "x"}},
            "what labels a namespace has",
        ),
        "no namespace": ("namespaceSelector", None, "does not select it"),
    }.values(),
)
def test_what_has_no_counterpart_has_its_reason(field: str, value: Any, reason: str) -> None:
    """The note names the object and the field."""
    objects = documents(SITE)
    spec = next(one for one in objects if one["metadata"]["name"] == "vision-cq")["spec"]
    spec[field] = value

    found = [each for each in reasons(written(objects)) if reason in each]

    assert 1 == len(found)


@pytest.mark.parametrize(
    ("stop", "borrow"), [("None", {"policy": "Never"}), ("None", {})], ids=["never", "default"]
)
def test_what_a_default_says_is_no_news(stop: str, borrow: dict[str, str]) -> None:
    """Fields that say what holds anyway are read without a note."""
    objects = documents(SITE)
    spec = next(one for one in objects if one["metadata"]["name"] == "vision-cq")["spec"]
    spec["stopPolicy"] = stop
    spec["preemption"]["borrowWithinCohort"] = borrow

    assert reasons(SITE) == reasons(written(objects))


def test_nobody_gets_in_who_was_not_let_in() -> None:
    """A queue that selects no namespace, or others than those of its LocalQueue, gets no tenant."""
    for selector in (None, {"matchLabels": {"kubernetes.io/metadata.name": "other"}}):
        objects = documents(SITE)
        spec = next(one for one in objects if one["metadata"]["name"] == "vision-cq")["spec"]
        spec["namespaceSelector"] = selector

        records, _ = read_kueue(written(objects))

        assert ["lab"] == [one["data"]["queue"] for one in records if "queue" in one["data"]]


def test_local_queues_of_one_name_with_other_rules_stay_apart() -> None:
    """Two ClusterQueues with other rules behind one name are two queues."""
    text = SITE.replace("name: lab,", "name: main,")

    records, notes = read_kueue(text)

    queues = {one["data"]["queue"]: one["data"] for one in records if one["type"] == "queue.apply"}
    assert {"main.vision-cq": ["vision"], "main.research": ["alice", "bob"]} == {
        name: data["tenants"] for name, data in queues.items()
    }
    assert "strict" == queues["main.vision-cq"]["ordering"]
    assert any("others called main have other rules" in note.reason for note in notes)


def test_a_namespace_of_two_cluster_queues_has_a_note() -> None:
    """A tenant has one quota here: the first; the other one is told."""
    text = SITE.replace("namespace: bob", "namespace: vision")

    records, notes = read_kueue(text)

    parents = {one["data"]["tenant"]: one["data"]["parent"] for one in records[:6]}
    assert "vision-cq" == parents["vision"]
    assert any("what vision asks for counts against another" in note.reason for note in notes)
    check_valid(records)


def test_a_cohort_that_is_only_named_gets_the_sum_of_its_members() -> None:
    """Kueue takes a name without an object as a cohort without limits."""
    objects = [one for one in documents(SITE) if one["metadata"]["name"] not in ("teams", "org")]

    records, notes = read_kueue(written(objects))

    teams = next(one["data"] for one in records if one["data"].get("tenant") == "teams")
    assert (8000 + 7 * 143, None) == (teams["nominal_gpu_milli"], teams["parent"])
    (note,) = [note for note in notes if "teams has no object" in note.reason]
    assert re.fullmatch(r"ClusterQueue/[\w-]+:spec", note.path)


@pytest.mark.parametrize(
    ("text", "reason"),
    {
        "another group": (SITE.replace("kueue.x-k8s.io/", "example.com/"), "holds no"),
        "another version": (SITE.replace("v1beta2", "v1"), "holds no"),
        "no name": ("apiVersion: kueue.x-k8s.io/v1beta2\nkind: Cohort\nmetadata: {}", "is missing"),
        "a circle": (
            SITE.replace("{fairSharing: {weight", "{parentName: teams, x: {weight"),
            "circle",
        ),
        "twice": (SITE + "---" + SITE, "stands twice"),
        "a negative quota": (SITE.replace("nominalQuota: 8", "nominalQuota: -8"), "quantity"),
        "an unknown strategy": (SITE.replace("StrictFIFO", "LIFO"), "must be one of"),
        "more than any cell": (SITE.replace("nominalQuota: 8", "nominalQuota: 9M"), "more than"),
    }.values(),
)
def test_what_is_not_kueues_is_refused(text: str, reason: str) -> None:
    """The error says where and what."""
    with pytest.raises(NotTheFormat, match=reason):
        read_kueue(text)


def test_a_list_from_kubectl_is_read() -> None:
    """`kubectl get -o yaml` wraps objects in a List."""
    text = written([{"apiVersion": "v1", "kind": "List", "items": documents(SITE)}])

    assert read_kueue(SITE)[0] == read_kueue(text)[0]


def test_parts_of_devices_are_rounded_as_kueue_does() -> None:
    """Half a device of quota is one there, so it is one here, and it is said."""
    text = SITE.replace("nominalQuota: 8", 'nominalQuota: "7.5"')

    records, notes = read_kueue(text)

    assert read_kueue(SITE)[0] == records
    assert any("rounded up to 8, as Kueue does" in note.reason for note in notes)


# -- what Kueue cannot say -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "reason"),
    {
        "a part of a device": ([quota("a", None, (1500, None, None))], "whole devices"),
        "device memory": (
            [quota("a", None, (1000, None, None), limits=[limit("memory_mib", 5)])],
            "no quota of memory_mib",
        ),
        "less in all than in parts": (
            [quota("a", None, (1000, None, None), limits=[limit(f"model:{H100}", 2000)])],
            "its parts come to 1000 more",
        ),
        "limits without a parent": ([quota("a", None, (1000, 0, None))], "without a parent"),
        "a parent that is not there": (
            [quota("a", "b", (1000, None, None))],
            "b has no quota here",
        ),
        "a budget": (
            [quota("a", None, (0, None, None), budget={"gpu_hours": 1})],
            "has nothing for",
        ),
        "a name": ([quota("A_b", None, (0, None, None))], "is called a-b there"),
        "two of a name": (
            [quota("a-b", None, (0, None, None)), quota("a_b", None, (0, None, None))],
            "a-b is the name of another",
        ),
        "back-fill": (
            [quota("a", None, (0, None, None)), queue("q", ["a"], ordering="backfill")],
            "plans no place for the first",
        ),
        "evicting anybody": (
            [quota("a", None, (0, None, None)), queue("q", ["a"], preemption="any-tenant")],
            "in one ClusterQueue only",
        ),
        "everybody": ([quota("a", None, (0, None, None)), queue("q", [])], "everybody"),
        "a tenant without a quota": ([queue("q", ["x"])], "x left out"),
        "two sets of rules": (
            [
                quota("a", None, (0, None, None)),
                queue("q", ["a"]),
                queue("r", ["a"], ordering="strict"),
            ],
            "the rules of q are written",
        ),
        "a pool without labels": ([{"type": "pool.apply", "data": {"pool": "p"}}], "left out"),
        "a limit in all": (
            [
                quota("o", None, (1000, None, None)),
                quota("a", "o", (1000, 5000, None), limits=[limit(f"model:{H100}", 1000)]),
            ],
            "5000 in all cannot be said",
        ),
    }.values(),
)
def test_what_kueue_cannot_say_is_said(records: list[Any], reason: str) -> None:
    """Each loss on the way out has a note with the record and the field."""
    _, notes = write_kueue(records)

    assert 1 <= sum(reason in note.reason for note in notes)


def test_quotas_in_a_circle_are_refused() -> None:
    """The ledger never has them; a file may."""
    with pytest.raises(NotTheFormat, match="circle"):
        write_kueue([quota("a", "b", (0, None, None)), quota("b", "a", (0, None, None))])
