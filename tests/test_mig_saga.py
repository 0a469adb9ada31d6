"""What comes next in a change of partitions: the table, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.mig.plan import (
    Refusal,
    Seen,
    Step,
    plan_mode,
    plan_partition,
    steps_from_plain,
    steps_to_plain,
)
from collectors.mig.saga import TRIES, Mark, Move, applied, backoff_us, next_step
from collectors.nvml.inventory import read_device
from collectors.nvml.readings import ComputeInstance, GpuInstance, Process
from schemas.events import PartitionStep
from tests.nvml_support import make_node, put_slice, reading

#: 3g.40gb of an H100 at 4.
GI = Step("create_gi", 4, 4, 9, 3)
CI = Step("create_ci", 4, 4, 9, 3)
CREATE = (GI, CI)
NO_CI = Step("destroy_ci", 4, 4, 9, 3, gi=2, ci=0, uuid="MIG-a")
NO_GI = Step("destroy_gi", 4, 4, 9, 3, gi=2)
DESTROY = (NO_CI, NO_GI)
MODE = (Step("set_mode", enabled=True),)

BARE = GpuInstance(2, 9, 4, 4)
WHOLE = GpuInstance(2, 9, 4, 4, (ComputeInstance(0, 3, "MIG-a"),))
#: Somebody else's: another profile at the same start.
OTHER = GpuInstance(5, 14, 4, 2)


def seen(
    one: GpuInstance | None = None, *pids: int, mig: bool = True, pending: bool = True
) -> Seen:
    """Return a device with at most one instance, and processes on it."""
    there = {} if one is None else {one.start or 0: one}
    return Seen(mig, pending, there, {one.gi: pids} if one is not None and pids else {})


def begun(code: str = "", tries: int = 1) -> Mark:
    """Return a step that was begun, and failed with a code or is not known to have ended."""
    return Mark("begun", tries, code)


DONE = Mark("done", 1)

CASES: dict[str, tuple[tuple[Step, ...], dict[int, Mark], Seen, str, tuple[str, int, str]]] = {
    "create, untouched, not there": (CREATE, {}, seen(), "", ("do", 0, "")),
    "create, untouched, somebody's": (CREATE, {}, seen(BARE), "", ("failed", -1, "place-taken")),
    "create, begun, not there": (CREATE, {0: begun()}, seen(), "", ("do", 0, "")),
    "create, begun, there": (CREATE, {0: begun()}, seen(BARE), "", ("note", 0, "")),
    "create, failed after its effect": (
        CREATE, {0: begun("unknown")}, seen(BARE), "", ("note", 0, "")
    ),
    "create, an error that passes": (CREATE, {0: begun("timeout")}, seen(), "", ("do", 0, "")),
    "create, an error that does not": (
        CREATE, {0: begun("no-permission")}, seen(), "", ("failed", -1, "no-permission")
    ),
    "create, the place is taken": (
        CREATE, {0: begun("insufficient-resources")}, seen(OTHER), "",
        ("failed", -1, "insufficient-resources"),
    ),
    "create, tried often enough": (
        CREATE, {0: begun("unknown", TRIES["unknown"])}, seen(), "", ("failed", -1, "unknown")
    ),
    "half made": (CREATE, {0: DONE}, seen(BARE), "", ("do", 1, "")),
    "half made, and it will not be whole": (
        CREATE, {0: DONE, 1: begun("not-supported")}, seen(BARE), "", ("undo", 2, "not-supported")
    ),
    "half made, given up before a crash": (
        CREATE, {0: DONE, 1: begun()}, seen(BARE), "past-due", ("undo", 2, "past-due")
    ),
    "undone": (CREATE, {0: DONE, 2: DONE}, seen(), "past-due", ("failed", -1, "past-due")),
    "undone, and the driver will not let it go": (
        CREATE, {0: DONE, 2: begun("in-use", TRIES["in-use"])}, seen(BARE), "past-due",
        ("stuck", 2, "past-due"),
    ),
    "whole, given up before a crash: it stays": (
        CREATE, {0: DONE, 1: begun()}, seen(WHOLE), "past-due", ("failed", -1, "past-due")
    ),
    "whole": (CREATE, {0: DONE, 1: DONE}, seen(WHOLE), "", ("done", -1, "")),
    "whole, and gone behind our back": (
        CREATE, {0: DONE, 1: DONE}, seen(), "", ("failed", -1, "vanished")
    ),
    "a compute instance gone behind our back": (
        CREATE, {0: DONE, 1: DONE}, seen(BARE), "", ("undo", 2, "vanished")
    ),
    "somebody else's bare instance is not touched": (
        CREATE, {0: begun("no-permission")}, seen(OTHER), "", ("failed", -1, "no-permission")
    ),
    "destroy, untouched, there": (DESTROY, {}, seen(WHOLE), "", ("do", 0, "")),
    "destroy, untouched, gone": (DESTROY, {}, seen(), "", ("note", 0, "")),
    "destroy, begun, there": (DESTROY, {0: begun()}, seen(WHOLE), "", ("do", 0, "")),
    "destroy, begun, gone": (DESTROY, {0: begun()}, seen(BARE), "", ("note", 0, "")),
    "destroy, half": (DESTROY, {0: DONE}, seen(BARE), "", ("do", 1, "")),
    "destroy, in use by nobody in sight": (
        DESTROY, {0: DONE, 1: begun("in-use")}, seen(BARE), "", ("do", 1, "")
    ),
    "destroy, in use by nobody for long": (
        DESTROY, {0: begun("in-use", TRIES["in-use"])}, seen(WHOLE), "", ("stuck", 0, "in-use")
    ),
    "destroy, in use by somebody": (
        DESTROY, {0: begun("in-use")}, seen(WHOLE, 77), "", ("failed", -1, "in-use")
    ),
    "destroy, said to be done and there": (
        DESTROY, {0: DONE, 1: DONE}, seen(BARE), "", ("do", 1, "")
    ),
    "destroy, done, and another has been made there": (
        DESTROY, {0: DONE, 1: DONE}, seen(WHOLE), "", ("done", -1, "")
    ),
    "destroy, done": (DESTROY, {0: DONE, 1: DONE}, seen(), "", ("done", -1, "")),
    "mode, to do": (MODE, {}, seen(mig=False, pending=False), "", ("do", 0, "")),
    "mode, in use": (MODE, {0: begun("in-use")}, seen(mig=False), "", ("do", 0, "")),
    "mode, pending until a reset": (
        MODE, {0: begun("reset-required")}, seen(mig=False), "", ("failed", -1, "mig-pending")
    ),
    "mode, refused": (
        MODE, {0: begun("no-permission")}, seen(mig=False, pending=False), "",
        ("failed", -1, "no-permission"),
    ),
    "mode, done": (MODE, {0: begun()}, seen(), "", ("note", 0, "")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_comes_next(name: str) -> None:
    """Plan, record and reading decide it, and nothing else."""
    plan, marks, device, undoing, expected = CASES[name]

    move = next_step(plan, marks, device, undoing)

    assert expected == (move.kind, move.at, move.why)


def test_the_same_place_made_anew_is_not_what_was_destroyed() -> None:
    """Destroyed and created at one place in one plan, with the same id of the GPU instance."""
    plan = (*DESTROY, GI, CI)
    marks = {0: DONE, 1: DONE, 2: DONE}

    assert ("do", 3) == (
        next_step(plan, marks, seen(BARE)).kind,
        next_step(plan, marks, seen(BARE)).at,
    )
    assert "done" == next_step(plan, {**marks, 3: DONE}, seen(WHOLE)).kind


def test_a_compute_instance_is_made_in_the_instance_that_stands_there() -> None:
    """Ids of GPU instances are the driver's choice: the plan does not know them before."""
    move = next_step(CREATE, {0: DONE}, seen(BARE))

    assert Move("do", 1, Step("create_ci", 4, 4, 9, 3, gi=2)) == move
    assert move.step is not None
    assert {"gi": 2, "profile": 2, "start": 0, "size": 3} == move.step.arguments


