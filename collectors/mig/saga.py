"""A change of a device's MIG partitions, one call of NVML at a time: what comes next.

Pure. The plan is worked out once and kept; each step is recorded before and after. What to
do next is a function of three things: the plan, how far each step is recorded to have come,
and what the device shows now. So a restart after a crash at any point, and an error of which
nobody knows whether the call had its effect, are the same case: read again, look it up.

=================  ==========================  ===============================
recorded           effect is there             effect is not there
=================  ==========================  ===============================
create, untouched  somebody else's: undo       do it
create, begun      note it as done             again, or undo (by the code)
create, done       next                        somebody undid it: undo
destroy, untouched note it: as good            do it
destroy, begun     note it as done             again, undo or stuck (by the code)
destroy, done      next                        again, unless another was made there since
=================  ==========================  ===============================

To undo is to leave nothing half made: a GPU instance without a compute instance goes; whole
slices stay, as free ones, and the inventory tells of them. What cannot even be undone is
*stuck*: the device is kept out of use with the evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from collectors.mig.plan import Step
from collectors.nvml.readings import ComputeInstance, GpuInstance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectors.mig.plan import Seen

__all__ = ["GONE", "TRIES", "Mark", "Move", "applied", "backoff_us", "next_step"]

#: How often a step is tried in all when it fails with a code; others are not tried again.
#: ``""`` is a step of which only the beginning is recorded: the agent crashed in it.
TRIES = {
    "": 6,
    "in-use": 8,
    "timeout": 3,
    "unknown": 3,
    "not-ready": 3,
    "irq-issue": 3,
    "operating-system": 3,
    "uninitialized": 3,
    "hung": 2,
    "nvml-process-died": 3,
}

#: Codes that say that the device is not there any more.
GONE = frozenset({"gpu-is-lost", "gpu-not-found"})

_FIRST_US, _LONGEST_US = 500_000, 30_000_000


def backoff_us(tries: int) -> int:
    """Return how long to wait after so many tries that failed."""
    return min(_FIRST_US << max(0, tries - 1), _LONGEST_US) if tries else 0


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a step is recorded to have come; ``code`` is of its last failure.

    ``steady_us`` is when the last of it was recorded.
    """

    state: Literal["untouched", "begun", "done"] = "untouched"
    tries: int = 0
    code: str = ""
    steady_us: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """What comes next: ``do`` or ``undo`` a step (number ``at``), ``note`` it as done, or the end.

    The ends are ``done``, ``failed`` (with nothing half made left) and ``stuck``.
    """

    kind: Literal["do", "undo", "note", "done", "failed", "stuck"]
    at: int = -1
    step: Step | None = None
    why: str = ""


#: (creates, how far it is recorded, whether its effect is there) -> what to do.
_RULES: dict[tuple[bool, str, bool], str] = {
    (True, "untouched", True): "foreign",
    (True, "untouched", False): "do",
    (True, "begun", True): "note",
    (True, "begun", False): "again",
    (True, "done", True): "next",
    (True, "done", False): "vanished",
    (False, "untouched", True): "note",
    (False, "untouched", False): "do",
    (False, "begun", True): "note",
    (False, "begun", False): "again",
    (False, "done", True): "next",
    (False, "done", False): "left",
}


def next_step(
    plan: Sequence[Step], marks: Mapping[int, Mark], seen: Seen, undoing: str = ""
) -> Move:
    """Return what comes next; ``undoing`` is why the plan was given up, if it was."""
    if undoing:
        return _undo(plan, marks, seen, undoing)
    for at, step in enumerate(plan):
        mark = marks.get(at, Mark())
        there = _effect(step, seen)
        rule = _RULES[step.do.startswith("create"), mark.state, there]
        if rule == "next" or (rule == "left" and not _left(plan, marks, seen, at)):
            continue
        if rule in ("do", "note"):
            return Move("do" if rule == "do" else "note", at, _named(step, seen))
        if rule in ("again", "left"):
            return _again(plan, marks, seen, at)
        return _undo(plan, marks, seen, "place-taken" if rule == "foreign" else "vanished")
    return Move("done")


