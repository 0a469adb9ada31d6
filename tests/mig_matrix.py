"""Crash the agent at every step of every change of partitions: ``python -m tests.mig_matrix``.

Enumerated, not random: for each change, the agent is ended after every effect that a run has
(each call that changes something or reads for it, each write of the journal); and every call
of every step answers with each code that it can give, before and after it has had its effect,
once or until the fault is mended, with and without a crash on top. After the restart the
device's real state and what the ledger believes are compared. The table of runs and outcomes
is written into ``docs/mig_saga.md``; with ``--check`` nothing is written and the exit status is
1 if the file differs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from collectors.agent.agent import NodeOptions
from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.reader import fake_library
from collectors.health.hearing import WatchOptions
from collectors.nvml.codes import Code, word
from ledger.core.derived.makers import instance_of
from ledger.core.invariants import check
from ledger.core.mig.layouts import legal_starts
from tests.node_support import SECOND, Rig
from tests.nvml_support import put_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from collectors.fake_nvml.boards import Shape
    from collectors.nvml.watchdog import Asker

__all__ = ["PATH", "SECTIONS", "Change", "Run", "main", "run_one", "table_of"]

PATH = Path(__file__).parent.parent / "docs" / "mig_saga.md"
_BEGIN, _END = "<!-- runs: begin -->\n", "<!-- runs: end -->\n"

#: Operations that are steps of a change.
STEPS = ("set_mig_mode", "create_gi", "create_ci", "destroy_ci", "destroy_gi")

_ANY = (Code.UNKNOWN, Code.UNINITIALIZED, Code.NO_PERMISSION, Code.GPU_IS_LOST, "hang")
_OF_ID = (*_ANY, Code.NOT_FOUND, Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT)

#: Operation -> function of NVML -> the codes that nvml.h names for it, and what any call may do.
ERRORS: dict[str, dict[str, tuple[Code | str, ...]]] = {
    "set_mig_mode": {
        "nvmlDeviceSetMigMode": (*_ANY, Code.NOT_SUPPORTED, Code.INVALID_ARGUMENT),
        "nvmlDeviceGetMigMode": _ANY,
    },
    "create_gi": {
        "nvmlDeviceCreateGpuInstanceWithPlacement": (
            *_ANY,
            Code.INSUFFICIENT_RESOURCES,
            Code.INVALID_ARGUMENT,
            Code.NOT_SUPPORTED,
        ),
        "nvmlGpuInstanceGetInfo": _ANY,
    },
    "create_ci": {
        "nvmlDeviceGetGpuInstanceById": _OF_ID,
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement": (
            *_ANY,
            Code.INSUFFICIENT_RESOURCES,
            Code.INVALID_ARGUMENT,
            Code.NOT_SUPPORTED,
        ),
        "nvmlComputeInstanceGetInfo_v2": _ANY,
        "nvmlDeviceGetUUID": _ANY,
    },
    "destroy_ci": {
        "nvmlDeviceGetGpuInstanceById": _OF_ID,
        "nvmlGpuInstanceGetComputeInstanceById": _OF_ID,
        "nvmlComputeInstanceDestroy": (*_ANY, Code.IN_USE, Code.INVALID_ARGUMENT),
    },
    "destroy_gi": {
        "nvmlDeviceGetGpuInstanceById": _OF_ID,
        "nvmlGpuInstanceDestroy": (*_ANY, Code.IN_USE, Code.INVALID_ARGUMENT),
    },
}
#: Functions that change something: only these can have had their effect when they fail.
_CHANGING = frozenset(
    {
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceDestroy",
    }
)


Boot = Literal["", "reboot", "driver", "lost"]
When = Literal["before", "after"]


class Crash(BaseException):
    """The agent ends here."""


@dataclass(frozen=True)
class Change:
    """One change of a device: from these slices to that layout, or to another MIG mode."""

    name: str
    board: str
    before: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    mode: bool | None = None
    #: A client that holds the device open, or a guest that cannot reset it.
    clients: int = 0
    guest: bool = False
    #: Destroys of GPU instances that are refused with nobody in sight.
    stuck: int = 0
    errors: bool = False
    #: One of many places: crashes only.
    place: bool = False


@dataclass(frozen=True)
class Run:
    """What goes wrong: a crash after the ``crash``-th effect, an error in a step's call.

    ``at`` is the step's call (from 0 on), ``lasting`` errors go on until they are mended.
    A crash with an error is counted from the call that gave it. ``then`` is a second crash,
    counted from the restart. ``boot``: the machine or its driver is started anew as well, or
    instead of a crash the GPU falls off the bus, until it is reset.
    """

    crash: int = 0
    at: int = -1
    function: str = ""
    does: Code | str = Code.SUCCESS
    when: When = "before"
    lasting: bool = False
    then: int = 0
    boot: Boot = ""

    @property
    def error(self) -> str:
        """The error's word."""
        if not self.function:
            return ""
        return self.does if isinstance(self.does, str) else word(self.does)


