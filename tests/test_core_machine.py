"""The core against a clerk with pencil and paper, under everything at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ledger.core.decide import decide, to_record
from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.fold import Fold
from tests.world import NODES, PARTED, QUEUES, QUOTAS, SLICES, TEAMS, UUIDS, World

if TYPE_CHECKING:
    from ledger.testing import CoreDriver

PICK = st.integers(0, 40)
BOTH = st.booleans()
RARELY = st.sampled_from([False, False, True])

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
    optional={
        "memory_mib": st.sampled_from([10_000, 50_000]),
        "encoder_sessions": st.sampled_from([1, 2]),
        "decoder_sessions": st.just(2),
    },
)
MIG = st.fixed_dictionaries(
    {
        "mode": st.just("mig"),
        "profile": st.sampled_from(["1g.10gb", "1g.10gb", "3g.40gb", "7g.80gb", "2g.12gb"]),
        "count": st.integers(1, 3),
    }
)
SIZED = st.fixed_dictionaries(
    {"mode": st.just("mig"), "memory_mib": st.sampled_from([5_000, 30_000])}
)
AUTO = st.fixed_dictionaries(
    {
        "mode": st.just("auto"),
        "pool": st.sampled_from(["main", "side"]),
        "gpu_milli": st.just(300),
        "compute_slices": st.just(1),
        "memory_mib": st.just(5_000),
    }
)
#: Terms that an ask of any devices may have; the last ones only of whole devices.
WHERE: tuple[dict[str, Any], ...] = (
    {"architectures": ["hopper"]},
    {"capability": "9.0"},
    {"driver_min": "550.60"},
    {"spread": "node"},
    {"spread": "label:rack"},
    {"remote": {"from_node": "n1", "p99_us_max": 100}},
    {"same_nvlink_domain": True},
)
APART = st.builds(
    lambda ask, terms: ask | terms,
    st.sampled_from(
        [
            {"mode": "whole"},
            {"mode": "whole", "nodes": 2},
            {"mode": "whole", "count": 2},
        ]
    ),
    st.sampled_from(WHERE),
)
OTHER = st.one_of(
    SIZED,
    AUTO,
    APART,
    st.builds(
        lambda ask, terms: ask | terms,
        st.just({"mode": "share", "gpu_milli": 300}),
        st.sampled_from(WHERE[:-1]),
    ),
    st.fixed_dictionaries({"mode": st.just("passthrough"), "count": st.sampled_from([1, 2, 2])}),
    st.fixed_dictionaries(
        {"mode": st.just("vgpu"), "type": st.sampled_from(["thirds", "thirds", "halves", "small"])}
    ),
)
TENANTS = st.sampled_from(
    [("t", None), ("t", "p"), ("t", "q"), ("t", "odd"), ("u", None), ("v", None)]
)
WHO = st.builds(
    lambda team, tenant, queue: (team, *tenant, queue),
    st.sampled_from(TEAMS),
    TENANTS,
    st.sampled_from(QUEUES),
)
TASK = st.tuples(
    st.sampled_from(["task", "web"]),
    st.sampled_from(["training", "online-inference", "evaluation"]),
)
MORE = st.fixed_dictionaries(
    {},
    optional={
        "beside": st.sampled_from([{"cpu_milli": 4_000}, {"memory_mib": 600}]),
        "priority": st.sampled_from([5, 9]),
        "preemptible": st.just(True),
        "retries": st.integers(1, 2),
        "max_wait_s": st.sampled_from([0, 60]),
        "max_run_s": st.sampled_from([30, 600]),
        "replicas_min": st.sampled_from([0, 1, 2]),
        "recovery": st.sampled_from(["end", "requeue"]),
        "licences": st.sampled_from([{"one": 1}, {"one": 2}, {"two": 1}]),
        "runtime": st.sampled_from([{"model": "m1"}, {"model": "m2", "framework": "jax"}]),
        "service_class": st.sampled_from(["elastic", "latency-sensitive"]),
        "template": st.sampled_from(["small", "large"]),
        "reservation": st.sampled_from(["x", "y"]),
    },
)
#: What operators and nodes set of terms: an act of the world each.
TERMS: tuple[tuple[Any, ...], ...] = (
    ("link", "n1", "n2", 500, 100, 600),
    ("link", "n1", "n4", 10, 1_000, 20),
    ("link", "n1", "n3", 50, 1_000, 3_000),
    ("licence", "one", 0),
    ("licence", "one", 3),
    ("licence", "two", 2),
    ("compatibility", "m1", {"architectures": ["ampere", "hopper"], "driver_min": "550.9"}),
    ("compatibility", "m2", {"driver_min": "550.60", "frameworks": ["jax"]}),
    ("template", "small", "training", {"default": True, "defaults": {"priority": 5}}),
    ("template", "large", "evaluation", {"defaults": {"queue": "q"}, "limits": {"max_gpus": 1}}),
    ("template", "large", "training", {"limits": {"max_run_s": 300}}),
    ("reserve", "x", "t", (1, 1), (0, 300), {}),
    ("reserve", "x", "u", (1, 1), (40, 600), {}),
    ("reserve", "y", "v", (2, 1), (700, 900), {"models": ["H100"]}),
    ("reserve", "y", "t", (1, 2), (0, 900), {}),
    ("unreserve", "x"),
    ("unreserve", "y"),
    ("where", "n1", {"labels": {"rack": "r3"}}),
    ("where", "n4", {"labels": {}, "driver": "535.1"}),
    ("where", "n2", {"driver": "550.100"}),
)
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
    {"nvlink_domain": "l1"},
    {"iommu_group": "3"},
    {"encoder_sessions": 0, "decoder_sessions": 0},
    {"vgpu_types": []},
    {"vgpu_types": [{"type": "thirds", "most": 3, "memory_mib": 20_000}]},
    {"architecture": "blackwell"},
)
NODE = st.sampled_from(NODES)
CARD = st.sampled_from(list(PARTED))
POOL_RULES = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.sampled_from(["create", "create", "relayout", "relayout", "never"]),
        "memory_overcommit_permille": st.sampled_from([1500, 2000]),
        "allowed_modes": st.just(["vgpu", "passthrough", "whole"]),
        "allowed_tenants": st.just(["t", "u"]),
        "routing": st.just([{"when": "elastic", "mode": "mig"}]),
    },
)
HEALTH = st.sampled_from(["healthy", "unhealthy", "unknown", "gone"])
QUEUE_RULES = st.fixed_dictionaries(
    {},
    optional={
        "max_wait_s": st.sampled_from([0, 300]),
        "max_gpus": st.sampled_from([1, 4]),
        "max_run_s": st.sampled_from([30, 600]),
        "tenants": st.sampled_from([["t"], ["u", "v"]]),
        "fair_share": st.just(True),
        "preemption": st.sampled_from(["same-tenant", "any-tenant"]),
        "reclaim": st.sampled_from(["lower-priority", "any"]),
        "idle_remind_s": st.sampled_from([10, 30]),
        "idle_reclaim_s": st.sampled_from([20, 60]),
    },
)
QUOTA_RULES = st.fixed_dictionaries(
    {},
    optional={
        "borrowing_gpu_milli": st.sampled_from([0, 1_000]),
        "lending_gpu_milli": st.sampled_from([0, 1_000]),
        "limits": st.sampled_from(
            [
                [{"resource": "model:H100", "nominal": 2_000}],
                [{"resource": "model:H100", "nominal": 1_000, "borrowing": 0, "lending": 0}],
                [{"resource": "profile:1g.10gb", "nominal": 2}],
                [{"resource": "memory_mib", "nominal": 170_000, "lending": 82_000}],
            ]
        ),
        "budget": st.sampled_from([{"gpu_hours": 1, "period_s": 600}]),
        "weight": st.just(5),
        "parent": st.sampled_from(["org", "t", "v", None]),
        "evict": st.just(True),
    },
)


class CoreMachine(RuleBasedStateMachine):
    """Everything that services, operators, nodes and time can do to a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(check=True)

    @initialize(late=BOTH, nominal=st.sampled_from([3_000, 20_000]))
    def start(self, late: bool, nominal: int) -> None:
        """Set policies and nodes."""
        self.world.start(late=late, nominal=nominal)

    # -- services ----------------------------------------------------------------

    @rule(who=WHO, more=MORE, task=TASK)
    def submit_one(
        self, who: tuple[str, str, str | None, str], more: dict[str, Any], task: tuple[str, str]
    ) -> None:
        """Ask for one whole device."""
        self.world.submit(who, {"mode": "whole"}, more, task)

    @rule(who=WHO, ask=st.one_of(WHOLE, SHARE, MIG, OTHER), more=MORE, task=TASK)
    def submit(
        self,
        who: tuple[str, str, str | None, str],
        ask: dict[str, Any],
        more: dict[str, Any],
        task: tuple[str, str],
    ) -> None:
        """Ask for whole devices, a gang, CPU alone, a share, slices, vGPUs, or passthrough."""
        self.world.submit(who, ask, more, task)

    @precondition(lambda self: self.world.submitted)
    @rule(pick=PICK, other=BOTH)
    def submit_again(self, pick: int, other: bool) -> None:
        """Send the same id again."""
        self.world.submit_again(pick, other=other)

    @precondition(lambda self: self.world.submitted)
    @rule(pick=PICK, wrong=RARELY, reserved=BOTH)
    def cancel(self, pick: int, wrong: bool, reserved: bool) -> None:
        """Withdraw a request, sometimes as a stranger, sometimes one with a kept place."""
        if reserved:
            self.world.cancel_reserved(pick)
        else:
            self.world.cancel(pick, wrong=wrong)

    @precondition(lambda self: self.world.leases)
    @rule(pick=PICK, wrong=RARELY)
    def release(self, pick: int, wrong: bool) -> None:
        """Give back any lease that ever was."""
        self.world.release(pick, wrong=wrong)

    @precondition(lambda self: self.world.leases)
    @rule(pick=PICK, seconds=st.sampled_from([5, 100, 1000]), wrong=RARELY)
    def extend(self, pick: int, seconds: int, wrong: bool) -> None:
        """Ask for a longer run."""
        self.world.extend(pick, seconds, wrong=wrong)

    # -- nodes -------------------------------------------------------------------

    @precondition(lambda self: self.world.leases)
    @rule(
        pick=PICK,
        how=st.sampled_from(["started", "completed", "failed", "stopped", "idle", "busy"]),
    )
    def task(self, pick: int, how: str) -> None:
        """Let a node see a task start, idle, or end."""
        self.world.task(pick, how)

    @precondition(lambda self: self.world.orders)
    @rule(pick=PICK, done=st.sampled_from([True, True, False]), old=BOTH)
    def answer(self, pick: int, done: bool, old: bool) -> None:
        """Answer an order, perhaps an old one, perhaps as an earlier incarnation."""
        self.world.answer(pick, done=done, old=old)

    @rule()
    def answer_all(self) -> None:
        """Let every node that is heard carry out its orders."""
        self.world.answer_all()

    @rule(
        act=st.one_of(
            st.tuples(st.just("inventory"), NODE, st.fixed_dictionaries({"boot": RARELY})),
            st.tuples(st.just("change"), st.sampled_from(UUIDS), st.sampled_from(CHANGES)),
            st.tuples(st.just("hear"), NODE, st.sampled_from(["silent", "silent", "back"])),
            st.tuples(st.just("health"), PICK, HEALTH),
            st.tuples(st.just("health_reserved"), PICK, HEALTH),
            st.tuples(st.just("repool"), NODE, st.sampled_from(["main", "side", "new"])),
            st.tuples(st.just("odd"), NODE, st.sampled_from(["agent", "boot", "epoch", "cpu"])),
            st.tuples(
                st.just("move"),
                st.sampled_from([*UUIDS, *PARTED]),
                st.sampled_from([*NODES, ""]),
                st.fixed_dictionaries({"tell": BOTH}),
            ),
            st.tuples(st.just("meddle"), CARD, PICK, st.fixed_dictionaries({"tell": BOTH})),
        )
    )
    def supply(self, act: tuple[Any, ...]) -> None:
        """Let something happen to the nodes and their cards."""
        self._do(act)

    def _do(self, act: tuple[Any, ...]) -> None:
        last = act[-1]
        named = isinstance(last, dict) and set(last) & {"boot", "tell", "approve"}
        args = act[1:-1] if named else act[1:]
        getattr(self.world, act[0])(*args, **(last if named else {}))

    # -- operators and time --------------------------------------------------------

    @precondition(lambda self: self.world.leases)
    @rule(pick=PICK)
    def reclaim(self, pick: int) -> None:
        """Take a lease back."""
        self.world.reclaim(pick)

    @precondition(lambda self: self.world.asks)
    @rule(pick=PICK, author=st.sampled_from(["op", "boss"]), approve=BOTH)
    def quota_answer(self, pick: int, author: str, approve: bool) -> None:
        """Answer what was asked for, sometimes as the same person."""
        self.world.quota_answer(pick, author, approve=approve)

    @rule(
        act=st.one_of(
            st.tuples(st.just("clear"), st.sampled_from([*UUIDS, *PARTED])),
            st.tuples(
                st.just("mode"), NODE, st.sampled_from(["online", "draining", "maintenance"])
            ),
            st.tuples(
                st.just("quota"),
                st.integers(0, len(QUOTAS) - 1),
                st.sampled_from([0, 1_000, 3_000, 8_000, 20_000]),
                QUOTA_RULES,
            ),
            st.tuples(
                st.just("quota_ask"),
                st.integers(0, len(QUOTAS) - 1),
                st.sampled_from([1_000, 5_000, 30_000]),
            ),
            st.tuples(
                st.just("pool"),
                st.sampled_from(["main", "side", "new"]),
                st.sampled_from(["1", "2"]),
                st.sampled_from([0, 10, 200]),
                POOL_RULES,
            ),
            st.tuples(st.just("layout"), CARD, PICK, st.integers(0, 3)),
            st.tuples(
                st.just("queue"),
                st.sampled_from(QUEUES),
                st.sampled_from(["strict", "best-effort", "backfill"]),
                QUEUE_RULES,
            ),
        )
    )
    def policy(self, act: tuple[Any, ...]) -> None:
        """Let an operator change something."""
        self._do(act)

    @rule(act=st.sampled_from(TERMS))
    def terms(self, act: tuple[Any, ...]) -> None:
        """Let an operator or a node say what terms rest on."""
        self._do(act)

    @rule(seconds=st.sampled_from([-100, 0, 1, 40, 150, 700]))
    def time(self, seconds: int) -> None:
        """Let time pass, or an input come with an earlier stamp."""
        self.world.time(seconds)

    @rule()
    def claim(self) -> None:
        """Let another worker take over."""
        self.world.cell.claim()

    # -- at the end ------------------------------------------------------------------

    def teardown(self) -> None:
        """Compare live, replayed, snapshot and tail, a log with void records, and decided again."""
        cell = self.world.cell
        self.world.naive.compare_room(cell.state)
        live = cell.digest()
        records = cell.records
        assert digest(cell.replayed().cells) == live
        half = Fold()
        for offset, value in enumerate(records[: len(records) // 2]):
            half.apply(offset, value)
        tail = load_fold(save_fold(half)).ready()
        for offset in range(len(records) // 2, len(records)):
            tail.apply(offset, records[offset])
        assert digest(tail.cells) == live
        assert digest(_with_void(records).cells) == live
        assert _decided_again(cell) == records


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
    # 150 x 50 steps in less than a minute of one core; the same ones every time in CI.
    TestCoreMachine.settings = settings(
        max_examples=150, stateful_step_count=50, derandomize="CI" in os.environ
    )
