"""A grant in the names of NVIDIA's device plugin for Kubernetes.

NVIDIA, "NVIDIA device plugin for Kubernetes", README: whole devices are the resource
``nvidia.com/gpu``, with the MIG strategy ``mixed`` slices are ``nvidia.com/mig-1g.10gb`` (a
``+`` in a profile becomes a dot), replicas of a shared device ``nvidia.com/gpu.shared``;
ids are UUIDs (``deviceIDStrategy: uuid``), and a container gets them in
``NVIDIA_VISIBLE_DEVICES``. The answer has the fields of the kubelet's device plugin API,
v1beta1: ``devicesIDs`` of a ContainerAllocateRequest, ``envs`` and ``cdi_devices`` of a
ContainerAllocateResponse.

A pod that asks for a number of such a resource is given devices of the kubelet's choice,
not of the ledger's. Who wants just these devices uses the ids, or `ledger.handing_over.dra`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.formats.names import GPU, SHARED, resource_of
from ledger.handing_over.cdi import device_names
from ledger.handing_over.grant import NotSayable

if TYPE_CHECKING:
    from ledger.handing_over.grant import Part

__all__ = ["plugin_allocation"]

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def plugin_allocation(part: Part) -> dict[str, Any]:
    """Return the resource with its number, the ids, and what the plugin gives a container.

    Raise `NotSayable` for devices that are given to a machine, and where kinds are not
    known or differ.
    """
    names = device_names(part)
    shared = part.mps_percentage is not None
    resources = {
        SHARED if shared else resource_of(kind.profile) if kind.profile else GPU
        for kind in part.known_kinds()
    }
    if len(resources) > 1:
        raise NotSayable(f"these are of several resources: {', '.join(sorted(resources))}")
    visible = {_VISIBLE: part.given.environment.get(_VISIBLE, "void")}
    response = {"envs": visible, "cdi_devices": [{"name": name} for name in names]}
    return {
        "node": part.given.node,
        "limits": {name: str(len(names)) for name in resources},
        "devicesIDs": list(part.names),
        "response": response,
    }
