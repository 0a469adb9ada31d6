"""The core against a naive ledger, under everything at once (testing.md, layer 2)."""

from __future__ import annotations

import os
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ledger.core.decide import decide, to_record
from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.fold import Fold
from ledger.testing import AGENT, CoreDriver, device, mig_slice
from tests.naive import Naive

TEAMS = ("/team/a", "/team/b")
TENANTS = ("t", "u")
QUEUES = ("q", "strict")
NODES = ("n1", "n2", "n3")
PICK = st.integers(0, 40)

WHOLE = st.fixed_dictionaries(
    {"mode": st.just("whole")},
    optional={
        "count": st.sampled_from([0, 1, 2, 2]),
        "nodes": st.sampled_from([1, 2]),
        "models": st.sampled_from([["H100"], ["A10"], ["H100", "A10"]]),
        "memory_mib": st.just(30_000),
        "pool": st.sampled_from(["main", "side"]),
        "labels": st.just({"zone": "1"}),
    },
)
SHARE = st.fixed_dictionaries(
    {"mode": st.just("share"), "gpu_milli": st.sampled_from([1, 300, 500, 1000])},
    optional={"memory_mib": st.sampled_from([10_000, 50_000])},
)
MIG = st.fixed_dictionaries(
    {
        "mode": st.just("mig"),
        "profile": st.sampled_from(["1g.10gb", "1g.10gb", "3g.40gb"]),
        "count": st.integers(1, 3),
    }
)
WHO = st.tuples(st.sampled_from(TEAMS), st.sampled_from(TENANTS), st.sampled_from(QUEUES))
MORE = st.fixed_dictionaries(
    {},
    optional={
        "beside": st.sampled_from([{"cpu_milli": 4_000}, {"memory_mib": 600}]),
        "priority": st.just(5),
        "retries": st.integers(1, 2),
        "max_wait_s": st.sampled_from([0, 60]),
        "max_run_s": st.sampled_from([30, 600]),
    },
)
SLICES: tuple[list[dict[str, Any]], ...] = (
    [mig_slice("MIG-1", 1, 0), mig_slice("MIG-2", 2, 1), mig_slice("MIG-3", 3, 2)],
    [
        mig_slice("MIG-4", 4, 0, profile="3g.40gb", size=4, compute_slices=3, memory_mib=40_448),
        mig_slice("MIG-2", 2, 4),
    ],
    [mig_slice("MIG-1", 1, 0), mig_slice("MIG-9", 9, 0)],
    [],
)


UUIDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-m", "GPU-x")
CHANGES: tuple[dict[str, Any], ...] = (
    {"model": "H200"},
    {"model": "H100", "index": 3},
    {"memory_mib": 40_000},
    {"memory_mib": 81_920},
    {"mig_enabled": True, "compute_slices": 7},
    {"mig_enabled": False},
    {"health": "unhealthy"},
    {"health": "unknown"},
    {"health": "healthy"},
    *({"slices": slices} for slices in SLICES),
)
NODE = st.sampled_from(NODES)
SUPPLY = st.one_of(
    st.tuples(st.just("inventory"), NODE, st.sampled_from([False, False, True])),
    st.tuples(
        st.just("move"), st.sampled_from(UUIDS), st.sampled_from([*NODES, ""]), st.booleans()
    ),
    st.tuples(st.just("change"), st.sampled_from(UUIDS), st.sampled_from(CHANGES)),
    st.tuples(st.just("hear"), NODE, st.sampled_from(["silent", "silent", "back"])),
    st.tuples(
        st.just("health"), PICK, st.sampled_from(["healthy", "unhealthy", "unknown", "gone"])
    ),
    st.tuples(st.just("repool"), NODE, st.sampled_from(["main", "side", "new"])),
    st.tuples(st.just("odd"), NODE, st.sampled_from(["agent", "boot", "epoch", "cpu"])),
)
POLICY = st.one_of(
    st.tuples(st.just("clear"), st.sampled_from(UUIDS)),
    st.tuples(st.just("mode"), NODE, st.sampled_from(["online", "draining", "maintenance"])),
    st.tuples(
        st.just("quota"), st.sampled_from(TENANTS), st.sampled_from([0, 1_000, 3_000, 20_000])
    ),
    st.tuples(
        st.just("pool"),
        st.sampled_from(["main", "side", "new"]),
        st.sampled_from(["1", "2"]),
        st.sampled_from([0, 10, 200]),
    ),
    st.tuples(
        st.just("queue"),
        st.sampled_from(QUEUES),
        st.sampled_from(["strict", "best-effort"]),
        st.sampled_from([None, None, 0, 300]),
        st.sampled_from([None, None, 1, 4]),
    ),
)


