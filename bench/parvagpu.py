"""``bench parvagpu``: pack ParvaGPU's published MIG segments again, into the fewest GPUs.

The deployment maps are public data (MIT licence): for each of six sets of service levels a
file ``parvagpu/SLO<n>_ParvaGPU_deploy.csv``, one segment a line, its size in compute slices.
"""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.mig_board import H100
from ledger.core.mig.packing import lower_bound, pack

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["data_folder", "run"]

#: A segment of so many compute slices is this profile: the one with no more memory than usual.
_PROFILES = {1: "1g.10gb", 2: "2g.20gb", 3: "3g.40gb", 4: "4g.40gb", 7: "7g.80gb"}


def data_folder(given: Path | None) -> Path:
    """Return where public data is: as given, else GPULEDGER_DATA, else beside the checkout."""
    named = os.environ.get("GPULEDGER_DATA")
    return given or (
        Path(named) if named else Path(__file__).parent.parent.parent / "shared" / "data"
    )


def run(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each deployment map. Raises FileNotFoundError where there is none."""
    files = sorted((folder / "parvagpu").glob("SLO*_ParvaGPU_deploy.csv"))
    if not files:
        raise FileNotFoundError(
            f"no parvagpu/SLO*_ParvaGPU_deploy.csv in {folder}: name the folder with --data "
            "or GPULEDGER_DATA; the maps are in the folder deployment/ of MunQ-Lee/ParvaGPU_SC24"
        )
    for path in files:
        with path.open(encoding="utf-8", newline="") as text:
            rows = list(csv.DictReader(text))
        profiles = [_PROFILES[int(row["Instance size"])] for row in rows]
        packing = pack(H100, profiles)
        yield {
            "bench": "parvagpu",
            "workload": "published MIG segments packed again",
            "slo": int(re.findall(r"\d+", path.name)[0]),
            "segments": len(profiles),
            "gpus": len(packing.devices),
            "lower_bound": lower_bound(H100, profiles),
            "published_gpus": len({(row["Num instance"], row["Num GPU"]) for row in rows}),
            "exact": packing.exact,
        }
