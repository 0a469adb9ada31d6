"""A grant as generic resources of Slurm: options of a job, lines of ``gres.conf``, variables.

SchedMD, "Generic Resource (GRES) Scheduling" and ``gres.conf(5)``: a demand is
``--gres=name[:type]:count`` for each node. With ``AutoDetect=nvml`` the type of a device is
its name in lower case with blanks as underscores, that of a MIG slice ends with
``_PROFILE``. A part of a device under MPS is ``mps:PER CENTS``, of one device on a node.
``SLURM_JOB_GPUS`` has the numbers of the devices on the node.

``gres.conf`` knows a device by its file, whose number the ledger does not have; so its
lines count devices and leave the files to ``AutoDetect``. Slurm chooses devices itself:
what names just those granted is the environment.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ledger.handing_over.grant import NotSayable

if TYPE_CHECKING:
    from ledger.handing_over.grant import Kind, Part

__all__ = ["gres_conf", "gres_type", "job_options", "job_variables"]


def gres_type(kind: Kind) -> str:
    """Return the type that ``AutoDetect=nvml`` gives a device or slice of this kind."""
    model = re.sub(r"\s+", "_", kind.model.lower())
    return f"{model}_{kind.profile}" if kind.profile else model


def job_options(part: Part) -> list[str]:
    """Return the options of ``sbatch`` or ``srun`` that ask for as much on the same node.

    Raise `NotSayable` where devices are given to a machine, kinds are not known, or a model
    has a name that cannot be a type.
    """
    percentage = part.for_processes().mps_percentage
    if percentage is not None:
        gres = f"mps:{percentage}"
    else:
        gres = ",".join(f"gpu:{name}:{count}" for name, count in _types(part).items()) or "none"
    return [f"--nodelist={part.given.node}", f"--gres={gres}"]


def gres_conf(part: Part) -> list[str]:
    """Return lines of ``gres.conf`` that describe the part's devices on their node."""
    head = f"NodeName={part.given.node} AutoDetect=nvml Name=gpu"
    return [f"{head} Type={name} Count={count}" for name, count in _types(part).items()]


def job_variables(part: Part) -> dict[str, str]:
    """Return Slurm's own variables of a job that has the part; no number is made up.

    ``SLURM_JOB_GPUS`` is left out for slices and where the node told no numbers: they are
    sightings, for people who look at both systems.
    """
    kinds = part.known_kinds()
    numbers = [str(kind.index) for kind in kinds if kind.index is not None and not kind.profile]
    found = {"SLURM_JOB_NODELIST": part.given.node, "SLURM_GPUS_ON_NODE": str(len(kinds))}
    if numbers and len(numbers) == len(kinds):
        found["SLURM_JOB_GPUS"] = ",".join(numbers)
    return found


def _types(part: Part) -> dict[str, int]:
    counts = Counter(gres_type(kind) for kind in part.for_processes().known_kinds())
    wrong = [name for name in counts if not re.fullmatch(r"[!-+\--9;<>-~]+", name)]
    if wrong:
        raise NotSayable(f"{wrong[0]!r} cannot be a type of Slurm: it has ':', ',' or '='")
    return dict(counts)
