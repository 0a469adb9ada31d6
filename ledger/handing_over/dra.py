"""A grant as a ResourceClaim of Kubernetes' Dynamic Resource Allocation, ``resource.k8s.io/v1``.

Kubernetes API reference, "ResourceClaim v1": a request says ``exactly`` which class and
count, and selects devices in CEL; ``status.allocation.devices.results`` names what was
given as ``DRIVER/POOL/DEVICE``. NVIDIA's driver ``gpu.nvidia.com`` has the classes
``gpu.nvidia.com`` and ``mig.nvidia.com``, and gives each device the attribute ``uuid``;
its own names (``gpu-0``) come from the device file's minor number, which may be another
after a restart. So a claim selects by UUID, and the allocation is looked up in the
driver's ResourceSlices and never made up (C01).
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ledger.handing_over.grant import NotSayable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.handing_over.grant import Part

__all__ = ["DRIVER", "resource_claim", "with_allocation"]

DRIVER = "gpu.nvidia.com"

_CLASSES = {"GPU-": "gpu.nvidia.com", "MIG-": "mig.nvidia.com"}
_REQUEST = "granted"
#: ``AllocationResultsMaxSize`` of the API: the most devices of one claim.
_MOST = 32
#: A string of CEL is written between quotes; a UUID has neither those nor a backslash.
_UUID = re.compile(r"[A-Za-z0-9/_.:-]{1,128}")


def resource_claim(lease: str, part: Part) -> dict[str, Any]:
    """Return a claim for just the devices of the part, which a pod can name.

    Raise `NotSayable` for shares (a claim has a device whole), for devices that are given
    to a machine, and for more than 32 devices.
    """
    names = part.for_processes().names
    if part.mps_percentage is not None:
        raise NotSayable("a ResourceClaim has its devices whole; this is a share of one")
    if not 1 <= len(names) <= _MOST:
        raise NotSayable(f"a ResourceClaim has 1 to {_MOST} devices; these are {len(names)}")
    classes = {_class_of(name) for name in names}
    if len(classes) > 1:
        raise NotSayable("devices and MIG slices together need a request each")
    listed = ", ".join(f'"{name}"' for name in names)
    request = {
        "name": _REQUEST,
        "exactly": {
            "deviceClassName": classes.pop(),
            "allocationMode": "ExactCount",
            "count": len(names),
            "selectors": [
                {"cel": {"expression": f'device.attributes["{DRIVER}"].uuid in [{listed}]'}}
            ],
        },
    }
    digest = blake2b(f"{lease} {part.given.node}".encode(), digest_size=10).hexdigest()
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"lease-{digest}",
            "annotations": {"gpuledger.io/lease": lease, "gpuledger.io/node": part.given.node},
        },
        "spec": {"devices": {"requests": [request]}},
    }


def with_allocation(
    claim: dict[str, Any], part: Part, slices: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Return the claim with its status: how the driver's ``slices`` name the part's devices.

    ``slices`` are ResourceSlices, v1 (in v1beta1 a device's attributes lie below
    ``basic``; both are read). Raise `NotSayable` for a device that is in none.
    """
    known = _devices_in(slices)
    missing = [name for name in part.names if name not in known]
    if missing:
        raise NotSayable(f"no ResourceSlice of {DRIVER} has {missing[0]}")
    results = [{"request": _REQUEST, **known[name][0]} for name in part.names]
    allocation: dict[str, Any] = {"devices": {"results": results}}
    nodes = sorted({node for name in part.names if (node := known[name][1])})
    if nodes:
        field = {"key": "metadata.name", "operator": "In", "values": nodes}
        allocation["nodeSelector"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {**claim, "status": {"allocation": allocation}}


def _class_of(name: str) -> str:
    found = _CLASSES.get(name[:4])
    if found is None or not _UUID.fullmatch(name):
        raise NotSayable(f"{name!r} is no UUID of {DRIVER}")
    return found


def _devices_in(slices: Iterable[dict[str, Any]]) -> dict[str, tuple[dict[str, str], str]]:
    """Return, by UUID, the device's driver, pool and name, and its node ("" when none)."""
    found = {}
    for one in slices:
        spec = one.get("spec", {})
        if spec.get("driver") != DRIVER:
            continue
        for device in spec.get("devices", ()):
            attributes = device.get("attributes") or device.get("basic", {}).get("attributes", {})
            value = attributes.get("uuid") or attributes.get(f"{DRIVER}/uuid") or {}
            name = {"driver": DRIVER, "pool": spec["pool"]["name"], "device": device["name"]}
            if "string" in value:
                found[value["string"]] = (name, spec.get("nodeName") or "")
    return found