@dataclass
class _Saboteur:
    """Counts effects and step calls; crashes at one, makes another go wrong."""

    run: Run
    rig: Rig
    effects: int = 0
    #: Step calls so far: (operation, effects before it).
    calls: list[str] = field(default_factory=list)
    armed: bool = True
    crash: int = 0
    counting: bool = True

    def begin(self) -> None:
        """Count from here on; with an error to come, from that."""
        self.effects, self.crash = 0, self.run.crash
        self.counting = not self.run.function
        self.calls.clear()

    def tick(self) -> None:
        """Count an effect; crash when it is the one."""
        if self.counting:
            self.effects += 1
            if self.effects == self.crash:
                self.crash = 0
                if self.run.boot != "lost":
                    raise Crash
                self.rig.node.lose(self.rig.node.gpus[0])


class _Asker:
    """Asks the fake node, and lets the saboteur in."""

    def __init__(self, inner: Asker, saboteur: _Saboteur) -> None:
        self._inner = inner
        self._saboteur = saboteur

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:
        """See `collectors.nvml.watchdog.Asker`."""
        sab = self._saboteur
        faults = sab.rig.node.faults
        fault = self._fault(op)
        if fault is not None:
            faults.append(fault)
        if op in STEPS:
            sab.calls.append(op)
        try:
            return await self._inner.ask(op, timeout_s=timeout_s, **arguments)
        finally:
            if fault is not None:
                faults.remove(fault)
                sab.counting = True
            if op in STEPS:
                sab.tick()

    def _fault(self, op: str) -> Fault | None:
        """Return what is to go wrong in this call, if anything is."""
        sab, run = self._saboteur, self._saboteur.run
        if not run.function or not sab.armed or op not in STEPS:
            return None
        number = len(sab.calls)
        wanted = number == run.at or (run.lasting and number > run.at)
        if not wanted or run.function not in ERRORS[op]:
            return None
        return Fault(run.function, run.does, run.when)  # type: ignore[arg-type]

    async def close(self) -> None:
        """See `collectors.nvml.watchdog.Asker`."""


def _rig(change: Change, run: Run) -> tuple[Rig, _Saboteur]:
    watch = WatchOptions(listen_us=10**12, signs_us=10**12)
    options = NodeOptions(look_us=10**12, retell_us=10**12, sweep_us=30 * SECOND, watch=watch)
    mig = change.mode is not True
    rig = Rig((change.board,), mig=mig, options=options, check=False)
    gpu = rig.node.gpus[0]
    for one in change.before:
        profile, _, start = one.partition("@")
        made, _ = put_slice(gpu, profile, int(start))
        made.stuck = change.stuck
    gpu.clients = change.clients
    gpu.virtualization = int(change.guest)
    saboteur = _Saboteur(run, rig)
    return rig, saboteur


async def _life(rig: Rig, saboteur: _Saboteur, work: Callable[[], Any]) -> None:
    """Let the agent live until nothing is due; end and restart it where it crashes."""
    run, again = saboteur.run, run_then(saboteur.run)
    start: Callable[[], Any] | None = work
    while True:
        try:
            if start is not None:
                begin, start = start, None
                begin()
            await rig.settle(200)
        except Crash:
            if run.boot == "reboot":
                rig.node.reboot()
                rig.boot += "x"
            elif run.boot == "driver":
                rig.node.reload_driver()
            rig.make()
            saboteur.effects, saboteur.counting = 0, True
            saboteur.crash = next(again, 0)
            start = rig.agent.start
        else:
            return


def run_then(run: Run) -> Iterator[int]:
    """Yield after how many effects a restarted agent crashes again."""
    if run.then:
        yield run.then


async def _one(change: Change, run: Run) -> tuple[str, int, list[str]]:
    rig, saboteur = _rig(change, run)
    rig.journal.tick = saboteur.tick
    rig.asker = lambda inner: _Asker(inner, saboteur)
    rig.make()
    await rig.start()
    uuid = rig.node.gpus[0].uuid
    saboteur.begin()
    if change.mode is None:
        code = rig.layout(0, *change.layout)
        assert code == "applied", f"{change.name}: {code}"
        await _life(rig, saboteur, lambda: None)
    else:
        enabled = change.mode
        await _life(rig, saboteur, lambda: rig.agent.change_mode(uuid, enabled=enabled))
    effects, calls = saboteur.effects, list(saboteur.calls)
    return await _judge(change, rig, saboteur), effects, calls


