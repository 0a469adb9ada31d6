"""A simulated machine: the agent of real nodes, its shell and its journal over fake GPUs.

What is simulated is what an agent finds on a machine, and nothing of the agent: NVML's library
(`collectors.fake_nvml`), the two clocks, the processes, and the cable to the log. The journal
is in memory and outlives a reboot, as a disk does. Tasks are the machine's, too: whoever asked
for a lease would start one, so here each lease that may begin gets a process on its units,
which ends when its request expects it to.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from collectors.agent.agent import NodeAgent, NodeOptions
from collectors.agent.journal import Clock, Journal
from collectors.agent.shell import NodeShell, ShellOptions
from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.node import make_node
from collectors.fake_nvml.reader import FakeAsker
from collectors.fleet.processes import SimulatedProcesses
from collectors.nvml.host_facts import HostFacts
from collectors.nvml.report import Standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.fake_nvml.gpu import FakeGpu
    from collectors.fake_nvml.node import FakeNode
    from collectors.fleet.log import FleetLog, NodeLog
    from collectors.use.watch import UseOptions

__all__ = ["HostOptions", "HostSpec", "PlayingAgent", "SimulatedHost", "Start", "board_named"]

_US = 1_000_000

#: A machine's steady clock when it has just booted: it is never 0.
_BOOTED_US = 10 * _US

#: Operations of NVML that change something, and so take long.
_CHANGES = frozenset({"set_mig_mode", "create_gi", "create_ci", "destroy_ci", "destroy_gi"})


def board_named(text: str) -> str | None:
    """Return the board of this name, or the largest of the model: ``H100`` is H100-80GB."""
    if text in BOARDS:
        return text
    found = [name for name in BOARDS if name.startswith(f"{text}-")]
    return max(found, key=lambda name: BOARDS[name].memory_mib, default=None)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A machine. ``mig``: its own start-up turns MIG on where a board can."""

    name: str
    pool: str
    boards: tuple[str, ...]
    mig: bool = True
    cpu_milli: int | None = None
    memory_mib: int | None = None


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How machines are. ``change_us`` is what NVML takes for each call that changes something.

    ``run_us`` is how long a task runs whose request does not say; without ``plays`` no task is
    ever started. ``heartbeat_s`` must be well below the workers' ``heartbeat_limit_s``.
    ``use`` is how the use of devices is watched; None: it is not.
    """

    prefix: str = "gpuledger"
    heartbeat_s: float = 2.0
    change_us: int = 0
    run_us: int = 60 * _US
    plays: bool = True
    agent: NodeOptions = field(default_factory=NodeOptions)
    use: UseOptions | None = None


class _HostClock:
    """A machine's clocks: the wall's may be off, the steady one counts from the boot."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self.off_us = 0
        self._booted_us = 0
        self.boot()
        self.clock = Clock(
            lambda: base.wall_us() + self.off_us, lambda: base.steady_us() - self._booted_us
        )

    def boot(self) -> None:
        self._booted_us = self._base.steady_us() - _BOOTED_US


class _Asker(FakeAsker):
    """Takes the time that the driver takes for a change, and its turn among all machines.

    On a machine of its own NVML is another process. Here a thousand of them would read their
    devices at one stretch, and nothing would get to the log meanwhile.
    """

    def __init__(self, node: FakeNode, change_us: int, turn: asyncio.Lock) -> None:
        super().__init__(node)
        self._change_s = change_us / _US
        self._turn = turn

    async def ask(self, op: str, *, timeout_s: float | None = None, **arguments: Any) -> Any:  # noqa: ANN401 - as asked
        if self._change_s and op in _CHANGES:
            await asyncio.sleep(self._change_s)
        async with self._turn:
            await asyncio.sleep(0)
        return await super().ask(op, timeout_s=timeout_s, **arguments)


