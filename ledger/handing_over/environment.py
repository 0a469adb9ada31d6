"""A grant as environment: for a shell, for ``env``, and for the command that runs under it.

CUDA takes UUIDs in ``CUDA_VISIBLE_DEVICES``, of devices as ``GPU-...`` and of MIG instances
as ``MIG-...``, and orders devices by ``CUDA_DEVICE_ORDER``: NVIDIA, CUDA programming guide,
"CUDA Environment Variables". Shares are kept to their part by the client's variables of
MPS: NVIDIA, Multi-Process Service, "Environment Variables". ``NVIDIA_VISIBLE_DEVICES`` is
read by NVIDIA's container runtime. What the values are says `ledger.core.placing.grant`.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from ledger.handing_over.grant import NotSayable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.handing_over.grant import Part
    from schemas.messages import ReplyPart

__all__ = ["shell_line", "task_environment", "variables"]

#: A shell and ``env -S`` read a backslash between quotes differently, so neither gets one.
_PLAIN = re.compile(r"[ -\[\]-~]*")


def variables(part: Part) -> dict[str, str]:
    """Return what has to be set for a process that uses the part.

    Raise `NotSayable` for devices that are given to a machine.
    """
    return dict(part.for_processes().given.environment)


def shell_line(values: Mapping[str, str]) -> str:
    """Return ``NAME=VALUE ...`` on one line, quoted for a shell and for ``env -S`` alike.

    ``eval "export $LINE"`` and ``env -S "$LINE" COMMAND`` both take it. Raise `NotSayable`
    for a value that the two would read differently.
    """
    for name, value in values.items():
        if not _PLAIN.fullmatch(value):
            raise NotSayable(f"{name} has a character that cannot be quoted: {value!r}")
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())


def task_environment(lease: str, request: str, part: ReplyPart) -> dict[str, str]:
    """Return what the command that runs under the lease gets beside its own environment.

    It can name its lease and node; a launcher of machines finds what those are given.
    """
    found = {
        **part.environment,
        "GPULEDGER_LEASE": lease,
        "GPULEDGER_REQUEST": request,
        "GPULEDGER_NODE": part.node,
    }
    if part.pci_addresses:
        found["GPULEDGER_PCI_ADDRESSES"] = ",".join(part.pci_addresses)
    if part.vgpu_type:
        found["GPULEDGER_VGPU_TYPE"] = part.vgpu_type
    return found