def _again(plan: Sequence[Step], marks: Mapping[int, Mark], seen: Seen, at: int) -> Move:
    """A step that was begun and has had no effect: once more, or give up, by its code."""
    step, mark = plan[at], marks[at]
    pids = seen.busy.get(step.gi, ()) if step.do.startswith("destroy") else ()
    if mark.tries < TRIES.get(mark.code, 1) and not (pids and mark.code == "in-use"):
        return Move("do", at, _named(step, seen))
    why = mark.code or ("no-effect" if mark.state == "done" else "crashed")
    if step.do == "set_mode" and seen.pending == step.enabled:
        return _undo(plan, marks, seen, "mig-pending")
    if why == "in-use" and step.do.startswith("destroy") and not pids:
        # Nobody in sight, and the driver says that somebody is there.
        return Move("stuck", at, step, why)
    return _undo(plan, marks, seen, why)


def _left(plan: Sequence[Step], marks: Mapping[int, Mark], seen: Seen, at: int) -> bool:
    """Say whether what a destroy has reported gone is there all the same.

    Not when this plan has made another in its place since, or somebody else has: what has a
    compute instance again is not what was destroyed.
    """
    step = plan[at]
    there = seen.instances.get(step.start)
    if step.do != "destroy_gi" or there is None or there.compute:
        return False
    end = step.start + step.size
    return not any(
        later.do == "create_gi"
        and later.start < end
        and step.start < later.start + later.size
        and number in marks
        for number, later in enumerate(plan)
    )


def _undo(plan: Sequence[Step], marks: Mapping[int, Mark], seen: Seen, why: str) -> Move:
    """Take away what the plan has left half made; say so when there is nothing (more)."""
    for place, start in enumerate(dict.fromkeys(one.start for one in plan)):
        there = seen.instances.get(start)
        if there is None or there.compute or not _ours(plan, marks, there):
            continue
        at = len(plan) + place
        mark = marks.get(at, Mark())
        step = Step("destroy_gi", start, gi=there.gi)
        if mark.tries and mark.tries >= TRIES.get(mark.code, 1):
            return Move("stuck", at, step, why)
        return Move("undo", at, step, why)
    return Move("failed", why=why)


def _ours(plan: Sequence[Step], marks: Mapping[int, Mark], there: GpuInstance) -> bool:
    """Say whether an instance without a compute instance is this plan's doing."""
    for at, step in enumerate(plan):
        begun = marks.get(at, Mark()).state != "untouched"
        here = step.start == there.start and step.profile == there.profile
        if here and begun and (step.do == "create_gi" or step.gi == there.gi):
            return True
    return False


def _named(step: Step, seen: Seen) -> Step:
    """Return the step with the id of the GPU instance that stands at its place now."""
    there = seen.instances.get(step.start)
    return replace(step, gi=there.gi) if step.do == "create_ci" and there is not None else step


def _effect(step: Step, seen: Seen) -> bool:
    there = seen.instances.get(step.start)
    if step.do == "set_mode":
        return seen.mig == step.enabled and seen.pending == step.enabled
    if step.do == "create_gi":
        return there is not None and there.profile == step.profile
    if step.do == "create_ci":
        whole = there is not None and there.profile == step.profile
        return whole and any(one.slices == step.slices for one in there.compute)  # type: ignore[union-attr]
    if there is None or there.gi != step.gi:
        return True
    return step.do == "destroy_ci" and all(one.ci != step.ci for one in there.compute)


def applied(seen: Seen, step: Step, answer: Any) -> Seen:  # noqa: ANN401 - as the call has it
    """Return what is to be seen after a call that succeeded; the end is read anew all the same."""
    left = dict(seen.instances)
    there = left.get(step.start)
    if step.do == "create_gi":
        left[step.start] = GpuInstance(answer["gi"], step.profile, step.start, step.size)
    elif step.do == "create_ci" and there is not None:
        made = ComputeInstance(answer["ci"], step.slices, answer["uuid"])
        left[step.start] = replace(there, compute=(*there.compute, made))
    elif step.do == "destroy_ci" and there is not None:
        rest = tuple(one for one in there.compute if one.ci != step.ci)
        left[step.start] = replace(there, compute=rest)
    elif step.do == "destroy_gi":
        left.pop(step.start, None)
    return replace(seen, instances=left)
