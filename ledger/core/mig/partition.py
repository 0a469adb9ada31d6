"""Where slices could be made for a request that no free one serves: complete plans.

A plan takes free slices of the kind first, then creates slices in free placements, and
only then, where the pool allows a new layout, destroys idle slices to make room; what
is in use is never touched (C09). Where and at which start is chosen by the scarcity rule
(`ledger.core.mig.fleet`); of new layouts the cheapest comes first. All of it is known
before the first step is ordered (C07). Nothing here changes the state: the fleets on
which a plan for several slices is tried are put back as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import mul
from typing import TYPE_CHECKING

from ledger.core.derived.makers import standing, weights_of
from ledger.core.line.asking import quota_fits
from ledger.core.mig.fleet import cheapest, prices
from ledger.core.mig.layouts import (
    Change,
    Instance,
    Refusal,
    complete_layout,
    layout_with,
    plan_change,
)
from ledger.core.placing.constraints import narrowed
from ledger.core.placing.picking import Apart
from ledger.core.placing.placement import host_fits
from ledger.core.promises.plans import allowed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.derived.makers import Fleets, Kind
    from ledger.core.derived.places import ClassKey
    from ledger.core.line.asking import Asker
    from ledger.core.mig.fleet import Fleet
    from ledger.core.mig.layouts import Geometry
    from ledger.core.state import Device, Need, State

__all__ = ["DeviceChange", "PartitionPlan", "plan_layout", "plan_partition"]


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """What is to be done to one device, on which node, in order."""

    node: str
    device: str
    change: Change


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Slices that are free, as (node, id), and the changes that make the rest."""

    of_class: ClassKey
    free: tuple[tuple[str, str], ...]
    changes: tuple[DeviceChange, ...]

    @property
    def cost_ms(self) -> int:
        """Return what the changes take, one after the other."""
        return sum(one.change.cost_ms for one in self.changes)


def plan_partition(state: State, asker: Asker, now_us: int) -> PartitionPlan | None:
    """Return the plan that gives the request all its slices, or None.

    It keeps to the request's quota and to what is planned for earlier ones.
    """
    need = asker.key.need
    makers = state.index.makers
    if need.mode != "mig" or not makers.fleets:
        return None
    allowed = allowed_nodes(state, asker, now_us)
    fits = quota_fits(state, asker.key, now_us)
    for key in state.index.matches(state, need):
        kinds = sorted(makers.of_class(key), key=lambda one: min(one[1].present.where))
        if kinds and (fits is None or fits(key)):
            may = narrowed(state, need, key, allowed)
            trial = _Trial(state, need, key, kinds, may)
            try:
                found = trial.plan()
            finally:
                trial.undo()
            if found is not None:
                return found
    return None


@dataclass(slots=True)
class _Choice:
    """A place for one more slice, and what is on the device with it."""

    order: tuple[int, int, str, int]
    kind: Kind
    device: str
    new: Instance
    layout: set[Instance]