async def _judge(change: Change, rig: Rig, saboteur: _Saboteur) -> str:
    """Compare both sides as they are, mend what was wrong, and compare them again."""
    gpu = rig.node.gpus[0]
    answers = [plain for kind, plain in rig.said if kind == "order.failed"]
    held = bool(rig.journal.holds())
    if gpu.lost:
        # Between two looks at the node nobody can know.
        rig.agent.retell()
        await rig.settle(0)
    _agree(rig, mended=False)
    saboteur.armed, saboteur.crash = False, 0
    gpu.clients = 0
    if gpu.lost:
        gpu.reset()
    for one in gpu.instances.values():
        one.stuck = 0
    rig.agent.retell()
    await rig.settle(1200)
    _agree(rig, mended=True)
    if saboteur.run.boot == "reboot" or (saboteur.run.boot == "lost" and answers):
        return "lost"
    return "held, then cleared" if held else _end(change, rig, bool(answers))


def _end(change: Change, rig: Rig, failed: bool) -> str:
    gpu = rig.node.gpus[0]
    if change.mode is not None:
        return "done" if bool(gpu.mig) == change.mode else "not done"
    return "undone" if failed else "done"


def _is_place(shape: Shape) -> bool:
    """Say whether a profile is no variant of another: media engines are no places."""
    return not any(mark in shape.name for mark in ("+me", "-me", "+gfx"))


def _agree(rig: Rig, *, mended: bool) -> None:
    """Raise AssertionError where the ledger and the device differ: the point of it all."""
    gpu, state = rig.node.gpus[0], rig.cell.state
    device = state.devices[gpu.uuid]
    assert not rig.journal.open_orders(), "an order is open at the agent"
    assert not state.orders, f"an order is open in the ledger: {state.orders}"
    assert not [str(one) for one in check(state)], check(state)
    if gpu.lost:
        assert device.health != "healthy", "the ledger takes a lost device for well"
        return
    assert rig.real() == rig.believed(), (rig.real(), rig.believed())
    assert all(one.order is None for one in state.slices.values()), "a slice waits for an order"
    assert bool(gpu.mig) == device.mig_enabled, "the mode differs"
    assert (gpu.mig != gpu.mig_pending) == device.mig_pending, "the pending mode differs"
    bare, healthy = rig.bare(), device.health == "healthy"
    assert not bare or not healthy, f"GPU instances {bare} are left, and nobody knows"
    if mended:
        assert not bare, f"GPU instances {bare} have leaked"
        assert healthy, f"the device is {device.health}"
        assert not rig.journal.holds(), "a hold has not ended"
    if not healthy or not gpu.mig or device.geometry is None:
        return
    there = [instance_of(state.slices[name]) for name in device.slices]
    for shape in gpu.board.shapes:
        if not _is_place(shape):
            continue
        free = set(legal_starts(device.geometry, there, shape.name))
        assert free == set(gpu.free_places(shape)), f"{shape.name}: {free} are free"


def run_one(change: Change, run: Run) -> tuple[str, int, list[str]]:
    """Return how a run ended, after how many effects, and which step calls it made.

    Raise AssertionError, naming the run, where the two sides do not agree.
    """
    with fake_library():
        try:
            return asyncio.run(_one(change, run))
        except AssertionError as error:
            raise AssertionError(f"{change.name}: {run}: {error}") from error


# -- what is run -----------------------------------------------------------------------


def _placements(board: str) -> list[Change]:
    """Return one creation for each place of each profile, and the destruction of each."""
    found = []
    for shape in BOARDS[board].shapes:
        if not _is_place(shape):
            continue
        for start in shape.starts:
            place = f"{shape.name}@{start}"
            found.append(Change(f"create {place}", board, (), (place,), place=True))
            found.append(Change(f"destroy {place}", board, (place,), (), place=True))
    return found