def test_waiting_doubles_up_to_half_a_minute() -> None:
    """No wait before the first try; then half a second, one, two, and so on."""
    waits = [backoff_us(tries) // 1000 for tries in range(9)]
    assert [0, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000] == waits


def test_what_a_call_did_is_what_would_be_read() -> None:
    """The picture after each call is the one that the device then shows."""
    with reading(make_node("n", ["H100-80GB"], mig=True)) as session:
        uuid = session.host().listed[0].uuid or ""
        order = [PartitionStep(do="create", profile="3g.40gb", start=4)]
        device = read_device(session, uuid)
        plan = plan_partition(order, device)
        assert isinstance(plan, tuple)
        from collectors.mig.plan import seen_of  # noqa: PLC0415 - close to its use
        from collectors.nvml.ops import OPS  # noqa: PLC0415 - close to its use

        now = seen_of(device)
        assert now is not None
        for at in range(2):
            marks = dict.fromkeys(range(at), DONE)
            step = next_step(plan, marks, now).step
            assert step is not None
            answer = OPS[step.op](session, uuid, **step.arguments)
            now = applied(now, step, answer)
            shown = seen_of(read_device(session, uuid))
            assert shown is not None
            assert _plain(shown) == _plain(now)


def _plain(one: Seen) -> Any:
    return {
        start: (gi.gi, gi.profile, [(each.ci, each.slices, each.uuid) for each in gi.compute])
        for start, gi in one.instances.items()
    }


def test_a_plan_survives_being_kept() -> None:
    """What the journal has is what was planned."""
    assert DESTROY == steps_from_plain(steps_to_plain(DESTROY))


def order(*steps: tuple[str, str, int], uuid: str | None = None) -> list[PartitionStep]:
    """Return an order's steps."""
    made = []
    for do, profile, start in steps:
        named = uuid if do == "destroy" else None
        made.append(
            PartitionStep.model_validate(
                {"do": do, "profile": profile, "start": start, "mig_uuid": named}
            )
        )
    return made


def test_a_plan_is_complete_or_refused() -> None:
    """C07: each reason has its code, and nothing was changed for it."""
    node = make_node("n", ["H100-80GB"], mig=True)
    gpu = node.gpus[0]
    made, compute = put_slice(gpu, "3g.40gb", 4)
    assert compute is not None
    put_slice(gpu, "1g.10gb", 0, bare=True)

    def planned(*steps: tuple[str, str, int], uuid: str | None = None) -> Any:
        with reading(node) as session:
            session.host()
            found = plan_partition(order(*steps, uuid=uuid), read_device(session, gpu.uuid))
        return found.code if isinstance(found, Refusal) else [one.do for one in found]

    assert ["create_gi", "create_ci"] == planned(("create", "2g.20gb", 2))
    assert ["destroy_ci", "destroy_gi"] == planned(("destroy", "3g.40gb", 4), uuid=compute.uuid)
    assert [] == planned(("destroy", "2g.20gb", 2), uuid="MIG-gone")
    assert "old-generation" == planned(("destroy", "3g.40gb", 4), uuid="MIG-before")
    assert "old-generation" == planned(("destroy", "2g.20gb", 4), uuid=compute.uuid)
    assert "place-taken" == planned(("create", "2g.20gb", 4))
    # Nobody can see a GPU instance without a compute instance but who lists by profile.
    assert "place-taken" == planned(("create", "1g.10gb", 0))
    assert "no-place" == planned(("create", "3g.40gb", 2))
    assert "no-profile" == planned(("create", "3g.20gb", 0))
    gpu.processes = [_process(77, made.id)]
    assert "in-use" == planned(("destroy", "3g.40gb", 4), uuid=compute.uuid)
    gpu.mig_pending = 0
    assert "mig-pending" == planned(("create", "2g.20gb", 2))
    gpu.mig = 0
    assert "mig-off" == planned(("create", "2g.20gb", 2))
    gpu.mig = gpu.mig_pending = 1
    node.rights = frozenset()
    assert "not-readable" == planned(("create", "2g.20gb", 2))


def _process(pid: int, gi: int | None = None) -> Any:
    from collectors.fake_nvml.gpu import Process as OnGpu  # noqa: PLC0415 - close to its use

    return OnGpu(pid, 100, gi=gi, ci=None if gi is None else 0)


def test_a_mode_is_changed_when_nobody_is_there() -> None:
    """Instances, processes, and processes that cannot be listed are in the way."""
    from collectors.nvml.readings import Device  # noqa: PLC0415 - close to its use

    free = Device("GPU-a", mig=False, mig_pending=False, processes=())
    busy = Device("GPU-a", mig=False, processes=(Process(7, "compute"),))

    assert (Step("set_mode", enabled=True),) == plan_mode(free, enabled=True)
    for code, device in {
        "in-use": busy,
        "processes-unknown": Device("GPU-a", mig=False),
        "not-readable": Device("GPU-a", "hung"),
        "instances-left": Device("GPU-a", mig=True, processes=(), instances=(BARE,)),
    }.items():
        found = plan_mode(device, enabled=True)
        assert isinstance(found, Refusal)
        assert code == found.code
