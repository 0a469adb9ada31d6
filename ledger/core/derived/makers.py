"""Devices on which a slice could be made, kept by kind: part of the index.

A device counts while its pool lets it be partitioned, it is in MIG mode and in use, it
has said what can be made of it, and nothing is being destroyed on it. Of each kind two
fleets are kept: what is *present* or ordered, beside which a slice may be created, and
what has to *stay* if idle slices may be destroyed. Both depend on the state alone.
"""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.core.derived.places import part_milli
from ledger.core.mig.fleet import Fleet, prices
from ledger.core.mig.layouts import Geometry, Instance, Profile
from ledger.core.state import NO_POOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ledger.core.derived.places import ClassKey
    from ledger.core.state import Device, Need, Node, Slice, State

__all__ = [
    "FAILED",
    "Fleets",
    "Kind",
    "Makers",
    "instance_of",
    "load_geometry",
    "offer",
    "read_geometry",
    "standing",
    "weights_of",
]

#: The alarm that keeps a device from being planned again after an order on it has failed.
FAILED = "partition_failed"

#: (slice memory in MiB, compute slices).
Size = tuple[int, int]


class Kind(NamedTuple):
    """Devices that are alike for whoever needs a slice."""

    pool: str
    model: str
    memory_mib: int
    compute_slices: int
    geometry: Geometry


class Fleets(NamedTuple):
    """The devices of one kind, with what is on them and with what has to stay."""

    present: Fleet
    staying: Fleet


class Makers:
    """Which devices could make what; ``offers`` also while a device is out of use."""

    __slots__ = ("fleets", "homes", "offers", "pending")

    def __init__(self) -> None:
        """Start empty."""
        self.fleets: dict[Kind, Fleets] = {}
        #: Device -> its kind, for those in a fleet.
        self.homes: dict[str, Kind] = {}
        #: Device -> the classes of slices that can be made of it, and their size.
        self.offers: dict[str, dict[ClassKey, Size]] = {}
        #: Devices whose change of MIG mode takes effect after a reboot.
        self.pending: set[str] = set()

    def follow(self, state: State, node: Node, device: Device, *, in_use: bool) -> None:
        """Bring a device's place in the fleets up to date."""
        uuid = device.uuid
        if device.mig_pending:
            self.pending.add(uuid)
        else:
            self.pending.discard(uuid)
        on_it = _plannable(state, device) if in_use and self.offers.get(uuid) else None
        kind = None
        if on_it is not None and device.geometry is not None:
            size = (device.memory_mib, device.compute_slices)
            kind = Kind(node.pool, device.model, *size, device.geometry)
        old = self.homes.get(uuid)
        if old is not None and old != kind:
            self._leave(uuid, old)
        if kind is None or on_it is None:
            return
        fleets = self.fleets.get(kind)
        if fleets is None:
            fleets = self.fleets[kind] = Fleets(Fleet(kind.geometry), Fleet(kind.geometry))
        self.homes[uuid] = kind
        present, staying = on_it
        if not fleets.present.put(uuid, present):
            # Something is on it that its profiles do not explain.
            self._leave(uuid, kind)
            return
        fleets.staying.put(uuid, staying)

    def _leave(self, uuid: str, kind: Kind) -> None:
        del self.homes[uuid]
        fleets = self.fleets[kind]
        for fleet in fleets:
            fleet.set(uuid, None)
        if not fleets.present.where:
            del self.fleets[kind]

    def of_class(self, key: ClassKey) -> Iterator[tuple[Kind, Fleets]]:
        """Yield the kinds on whose devices a slice of the class could be made."""
        for kind, fleets in self.fleets.items():
            if kind[:3] == key[:3]:
                made = kind.geometry.profile(key[3])
                if made and part_milli(kind.compute_slices, made.compute_slices) == key[4]:
                    yield kind, fleets

    def by_scarcity(
        self, key: ClassKey, free: Sequence[tuple[str, str, int, str]], state: State
    ) -> Sequence[tuple[str, str, int, str]]:
        """Return free slices, those first whose use takes the least from later requests.

        Without a fleet of the class they stay as they are: neighbours fill up first.
        """
        if not any(kind[:3] == key[:3] for kind in self.fleets):
            return free
        known: dict[tuple[Kind, int, Instance], int] = {}
        priced = {
            kind: prices(fleets.staying, weights_of(kind)) for kind, fleets in self.fleets.items()
        }

        def taken(place: tuple[str, str, int, str]) -> tuple[int, tuple[str, str, int, str]]:
            kind = self.homes.get(place[1])
            if kind is None:
                # Nothing can be made of its device: using it takes nothing away.
                return 0, place
            staying = self.fleets[kind].staying
            about = (kind, staying.where[place[1]], instance_of(state.slices[place[3]]))
            if about not in known:
                states, at = staying.states, priced[kind]
                after = about[1] | states.bit(about[2])
                before_worth, after_worth = states.worth(about[1]), states.worth(after)
                known[about] = sum(map(mul, at, before_worth)) - sum(map(mul, at, after_worth))
            return known[about], place

        return sorted(free, key=taken)

    def pending_for(self, state: State, need: Need) -> int:
        """Return how many devices that may serve the need wait for a reboot (C09)."""
        count = 0
        for uuid in self.pending:
            device = state.devices[uuid]
            pool = state.pools.get(state.nodes[device.node].pool)
            if (
                pool is not None
                and device.health != "gone"
                and need.pool in (None, pool.name)
                and (not need.models or device.model in need.models)
                and all(pool.labels.get(name) == value for name, value in need.labels)
                and (device.geometry is None or _serves(device.geometry, need))
            ):
                count += 1
        return count