#: Each with a crash everywhere; with ``errors`` also everything that a call can answer.
CHANGES: tuple[Change, ...] = (
    Change("create one slice", "H100-80GB", (), ("3g.40gb@4",), errors=True),
    Change("create two", "H100-80GB", (), ("2g.20gb@0", "1g.10gb@2")),
    Change("destroy one", "H100-80GB", ("3g.40gb@4",), (), errors=True),
    Change(
        "a new layout",
        "H100-80GB",
        ("3g.40gb@0", "1g.10gb@6"),
        ("2g.20gb@0", "1g.10gb@6"),
        errors=True,
    ),
    Change("a half into quarters", "A30-24GB", ("2g.12gb@0",), ("1g.6gb@0", "1g.6gb@1")),
    Change("destroy one, held by nobody in sight, once", "H100-80GB", ("3g.40gb@4",), (), stuck=1),
    Change("the same, for ever", "H100-80GB", ("3g.40gb@4",), (), stuck=1000),
    Change("enable MIG", "H100-80GB", mode=True, errors=True),
    Change("enable MIG, Ampere", "A100-80GB", mode=True),
    Change("disable MIG", "H100-80GB", mode=False, errors=True),
    Change("enable MIG, a client holds the device", "A100-80GB", mode=True, clients=1),
    Change("enable MIG, in a guest", "A100-80GB", mode=True, guest=True),
)

#: Boards on which every place of every profile is made and destroyed, with a crash everywhere.
BOARDS_OF_PLACES = ("A30-24GB", "H100-80GB", "RTX-PRO-6000")


def runs_of(change: Change) -> Iterator[Run]:
    """Yield what can go wrong with a change: crashes; and errors, with a crash on top."""
    _, effects, calls = run_one(change, Run(crash=10**6))
    yield Run()
    boots: Sequence[Boot] = ("",) if change.place else ("", "reboot", "driver", "lost")
    for boot in boots:
        for crash in range(1, effects + 1):
            yield Run(crash, boot=boot)
    if not change.errors:
        return
    for crash, then in product(range(1, effects + 1), range(1, 4)):
        yield Run(crash, then=then)
    for at, op in enumerate(calls):
        for function, codes in ERRORS[op].items():
            whens: tuple[When, ...] = ("before", "after") if function in _CHANGING else ("before",)
            for does, when, lasting in product(codes, whens, (False, True)):
                # The crash comes before the error is recorded, or after it.
                for crash in (0, 1) if lasting else (0, 1, 2):
                    yield Run(crash, at, function, does, when, lasting)


def _row(name: str, what: str, counts: Counter[str]) -> str:
    order = ("done", "undone", "not done", "held, then cleared", "lost")
    cells = " | ".join(str(counts[one]) if counts[one] else "" for one in order)
    return f"| {name} | {what} | {sum(counts.values())} | {cells} |"


_BOOTS = {
    "reboot": "a reboot",
    "driver": "the driver loaded anew",
    "lost": "the GPU falls off the bus",
}


def _kind(run: Run) -> str:
    if run.function:
        crash = " and a crash" if run.crash else ""
        return f"an error{', lasting' if run.lasting else ', once'}{crash}"
    if run.boot:
        return _BOOTS[run.boot]
    if run.then:
        return "two crashes"
    return "a crash" if run.crash else "nothing"


def rows_of(change: Change) -> list[str]:
    """Run all of a change; return its rows. Raise AssertionError where the sides differ."""
    table: dict[str, Counter[str]] = {}
    for run in runs_of(change):
        outcome, _, _ = run_one(change, run)
        table.setdefault(_kind(run), Counter())[outcome] += 1
    return [_row(change.name, what, counts) for what, counts in table.items()]


def rows_of_places(board: str) -> list[str]:
    """Run the creation and destruction of every place of a board; return the two rows."""
    rows = []
    for verb in ("create", "destroy"):
        counts: Counter[str] = Counter()
        for change in _placements(board):
            if change.name.startswith(verb):
                counts.update(run_one(change, run)[0] for run in runs_of(change))
        rows.append(_row(f"{verb}, every place of {board}", "nothing, a crash", counts))
    return rows


#: Name -> what makes its rows, in the order of the table.
SECTIONS: dict[str, Callable[[], list[str]]] = {
    **{one.name: partial(rows_of, one) for one in CHANGES},
    **{f"places of {one}": partial(rows_of_places, one) for one in BOARDS_OF_PLACES},
}


def table_of(sections: Sequence[list[str]]) -> str:
    """Return the table, and how many runs it is of."""
    rows = [row for section in sections for row in section]
    head = "| change | what goes wrong | runs | done | undone | not done | held | lost |\n"
    head += "|---|---|---:|---:|---:|---:|---:|---:|\n"
    total = sum(int(row.split("|")[3]) for row in rows)
    text = head + "\n".join(rows) + "\n"
    return f"{text}\n{total} runs, and at the end of each of them both sides agree.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or with ``--check`` compare it; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    # What goes wrong is on purpose here, and would be told thousands of times.
    quiet = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=quiet)
    text = PATH.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    table = table_of([section() for section in SECTIONS.values()])
    made = before + _BEGIN + "\n" + table + "\n" + _END + after
    if "--check" in given:
        return int(made != text)
    PATH.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
