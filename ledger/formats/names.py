"""What other systems call what the ledger knows under another name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "GPU",
    "MAX_NAME",
    "MODELS",
    "NAMESPACE",
    "PRODUCT",
    "SHARED",
    "Product",
    "dns_name",
    "is_name",
    "is_profile",
    "models_like",
    "part_milli",
    "product_label",
    "product_of",
    "profile_of",
    "resource_of",
]

#: The resources of NVIDIA's device plugin: whole devices, and replicas of shared ones.
GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"

#: The node label of NVIDIA's feature discovery that names the model, blanks as hyphens.
PRODUCT = "nvidia.com/gpu.product"

#: The label by which Kubernetes lets a namespace be selected by its name.
NAMESPACE = "kubernetes.io/metadata.name"

#: The longest name of the ledger.
MAX_NAME = 63

#: Model names as NVML has them. A label or a Slurm type spells blanks otherwise, and
#: only a list can tell which hyphen was a blank.
MODELS = (
    "NVIDIA A10",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A16",
    "NVIDIA A2",
    "NVIDIA A30",
    "NVIDIA A40",
    "NVIDIA B200",
    "NVIDIA GB200",
    "NVIDIA GH200 480GB",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 NVL",
    "NVIDIA H100 PCIe",
    "NVIDIA H200",
    "NVIDIA H200 NVL",
    "NVIDIA L4",
    "NVIDIA L40",
    "NVIDIA L40S",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA RTX A6000",
    "Tesla P100-PCIE-16GB",
    "Tesla T4",
    "Tesla V100-PCIE-16GB",
    "Tesla V100-SXM2-16GB",
    "Tesla V100-SXM2-32GB",
)

#: Most devices that can be split have seven compute slices.
_SLICES = 7
_WHOLE_MILLI = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_PROFILE = re.compile(r"(?:[1-9]c\.)?[1-9]g\.[0-9]{1,4}gb(?:[+-][a-z.]{1,10})?")
_RESOURCE = re.compile(
    r"nvidia\.com/mig-((?:[1-9]c\.)?[1-9]g\.[0-9]{1,4}gb)(?:\.(me|me\.all|gfx))?"
)
_MIG_PRODUCT = re.compile(r"(.+)-MIG-([1-9]g\.[0-9]{1,4}gb)(?:\.(me|me\.all|gfx))?")
_SHARED_SUFFIX = "-SHARED"


def is_name(text: str) -> bool:
    """Say whether the ledger takes the text as a name."""
    return _NAME.fullmatch(text) is not None


def dns_name(text: str) -> str | None:
    """Return the text as a name that Kubernetes takes, blanks and ``_`` as hyphens, or None."""
    name = re.sub(r"[ _]+", "-", text.lower())
    return name if len(name) <= MAX_NAME and _DNS.fullmatch(name) else None


def is_profile(text: str) -> bool:
    """Say whether the text is a MIG profile that a request can name."""
    return _PROFILE.fullmatch(text) is not None


def profile_of(resource: str) -> str | None:
    """Return the MIG profile of a resource name: ``nvidia.com/mig-1g.10gb.me`` is 1g.10gb+me.

    The device plugin writes the ``+`` of a profile as a dot.
    """
    match = _RESOURCE.fullmatch(resource)
    return None if match is None else match[1] + (f"+{match[2]}" if match[2] else "")


def resource_of(profile: str) -> str:
    """Return the resource name of a MIG profile."""
    return "nvidia.com/mig-" + profile.replace("+", ".")


def part_milli(profile: str) -> int:
    """Return which part of a device of seven compute slices it is, in thousandths, rounded up.

    A device of four slices (A30, RTX PRO) has fewer and larger parts.
    """
    slices = int(profile[0])
    return min(_WHOLE_MILLI, -(-_WHOLE_MILLI * slices // _SLICES))


@dataclass(frozen=True, slots=True)
class Product:
    """What a product label says: the model and, where slices are advertised as GPUs, which.

    ``known``: the model is one of a list; otherwise it is spelled as the label has it.
    """

    model: str
    profile: str | None = None
    shared: bool = False
    known: bool = True


def product_of(label: str, models: Iterable[str] = ()) -> Product:
    """Read the value of a product label; ``models`` are names to know beside `MODELS`.

    With the MIG strategy ``single`` it ends with ``-MIG-1g.10gb``, and with
    ``-SHARED`` where devices are shared.
    """
    shared = label.endswith(_SHARED_SUFFIX)
    bare = label.removesuffix(_SHARED_SUFFIX)
    match = _MIG_PRODUCT.fullmatch(bare)
    profile = None
    if match is not None:
        bare, profile = match[1], match[2] + (f"+{match[3]}" if match[3] else "")
    names = {product_label(name): name for name in (*MODELS, *models)}
    return Product(names.get(bare, bare), profile, shared, bare in names)


def product_label(model: str) -> str:
    """Return the value that a product label has for a model."""
    return re.sub(r"\s+", "-", model)


def models_like(kind: str, models: Iterable[str] = ()) -> list[str]:
    """Return the models that a Slurm GPU type may mean.

    Slurm takes a type that is a part of the device's name, blanks as underscores.
    A whole word goes first: ``a10`` is not every A100.
    """
    wanted = kind.lower()
    spelled = {name: re.sub(r"[\s-]+", "_", name.lower()) for name in (*MODELS, *models)}
    wanted = re.sub(r"[\s-]+", "_", wanted)
    words = [name for name, text in spelled.items() if f"_{wanted}_" in f"_{text}_"]
    return words or [name for name, text in spelled.items() if wanted in text]
