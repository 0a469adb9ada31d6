"""A grant in the words of others: each form checked against what the format's document says."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.formats.pod import read_pods
from ledger.formats.slurm import read_slurm
from ledger.handing_over.cdi import container_options, device_names
from ledger.handing_over.device_plugin import plugin_allocation
from ledger.handing_over.dra import resource_claim, with_allocation
from ledger.handing_over.environment import shell_line, task_environment, variables
from ledger.handing_over.grant import Kind, NotSayable, Part
from ledger.handing_over.slurm import gres_conf, gres_type, job_options, job_variables
from schemas.messages import ReplyPart

if TYPE_CHECKING:
    from collections.abc import Callable

H100 = "NVIDIA H100 80GB HBM3"
GPUS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-07f83f9b-4f2f-6c91-791e-293817b026c0")
MIGS = ("MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d")
LEASE = "/cli/tester#first/1"


def _given(names: tuple[str, ...], **more: Any) -> ReplyPart:
    """Return a part as a reply has it (`ledger.core.placing.grant`)."""
    listed = ",".join(names)
    plain = {
        "node": "n1",
        "units": names,
        "environment": {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": listed,
            "NVIDIA_VISIBLE_DEVICES": listed or "void",
        },
        "cdi": tuple(f"nvidia.com/gpu={name}" for name in names),
    }
    return ReplyPart.model_validate({**plain, **more})


WHOLE = Part(_given(GPUS), (Kind(H100, index=2), Kind(H100, index=3)))
MIG = Part(_given(MIGS), (Kind(H100, "1g.10gb", 0), Kind(H100, "1g.10gb", 0)))
SHARE = Part(
    _given(
        GPUS[:1],
        environment={
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": GPUS[0],
            "NVIDIA_VISIBLE_DEVICES": GPUS[0],
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        },
        isolation="none",
    ),
    (Kind(H100, index=0),),
)
NOTHING = Part(_given(()))
MACHINE = Part(
    _given(GPUS[:1], environment={}, cdi=(), pci_addresses=("0000:17:00.0",)), (Kind(H100),)
)
MIXED = Part(_given((GPUS[0], MIGS[0])), (Kind(H100), Kind(H100, "1g.10gb")))


# -- environment -------------------------------------------------------------------------

#: CUDA programming guide, "CUDA_VISIBLE_DEVICES": UUIDs as nvidia-smi -L prints them.
_CUDA_NAME = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: MPS, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": DEVICE=LIMIT, with a unit, separated by commas.
_MPS_LIMIT = re.compile(r"[0-9]+=[0-9]+[MG]B?(,[0-9]+=[0-9]+[MG]B?)*")


@pytest.mark.parametrize("part", [WHOLE, MIG, SHARE])
def test_environment_names_devices_by_uuid(part: Part) -> None:
    """CUDA is told UUIDs, never numbers, and an order that does not change (C01)."""
    values = variables(part)

    assert all(map(_CUDA_NAME.fullmatch, values["CUDA_VISIBLE_DEVICES"].split(",")))
    assert "PCI_BUS_ID" == values["CUDA_DEVICE_ORDER"]
    assert _MPS_LIMIT.fullmatch(values.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M"))


def test_no_device_is_seen_where_none_was_granted() -> None:
    """Unset means all to CUDA and to the container runtime; empty and void mean none."""
    values = variables(NOTHING)

    assert ("", "void") == (values["CUDA_VISIBLE_DEVICES"], values["NVIDIA_VISIBLE_DEVICES"])
    assert [] == container_options(NOTHING)


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.from_regex(r"\A[A-Z][A-Z_]{3,12}_G\Z"),
        st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]), max_size=12),
        min_size=1,
        max_size=3,
    )
)
def test_a_shell_and_env_read_the_line_alike(values: dict[str, str]) -> None:
    """``eval export`` and ``env -S`` set just the values, whatever is in them, or none."""
    if any("\\" in value for value in values.values()):
        with pytest.raises(NotSayable, match="cannot be quoted"):
            shell_line(values)
        return
    line = shell_line(values)
    for command in (
        ["sh", "-c", 'eval "export $1"; exec env --null', "sh", line],
        ["env", "-S", line, "env", "--null"],
    ):
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout

        assert values == {
            name: value
            for name, _, value in (one.partition("=") for one in found.split("\0"))
            if name in values
        }


def test_a_task_can_name_its_lease() -> None:
    """A command gets the devices and its lease; a launcher of machines what those are given."""
    assert {
        **WHOLE.given.environment,
        "GPULEDGER_LEASE": LEASE,
        "GPULEDGER_REQUEST": "/cli/tester#first",
        "GPULEDGER_NODE": "n1",
    } == task_environment(LEASE, "/cli/tester#first", WHOLE.given)
    assert "0000:17:00.0" == task_environment(LEASE, "r", MACHINE.given)["GPULEDGER_PCI_ADDRESSES"]


# -- CDI, docker, podman -----------------------------------------------------------------

#: SPEC.md of the Container Device Interface: a kind is a DNS name, a slash and a name; a
#: device begins and ends with a letter or digit.
_QUALIFIED = re.compile(
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?"
    r"=[A-Za-z0-9]([\w.:-]*[A-Za-z0-9])?"
)


@pytest.mark.parametrize("part", [WHOLE, MIG, SHARE])
def test_cdi_names_are_qualified(part: Part) -> None:
    """Each name is one of the CDI, and ends with the UUID, of a MIG instance too."""
    names = device_names(part)

    assert list(part.given.cdi) == names
    assert all(map(_QUALIFIED.fullmatch, names))


def test_an_old_mig_uuid_is_no_cdi_name() -> None:
    """``MIG-GPU-UUID/GI/CI`` has slashes, which a name may not have."""
    with pytest.raises(NotSayable, match="cannot be the name"):
        device_names(Part(_given((f"MIG-{GPUS[0]}/1/0",))))


def test_containers_get_devices_and_limits() -> None:
    """``--device`` once for each device; a share's limits of MPS come along."""
    assert [
        "--device", f"nvidia.com/gpu={GPUS[0]}", "--device", f"nvidia.com/gpu={GPUS[1]}",
    ] == container_options(WHOLE)  # fmt: skip
    assert [
        "--device", f"nvidia.com/gpu={GPUS[0]}",
        "--env", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25",
        "--env", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M",
    ] == container_options(SHARE)  # fmt: skip


