"""Whatever the text, a reader returns what the ledger takes, or raises its own error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.formats.asks import Options
from ledger.formats.documents import NotTheFormat, written
from ledger.formats.kueue import read_kueue
from ledger.formats.kueue_write import kueue_yaml, write_kueue
from ledger.formats.mig_parted import read_mig_parted, write_mig_parted
from ledger.formats.nomad import read_nomad
from ledger.formats.pod import read_pods
from ledger.formats.slurm import read_slurm
from schemas.catalogue import TYPES
from schemas.requests import RequestSubmit

if TYPE_CHECKING:
    from collections.abc import Callable

FORMATS = Path(__file__).parent.parent / "ledger" / "formats"

#: With these everything that a request needs is said.
SAID = Options(tenant="t", queue="q", task="x", shares=8, priorities={"high": 5})


def kueue(text: str) -> None:
    """Read policy; the ledger takes each record, and it can be written and read again."""
    records, notes = read_kueue(text)
    for record in records:
        whole = {"author": "tester", "reason": "", **record["data"]}
        TYPES[record["type"], 1].model.model_validate_json(orjson.dumps(whole))
    objects, more = write_kueue(records)
    if objects and any(one["kind"] != "ResourceFlavor" for one in objects):
        read_kueue(kueue_yaml(objects))
    assert all(str(note).isprintable() for note in (*notes, *more))


def mig_parted(text: str) -> None:
    """Read layouts; they can be written and are the same again."""
    layouts, notes = read_mig_parted(text)
    assert not layouts or layouts == read_mig_parted(write_mig_parted(layouts))[0]
    assert all(str(note).isprintable() for note in notes)


def requests(read: Callable[..., Any]) -> Callable[[str], None]:
    """Return a check of a reader of requests: the ledger takes what it returns."""

    def check(text: str) -> None:
        found, notes = read(text, SAID)
        for one in found if isinstance(found, list) else [found]:
            if one is not None:
                RequestSubmit.model_validate_json(orjson.dumps(one))
        assert all(str(note).isprintable() for note in notes)

    return check


READERS: dict[str, Callable[[str], None]] = {
    "kueue": kueue,
    "mig-parted": mig_parted,
    "pod": requests(read_pods),
    "slurm": requests(read_slurm),
    "nomad": requests(read_nomad),
}

#: Every field name and constant in the readers, so that a made-up document gets far into them.
WORDS = sorted(
    {
        word
        for path in FORMATS.glob("*.py")
        for word in re.findall(r'"([A-Za-z0-9${}./:+_-]{1,45})"', path.read_text())
    }
    | {"kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2", "v1", "Pod", "1g.10gb", "a", "b"}
)
SCALARS = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(["0", "1", "2", "7", "-1", "1.5", "500m", "1Gi", "9E", "x" * 300, "é\n", ""]),
    st.text(max_size=5),
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(WORDS), st.text(max_size=3)), inner, max_size=6),
    ),
    max_leaves=25,
)


def mostly(usual: st.SearchStrategy[Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return one strategy in fifteen of sixteen draws, and the other one in the last."""
    return st.sampled_from([*[usual] * 15, other]).flatmap(lambda found: found)


AMOUNT = mostly(st.sampled_from([0, 1, 7, "2", "500m", "1k"]), st.sampled_from([-1, "x", None]))
NAME = mostly(
    st.sampled_from(["a", "b", "c", "d", "org"]),
    st.sampled_from(["A_b", "x" * 80, "é", "", None, "nvidia.com/gpu"]),
)


