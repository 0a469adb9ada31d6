"""The board of the MIG benches: what an H100 80GB HBM3 reports (nvidia-smi mig -lgip, -lgipp).

An A100 80GB has the same placements. The benches leave out the one profile with the media
engines, which the protocols they follow do not ask for.
"""

from __future__ import annotations

from ledger.core.mig.layouts import Geometry, Profile

__all__ = ["H100"]

H100 = Geometry(
    memory_slices=8,
    compute_slices=7,
    profiles=(
        Profile("1g.10gb", 1, 1, 9_984, (0, 1, 2, 3, 4, 5, 6), 7),
        Profile("1g.20gb", 2, 1, 20_096, (0, 2, 4, 6), 4),
        Profile("2g.20gb", 2, 2, 20_096, (0, 2, 4), 3),
        Profile("3g.40gb", 4, 3, 40_448, (0, 4), 2),
        Profile("4g.40gb", 4, 4, 40_448, (0,), 1),
        Profile("7g.80gb", 8, 7, 81_152, (0,), 1),
    ),
)