def _fleet() -> dict[str, dict[str, dict[str, Any]]]:
    return {
        "n1": {uuid: device(uuid) for uuid in ("GPU-a", "GPU-b")},
        "n2": {
            "GPU-c": device("GPU-c"),
            "GPU-m": device("GPU-m", mig_enabled=True, compute_slices=7, slices=SLICES[0]),
        },
        "n3": {uuid: device(uuid, model="A10", memory_mib=24_000) for uuid in ("GPU-x", "GPU-y")},
    }


class CoreMachine(RuleBasedStateMachine):
    """Everything that services, operators, nodes and time can do to a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = CoreDriver(check=True)
        self.naive = Naive()
        self.fleet = _fleet()
        self.boots = dict.fromkeys(NODES, 1)
        self.pools = {"n1": "main", "n2": "main", "n3": "side"}
        self.submitted: list[tuple[str, str, dict[str, Any]]] = []
        self.leases: list[str] = []
        self.orders: list[tuple[str, str, str]] = []

    # -- driving ---------------------------------------------------------------

    def feed(self, name: str, plain: dict[str, Any], **more: Any) -> str:
        """Feed an input to the ledger, its decision to the naive one; compare."""
        decision = self.cell.feed(name, plain, **more)
        self.naive.learn(decision)
        self.naive.compare(self.cell.state)
        for event in decision.events:
            if event["type"] == "lease.granted":
                self.leases.append(event["lease"])
            if event["type"] == "order.issued":
                boot = self.cell.state.nodes[event["node"]].incarnation
                self.orders.append((event["order"], event["node"], boot))
        return decision.code

    def operator(self, name: str, **plain: Any) -> str:
        """Feed what an operator says."""
        return self.feed(name, {"author": "op", "reason": "x", **plain}, source="/operator")

    def says(self, name: str, node: str, boot: str | None = None, **plain: Any) -> str:
        """Feed what a node's agent says."""
        said = {"node": node, "incarnation": boot or f"b{self.boots[node]}", **plain}
        return self.feed(name, said, source=AGENT + node)

    def report(self, node: str, **more: Any) -> str:
        """Feed a node's inventory as the fleet has it."""
        size = {"n1": {"cpu_milli": 10_000, "memory_mib": 1_000}}.get(node, {})
        said: dict[str, Any] = {"epoch": 1, "pool": self.pools[node]}
        devices = [*self.fleet[node].values()]
        return self.says("node.inventory", node, devices=devices, **(said | size | more))

    def owner(self, name: str) -> str:
        """Return the source that a request or lease belongs to."""
        return name.partition("#")[0]

    @initialize(late=st.booleans(), nominal=st.sampled_from([3_000, 20_000]))
    def start(self, late: bool, nominal: int) -> None:
        """Set policies and nodes; the side pool sometimes comes after its node."""
        self.operator("pool.apply", pool="main", labels={"zone": "1"}, order_timeout_s=120)
        self.operator("queue.apply", queue="q")
        self.operator("queue.apply", queue="strict", ordering="strict", max_wait_s=900)
        for tenant in TENANTS:
            self.operator("quota.apply", tenant=tenant, nominal_gpu_milli=nominal)
        if not late:
            self.operator("pool.apply", pool="side")
        for node in NODES:
            self.report(node)

    # -- services ----------------------------------------------------------------

    def submit(self, who: tuple[str, str, str], ask: dict[str, Any], more: dict[str, Any]) -> None:
        """Let a service ask."""
        source, tenant, queue = who
        about = {"tenant": tenant, "queue": queue, "task": {"id": "task"}, "ask": ask}
        name = f"r{len(self.submitted)}"
        self.submitted.append((source, name, about | more))
        self.feed("request.submit", about | more, source=source, id=name)

    @rule(who=WHO, more=MORE)
    def submit_one(self, who: tuple[str, str, str], more: dict[str, Any]) -> None:
        """Ask for one whole device."""
        self.submit(who, {"mode": "whole"}, more)

    @rule(who=WHO, ask=WHOLE, more=MORE)
    def submit_whole(
        self, who: tuple[str, str, str], ask: dict[str, Any], more: dict[str, Any]
    ) -> None:
        """Ask for whole devices, a gang, or CPU alone."""
        self.submit(who, ask, more)

    @rule(who=WHO, ask=SHARE, more=MORE)
    def submit_share(
        self, who: tuple[str, str, str], ask: dict[str, Any], more: dict[str, Any]
    ) -> None:
        """Ask for a share of a device."""
        self.submit(who, ask, more)

    @rule(who=WHO, ask=MIG, more=MORE)
    def submit_mig(
        self, who: tuple[str, str, str], ask: dict[str, Any], more: dict[str, Any]
    ) -> None:
        """Ask for slices."""
        self.submit(who, ask, more)

    @precondition(lambda self: self.submitted)
    @rule(pick=PICK, other=st.booleans())
    def submit_again(self, pick: int, other: bool) -> None:
        """Send the same id again: a copy for the same content, a conflict for other."""
        source, name, plain = self.submitted[pick % len(self.submitted)]
        more = {"expected_run_s": 77} if other else {}
        code = self.feed("request.submit", plain | more, source=source, id=name)
        assert code == ("id_conflict" if other else "duplicate")

    @precondition(lambda self: self.submitted)
    @rule(pick=PICK, wrong=st.sampled_from([False, False, True]))
    def cancel(self, pick: int, wrong: bool) -> None:
        """Withdraw a request, sometimes as a stranger."""
        source, name, _ = self.submitted[pick % len(self.submitted)]
        stranger = TEAMS[1 - TEAMS.index(source)]
        said = {"request": f"{source}#{name}"}
        code = self.feed("request.cancel", said, source=stranger if wrong else source)
        assert not wrong or code in ("not_owner", "unknown_request")

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, wrong=st.sampled_from([False, False, True]))
    def release(self, pick: int, wrong: bool) -> None:
        """Give back any lease that ever was, so often one that is over."""
        lease = self.leases[pick % len(self.leases)]
        source = self.owner(lease)
        live = lease in self.cell.state.leases
        stranger = TEAMS[1 - TEAMS.index(source)]
        code = self.feed("lease.release", {"lease": lease}, source=stranger if wrong else source)
        if wrong:
            assert code == "not_owner"
        elif live:
            # A deadline that the input carries the clock past comes before it.
            assert code in ("released", "already_released")
        else:
            assert code == "already_released"

    # -- nodes -------------------------------------------------------------------

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, how=st.sampled_from(["started", "completed", "failed", "stopped"]))
    def task(self, pick: int, how: str) -> None:
        """Let a node see a task start or end."""
        lease = self.leases[pick % len(self.leases)]
        parts = self.cell.state.leases.get(lease)
        node = NODES[pick % 3] if parts is None else list(parts.parts)[pick % len(parts.parts)]
        if how == "started":
            self.says("task.started", node, lease=lease)
        else:
            self.says("task.ended", node, lease=lease, how=how)

    @precondition(lambda self: self.orders)
    @rule(pick=PICK, done=st.sampled_from([True, True, False]), old=st.booleans())
    def answer(self, pick: int, done: bool, old: bool) -> None:
        """Answer an order, perhaps an old one, perhaps as an earlier incarnation."""
        state = self.cell.state
        named = [one for one in self.orders if old or one[0] in state.orders] or self.orders
        order, node, boot = named[pick % len(named)]
        said = None if not old else boot
        if done:
            self.says("order.done", node, said, order=order)
        else:
            self.says("order.failed", node, said, order=order, reason="left")

    @rule()
    def answer_all(self) -> None:
        """Let every node that is heard carry out its orders."""
        state = self.cell.state
        for _ in range(len(state.orders) * 3):
            nodes = state.nodes
            heard = [
                one
                for one in state.orders.values()
                if nodes[one.node].state not in ("silent", "lost")
                and nodes[one.node].incarnation == f"b{self.boots[one.node]}"
            ]
            if not heard:
                return
            self.says("order.done", heard[0].node, order=heard[0].id)

    @rule(act=SUPPLY)
    def supply(self, act: tuple[Any, ...]) -> None:
        """Let something happen to the nodes and their cards."""
        getattr(self, f"_{act[0]}")(*act[1:])

    def _inventory(self, node: str, boot: bool) -> None:
        """Let a node tell what it has, sometimes after a restart."""
        self.boots[node] += boot
        self.report(node)

    def _move(self, uuid: str, to: str, tell: bool) -> None:
        """Pull a card, and perhaps put it into another node (or back)."""
        card = None
        for node, cards in self.fleet.items():
            if uuid in cards and node != to:
                card = cards.pop(uuid)
                if tell:
                    self.report(node)
        if to:
            self.fleet[to].setdefault(uuid, card or device(uuid))
            self.report(to)

    def _change(self, uuid: str, change: dict[str, Any]) -> None:
        """Report a card with other facts."""
        for node, cards in self.fleet.items():
            if uuid in cards:
                cards[uuid] = cards[uuid] | change
                self.report(node)

    def _hear(self, node: str, what: str) -> None:
        """Stop hearing a node, or hear it again."""
        more: dict[str, Any] = {"last_heartbeat_us": 1} if what == "silent" else {}
        self.says(f"node.{what}", node, **more)

    def _health(self, pick: int, health: str) -> None:
        """Change a card's health."""
        known = sorted(self.cell.state.devices.values(), key=lambda one: one.uuid)
        card = known[pick % len(known)]
        self.says("device.health", card.node, device=card.uuid, health=health)

    def _repool(self, node: str, pool: str) -> None:
        """Configure a node into another pool."""
        self.pools[node] = pool
        self.report(node)

    def _odd(self, node: str, kind: str) -> None:
        """Send an inventory by a second agent, of an old boot, or of a node that has grown."""
        if kind == "cpu":
            self.report(node, cpu_milli=20_000, epoch=2)
        elif kind == "epoch":
            self.report(node, epoch=0)
        else:
            said = {"pool": "main", "epoch": 5, "devices": [device("GPU-b")]}
            boot = "b0" if kind == "boot" else f"b{self.boots[node]}"
            source = AGENT + (node if kind == "boot" else "other")
            plain = {"node": node, "incarnation": boot, **said}
            if kind == "agent" or boot in self.cell.state.nodes[node].past_incarnations:
                self.feed("node.inventory", plain, source=source)

    # -- operators and time --------------------------------------------------------

    @precondition(lambda self: self.leases)
    @rule(pick=PICK)
    def reclaim(self, pick: int) -> None:
        """Take a lease back."""
        self.operator("lease.reclaim", lease=self.leases[pick % len(self.leases)])

    @rule(act=POLICY)
    def policy(self, act: tuple[Any, ...]) -> None:
        """Let an operator change something."""
        getattr(self, f"_{act[0]}")(*act[1:])

    def _clear(self, uuid: str) -> None:
        """Give the word that a card is clean."""
        self.operator("device.clear", device=uuid)

    def _mode(self, node: str, mode: str) -> None:
        """Put a node in or out of service, silent or not."""
        self.operator("node.set", node=node, mode=mode)

    def _quota(self, tenant: str, nominal: int) -> None:
        """Raise or lower a quota."""
        self.operator("quota.apply", tenant=tenant, nominal_gpu_milli=nominal)

    def _pool(self, pool: str, zone: str, patience: int) -> None:
        """Make a pool, or change its labels and its patience."""
        self.operator(
            "pool.apply",
            pool=pool,
            labels={"zone": zone},
            silent_grace_s=patience,
            order_timeout_s=patience,
        )

    def _queue(self, queue: str, ordering: str, wait: int | None, most: int | None) -> None:
        """Change a queue's rules while requests wait in it."""
        self.operator("queue.apply", queue=queue, ordering=ordering, max_wait_s=wait, max_gpus=most)

    @rule(seconds=st.sampled_from([-100, 0, 1, 40, 150, 700]))
    def time(self, seconds: int) -> None:
        """Let time pass, or an input come with an earlier stamp."""
        at = max(1, self.cell.now_us + seconds * 1_000_000)
        self.feed("tick", {}, source="/tick", at_us=at)

    @rule()
    def claim(self) -> None:
        """Let another worker take over."""
        self.cell.claim()

    # -- at the end ------------------------------------------------------------------

    def teardown(self) -> None:
        """Compare live, replayed, snapshot and tail, a log with void records, and decided again."""
        live = self.cell.digest()
        records = self.cell.records
        assert digest(self.cell.replayed().cells) == live
        half = Fold()
        for offset, value in enumerate(records[: len(records) // 2]):
            half.apply(offset, value)
        tail = load_fold(save_fold(half)).ready()
        for offset in range(len(records) // 2, len(records)):
            tail.apply(offset, records[offset])
        assert digest(tail.cells) == live
        assert digest(_with_void(records).cells) == live
        assert _decided_again(self.cell) == records


def _with_void(records: list[bytes]) -> Fold:
    """Fold the log with copies, forgeries and a zombie's records between its own."""
    fold = Fold()
    voids = 0
    for at, value in enumerate(records):
        fold.apply(fold.head.offset, value)
        forged = orjson.loads(value)
        if forged["kind"] == "decision":
            far = forged | {"seq": forged["seq"] + 1, "token": "f" * 32}
            for void in (value, orjson.dumps(far), records[at // 2]):
                if orjson.loads(void)["kind"] == "decision":
                    assert fold.apply(fold.head.offset, void)[0] == "void"
                    voids += 1
    assert fold.head.void == voids
    return fold


def _decided_again(cell: CoreDriver) -> list[bytes]:
    """Decide the same inputs again, from nothing; claims stand where they stood."""
    fold = Fold()
    made: list[bytes] = []
    offsets = {"requests": -1, "observations": -1}
    claims = {at: value for at, value in enumerate(cell.records) if b'"kind":"claim"' in value}

    def claim() -> None:
        while len(made) in claims:
            fold.apply(len(made), claims[len(made)])
            made.append(claims[len(made)])

    claim()
    for given in cell.inputs:
        offsets[given.topic] += 1
        decision = decide(fold.cell(cell.name), given)
        if decision.recorded:
            record = to_record(
                decision,
                cell=cell.name,
                token=fold.head.token,
                seq=fold.head.seq + 1,
                offset=offsets[given.topic],
            )
            made.append(orjson.dumps(record))
            fold.advance(given.topic, offsets[given.topic], decision.time_us)
            fold.head.offset += 1
            claim()
    return made


TestCoreMachine = CoreMachine.TestCase
if settings.get_current_profile_name() == "quick":
    # 200 x 50 steps in less than a minute of one core; the same ones every time in CI.
    TestCoreMachine.settings = settings(
        max_examples=200, stateful_step_count=50, derandomize="CI" in os.environ
    )
