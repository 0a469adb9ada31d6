"""Policy from files: read with its lines, tried on a copy, applied by the command, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger.cli.policy_apply import _record_lines
from ledger.dry_run import OverQuota, Rehearsal, Start, Tried, rehearse
from ledger.formats.documents import NotTheFormat
from ledger.log.sqlite import SqliteLog
from ledger.policy_files import PolicyRecord, read_policy, read_site
from ledger.testing import CoreDriver, device
from tests.ledgers import Site
from tests.test_cli import Cli

EXAMPLES = Path(__file__).parent.parent / "examples"
ABOUT = {"author": "ops", "reason": "test"}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return the command on an SQLite log that does not exist yet."""
    return Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)


# -- files --------------------------------------------------------------------------------

ONE = "tenant: t\nnominal_gpu_milli: 8000\n"
FORMS = {
    "one record": ONE,
    "a list": "- tenant: t\n  nominal_gpu_milli: 8000\n",
    "documents": f"---\n{ONE}---\n",
    "a site": "quotas:\n  - tenant: t\n    nominal_gpu_milli: 8000\n",
    "JSON": '{"tenant": "t",\n\t"nominal_gpu_milli": 8000}',
    "with its type": '{"type": "quota.apply", "data": {"tenant": "t", "nominal_gpu_milli": 8000}}',
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_all_forms_are_the_same_record(text: str) -> None:
    """However it is written, it is one quota, signed by who applies it."""
    (record,) = read_policy(text, "quota", ABOUT)

    assert ("quota", "t", "quota.apply") == (record.kind, record.name, record.type)
    plain = record.data.model_dump(exclude_unset=True)
    assert {"tenant": "t", "nominal_gpu_milli": 8000, **ABOUT} == plain


def test_what_convert_prints_can_be_applied() -> None:
    """JSON objects one a line, all kinds mixed: sorted into the order in which they apply."""
    lines = [
        {"type": "queue.apply", "data": {"queue": "q"}},
        {"type": "quota.apply", "data": {"tenant": "t", "project": "p", "nominal_gpu_milli": 1}},
        {"type": "pool.apply", "data": {"pool": "main", "labels": {"zone": "1"}}},
    ]
    found = read_site("\n".join(orjson.dumps(one).decode() for one in lines), ABOUT)

    assert [("pool", "main", 3), ("quota", "t/p", 2), ("queue", "q", 1)] == [
        (one.kind, one.name, one.line) for one in found
    ]


def test_a_word_means_what_its_field_says() -> None:
    """A tenant may be called `no`, and 010 is ten."""
    (record,) = read_policy("tenant: no\nnominal_gpu_milli: 010\nevict: yes\n", "quota", ABOUT)
    plain = record.data.model_dump()

    assert ("no", 10, True) == (plain["tenant"], plain["nominal_gpu_milli"], plain["evict"])


def test_who_and_why_nearest_first() -> None:
    """A record's own word goes before its file's, and that before the command line's."""
    text = "reason: file\npools:\n  - {pool: a, author: eve}\n  - {pool: b, reason: own}\n"
    signed = [
        (one.data.author, one.data.reason)  # type: ignore[attr-defined]
        for one in read_site(text, ABOUT)
    ]

    assert [("eve", "file"), ("ops", "own")] == signed


WRONG: dict[str, tuple[str, str, int, str]] = {
    "an unknown field": ("quota", f"{ONE}colour: red\n", 3, "colour: Extra inputs"),
    "a missing field": ("quota", "\ntenant: t\n", 2, "nominal_gpu_milli: Field required"),
    "a misspelt field": (
        "quota",
        "tenant: t\nnominal_gpu_mili: 5\n",
        1,
        "nominal_gpu_milli: Field required; there is no field 'nominal_gpu_mili'",
    ),
    "a wrong number": ("quota", "tenant: t\nnominal_gpu_milli: many\n", 2, "valid integer"),
    "another kind": ("pool", "queues:\n  - queue: q\n", 2, "gpuledger apply takes all kinds"),
    "an unknown section": ("pool", "pools: []\ncolours: []\n", 2, "'colours' is no part"),
    "an unknown type": ("pool", '{"type": "x.apply", "data": {}}', 1, "no policy"),
    "no record": ("pool", "- 7\n", 1, "mapping of fields"),
    "twice": ("pool", "- pool: a\n- pool: b\n- pool: a\n", 3, "line 1 already"),
    "an alias": ("pool", "- &x {pool: a}\n- *x\n", 2, "aliases"),
    "deep in a record": (
        "quota",
        f"{ONE}limits:\n  - resource: memory_mib\n    nominal: 1\n  - resource: watts\n",
        6,
        "limits.1.resource",
    ),
    "a default beyond its limit": (
        "template",
        "template: t\ntask_type: training\ndefaults: {max_run_s: 9}\nlimits: {max_run_s: 8}\n",
        1,
        "template: the default max_run_s is beyond",
    ),
}


@pytest.mark.parametrize(("kind", "text", "line", "says"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_told_by_line(kind: str, text: str, line: int, says: str) -> None:
    """The line of the field, and what is wrong with it."""
    with pytest.raises(NotTheFormat) as caught:
        read_policy(text, kind, ABOUT)

    assert line == caught.value.line
    assert says in str(caught.value)


def test_no_reason_is_no_record() -> None:
    """Policy without a why is refused before anything is sent."""
    with pytest.raises(NotTheFormat, match="why"):
        read_policy("pool: a\n", "pool", {"author": "ops"})


def test_a_site_says_what_it_is() -> None:
    """A plain record has no kind of its own in a site."""
    with pytest.raises(NotTheFormat, match="a site has pools, quotas, queues, templates"):
        read_site("pool: a\n", ABOUT)


# -- the trial ----------------------------------------------------------------------------


@pytest.fixture
def cell() -> CoreDriver:
    """A cell with four devices on one node, best-effort queue ``q``, tenants ``t`` and ``u``."""
    cell = CoreDriver(check=True)
    cell.pool(), cell.queue()
    cell.quota("t", nominal_gpu_milli=4000), cell.quota("u", nominal_gpu_milli=4000)
    cell.node("n1", [device(f"GPU-{number}") for number in range(4)])
    return cell


def quotas(text: str) -> list[PolicyRecord]:
    """Return quotas given as flow mappings, one a line."""
    return read_policy("\n".join(f"- {line}" for line in text.splitlines()), "quota", ABOUT)


def tried(cell: CoreDriver, records: list[PolicyRecord]) -> Rehearsal:
    """Rehearse the records; the cell must not feel it."""
    state, before = cell.state, cell.digest()
    found = rehearse(state, records)
    assert before == cell.digest()
    return found


def really(cell: CoreDriver, records: list[PolicyRecord]) -> list[str]:
    """Apply the records to the cell itself; return the leases that are granted at once."""
    found = []
    for record in records:
        plain = record.data.model_dump(mode="json", exclude_unset=True)
        events = cell.feed(record.type, plain, source="/operator").events
        found += [one["request"] for one in events if one["type"] == "lease.granted"]
    return found


def test_old_and_new_of_each_field(cell: CoreDriver) -> None:
    """What differs is named with both values, and nothing else; a new record has no old ones."""
    text = "{tenant: t, nominal_gpu_milli: 6000, weight: 3}\n{tenant: v, nominal_gpu_milli: 1}"
    first, second = tried(cell, quotas(text)).tried

    assert {"limits.gpu.nominal": [4000, 6000], "weight": [1, 3]} == first.changes
    assert [None, 1] == second.changes["limits.gpu.nominal"]
    assert ("applied", "applied") == (first.code, second.code)


def test_what_is_so_already_is_unchanged(cell: CoreDriver) -> None:
    """Author and reason alone are no change."""
    (one,) = tried(cell, quotas("{tenant: t, nominal_gpu_milli: 4000, reason: again}")).tried

    assert ("unchanged", {}) == (one.code, one.changes)


def test_a_higher_quota_starts_who_waits_for_it(cell: CoreDriver) -> None:
    """1 of 4 by quota, three wait: two more fit at 3, and the trial names which."""
    cell.quota("t", nominal_gpu_milli=1000)
    for name in ("r1", "r2", "r3", "r4"):
        cell.submit(name)
    raised = quotas(line("t", 3000))
    found = tried(cell, raised)

    starts = [Start(f"/team/a#{name}", ("n1",), "now") for name in ("r2", "r3")]
    assert (starts, [], []) == (found.starts, found.over, found.stops)
    assert ["/team/a#r2", "/team/a#r3"] == really(cell, raised), "and so it is"


def test_a_lower_quota_names_who_is_over_it(cell: CoreDriver) -> None:
    """3 devices held, 1 allowed: over by 2, nobody is stopped (Q1)."""
    for name in ("r1", "r2", "r3"):
        cell.submit(name)
    lowered = quotas("{tenant: t, nominal_gpu_milli: 1000}")
    found = tried(cell, lowered)

    assert [OverQuota("t", "gpu", 3000, 2000, before=False)] == found.over
    assert ([], []) == (found.stops, found.starts)
    really(cell, lowered)
    again = tried(cell, quotas("{tenant: t, nominal_gpu_milli: 2000}"))
    assert [OverQuota("t", "gpu", 3000, 1000, before=True)] == again.over


def test_eviction_names_who_stops_and_who_starts_then(cell: CoreDriver) -> None:
    """The last two of four stop; who waits for two devices starts once they are freed."""
    for name in ("r1", "r2", "r3", "r4"):
        cell.submit(name)
    cell.submit("w", {"mode": "whole", "count": 2}, tenant="u")
    lowered = quotas("{tenant: t, nominal_gpu_milli: 2000, evict: true}")
    found = tried(cell, lowered)

    assert [("r4", "quota-lowered"), ("r3", "quota-lowered")] == [
        (one.lease.removeprefix("/team/a#").removesuffix("/1"), one.reason) for one in found.stops
    ]
    assert [Start("/team/a#w", ("n1",), "once-freed")] == found.starts
    assert 2 == found.tried[0].numbers["stopped"]
    really(cell, lowered)
    cell.answer_all_orders()
    assert "granted" == cell.lease("w").state, "and so it is"


def test_evict_alone_is_a_change(cell: CoreDriver) -> None:
    """The same quota again, now with eviction, is not unchanged: it stops leases."""
    for name in ("r1", "r2"):
        cell.submit(name)
    really(cell, quotas("{tenant: t, nominal_gpu_milli: 1000}"))
    found = tried(cell, quotas("{tenant: t, nominal_gpu_milli: 1000, evict: true}"))

    assert ("applied", {}) == (found.tried[0].code, found.tried[0].changes)
    assert ["/team/a#r2/1"] == [one.lease for one in found.stops]


def test_a_queue_that_may_evict(cell: CoreDriver) -> None:
    """With preemption the waiting request of a higher priority has one evicted, and starts."""
    for name in ("r1", "r2", "r3", "r4"):
        cell.submit(name, preemptible=True)
    cell.submit("urgent", tenant="u", priority=10)
    found = tried(cell, read_policy("{queue: q, preemption: any-tenant}", "queue", ABOUT))

    (stop,) = found.stops
    assert ("t", "preempted", "/team/a#urgent") == (stop.tenant, stop.reason, stop.by)
    assert [Start("/team/a#urgent", ("n1",), "once-freed")] == found.starts


def test_what_others_have_to_free_is_only_kept(cell: CoreDriver) -> None:
    """A node that still owes a proof of clean makes no start sure: a place is kept."""
    for name in ("r1", "r2", "r3", "r4"):
        cell.submit(name, preemptible=True)
    cell.release("/team/a#r1/1")
    cell.submit("urgent", {"mode": "whole", "count": 2}, tenant="u", priority=10)
    evicting = read_policy("{queue: q, preemption: any-tenant}", "queue", ABOUT)
    found = tried(cell, evicting)

    assert 1 == len(found.stops)
    assert [Start("/team/a#urgent", ("n1",), "kept")] == found.starts
    really(cell, evicting)
    assert [] == tried(cell, evicting).starts, "what is kept already is not the records' doing"


def line(tenant: str, nominal: int, parent: str = "") -> str:
    """Return a quota as one line of a file."""
    above = f", parent: {parent}" if parent else ""
    return f"{{tenant: {tenant}, nominal_gpu_milli: {nominal}{above}}}"


ORDERS = {
    "a child before its parent": ([line("c", 1000, "p"), line("p", 1000)], ["p", "c"]),
    "both lowered": ([line("org", 4000), line("a", 2000, "org")], ["a", "org"]),
    "one gives what another gets": (
        [line("b", 4000, "org"), line("a", 2000, "org")],
        ["a", "b"],
    ),
    "both raised": ([line("a", 9000, "org"), line("org", 12000)], ["org", "a"]),
}


@pytest.mark.parametrize(("lines", "order"), ORDERS.values(), ids=ORDERS.keys())
def test_the_order_is_found(cell: CoreDriver, lines: list[str], order: list[str]) -> None:
    """A tree of 6 (4 and 2) is changed in whatever order keeps its parts within the whole (Q3)."""
    tree = [line("org", 6000), line("a", 4000, "org"), line("b", 2000, "org")]
    really(cell, quotas("\n".join(tree)))
    found = tried(cell, quotas("\n".join(lines)))

    assert [] == found.refused
    assert order == [one.record.name for one in found.to_send]


def test_what_is_refused_is_told_beside_what_is_not(cell: CoreDriver) -> None:
    """Each record has its own answer, with the numbers compared."""
    text = "{tenant: x, parent: nobody, nominal_gpu_milli: 1}\n{tenant: y, nominal_gpu_milli: 5}"
    found = tried(cell, quotas(text))

    assert [("y", "applied"), ("x", "unknown_parent")] == [
        (one.record.name, one.code) for one in found.tried
    ]
    assert {"parent": "nobody"} == found.refused[0].numbers


NAMES = st.sampled_from(["a", "b", "c", "d"])
QUOTAS = st.lists(
    st.builds(
        lambda name, parent, nominal, evict: {
            "tenant": name,
            "nominal_gpu_milli": nominal,
            "evict": evict,
            **({} if parent is None else {"parent": parent}),
        },
        NAMES,
        st.none() | NAMES,
        st.integers(0, 5).map(lambda devices: devices * 1000),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda plain: str(plain["tenant"]),
)


@example(
    [{"tenant": "a", "nominal_gpu_milli": 1000, "evict": False}],
    [("a", 1)],
    [
        {"tenant": "b", "nominal_gpu_milli": 0, "evict": True},
        {"tenant": "a", "nominal_gpu_milli": 0, "evict": False, "parent": "b"},
    ],
)
@given(QUOTAS, st.lists(st.tuples(NAMES, st.integers(1, 2)), max_size=5), QUOTAS)
def test_a_trial_is_what_happens(
    tree: list[dict[str, Any]], asked: list[tuple[str, int]], change: list[dict[str, Any]]
) -> None:
    """Whatever the trial says of codes, stops and starts comes true; then nothing is left to do."""
    # Unchecked: a quota that holds devices may be moved below one that has fewer, which the
    # driver takes for a grant beyond that one.
    cell = CoreDriver()
    cell.pool(), cell.queue()
    cell.node("n1", [device(f"GPU-{number}") for number in range(4)])
    really(cell, read_policy(orjson.dumps(tree).decode(), "quota", ABOUT))
    for tenant, count in asked:
        cell.submit(None, {"mode": "whole", "count": count}, tenant=tenant)
    records = read_policy(orjson.dumps(change).decode(), "quota", ABOUT)
    found = tried(cell, records)

    started, stopped = [], []
    for one in found.tried:
        plain = one.record.data.model_dump(mode="json", exclude_unset=True)
        decision = cell.feed(one.record.type, plain, source="/operator")
        assert (decision.code, one.code) in {(one.code,) * 2, ("applied", "unchanged")}
        events = decision.events
        started += [each["request"] for each in events if each["type"] == "lease.granted"]
        stopped += [each["lease"] for each in events if each["type"] == "lease.stopping"]
    assert started == [one.request for one in found.starts if one.when == "now"]
    assert stopped == [one.lease for one in found.stops][: len(stopped)]
    second = rehearse(cell.state, records)
    again = {one.record.name: one.code for one in second.tried}
    for one in found.tried:
        # What was moved below a quota after that one had evicted is evicted the next time.
        if not one.refused and not stopped and not second.stops:
            assert "unchanged" == again[one.record.name]


def test_the_example_site_applies() -> None:
    """To an empty cell, with nothing refused, and then there is nothing left to do."""
    cell = CoreDriver(check=True)
    records = read_site((EXAMPLES / "site.yaml").read_text(), {})
    assert [] == tried(cell, records).refused
    really(cell, records)

    assert ["unchanged"] * 9 == [one.code for one in tried(cell, records).tried]


# -- the command --------------------------------------------------------------------------


@pytest.fixture
async def filled(cli: Cli) -> Cli:
    """Return the command on a log with 4 devices, quota 2, one request granted and one waiting."""
    async with SqliteLog(cli.folder / "log.sqlite") as log:
        site = Site(log)
        await site.start(quota_milli=2000)
        await site.submit("a", 2)
        await site.submit("b", 1)
    cli.environment["GPULEDGER_CELL"] = "c"
    return cli


async def _ends(cli: Cli) -> list[int]:
    async with SqliteLog(cli.folder / "log.sqlite", read_only=True) as log:
        return [await log.end(f"gpuledger.{topic}", 0) for topic in ("requests", "events")]


async def test_a_dry_run_says_all_and_writes_nothing(filled: Cli) -> None:
    """By options and from a file; exit 0 when all would be applied, 1 when one would not."""
    before = await _ends(filled)
    options = ["quota", "apply", "t", "--gpus", "3", "--dry-run"]
    raised = filled.json(*options)
    (record,) = raised["records"]
    assert {"limits.gpu.nominal": [2000, 3000]} == record["changes"]
    assert [{"request": "/team/a#b", "nodes": ["n1"], "when": "now"}] == raised["starts"]
    text = filled(*options).stdout
    assert "quota t: changed\n  limits.gpu.nominal       2000 -> 3000\n" in text
    assert "starts: /team/a#b on n1 at once\n1 record, nothing was written\n" in text

    (filled.folder / "quotas.yaml").write_text(
        "- {tenant: t, nominal_gpu_milli: 1000}\n- {tenant: u, parent: x, nominal_gpu_milli: 1}\n"
    )
    lowered = filled("quota", "apply", "quotas.yaml", "--dry-run")
    assert 1 == lowered.returncode
    assert "quota u: refused: unknown_parent (parent x)" in lowered.stdout
    assert "over quota: t holds 2000 of gpu, 1000 too much\n" in lowered.stdout
    assert "1 of 2 records would be refused" in lowered.stderr
    refused = filled("quota", "apply", "quotas.yaml", "--reason", "less", "--timeout-s", "0.1")
    assert 1 == refused.returncode
    assert "so nothing was sent" in refused.stderr
    assert before == await _ends(filled)


FILES: dict[str, tuple[list[str], str]] = {
    "no reason": (["quota", "apply", "-"], "--reason"),
    "options beside a file": (["quota", "apply", "-", "--gpus", "4"], "leave out --gpus"),
    "half a budget": (
        ["quota", "apply", "t", "--gpus", "1", "--budget-gpu-hours", "5"],
        "--budget-period-s",
    ),
    "a bad limit": (["quota", "apply", "t", "--gpus", "1", "--limit", "x"], "RESOURCE=N"),
    "no such kind": (["apply", "-"], "stdin:1: a site has pools"),
}


@pytest.mark.parametrize(("arguments", "says"), FILES.values(), ids=FILES.keys())
def test_wrong_use_of_files(cli: Cli, arguments: list[str], says: str) -> None:
    """Exit 2 with one message, before the log is even opened."""
    done = cli(*arguments, given=ONE)

    assert (2, "") == (done.returncode, done.stdout)
    assert says in done.stderr


def test_a_time_is_named_without_the_unit_that_it_is_not_told_in() -> None:
    """What is kept in microseconds is told in seconds, and its name says neither."""
    (record,) = read_policy(ONE, "quota", ABOUT)
    tried = Tried(record, "applied", {}, {"half_life_us": [None, 604_800_000_000]})
    assert ["half_life", "604,800", "s"] == _record_lines(tried)[1].split()


async def test_flags_say_what_a_file_says(filled: Cli) -> None:
    """Every option of a quota and a queue lands in its field."""
    quota = filled.json(
        "quota", "apply", "t", "--project", "p", "--gpu-milli", "1500",
        "--borrowing-gpu-milli", "0", "--lending-gpu-milli", "500",
        "--limit", "model:H100=1000,borrowing=2,lending=3", "--limit", "memory_mib=7",
        "--budget-gpu-hours", "2", "--budget-period-s", "3600", "--weight", "5",
        "--half-life-s", "60", "--dry-run",
    )["records"][0]  # fmt: skip
    assert "t/p" == quota["name"]
    assert {
        "parent": "t",
        "limits.gpu.nominal": 1500,
        "limits.gpu.borrowing": 0,
        "limits.gpu.lending": 500,
        "limits.model:H100.nominal": 1000,
        "limits.model:H100.borrowing": 2,
        "limits.model:H100.lending": 3,
        "limits.memory_mib.nominal": 7,
        "weight": 5,
        "half_life_us": 60_000_000,
        "period_us": 3_600_000_000,
        "budget_milli_us": 2 * 3_600_000_000 * 1000,
    } == {name: new for name, (_, new) in quota["changes"].items()}
    none = filled("quota", "apply", "new", "--gpus", "1", "--borrowing-gpu-milli", "0", "--dry-run")
    assert "  limits.gpu.borrowing     0\n" in none.stdout, "a limit of nothing is a limit"
    queue = filled.json(
        "queue", "apply", "q", "--ordering", "backfill", "--tenant", "t", "--tenant", "u",
        "--max-gpus", "8", "--max-wait-s", "5", "--max-run-s", "6", "--fair-share",
        "--preemption", "same-tenant", "--reclaim", "any", "--idle-remind-s", "7",
        "--idle-reclaim-s", "8", "--dry-run",
    )["records"][0]  # fmt: skip
    assert {
        "ordering": "backfill",
        "max_gpus": 8,
        "max_wait_us": 5_000_000,
        "tenants": ["t", "u"],
        "max_run_us": 6_000_000,
        "fair_share": True,
        "preemption": "same-tenant",
        "reclaim": "any",
        "idle_remind_us": 7_000_000,
        "idle_reclaim_us": 8_000_000,
    } == {name: new for name, (_, new) in queue["changes"].items()}


async def test_the_tree_as_it_stands(filled: Cli) -> None:
    """Borrowed is used beyond its own; kept back is never lent (hand-checked)."""
    async with SqliteLog(filled.folder / "log.sqlite") as log:
        site = Site(log)
        await site.shard.load()
        tree: list[dict[str, Any]] = [
            {"tenant": "org", "nominal_gpu_milli": 3000},
            {"tenant": "u", "parent": "org", "nominal_gpu_milli": 2000, "lending_gpu_milli": 1500},
            {"tenant": "t", "parent": "org", "nominal_gpu_milli": 1000},
        ]
        for plain in tree:
            await site.says("quota.apply", event_id=f"tree-{plain['tenant']}", **plain, **ABOUT)
    shown = filled("quota", "show").stdout.splitlines()

    assert [
        ["quota", "resource", "nominal", "used", "borrowed", "kept_back", "available"],
        # Usage of a child counts above it as far as nothing kept back covers it.
        ["org", "gpu", "3000", "2000", "0", "0", "500"],
        ["t", "gpu", "1000", "2000", "1000", "0", "500"],
        ["u", "gpu", "2000", "0", "0", "500", "1000"],
    ] == [line.split() for line in shown]
    rows = filled("quota", "show", "u", "--json").stdout.splitlines()
    assert ["u"] == [orjson.loads(row)["quota"] for row in rows]
    assert 1 == filled("quota", "show", "nobody").returncode


def _asks(cli: Cli, *arguments: str, status: int = 0) -> dict[str, Any]:
    """Run one command that waits for an answer; a busy machine may take its time."""
    return cli.json(*arguments, "--timeout-s", "60", status=status)


def _second_person(cli: Cli) -> None:
    """A larger quota is asked for by one and answered by another."""
    asked = _asks(cli, "quota", "ask", "product", "--gpus", "4", "--author", "ann", "--reason", "x")
    name = asked["numbers"]["ask"]
    for who, code in (("ann", "same_person"), ("bob", "exceeds_parent")):
        said = _asks(cli, "quota", "approve", name, "--author", who, "--reason", "x", status=1)
        assert code == said["code"], "and 5 and 4 are more than the team's 8"
    _asks(cli, "quota", "refuse", name, "--author", "bob", "--reason", "too much")
    again = _asks(cli, "quota", "refuse", name, "--author", "bob", "--reason", "x", status=1)
    assert "unknown_ask" == again["code"]


@pytest.mark.slow
def test_a_small_team_in_one_file(cli: Cli) -> None:
    """The light mode: one file at the start, the same file again, a change of it, templates."""
    site = cli.folder / "site.yaml"
    site.write_text((EXAMPLES / "site.yaml").read_text())
    with cli.running("up", "--site", "site.yaml", "--json") as process:
        assert process.stdout is not None
        assert not orjson.loads(process.stdout.readline())["seeded"]
        train = ["submit", "--tenant", "research", "--max-run", "3600"]
        refused = _asks(cli, *train, status=1)
        assert "template_requires" == refused["code"]
        assert {"template": "training", "field": "checkpoint"} == refused["numbers"]
        granted = _asks(cli, *train, "--checkpoint", "s3://c", "--id", "run", "--wait")
        assert "granted" == granted["answer"]
        assert 0 == _asks(cli, "apply", "site.yaml")["sent"], "all of it is in force already"

        site.write_text(site.read_text().replace("_milli: 3000", "_milli: 2500"))
        applied = _asks(cli, "apply", "site.yaml")
        changed = {one["name"]: one["changes"] for one in applied["records"] if one["changes"]}
        assert {"product": {"limits.gpu.nominal": [3000, 2500]}} == changed
        assert 1 == applied["sent"]
        (position,) = [one["position"] for one in applied["records"] if one["changes"]]
        assert position.startswith("events/0@")

        assert "applied" == _asks(cli, "lease", "extend", "run/1", "--more", "3600")["answer"]
        too_long = _asks(cli, "lease", "extend", "run/1", "--more-s", "604800", status=1)
        assert "exceeds_max_run" == too_long["code"]
        _second_person(cli)
        made = _asks(cli, "template", "apply", str(EXAMPLES / "templates.yaml"))
        assert 6 == made["sent"]
        priced = ["prices", "apply", str(EXAMPLES / "prices.yaml"), "--reason", "budget"]
        assert [1, 0] == [_asks(cli, *priced)["sent"] for _ in range(2)]
        unknown = _asks(cli, "submit", "--tenant", "product", "--template", "x", status=1)
        assert "unknown_template" == unknown["code"]
    assert "template training" in cli("show", "run").stdout
    assert "prices-2026" == cli.json("bill", "--period", "2026-01")["price_book"]
    listed = [orjson.loads(line) for line in cli("prices", "list", "--json").stdout.splitlines()]
    assert ["gpu", "h100", "h100-1g", "h100-1g", "share"] == [one["sku"] for one in listed]
    assert ("3.6 EUR", "2.9 EUR") == (listed[1]["list"], listed[1]["contracted"])
    assert cli.json("verify")["ok"]


def test_a_site_that_would_be_refused_does_not_start(cli: Cli) -> None:
    """`up --site` says why and ends with 1; nothing is on the log."""
    (cli.folder / "bad.yaml").write_text(
        "quotas:\n- {tenant: a, parent: b, nominal_gpu_milli: 1}\n"
    )
    done = cli("up", "--site", "bad.yaml")

    assert 1 == done.returncode
    assert "quota a: refused: unknown_parent" in done.stderr
    assert "" == cli("state").stdout
