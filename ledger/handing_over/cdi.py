"""A grant as names of the Container Device Interface, and as options of docker and podman.

A name is ``VENDOR/CLASS=DEVICE``: Container Device Interface, ``SPEC.md``, "kind" and
"devices"; its device begins and ends with a letter or digit and has ``-``, ``_``, ``.`` and
``:`` between. NVIDIA's devices are called ``nvidia.com/gpu=UUID``, MIG instances too, where
the specification was made with names by UUID: NVIDIA Container Toolkit, "Support for
Container Device Interface" (``nvidia-ctk cdi generate --device-name-strategy=uuid``).
``docker run`` (25 and later) and ``podman run`` take such a name as ``--device``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ledger.handing_over.grant import CDI_KIND, NotSayable

if TYPE_CHECKING:
    from ledger.handing_over.grant import Part

__all__ = ["container_options", "device_names"]

_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")

_MPS = "CUDA_MPS_"


def device_names(part: Part) -> list[str]:
    """Return the qualified names of the part's devices.

    Raise `NotSayable` for devices that are given to a machine, and for a UUID that cannot
    be a name (that of a MIG instance before driver 470 has slashes).
    """
    wrong = [name for name in part.for_processes().names if not _DEVICE.fullmatch(name)]
    if wrong:
        raise NotSayable(f"{wrong[0]!r} cannot be the name of a CDI device")
    return [f"{CDI_KIND}={name}" for name in part.names]


def container_options(part: Part) -> list[str]:
    """Return the options that ``docker run`` and ``podman run`` take, as separate words.

    A share's limits go with them; the pipe directory of the MPS daemon is the site's, and
    has to be mounted. Raises as `device_names` does.
    """
    options = [word for name in device_names(part) for word in ("--device", name)]
    for name, value in part.given.environment.items():
        if name.startswith(_MPS):
            options += ["--env", f"{name}={value}"]
    return options