def fields(**given_: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return mappings in which each field may be missing, or, rarely, something else."""
    drawn = {name: mostly(each, VALUES) for name, each in given_.items()}
    needed = {name: drawn.pop(name) for name in ("name", "nominalQuota") if name in drawn}
    return st.fixed_dictionaries(needed, optional=drawn)


LABEL = mostly(st.sampled_from(["x", "", "Tesla-T4"]), st.sampled_from(["é", "a\nb", "x" * 64]))
RESOURCES = st.lists(
    fields(
        name=st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "cpu"]),
        nominalQuota=AMOUNT,
        borrowingLimit=AMOUNT,
        lendingLimit=AMOUNT,
    ),
    min_size=1,
    max_size=2,
)
GROUPS = st.lists(
    fields(flavors=st.lists(fields(name=NAME, resources=RESOURCES), min_size=1, max_size=2)),
    max_size=2,
)
SELECTOR = st.sampled_from(
    [{}, None, {"matchLabels": {"kubernetes.io/metadata.name": "a"}}, {"matchLabels": {"x": "y"}}]
)
PREEMPTION = fields(
    reclaimWithinCohort=st.sampled_from(["Any", "Never", "x"]),
    withinClusterQueue=st.sampled_from(["LowerPriority", "Never"]),
)
KUEUE = st.lists(
    st.builds(
        lambda kind, name, spaces, spec: {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": kind,
            "metadata": {"name": name, "namespace": spaces},
            "spec": spec,
        },
        st.sampled_from(["ClusterQueue", "ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor"]),
        NAME,
        NAME,
        fields(
            cohortName=NAME,
            parentName=NAME,
            clusterQueue=NAME,
            resourceGroups=GROUPS,
            namespaceSelector=SELECTOR,
            preemption=PREEMPTION,
            fairSharing=fields(weight=st.sampled_from(["0", "0.5", "3", "1e-9", "9e9"])),
            nodeLabels=st.dictionaries(
                st.sampled_from(["nvidia.com/gpu.product", "zone", "a/b"]),
                st.sampled_from(["x", ""]),
            ),
        ),
    ),
    min_size=1,
    max_size=6,
)


OPTIONS = [
    *("--gres=", "--gpus=", "--gpus-per-node=", "--gpus-per-task=", "--tres-per-node=", "-G"),
    *("--time=", "--nodes=", "-N", "--ntasks=", "--cpus-per-task=", "-c", "-p", "-A"),
    *("--mem=", "--mem-per-gpu=", "--exclusive", "-H"),
]
TOKENS = [
    *("job", "group", "task", "resources", "device", "constraint", "count", "value"),
    *("{", "}", "=", "[", "]", ",", "f(", ")", "\n", "#", "/*", "*/"),
    *('"a"', '"gpu"', '"', "${x}", "1", "true", "null", "<<E\n", "E\n", "\\"),
]


@pytest.mark.parametrize("reader", READERS)
@given(text=st.text(max_size=120))
def test_any_text(reader: str, text: str) -> None:
    """Characters at random."""
    try:
        READERS[reader](text)
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error


@pytest.mark.parametrize("reader", READERS)
@given(value=VALUES)
def test_any_yaml(reader: str, value: Any) -> None:
    """Well-formed documents of any shape, made of the readers' own words."""
    try:
        READERS[reader](written([value]))
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error


@given(KUEUE)
def test_any_objects_of_kueue(objects: list[Any]) -> None:
    """Objects that are nearly right, in any combination of names, parents and namespaces."""
    try:
        kueue(written(objects))
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error


@given(
    containers=st.lists(fields(name=NAME, resources=VALUES, restartPolicy=NAME), max_size=3),
    amounts=st.dictionaries(
        st.sampled_from(
            ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "cpu", "memory"]
        ),
        AMOUNT,
    ),
    spec=fields(
        priority=AMOUNT,
        activeDeadlineSeconds=AMOUNT,
        nodeSelector=st.dictionaries(st.sampled_from(["nvidia.com/gpu.product", "a"]), LABEL),
        overhead=VALUES,
        resources=VALUES,
    ),
)
def test_any_pod(containers: list[Any], amounts: Any, spec: Any) -> None:
    """Pods that are nearly right."""
    spec |= {"containers": [*containers, {"resources": {"limits": amounts}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    try:
        READERS["pod"](written([pod]))
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error


DEVICE = fields(
    Name=mostly(
        st.sampled_from(["gpu", "nvidia/gpu", "nvidia/gpu/Tesla T4", "nvidia/gpu/T MIG 1g.5gb"]),
        st.sampled_from(["nvidia/gpu/é", "amd/gpu", "a/b/c/d"]),
    ),
    Count=AMOUNT,
    Constraints=st.lists(
        fields(
            LTarget=st.sampled_from(["${device.attr.memory}", "${device.model}", "${device.type}"]),
            Operand=st.sampled_from([">=", ">", "=", "is", "regexp"]),
            RTarget=st.sampled_from(["2 GiB", "1.5 GB", "gpu", "Tesla T4", "a\nb", ""]),
        ),
        max_size=2,
    ),
)
JOB = fields(
    ID=NAME,
    NodePool=NAME,
    Priority=AMOUNT,
    TaskGroups=st.lists(
        fields(
            Count=AMOUNT,
            Tasks=st.lists(
                fields(
                    Resources=fields(
                        Devices=st.lists(DEVICE, max_size=2), Cores=AMOUNT, MemoryMB=AMOUNT
                    )
                ),
                max_size=2,
            ),
        ),
        max_size=3,
    ),
)


@given(JOB)
def test_any_job_of_nomad(job: Any) -> None:
    """Jobs in JSON that are nearly right."""
    try:
        READERS["nomad"](json.dumps(job))
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error


@given(
    st.lists(
        st.builds(
            lambda name, value: f"{name}{value}",
            st.sampled_from(OPTIONS),
            st.one_of(
                st.sampled_from(
                    ["gpu:a100:4", "gpu:1g.10gb:2", "shard:1", "mps:50", "2", "1-0", "4G"]
                ),
                st.text(alphabet="gpu:1,-=abK \x01é", max_size=8),
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_line_of_slurm(words: list[str]) -> None:
    """Options in any combination, with values that are nearly right."""
    try:
        READERS["slurm"](" ".join(words))
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error


@given(
    st.lists(
        st.sampled_from(TOKENS),
        max_size=40,
    )
)
def test_any_hcl(tokens: list[str]) -> None:
    """Tokens of HCL in any order."""
    try:
        READERS["nomad"](" ".join(tokens))
    except NotTheFormat as error:
        assert str(error).isprintable()  # noqa: PT017 - the property is about the error
