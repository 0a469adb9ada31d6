"""What models of boards can do: the tables that fake nodes are made of.

Profiles and placements are as ``nvidia-smi mig -lgip`` and ``-lgipp`` printed them, or as
the vendor's guide has them; of B200 and H200 no placement dump is known, so theirs are
those of H100, whose ids and counts they share, and what is not known of B200's profiles
of three slices and more is in proportion. A real node's are read from NVML.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BOARDS", "Board", "Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A GPU instance profile. ``enum`` is what it is asked by, ``id`` what it is created by.

    ``starts`` and ``size`` are in placement units, ``memory_mib`` is what NVML prints.
    ``engines`` are copy engines, decoders, encoders, JPEG decoders, optical flow.
    """

    name: str
    enum: int
    id: int
    slices: int
    memory_mib: int
    sms: int
    engines: tuple[int, int, int, int, int]
    size: int
    starts: tuple[int, ...]
    most: int

    @property
    def has_media(self) -> bool:
        """Whether it takes the board's one set of media extensions (``+me``)."""
        return self.name.endswith("+me") or self.name.endswith("+me.all")


@dataclass(frozen=True, slots=True)
class Board:
    """A model of board.

    ``architecture`` is NVML's number, ``units`` the placement units, ``mig_resets`` whether
    a change of MIG mode needs a reset (Ampere) and then survives a reboot. ``halves`` are
    the ids of the two instances of half a board, lower half first: they differ from board
    to board. ``idle_mib`` is what an instance uses when idle, by its compute slices.
    """

    name: str
    model: str
    memory_mib: int
    reserved_mib: int
    architecture: int
    capability: tuple[int, int]
    device_id: int
    power_limit_mw: int
    units: int = 0
    shapes: tuple[Shape, ...] = ()
    mig_resets: bool = False
    halves: tuple[int, int] = (1, 2)
    nvlinks: int = 0
    gpm: bool = False
    remaps: bool = True
    idle_mib: dict[int, int] = field(default_factory=lambda: {1: 9, 2: 17, 3: 26})
    pcie: tuple[int, int] = (4, 16)

    def shape(self, name: str) -> Shape:
        """Return the profile of that name."""
        return next(one for one in self.shapes if one.name == name)


_SEVEN = tuple(range(7))
_PAIRS = (0, 2, 4, 6)
#: Enum, id, compute slices, size and starts of the boards with eight placement units.
_EIGHT_UNITS = (
    (0, 19, 1, 1, _SEVEN, 7),
    (7, 20, 1, 1, _SEVEN, 1),
    (9, 15, 1, 2, _PAIRS, 4),
    (1, 14, 2, 2, (0, 2, 4), 3),
    (2, 9, 3, 4, (0, 4), 2),
    (3, 5, 4, 4, (0,), 1),
    (4, 0, 7, 8, (0,), 1),
)

_Engines = tuple[int, int, int, int, int]
_AMPERE = (14, 14, 14, 28, 42, 56, 98)
_AMPERE_ENGINES: tuple[_Engines, ...] = (
    (1, 0, 0, 0, 0),
    (1, 1, 0, 1, 1),
    (1, 1, 0, 0, 0),
    (2, 1, 0, 0, 0),
    (3, 2, 0, 0, 0),
    (4, 2, 0, 0, 0),
    (7, 5, 0, 1, 1),
)
_HOPPER = (16, 16, 26, 32, 60, 64, 132)
_HOPPER_ENGINES: tuple[_Engines, ...] = (
    (1, 1, 0, 1, 0),
    (1, 1, 0, 1, 1),
    (1, 1, 0, 1, 0),
    (2, 2, 0, 2, 0),
    (3, 3, 0, 3, 0),
    (4, 4, 0, 4, 0),
    (8, 7, 0, 7, 1),
)
_BLACKWELL = (18, 18, 30, 36, 66, 72, 148)
_BLACKWELL_ENGINES: tuple[_Engines, ...] = (
    (2, 1, 0, 1, 0),
    (2, 1, 0, 1, 1),
    (2, 1, 0, 1, 0),
    (4, 2, 0, 2, 0),
    (6, 3, 0, 3, 0),
    (8, 4, 0, 4, 0),
    (16, 7, 0, 7, 1),
)


def _eight(
    names: str, memory_mib: tuple[int, ...], sms: tuple[int, ...], engines: tuple[_Engines, ...]
) -> tuple[Shape, ...]:
    return tuple(
        Shape(name, enum, number, slices, memory, sm, engine, size, starts, most)
        for name, memory, sm, engine, (enum, number, slices, size, starts, most) in zip(
            names.split(), memory_mib, sms, engines, _EIGHT_UNITS, strict=True
        )
    )


