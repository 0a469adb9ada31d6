"""How much of what is free the requests could not use: sampled at equal steps of time.

The measure is FGD's (`ledger.core.policies.fragmentation`): a typical request leaves unused
what is free on a node where it does not fit. Typical are the requests for whole devices
and shares that the log has, by how often they came. MIG devices are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.core.derived.supply_index import usable
from ledger.core.policies.fragmentation import PPM, Fragmentation, Typical
from ledger.core.policies.spot import NO_LIMIT, Spot
from ledger.core.state import WHOLE_MILLI
from ledger.metering.touched import Touched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.core.state import Device, Need, Node, State

__all__ = ["Fragmented", "Samples", "Shape", "shape_of"]

#: Shapes that are told apart; rarer ones are left out.
_MOST_SHAPES = 64


class Shape(NamedTuple):
    """A request as this measure sees it: so many devices of a node, or a share of one."""

    models: tuple[str, ...]
    devices: int
    milli: int
    cpu_milli: int
    memory_mib: int


class Fragmented(NamedTuple):
    """What was free and what of it was of no use, in thousandths of devices over all samples."""

    samples: int
    free_milli: int
    useless_milli: int


def shape_of(need: Need) -> Shape | None:
    """Return a need as this measure sees it; None for MIG and for what needs no device."""
    if need.mode == "mig" or not need.count:
        return None
    share = need.gpu_milli if need.mode == "share" else WHOLE_MILLI
    return Shape(need.models, need.count, share, need.cpu_milli, need.host_memory_mib)


class Samples:
    """Looks at what is free every ``step_us``, after the last decision until the instant."""

    def __init__(self, start_us: int, step_us: int) -> None:
        """Look for the first time after a step."""
        self.count = 0
        self._next_us = start_us + step_us
        self._step_us = step_us
        self._touched = Touched()
        #: Node -> what is free there, by model; and on how many nodes the same is.
        self._there: dict[str, list[tuple[str, Spot]]] = {}
        self._now: Counter[tuple[str, Spot]] = Counter()
        #: (model, what is free on a node) -> how often it was seen.
        self._seen: Counter[tuple[str, Spot]] = Counter()

    def take(self, state: State, events: Iterable[dict[str, Any]], now_us: int) -> None:
        """Take the samples that were due before a decision, and follow it; the state is after."""
        self._look(now_us - 1)
        touched = self._touched
        for event in events:
            touched.add(state, event)
        there = (state.devices.get(uuid) for uuid in touched.devices)
        for name in dict.fromkeys(device.node for device in there if device is not None):
            self._now.subtract(self._there.get(name, ()))
            self._there[name] = list(_spots(state, state.nodes[name]))
            self._now.update(self._there[name])
        touched.clear()

    def finish(self, end_us: int) -> None:
        """Take the samples that are left until the end."""
        self._look(end_us)

    def _look(self, until_us: int) -> None:
        if until_us < self._next_us:
            return
        due = (until_us - self._next_us) // self._step_us + 1
        self._next_us += due * self._step_us
        self.count += due
        for key, nodes in self._now.items():
            if nodes:
                self._seen[key] += due * nodes

    def fragmented(self, shapes: Mapping[Shape, int]) -> Fragmented:
        """Return what was free, and what of it these requests could not use, by their shares."""
        measures: dict[str, Fragmentation] = {}
        free = useless = 0
        for (model, spot), times in self._seen.items():
            free += times * (spot.full * WHOLE_MILLI + sum(spot.rooms))
            if model not in measures:
                measures[model] = _measure(shapes, model)
            useless -= times * measures[model].of(spot)
        return Fragmented(self.count, free, useless // PPM)


def _measure(shapes: Mapping[Shape, int], model: str) -> Fragmentation:
    common = Counter(shapes).most_common(_MOST_SHAPES)
    total = sum(count for _, count in common)
    typical = [
        Typical(
            one.devices, one.milli, one.cpu_milli, one.memory_mib, PPM * count // total,
            PPM * count // total,
        )
        for one, count in common
        if not one.models or model in one.models
    ]  # fmt: skip
    return Fragmentation(typical, 1, [0] * (WHOLE_MILLI + 1))


def _spots(state: State, node: Node) -> Iterable[tuple[str, Spot]]:
    """Yield what is free on a node, by model, where anything is."""
    if not node.open:
        return
    full: Counter[str] = Counter()
    rooms: dict[str, list[int]] = {}
    for uuid in node.devices:
        device = state.devices[uuid]
        room = _room(node, device)
        if room == WHOLE_MILLI:
            full[device.model] += 1
        elif room:
            rooms.setdefault(device.model, []).append(room)
    cpu = NO_LIMIT if node.cpu_milli is None else node.cpu_milli - node.cpu_used
    memory = NO_LIMIT if node.memory_mib is None else node.memory_mib - node.memory_used
    for model in dict.fromkeys([*full, *rooms]):
        yield model, Spot(cpu, memory, full[model], tuple(sorted(rooms.get(model, ()))))


def _room(node: Node, device: Device) -> int:
    """Return the free thousandths of a device; 0 where it is in slices or out of use."""
    if device.mig_enabled or device.slices or device.kept_for is not None:
        return 0
    if not usable(node, device):
        return 0
    return max(WHOLE_MILLI - sum(hold.milli for hold in device.holds.values()), 0)
