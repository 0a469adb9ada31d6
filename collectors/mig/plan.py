"""A change of a device's MIG partitions as the calls of NVML that it takes, worked out whole.

Pure. An order's plan is complete before its first call is made (C07), always with a place for
each instance, and refused with a code where it cannot end well.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from collectors.nvml.codes import ABSENT, word
from collectors.nvml.readings import GpuInstance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectors.nvml.readings import Device, MigProfile
    from schemas.events import PartitionStep

__all__ = [
    "Refusal",
    "Seen",
    "Step",
    "plan_mode",
    "plan_partition",
    "seen_of",
    "steps_from_plain",
    "steps_to_plain",
]

#: Compute slices of a GPU instance -> the id of the compute instance profile that takes all of
#: it (nvml.h, ``NVML_COMPUTE_INSTANCE_PROFILE_*``; for these the id is the number).
_WHOLE = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}

#: Why a device tells no MIG mode that has none.
_NO_SUCH_THING = frozenset(map(word, ABSENT))

Kind = Literal["set_mode", "create_gi", "create_ci", "destroy_ci", "destroy_gi"]


@dataclass(frozen=True, slots=True)
class Step:
    """One call. ``start`` and ``size`` are the GPU instance's place, in placement units.

    ``profile`` is its profile id, ``slices`` its compute slices. What is destroyed is named
    by ``gi``, ``ci`` and ``uuid`` as they were when the plan was made.
    """

    do: Kind
    start: int = -1
    size: int = 0
    profile: int = -1
    slices: int = 0
    gi: int = -1
    ci: int = -1
    uuid: str = ""
    enabled: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the operation in `collectors.nvml.ops` beside the device's UUID."""
        table: dict[str, dict[str, Any]] = {
            "set_mode": {"enabled": self.enabled},
            "create_gi": {"profile": self.profile, "start": self.start, "size": self.size},
            "create_ci": {
                "gi": self.gi,
                "profile": _WHOLE[self.slices] if self.do == "create_ci" else 0,
                "start": 0,
                "size": self.slices,
            },
            "destroy_ci": {"gi": self.gi, "ci": self.ci},
            "destroy_gi": {"gi": self.gi},
        }
        return table[self.do]

    @property
    def op(self) -> str:
        """The operation's name in `collectors.nvml.ops`."""
        return "set_mig_mode" if self.do == "set_mode" else self.do


@dataclass(frozen=True, slots=True)
class Seen:
    """What a device shows: its mode, its GPU instances by start, the pids on each of them."""

    mig: bool | None
    pending: bool | None
    instances: Mapping[int, GpuInstance] = field(default_factory=dict)
    busy: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An order is not begun: a code, and what was compared."""

    code: str
    evidence: dict[str, int | str | None] = field(default_factory=dict)


def seen_of(device: Device) -> Seen | None:
    """Return what a reading shows of partitions; None when it cannot be relied on."""
    unsure = device.why or device.instances_why or device.mig is None
    if unsure or any(one.start is None for one in device.instances):
        return None
    busy: dict[int, tuple[int, ...]] = {}
    for one in device.processes or ():
        if one.gi is not None:
            busy[one.gi] = (*busy.get(one.gi, ()), one.pid)
    by_start = {one.start: one for one in device.instances if one.start is not None}
    return Seen(device.mig, device.mig_pending, by_start, busy)


def plan_partition(steps: Sequence[PartitionStep], device: Device) -> tuple[Step, ...] | Refusal:
    """Return the calls that an order takes, complete before the first is made (C07), or why not.

    The driver has the last word on what fits beside each other; places that are taken are
    refused here, so that nothing is destroyed for a plan that cannot end well.
    """
    seen = seen_of(device)
    if seen is None:
        return Refusal("not-readable", {"why": device.why or device.instances_why or "no MIG"})
    if seen.mig != seen.pending:
        return Refusal("mig-pending", {"current": int(bool(seen.mig))})
    if not seen.mig:
        return Refusal("mig-off")
    kinds = {one.name: one for one in device.profiles if one.name is not None}
    left = dict(seen.instances)
    plan: list[Step] = []
    for one in steps:
        kind = kinds.get(one.profile)
        if kind is None:
            return Refusal("no-profile", {"profile": one.profile})
        destroys = one.do == "destroy"
        found = _destroy(one, kind, left, seen) if destroys else _create(one, kind, left)
        if isinstance(found, Refusal):
            return found
        plan += found
    return tuple(plan)


def _destroy(
    one: PartitionStep, kind: MigProfile, left: dict[int, GpuInstance], seen: Seen
) -> list[Step] | Refusal:
    """Compute instances first, then the GPU instance; what is gone already is as good."""
    there = left.get(one.start)
    if there is None:
        return []
    uuids = {each.uuid for each in there.compute}
    if there.profile != kind.id or (one.mig_uuid is not None and uuids - {one.mig_uuid}):
        # Another lifetime stands there now: the order was for what was before.
        return Refusal("old-generation", {"start": one.start, "gi": there.gi})
    if seen.busy.get(there.gi):
        return Refusal("in-use", {"start": one.start, "pid": seen.busy[there.gi][0]})
    del left[one.start]
    size = there.size or kind.size
    whole = Step("destroy_gi", one.start, size, kind.id, kind.slices, there.gi)
    each = [
        replace(whole, do="destroy_ci", ci=item.ci, uuid=item.uuid or "") for item in there.compute
    ]
    return [*each, whole]


def _create(
    one: PartitionStep, kind: MigProfile, left: dict[int, GpuInstance]
) -> list[Step] | Refusal:
    if one.start not in kind.starts:
        return Refusal("no-place", {"profile": one.profile, "start": one.start})
    end = one.start + kind.size
    for start, other in left.items():
        if start < end and one.start < start + (other.size or 1):
            return Refusal("place-taken", {"start": one.start, "gi": other.gi})
    if kind.slices not in _WHOLE:
        return Refusal("no-profile", {"profile": one.profile, "slices": kind.slices})
    made = Step("create_gi", one.start, kind.size, kind.id, kind.slices)
    left[one.start] = GpuInstance(-1, kind.id, one.start, kind.size)
    return [made, replace(made, do="create_ci")]


def plan_mode(device: Device, *, enabled: bool) -> tuple[Step, ...] | Refusal:
    """Return the call that changes the MIG mode; refused while anybody is on the device."""
    if not device.why and device.mig is None and device.missing.get("mig_mode") in _NO_SUCH_THING:
        return Refusal("no-mig", {"model": device.model})
    if device.why or device.mig is None:
        why = device.why or device.missing.get("mig_mode") or "the MIG mode is not told"
        return Refusal("not-readable", {"why": why})
    if device.processes is None:
        return Refusal("processes-unknown", {"why": "they cannot be listed"})
    if device.processes:
        return Refusal("in-use", {"pid": device.processes[0].pid})
    if device.instances:
        return Refusal("instances-left", {"instances": len(device.instances)})
    return (Step("set_mode", enabled=enabled),)


def steps_to_plain(plan: Sequence[Step]) -> list[dict[str, Any]]:
    """Return a plan as JSON has it."""
    return [asdict(one) for one in plan]


def steps_from_plain(plain: Sequence[dict[str, Any]]) -> tuple[Step, ...]:
    """Return a plan that was kept."""
    return tuple(Step(**one) for one in plain)