# -- Dynamic Resource Allocation ---------------------------------------------------------


def _slice(node: str, **uuids: str) -> dict[str, Any]:
    """Return a ResourceSlice, v1, as NVIDIA's driver publishes it: names by minor number."""
    devices = [
        {
            "name": name.replace("_", "-"),
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for name, uuid in uuids.items()
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}


def test_a_claim_selects_just_the_devices() -> None:
    """One request of the v1 API, ``exactly`` so many of the class, by UUID."""
    claim = resource_claim(LEASE, WHOLE)
    (request,) = claim["spec"]["devices"]["requests"]

    assert ("resource.k8s.io/v1", "ResourceClaim") == (claim["apiVersion"], claim["kind"])
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", request["name"])
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", claim["metadata"]["name"])
    expression = f'device.attributes["gpu.nvidia.com"].uuid in ["{GPUS[0]}", "{GPUS[1]}"]'
    assert {
        "deviceClassName": "gpu.nvidia.com",
        "allocationMode": "ExactCount",
        "count": 2,
        "selectors": [{"cel": {"expression": expression}}],
    } == request["exactly"]
    slices = resource_claim(LEASE, MIG)["spec"]["devices"]["requests"][0]["exactly"]
    assert "mig.nvidia.com" == slices["deviceClassName"]


def test_claims_of_a_gang_have_names_of_their_own() -> None:
    """One lease on two nodes is two claims; the same part is the same claim."""
    other = Part(_given(MIGS, node="n2"), MIG.kinds)
    names = [resource_claim(LEASE, part)["metadata"]["name"] for part in (MIG, other, MIG)]

    assert names[0] == names[2] != names[1]


def test_an_allocation_has_the_drivers_names() -> None:
    """The status says driver, pool and device as the ResourceSlices do, and where."""
    other = {"spec": {"driver": "net.example.com", "devices": [{"name": "eth0"}]}}
    slices = [other, _slice("k8s-n1", gpu_0=GPUS[1], gpu_7=GPUS[0])]
    done = with_allocation(resource_claim(LEASE, WHOLE), WHOLE, slices)
    field = {"key": "metadata.name", "operator": "In", "values": ["k8s-n1"]}
    result = {"request": "granted", "driver": "gpu.nvidia.com", "pool": "k8s-n1"}

    assert {
        "devices": {"results": [{**result, "device": "gpu-7"}, {**result, "device": "gpu-0"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    } == done["status"]["allocation"]
    with pytest.raises(NotSayable, match=GPUS[1]):
        with_allocation(done, WHOLE, [_slice("k8s-n1", gpu_0=GPUS[0])])


def test_a_claim_has_no_more_devices_than_the_api_takes() -> None:
    """32 is the most results of an allocation; a CEL expression has at most 10 Ki characters."""
    names = tuple(f"GPU-{number:08x}-d72c-4106-c12f-20bd9faed9f6" for number in range(33))
    claim = resource_claim(LEASE, Part(_given(names[:32])))
    selector = claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]

    assert len(selector["cel"]["expression"]) <= 10 * 1024
    with pytest.raises(NotSayable, match="1 to 32"):
        resource_claim(LEASE, Part(_given(names)))


# -- device plugin -----------------------------------------------------------------------

RESOURCES = {
    "devices": (WHOLE, {"nvidia.com/gpu": "2"}),
    "slices": (MIG, {"nvidia.com/mig-1g.10gb": "2"}),
    "slices with media engines": (
        Part(MIG.given, (Kind(H100, "1g.10gb+me"), Kind(H100, "1g.10gb+me"))),
        {"nvidia.com/mig-1g.10gb.me": "2"},
    ),
    "a share": (SHARE, {"nvidia.com/gpu.shared": "1"}),
}


@pytest.mark.parametrize(("part", "limits"), RESOURCES.values(), ids=RESOURCES.keys())
def test_device_plugin_resources(part: Part, limits: dict[str, str]) -> None:
    """The README's resource names, and what its plugin answers the kubelet."""
    found = plugin_allocation(part)

    assert limits == found["limits"]
    assert list(part.names) == found["devicesIDs"]
    assert {"NVIDIA_VISIBLE_DEVICES": ",".join(part.names)} == found["response"]["envs"]
    assert [{"name": name} for name in part.given.cdi] == found["response"]["cdi_devices"]


@pytest.mark.parametrize("part", [WHOLE, MIG])
def test_our_reader_of_pods_understands_the_limits(part: Part) -> None:
    """A pod with these limits is read as a request for as much."""
    limits = "".join(f"\n        {n}: {v}" for n, v in plugin_allocation(part)["limits"].items())
    pod = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: t}\nspec:\n  containers:\n"
        f"  - name: c\n    resources:\n      limits:{limits}\n"
    )
    requests, _ = read_pods(pod)
    ask = requests[0]["ask"]

    assert 2 == ask["count"]
    assert part.kinds[0].profile == ask.get("profile", "")


# -- Slurm -------------------------------------------------------------------------------


def test_slurm_options_and_configuration() -> None:
    """``--gres=name:type:count``, the type as AutoDetect has it; MIG types end with a profile."""
    assert ["--nodelist=n1", "--gres=gpu:nvidia_h100_80gb_hbm3:2"] == job_options(WHOLE)
    assert ["--nodelist=n1", "--gres=gpu:nvidia_h100_80gb_hbm3_1g.10gb:2"] == job_options(MIG)
    assert ["--nodelist=n1", "--gres=mps:25"] == job_options(SHARE)
    assert ["--nodelist=n1", "--gres=none"] == job_options(NOTHING)
    assert ["NodeName=n1 AutoDetect=nvml Name=gpu Type=nvidia_h100_80gb_hbm3 Count=2"] == gres_conf(
        WHOLE
    )
    assert {
        "SLURM_JOB_NODELIST": "n1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "2,3",
    } == job_variables(WHOLE)  # fmt: skip


def test_slurm_numbers_are_not_made_up() -> None:
    """A slice has no number of a device, and what the node did not tell is left out."""
    unknown = Part(WHOLE.given, (Kind(H100, index=0), Kind(H100)))

    assert "SLURM_JOB_GPUS" not in job_variables(MIG)
    assert "SLURM_JOB_GPUS" not in job_variables(unknown)


@pytest.mark.parametrize("part", [WHOLE, MIG])
def test_our_reader_of_slurm_understands_the_options(part: Part) -> None:
    """A job with these options is read as a request for as much, of the same kind."""
    request, _ = read_slurm(f"sbatch {shlex.join(job_options(part))} --account=t --partition=q")
    assert request is not None

    assert 2 == request["ask"]["count"]
    assert part.kinds[0].profile == request["ask"].get("profile", "")
    assert [H100] == list(request["ask"]["models"])


def test_a_model_with_a_colon_is_no_slurm_type() -> None:
    """``name:type:count`` could not be taken apart again."""
    with pytest.raises(NotSayable, match="cannot be a type"):
        job_options(Part(WHOLE.given, (Kind("A:B"), Kind("A:B"))))
    assert "tesla_t4" == gres_type(Kind("Tesla  T4"))


# -- what cannot be said -----------------------------------------------------------------

FORMS: dict[str, Callable[[Part], object]] = {
    "environment": variables,
    "cdi": device_names,
    "docker": container_options,
    "dra": lambda part: resource_claim(LEASE, part),
    "device-plugin": plugin_allocation,
    "slurm": job_options,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_devices_of_a_machine_are_not_handed_to_processes(form: Callable[[Part], object]) -> None:
    """Passthrough is refused with the address, not said as no device at all."""
    with pytest.raises(NotSayable, match=r"0000:17:00\.0 on n1 is given to a machine"):
        form(MACHINE)


UNSAYABLE = {
    "a share as a claim": (lambda: resource_claim(LEASE, SHARE), "this is a share"),
    "no device as a claim": (lambda: resource_claim(LEASE, NOTHING), "these are 0"),
    "two classes in one claim": (lambda: resource_claim(LEASE, MIXED), "a request each"),
    "another vendor's device": (
        lambda: resource_claim(LEASE, Part(_given(("0000-1",)))),
        "is no UUID",
    ),
    "two resources": (lambda: plugin_allocation(MIXED), "several resources"),
    "a type from a reply alone": (lambda: job_options(Part(WHOLE.given)), "does not say"),
    "a resource from a reply alone": (lambda: plugin_allocation(Part(MIG.given)), "does not say"),
}


@pytest.mark.parametrize(("say", "why"), UNSAYABLE.values(), ids=UNSAYABLE.keys())
def test_what_a_format_has_no_words_for(say: Callable[[], object], why: str) -> None:
    """It is refused with the reason, and never said as something else."""
    with pytest.raises(NotSayable, match=why):
        say()