class PlayingAgent(NodeAgent):
    """The agent, and those who use its machine: tasks begin and end after each of its turns."""

    def play_with(self, processes: SimulatedProcesses, run_us: int) -> None:
        """Start a process for each lease that may begin; to be said before `start`."""
        self._played = processes
        self._run_us = run_us
        #: Lease -> pid and when it ends by itself, on the steady clock; 0: it is over.
        self._tasks: dict[str, tuple[int, int]] = {}

    async def work(self) -> int:
        """See `NodeAgent.work`."""
        due_us = await super().work()
        return min([due_us, *self._play()])

    def _play(self) -> list[int]:
        """Let tasks begin and end; return when the next ones end."""
        rows = self.journal.rows("SELECT lease, unit FROM leases WHERE state = 'held'")
        units: dict[str, list[str]] = {}
        for lease, unit in rows:
            units.setdefault(lease, []).append(unit)
        self._tasks = {lease: task for lease, task in self._tasks.items() if lease in units}
        now_us = self.journal.clock.steady_us()
        for lease in units.keys() - self._tasks.keys():
            pid = self._played.run(lease, sorted(units[lease]))
            self._tasks[lease] = (pid, now_us + self._expected_us(lease))
        for lease, (pid, ends_us) in self._tasks.items():
            lost = self._played.state(pid) != "alive"
            if ends_us and (lost or ends_us <= now_us):
                self._end(lease, pid, lost=lost)
        return [ends_us for _, ends_us in self._tasks.values() if ends_us]

    def _expected_us(self, lease: str) -> int:
        found = self.journal.rows(
            "SELECT plain FROM orders WHERE kind = 'prepare'"
            " AND json_extract(plain, '$.lease') = ? ORDER BY rowid DESC LIMIT 1",
            lease,
        )
        expected = orjson.loads(found[0][0]).get("expected_run_us") if found else None
        return self._run_us if expected is None else int(expected)

    def _end(self, lease: str, pid: int, *, lost: bool) -> None:
        """End a task, and say so, unless the agent itself is about to say how it ended."""
        self._played.end(pid, hard=True)
        self._tasks[lease] = (pid, 0)
        ordered = {one.plain.get("lease") for one in self.journal.open_orders()}
        if lease not in ordered:
            how, code = ("failed", 1) if lost else ("completed", 0)
            about = {
                "node": self.standing.node,
                "incarnation": self.incarnation,
                "node_time_us": self.journal.clock.wall_us(),
            }
            more = {"lease": lease, "how": how, "exit_code": code}
            self.journal.say("task.ended", about | more)


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """One start of an agent: it runs until it is taken away."""

    agent: NodeAgent
    shell: NodeShell
    log: NodeLog


class SimulatedHost:
    """One machine. `turn_on` it, and run every shell of ``starts`` while it is there."""

    def __init__(
        self, spec: HostSpec, cell: str, log: FleetLog, clock: Clock, options: HostOptions
    ) -> None:
        """Make a machine that is off. ``clock`` is the world's, which all machines share."""
        self._boot_names = f"{clock.wall_us():x}"
        self.spec = spec
        self.node = make_node(spec.name, spec.boards, mig=spec.mig)
        self.processes = SimulatedProcesses(self.node)
        self.starts: list[Start] = []
        self.boots = 0
        self._cell = cell
        self._log = log
        self._time = _HostClock(clock)
        self._options = options
        self._journal = Journal(":memory:", self._time.clock)
        self._seen = log.of(spec.name)

    @property
    def incarnation(self) -> str:
        """The name of this boot. Another process of the same name begins with another one."""
        return f"{self.spec.name}-{self._boot_names}-{self.boots}"

    # -- on and off -----------------------------------------------------------------

    def turn_on(self) -> None:
        """Boot the machine, and let it start its agent."""
        self.boots += 1
        self._time.boot()
        self.node.reboot()
        self.set_up()
        self.start_agent()

    def turn_off(self) -> None:
        """Let the machine lose its power: nothing runs, and its agent says nothing more."""
        self.stop_agents()
        self.node.reboot()

    def set_up(self) -> None:
        """Do what the machine's start-up does beside the agent: MIG mode is lost on Hopper."""
        for gpu in self.node.gpus:
            if self.spec.mig and gpu.board.shapes:
                gpu.mig = gpu.mig_pending = 1

    def start_agent(self) -> None:
        """Start the agent, with the journal that the one before has left."""
        self.starts.append(self._start(self._journal, self._seen, plays=self._options.plays))

    def start_another(self) -> Start:
        """Start a second agent beside the first, which knows nothing of it."""
        journal = Journal(":memory:", self._time.clock)
        made = self._start(journal, self._log.of(self.spec.name), plays=False)
        self.starts.append(made)
        return made

    def stop(self, start: Start) -> None:
        """End one agent, as a crash does; one that has ended already is left."""
        if start not in self.starts:
            return
        self.starts.remove(start)
        if start.log is not self._seen:
            self._log.forget(self.spec.name, start.log)

    def stop_agents(self) -> None:
        """End every agent, as a crash does."""
        for start in list(self.starts):
            self.stop(start)

    def _start(self, journal: Journal, log: NodeLog, *, plays: bool) -> Start:
        spec, options = self.spec, self._options
        make: Callable[..., NodeAgent] = PlayingAgent if plays else NodeAgent
        agent = make(
            _Asker(self.node, options.change_us, self._log.turn),
            journal,
            Standing(spec.name, spec.pool),
            self._cell,
            facts=HostFacts(self.incarnation, spec.cpu_milli, spec.memory_mib),
            processes=self.processes,
            options=options.agent,
        )
        if isinstance(agent, PlayingAgent):
            agent.play_with(self.processes, options.run_us)
        shell = NodeShell(
            log, agent, ShellOptions(options.prefix, options.heartbeat_s, options.use)
        )
        return Start(agent, shell, log)

    # -- what befalls it ------------------------------------------------------------

    def cut(self, *, off: bool) -> None:
        """Pull the cable to the log, or put it back."""
        self._seen.cut = off

    def set_clock(self, off_us: int) -> None:
        """Set the wall clock to so much beside the world's."""
        self._time.off_us = off_us

    def gpu(self, device: int) -> FakeGpu:
        """Return a GPU by number."""
        return self.node.gpus[device]