def _serves(geometry: Geometry, need: Need) -> bool:
    return any(
        one.name == need.profile
        or (
            not need.profile
            and one.memory_mib >= need.memory_mib
            and one.compute_slices >= need.compute_slices
        )
        for one in geometry.profiles
    )


def offer(state: State, node: Node, device: Device) -> dict[ClassKey, Size]:
    """Return the classes of slices that the device could be made into, as its pool lets it."""
    geometry = device.geometry
    if geometry is None or not device.mig_enabled or device.health == "gone":
        return {}
    if state.pools.get(node.pool, NO_POOL).partition == "never":
        return {}
    found: dict[ClassKey, Size] = {}
    for one in geometry.profiles:
        milli = part_milli(device.compute_slices, one.compute_slices)
        key = (node.pool, device.model, device.memory_mib, one.name, milli)
        if one.starts and one.compute_slices:
            found[key] = (one.memory_mib, one.compute_slices)
    return found


def weights_of(kind: Kind) -> dict[str, int]:
    """Return how often each profile is asked for: nobody has said, so all alike."""
    return dict.fromkeys((one.name for one in kind.geometry.profiles), 1)


def instance_of(item: Slice) -> Instance:
    """Return a slice as planning sees it."""
    return Instance(item.start, item.size, item.profile)


def standing(state: State, device: Device) -> tuple[set[Instance], set[Instance]]:
    """Return what is on a device or promised there, and what of it has to stay."""
    present: set[Instance] = set()
    staying: set[Instance] = set()
    for name in device.slices:
        item = state.slices[name]
        one = instance_of(item)
        present.add(one)
        idle = item.lease is None and item.kept_for is None and item.order is None
        if not idle or item.quarantine is not None:
            staying.add(one)
    return present, staying


def _plannable(state: State, device: Device) -> tuple[set[Instance], set[Instance]] | None:
    """Return what stands on the device, or None while no plan may be made on it."""
    if device.holds or device.kept_for is not None or f"{FAILED} {device.uuid}" in state.alarms:
        return None
    for name in device.slices:
        item = state.slices[name]
        if item.order is not None and item.mig_uuid:
            # What the device holds is known again when its node has answered.
            return None
    return standing(state, device)


def read_geometry(profiles: Iterable[Mapping[str, Any]], compute_slices: int) -> Geometry | None:
    """Return what a device says can be made of it; None when that cannot be planned with."""
    kinds = tuple(
        Profile(
            one["profile"],
            one["size"],
            one["compute_slices"],
            one["memory_mib"],
            tuple(sorted(one["starts"])),
            one.get("most", 0),
        )
        for one in profiles
    )
    memory_slices = max((start + one.size for one in kinds for start in one.starts), default=0)
    compute = compute_slices or max((one.compute_slices for one in kinds), default=0)
    try:
        return Geometry(memory_slices, compute, kinds)
    except ValueError:
        return None


def load_geometry(plain: dict[str, Any]) -> Geometry:
    """Return the geometry that a snapshot has."""
    kinds = (Profile(**(one | {"starts": tuple(one["starts"])})) for one in plain["profiles"])
    return Geometry(plain["memory_slices"], plain["compute_slices"], tuple(kinds))