@dataclass(slots=True)
class _Trial:
    """One class tried: slices are taken or made one by one, the best place first."""

    state: State
    need: Need
    key: ClassKey
    kinds: list[tuple[Kind, Fleets]]
    allowed: Callable[[str], bool] | None
    nodes: set[str] = field(default_factory=set)
    free: list[tuple[str, str]] = field(default_factory=list)
    #: Device -> what is on it after what was planned so far; and what of that has to stay.
    layouts: dict[str, set[Instance]] = field(default_factory=dict)
    busy: dict[str, set[Instance]] = field(default_factory=dict)
    geometries: dict[str, Geometry] = field(default_factory=dict)
    before: list[tuple[Fleet, str, int]] = field(default_factory=list)

    def plan(self) -> PartitionPlan | None:
        """Return the plan, or None when the class cannot give all that is asked."""
        slices = self.state.index.slices[self.key]
        for node, device, _, name in self.state.index.makers.by_scarcity(
            self.key, slices.free, self.state
        ):
            if len(self.free) < self.need.count and self._usable(device):
                self.free.append((node, name))
                self._use(node, device, name)
        for left in range(self.need.count - len(self.free), 0, -1):
            found = self._create() or self._relayout()
            if found is None:
                return None
            self._take(found, last=left == 1)
        return PartitionPlan(self.key, tuple(self.free), tuple(self._changes()))

    def undo(self) -> None:
        """Put the fleets back as they were."""
        for fleet, device, was in reversed(self.before):
            fleet.set(device, was)

    def _usable(self, uuid: str) -> bool:
        node = self.state.devices[uuid].node
        if node in self.nodes:
            return True
        if self.allowed is not None and not self.allowed(node):
            return False
        if not Apart(self.state, self.need).takes((*self.nodes, node)):
            return False
        return host_fits(self.state, self.state.nodes[node], self.need)

    def _create(self) -> _Choice | None:
        """Find the free placement that takes the least from later requests."""
        found: list[_Choice] = []
        for kind, (present, _) in self.kinds:
            at = present.states.names[self.key[3]]
            best = cheapest(present, at, prices(present, weights_of(kind)), self._usable)
            if best is not None:
                new = Instance(best.start, kind.geometry.profiles[at].size, self.key[3])
                order = (0, -best.score, best.device, best.start)
                found.append(
                    _Choice(order, kind, best.device, new, self._layout(best.device) | {new})
                )
        return min(found, key=lambda one: one.order, default=None)

    def _relayout(self) -> _Choice | None:
        """Find the device on which idle slices make room at the least cost."""
        if self.state.pools[self.key[0]].partition != "relayout":
            return None
        found: list[_Choice] = []
        for kind, fleets in self.kinds:
            at = prices(fleets.staying, weights_of(kind))
            for device in self._representatives(fleets):
                found.extend(self._layouts_on(kind, fleets, device, at))
        return min(found, key=lambda one: one.order, default=None)

    def _representatives(self, fleets: Fleets) -> list[str]:
        """Return the first usable device of each group of devices that are alike."""
        profile = fleets.staying.states.names[self.key[3]]
        seen: set[tuple[int, int]] = set()
        found = []
        for state, devices in fleets.staying.groups.items():
            if not fleets.staying.states.fits(state)[profile]:
                continue
            for device in devices:
                alike = (state, fleets.present.where[device])
                if alike not in seen and self._usable(device):
                    seen.add(alike)
                    found.append(device)
        return found

    def _layouts_on(
        self, kind: Kind, fleets: Fleets, device: str, at: tuple[int, ...]
    ) -> list[_Choice]:
        states, before = fleets.staying.states, fleets.staying.where[device]
        profile = states.names[self.key[3]]
        layout, busy = self._layout(device), self._busy(device)
        worth = sum(map(mul, at, states.worth(before)))
        found = []
        for start in states.fits(before)[profile]:
            new = Instance(start, kind.geometry.profiles[profile].size, self.key[3])
            wanted = set(layout_with(kind.geometry, layout, busy, new))
            change = plan_change(kind.geometry, layout, busy, wanted)
            if isinstance(change, Change) and new not in layout:
                taken = worth - sum(map(mul, at, states.worth(before | states.bit(new))))
                found.append(
                    _Choice((change.cost_ms, taken, device, start), kind, device, new, wanted)
                )
        return found

    def _use(self, node: str, device: str, name: str) -> None:
        """Let a free slice stay where a device's layout is changed."""
        self.nodes.add(node)
        kind = self.state.index.makers.homes.get(device)
        if kind is not None and len(self.free) < self.need.count:
            item = self.state.slices[name]
            one = Instance(item.start, item.size, item.profile)
            self._busy(device).add(one)
            staying = self.state.index.makers.fleets[kind].staying
            self._set(staying, device, staying.where[device] | staying.states.bit(one))

    def _take(self, choice: _Choice, *, last: bool) -> None:
        device = choice.device
        self.nodes.add(self.state.devices[device].node)
        self._busy(device).add(choice.new)
        self.layouts[device] = choice.layout
        self.geometries[device] = choice.kind.geometry
        if not last:
            present, staying = self.state.index.makers.fleets[choice.kind]
            after = present.states.encode(choice.layout)
            assert after is not None
            self._set(present, device, after)
            self._set(staying, device, staying.where[device] | staying.states.bit(choice.new))

    def _set(self, fleet: Fleet, device: str, after: int) -> None:
        self.before.append((fleet, device, fleet.where[device]))
        fleet.set(device, after)

    def _layout(self, uuid: str) -> set[Instance]:
        return self.layouts.get(uuid) or standing(self.state, self.state.devices[uuid])[0]

    def _busy(self, uuid: str) -> set[Instance]:
        if uuid not in self.busy:
            self.busy[uuid] = standing(self.state, self.state.devices[uuid])[1]
        return self.busy[uuid]

    def _changes(self) -> list[DeviceChange]:
        found = []
        for uuid, layout in sorted(self.layouts.items()):
            present, staying = standing(self.state, self.state.devices[uuid])
            change = plan_change(self.geometries[uuid], present, staying, layout)
            assert isinstance(change, Change), "what is in use stays in every layout"
            found.append(DeviceChange(self.state.devices[uuid].node, uuid, change))
        return found


def plan_layout(
    state: State, device: Device, geometry: Geometry, layout: tuple[str, ...]
) -> Change | Refusal | None:
    """Plan the way to a whole layout; None when its profiles have no place together.

    What is in use is part of the layout where it names the profile, and in the way
    where it does not. Of what is idle as much is left as has a place in the layout.
    """
    present, staying = standing(state, device)
    placed, rest = _named(geometry, layout)
    kept = {*(staying & placed), *_part_of(rest, staying - placed)}
    if len(kept) < len(staying):
        held = tuple(sorted(staying - kept))
        what = ", ".join(f"{one.profile} at {one.start}" for one in held)
        return Refusal("instance_busy", f"in use: {what}", held)
    fixed = kept | placed
    spare = list(rest)
    beside = {one for one in present - staying if all(_apart(one, other) for other in placed)}
    idle = _part_of(spare, beside)
    for stays, wanted in ((fixed.union(idle), spare), (fixed, rest)):
        made = complete_layout(geometry, wanted, stays)
        if made is not None:
            return plan_change(geometry, present, staying, stays.union(made))
    return None


def _named(geometry: Geometry, layout: tuple[str, ...]) -> tuple[set[Instance], list[str]]:
    """Return what the layout names with its place, and the profiles it names without one."""
    placed: set[Instance] = set()
    rest: list[str] = []
    for one in layout:
        name, at, start = one.partition("@")
        kind = geometry.profile(name)
        new = Instance(int(start), kind.size, name) if at and kind is not None else None
        if new is None or new in placed:
            # An unknown profile, or a place named twice, has no place: the plan says so.
            rest.append(one)
        else:
            placed.add(new)
    return placed, rest


def _apart(one: Instance, other: Instance) -> bool:
    return one.start + one.size <= other.start or other.start + other.size <= one.start


def _part_of(profiles: list[str], instances: set[Instance]) -> list[Instance]:
    """Return the instances that the profiles name, and take those profiles off the list."""
    found = []
    for one in sorted(instances):
        if one.profile in profiles:
            profiles.remove(one.profile)
            found.append(one)
    return found