_ONES = (0, 1, 2, 3)
_A30 = (
    Shape("1g.6gb", 0, 14, 1, 5_952, 14, (1, 0, 0, 0, 0), 1, _ONES, 4),
    Shape("1g.6gb+me", 7, 21, 1, 5_952, 14, (1, 1, 0, 1, 1), 1, _ONES, 1),
    Shape("2g.12gb", 1, 5, 2, 11_968, 28, (2, 2, 0, 0, 0), 2, (0, 2), 2),
    Shape("2g.12gb+me", 8, 6, 2, 11_968, 28, (2, 2, 0, 1, 1), 2, (0, 2), 1),
    Shape("4g.24gb", 3, 0, 4, 24_000, 56, (4, 4, 0, 1, 1), 4, (0,), 1),
)
_THIRDS, _SIXES = (0, 3, 6, 9), (0, 6)
_RTX_PRO_6000 = (
    Shape("1g.24gb", 0, 14, 1, 24_192, 46, (1, 1, 1, 1, 0), 3, _THIRDS, 4),
    Shape("1g.24gb+me", 7, 21, 1, 24_192, 46, (1, 1, 1, 1, 1), 3, _THIRDS, 1),
    Shape("1g.24gb+gfx", 10, 47, 1, 24_192, 46, (1, 1, 1, 1, 0), 3, _THIRDS, 4),
    Shape("1g.24gb+me.all", 15, 65, 1, 24_192, 46, (1, 4, 4, 4, 1), 3, _THIRDS, 1),
    Shape("1g.24gb-me", 13, 67, 1, 24_192, 46, (1, 0, 0, 0, 0), 3, _THIRDS, 4),
    Shape("2g.48gb", 1, 5, 2, 48_512, 94, (2, 2, 2, 2, 0), 6, _SIXES, 2),
    Shape("2g.48gb+gfx", 11, 35, 2, 48_512, 94, (2, 2, 2, 2, 0), 6, _SIXES, 2),
    Shape("2g.48gb+me.all", 16, 64, 2, 48_512, 94, (2, 4, 4, 4, 1), 6, _SIXES, 1),
    Shape("2g.48gb-me", 14, 66, 2, 48_512, 94, (2, 0, 0, 0, 0), 6, _SIXES, 2),
    Shape("4g.96gb", 3, 0, 4, 97_408, 188, (4, 4, 4, 4, 1), 12, (0,), 1),
    Shape("4g.96gb+gfx", 12, 32, 4, 97_408, 188, (4, 4, 4, 4, 1), 12, (0,), 1),
)

BOARDS: dict[str, Board] = {
    one.name: one
    for one in (
        Board(
            "A100-40GB", "NVIDIA A100-SXM4-40GB", 40_960, 571, 7, (8, 0), 0x20B010DE, 400_000,
            8,
            _eight("1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
                   (4_864, 4_864, 9_856, 9_856, 19_968, 19_968, 40_192),
                   _AMPERE, _AMPERE_ENGINES),
            mig_resets=True, halves=(2, 1), nvlinks=12, idle_mib={1: 3, 2: 7, 3: 11},
        ),
        Board(
            "A100-80GB", "NVIDIA A100-SXM4-80GB", 81_920, 869, 7, (8, 0), 0x20B210DE, 500_000,
            8,
            _eight("1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
                   (9_728, 9_728, 19_968, 19_968, 40_192, 40_192, 80_640),
                   _AMPERE, _AMPERE_ENGINES),
            mig_resets=True, halves=(2, 1), nvlinks=12, idle_mib={1: 12, 2: 14, 3: 19},
        ),
        Board(
            "A30-24GB", "NVIDIA A30", 24_576, 400, 7, (8, 0), 0x20B710DE, 165_000,
            4, _A30, mig_resets=True, nvlinks=4,
        ),
        Board(
            "H100-80GB", "NVIDIA H100 80GB HBM3", 81_559, 479, 9, (9, 0), 0x233010DE, 700_000,
            8,
            _eight("1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
                   (9_984, 9_984, 20_096, 20_096, 40_448, 40_448, 81_152),
                   _HOPPER, _HOPPER_ENGINES),
            nvlinks=18, gpm=True, pcie=(5, 16),
        ),
        Board(
            "H200-141GB", "NVIDIA H200", 143_771, 600, 9, (9, 0), 0x233510DE, 700_000,
            8,
            _eight("1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
                   (16_384, 16_384, 33_024, 33_280, 71_424, 71_424, 143_360),
                   _HOPPER, _HOPPER_ENGINES),
            nvlinks=18, gpm=True, pcie=(5, 16), idle_mib={1: 9, 2: 17, 3: 22},
        ),
        Board(
            "B200-180GB", "NVIDIA B200", 183_359, 700, 10, (10, 0), 0x290110DE, 1_000_000,
            8,
            _eight("1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
                   (22_528, 22_528, 45_312, 45_312, 90_624, 90_624, 182_784),
                   _BLACKWELL, _BLACKWELL_ENGINES),
            nvlinks=18, gpm=True, pcie=(6, 16),
        ),
        Board(
            "RTX-PRO-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887, 600, 10,
            (12, 0), 0x2BB510DE, 600_000, 12, _RTX_PRO_6000, halves=(1, 2), gpm=True, pcie=(5, 16),
            idle_mib={1: 30, 2: 44, 4: 60},
        ),
        Board(
            "T4", "Tesla T4", 15_360, 388, 6, (7, 5), 0x1EB810DE, 70_000,
            remaps=False, pcie=(3, 16),
        ),
        Board("L40S", "NVIDIA L40S", 46_068, 609, 8, (8, 9), 0x26B910DE, 350_000),
    )
}  # fmt: skip
