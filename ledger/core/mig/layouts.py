"""MIG layouts of one device: what fits where, the smallest profile that does, and changes.

All is computed on the geometry that the device itself reported: no board is known
here. Memory slices are what placements are counted in (8 on an H100, 4 on an A30),
compute slices are what a profile's name counts (7 and 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = [
    "CREATE_MS",
    "DESTROY_MS",
    "MOST_SLICES",
    "RELAYOUT_MS",
    "Change",
    "Geometry",
    "Instance",
    "Profile",
    "Refusal",
    "Step",
    "complete_layout",
    "layout_with",
    "legal_starts",
    "occupation_fault",
    "plan_change",
    "smallest_profile",
]

#: A device with more memory slices than this, more instances at once, or more placements of
#: all its profiles is not planned: tables grow with what fits, twofold with each instance.
#: Boards have up to 8 slices, 7 instances and a hundred placements.
MOST_SLICES = 16
MOST_INSTANCES = 8
MOST_PLACES = 256

#: What a change costs (ms): the figures that MIGBench charges.
CREATE_MS, DESTROY_MS, RELAYOUT_MS = 250, 100, 1_500


@dataclass(frozen=True, slots=True)
class Profile:
    """A kind of instance. ``most`` is how many of it the device takes at once; 0: as fit."""

    name: str
    size: int
    compute_slices: int
    memory_mib: int
    starts: tuple[int, ...]
    most: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a device says of itself. Starts are sorted; raises ValueError on nonsense."""

    memory_slices: int
    compute_slices: int
    profiles: tuple[Profile, ...]

    def __post_init__(self) -> None:
        if not 0 < self.memory_slices <= MOST_SLICES:
            raise ValueError(f"{self.memory_slices} memory slices, not 1 to {MOST_SLICES}")
        if self.compute_slices < 1:
            raise ValueError(f"{self.compute_slices} compute slices")
        if len({one.name for one in self.profiles}) < len(self.profiles):
            raise ValueError("two profiles have one name")
        if sum(len(one.starts) for one in self.profiles) > MOST_PLACES:
            raise ValueError(f"more than {MOST_PLACES} placements")
        for one in self.profiles:
            if one.size < 1 or one.compute_slices < 0 or one.most < 0:
                raise ValueError(f"{one.name} has a size, compute slices or limit that cannot be")
            if any(before >= after for before, after in pairwise(one.starts)):
                raise ValueError(f"{one.name} has starts that are not ascending")
            if any(not 0 <= start <= self.memory_slices - one.size for start in one.starts):
                raise ValueError(f"{one.name} has a start outside the device")
        if self._most_at_once() > MOST_INSTANCES:
            raise ValueError(f"more than {MOST_INSTANCES} instances at once")

    def _most_at_once(self) -> int:
        """Return how many instances there may be at once, as slices alone go: never too few."""
        kinds = [one for one in self.profiles if one.starts]
        most = self.memory_slices // min((one.size for one in kinds), default=1)
        least = min((one.compute_slices for one in kinds), default=1)
        return min(most, self.compute_slices // least) if least and kinds else most * bool(kinds)

    def profile(self, name: str) -> Profile | None:
        """Return the profile of that name, or None."""
        return next((one for one in self.profiles if one.name == name), None)


@dataclass(frozen=True, order=True, slots=True)
class Instance:
    """An instance that is or will be at memory slices ``start`` .. ``start + size - 1``."""

    start: int
    size: int
    profile: str


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do to a device; ``kind`` is ``destroy`` or ``create``."""

    kind: str
    instance: Instance


@dataclass(frozen=True, slots=True)
class Change:
    """What to do, in order: all that goes, then all that comes. Empty when nothing is to do."""

    steps: tuple[Step, ...]
    cost_ms: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a change is not made: ``instance_busy`` names who is in the way (C09)."""

    code: str
    detail: str
    busy: tuple[Instance, ...] = ()


def occupation_fault(geometry: Geometry, occupied: Collection[Instance]) -> str | None:
    """Say why these instances cannot be on one device together, or None (A2)."""
    compute = 0
    counts: dict[str, int] = {}
    for one in occupied:
        kind = geometry.profile(one.profile)
        if kind is None:
            return f"the device does not report the profile {one.profile}"
        if one.size != kind.size or one.start not in kind.starts:
            return f"{one.profile} has no placement {one.start}:{one.size}"
        compute += kind.compute_slices
        counts[kind.name] = counts.get(kind.name, 0) + 1
        if kind.most and counts[kind.name] > kind.most:
            return f"more than {kind.most} of {kind.name}"
    ordered = sorted(occupied)
    for before, after in pairwise(ordered):
        if after.start < before.start + before.size:
            return (
                f"{before.profile} at {before.start} and {after.profile} at {after.start} overlap"
            )
    if compute > geometry.compute_slices:
        return f"{compute} of {geometry.compute_slices} compute slices"
    return None


def legal_starts(
    geometry: Geometry, occupied: Collection[Instance], profile: str
) -> tuple[int, ...]:
    """Return where an instance of the profile could be created now, ascending.

    Beside an instance whose profile the device does not report nothing is legal:
    what it takes is unknown, and unknown is not zero.
    """
    kind = geometry.profile(profile)
    present = [geometry.profile(one.profile) for one in occupied]
    if kind is None:
        return ()
    compute = kind.compute_slices
    for one in present:
        if one is None:
            return ()
        compute += one.compute_slices
    if compute > geometry.compute_slices or (kind.most and present.count(kind) >= kind.most):
        return ()
    return tuple(
        start
        for start in kind.starts
        if all(start + kind.size <= one.start or one.start + one.size <= start for one in occupied)
    )


def smallest_profile(
    geometry: Geometry, least_memory_mib: int, least_compute_slices: int
) -> Profile | None:
    """Return the profile that gives at least so much and takes the least of the device.

    What is asked and what the profile gives are two numbers: the caller keeps both.
    """
    enough = [
        one
        for one in geometry.profiles
        if one.starts
        and one.memory_mib >= least_memory_mib
        and one.compute_slices >= least_compute_slices
    ]
    return min(
        enough,
        key=lambda one: (one.size, one.compute_slices, one.memory_mib, one.name),
        default=None,
    )


def complete_layout(
    geometry: Geometry, profiles: Sequence[str], occupied: Collection[Instance] = ()
) -> tuple[Instance, ...] | None:
    """Find a place for every one of the profiles beside what stays, or None (C07).

    The answer is in the order asked. Largest first, each at its lowest start, going
    back where that leaves no room; so the same question has the same answer.
    """
    kinds = [geometry.profile(name) for name in profiles]
    known = [one for one in kinds if one is not None]
    if len(known) < len(kinds) or len(known) + len(occupied) > geometry.memory_slices:
        return None
    order = sorted(
        range(len(known)),
        key=lambda at: (-known[at].size, -known[at].compute_slices, known[at].name),
    )
    placed = list(occupied)
    dead_ends: set[tuple[int, frozenset[Instance]]] = set()

    def fill(depth: int) -> bool:
        if depth == len(order):
            return True
        here = (depth, frozenset(placed))
        if here in dead_ends:
            return False
        kind = known[order[depth]]
        for start in legal_starts(geometry, placed, kind.name):
            placed.append(Instance(start, kind.size, kind.name))
            if fill(depth + 1):
                return True
            placed.pop()
        dead_ends.add(here)
        return False

    if not fill(0):
        return None
    found = dict(zip(order, placed[len(occupied) :], strict=True))
    return tuple(found[at] for at in range(len(order)))


def layout_with(
    geometry: Geometry,
    present: Collection[Instance],
    busy: Collection[Instance],
    new: Instance,
) -> tuple[Instance, ...]:
    """Return the layout after room is made for one instance: as little as needed goes.

    Busy instances stay, and of the idle ones all that can stay beside the new one do.
    """
    kept = [*sorted(busy), *([] if new in busy else [new])]
    for one in sorted(set(present) - set(kept)):
        if one.start in legal_starts(geometry, kept, one.profile):
            kept.append(one)
    return tuple(sorted(kept))


def plan_change(
    geometry: Geometry,
    present: Collection[Instance],
    busy: Collection[Instance],
    wanted: Collection[Instance],
) -> Change | Refusal:
    """Plan the way from what is present to a whole wanted layout of the device.

    What is in both stays untouched. A busy instance is never destroyed: a layout
    without it is refused (C09). Nothing is to be done before all of it is valid
    (C07). Taking away all that was there and creating something is a new layout of
    the whole device and costs what that costs.
    """
    fault = occupation_fault(geometry, wanted)
    if fault is not None:
        return Refusal("not_a_layout", fault)
    gone = set(present) - set(wanted)
    held = tuple(sorted(gone & set(busy)))
    if held:
        what = ", ".join(f"{one.profile} at {one.start}" for one in held)
        return Refusal("instance_busy", f"in use: {what}", held)
    new = sorted(set(wanted) - set(present), key=lambda one: (-one.size, one))
    steps = [Step("destroy", one) for one in sorted(gone)] + [Step("create", one) for one in new]
    anew = bool(gone and new) and len(gone) == len(set(present))
    cost_ms = RELAYOUT_MS if anew else DESTROY_MS * len(gone) + CREATE_MS * len(new)
    return Change(tuple(steps), cost_ms)
