"""The acceptance pack: its script, its checks, its eight answers, against the log itself."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from collectors.simulation.acceptance import acceptance_scenario, run_acceptance
from collectors.simulation.demo import NotADemo
from ledger.cli import app
from ledger.log.port import Record
from ledger.log.sqlite import SqliteLog
from ledger.operations.acceptance import acceptance_report
from ledger.operations.boundary import RULES, Boundary
from ledger.operations.checks import AREAS, checks
from ledger.operations.measure import Window
from ledger.operations.questions import QUESTIONS, answers
from ledger.operations.stories import LIFE, QUOTA, RECOVERY
from ledger.reading import Seen
from ledger.verify import verify_log
from processors.embedded import EmbeddedLoop
from tests.ledgers import PREFIX
from tests.metering_logs import random_log
from tests.metering_oracle import Oracle
from tests.processor_support import settings
from tests.report_support import Plain, decided, trial_of, windows_of
from tests.test_operations import page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ledger.log.port import Log
    from ledger.operations.measure import Report
    from ledger.operations.trial import Trial


def make_loop(log: Log, url: str, clock: Callable[[], int], heartbeat_limit_s: int) -> EmbeddedLoop:
    """Return the real loop, as the command makes it."""
    return EmbeddedLoop(log, settings(log=url, heartbeat_limit_s=heartbeat_limit_s), clock)


class Run:
    """The script, run once: its records, what was gathered of them, the pack."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: list[bytes] = []

        async def work() -> Trial:
            await run_acceptance(path, PREFIX, make_loop, io.StringIO())
            async with SqliteLog(path, read_only=True) as log:
                self.values = [
                    one.value or b"" for one in await log.read(f"{PREFIX}.events", 0, 0, 10_000)
                ]
                self.verified = await verify_log(log, PREFIX)
                (found,) = await windows_of(log, PREFIX, [])
                return found

        self.trial = asyncio.run(work())
        self.report: Report = acceptance_report(self.trial)

    def gathered(self) -> Trial:
        """Return what is gathered of it once more, to be changed."""

        async def work() -> Trial:
            async with SqliteLog(self.path, read_only=True) as log:
                (found,) = await windows_of(log, PREFIX, [])
                return found

        return asyncio.run(work())

    def events(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Yield the events of these types."""
        for record in decided(self.values):
            yield from (one for one in record["events"] if one["type"] in kinds)

    def numbers(self, name: str) -> dict[str, Any]:
        """Return the numbers of an answer."""
        (found,) = (one for one in answers(self.trial) if one.name == name)
        assert found.answer
        assert found.places
        return found.numbers


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The script, run once."""
    return Run(tmp_path_factory.mktemp("acceptance") / "ledger.sqlite")


def test_the_script_shows_everything_and_the_log_bears_it_out(run: Run) -> None:
    """Every check is shown, none is broken, and the ledger verifies to the digest in the pack."""
    assert {"shown"} == {one.verdict for one in checks(run.trial)}
    assert set(AREAS) == {one.area for one in checks(run.trial)}
    for one in checks(run.trial):
        assert all(place.startswith("events/0@") for place in one.places)
        assert len(set(one.places)) == len(one.places) <= 3
    assert run.verified.ok
    assert run.verified.digest == run.trial.digest == run.report.more["digest"]
    assert {LIFE, RECOVERY, QUOTA} == set(run.trial.stories.found)
    assert not [
        words
        for section in run.report.sections
        for words in section.words
        if words.startswith("not shown")
    ]


def test_the_script_is_the_same_every_time(run: Run, tmp_path: Path) -> None:
    """But for the tokens of the claims: the same decisions, the same state."""
    again = Run(tmp_path / "ledger.sqlite")
    assert run.trial.digest == again.trial.digest
    assert [one["events"] for one in decided(run.values)] == [
        one["events"] for one in decided(again.values)
    ]
    assert [one.answer for one in answers(run.trial)] == [
        one.answer for one in answers(again.trial)
    ]


def test_another_ledger_is_not_replaced(run: Run, tmp_path: Path) -> None:
    """The run of a script replaces that of a script, and nothing else."""
    path = tmp_path / "mine.sqlite"

    async def write() -> None:
        async with SqliteLog(path) as log:
            await log.create_topics({})
        await run_acceptance(path, PREFIX, make_loop, io.StringIO())

    with pytest.raises(NotADemo):
        asyncio.run(write())


# -- the eight answers, against the log ------------------------------------------------


def test_there_are_eight_questions_and_each_is_answered(run: Run) -> None:
    """In words, with numbers and places; so it is of any log."""
    assert 8 == len(QUESTIONS) == len(answers(run.trial))
    for one in answers(run.trial):
        assert one.question.endswith("?")
        assert len(one.answer) > 80
        assert one.numbers
        assert all(place.startswith("events/0@") for place in one.places)
    assert 8 == len(run.report.section("questions").rows)
    assert all(one.answer for one in answers(trial_of(random_log(1, 40))))


def test_question_1_what_does_it_find(run: Run) -> None:
    """Devices and models as the log has discovered them; one was away and is itself again."""
    found = run.numbers("hardware")
    devices = {one["device"]: one for one in run.events("device.discovered")}
    models = Counter(one["model"] for one in devices.values())
    gone = [one for one in run.events("device.health") if one["health"] == "gone"]
    assert len(devices) == found["devices"] == 16
    assert dict(models) == found["models"]
    assert len({one["node"] for one in devices.values()}) == found["nodes"]
    assert len(list(run.events("slice.present"))) == found["slices_seen"]
    assert len(gone) == found["returned"] == 1


def test_question_2_how_is_a_card_divided(run: Run) -> None:
    """Units leased by mode, what keeps them apart, and nobody has a part of another's."""
    found = run.numbers("division")
    slices = {one["slice"] for one in run.events("slice.present")}
    modes: Counter[str] = Counter()
    for one in run.events("lease.granted"):
        units = [unit for part in one["parts"] for unit in part["units"]]
        share = one["charge_milli"] < 1000 * len(units)
        for unit in units:
            modes["slice" if unit in slices else "share" if share else "whole"] += 1
    assert dict(modes) == found["modes"]
    isolation = Counter(one.get("isolation", "hardware") for one in run.events("lease.granted"))
    assert dict(isolation) == found["isolation"]
    assert {"hardware", "none"} == set(isolation)
    assert 0 == found["overlaps"]
    assert 4 == found["most_holders_of_one_device"] == most_together(run)


def most_together(run: Run) -> int:
    """Return the most leases on one device at a time, by the second count of metering."""
    most = 0
    for stretches in Oracle(run.values).stretches.values():
        held = [one for one in stretches if one[2][0] == "allocated"]
        for start, *_ in held:
            there = {one[2][4] for one in held if one[0] <= start and (one[1] or 10**18) > start}
            most = max(most, len(there))
    return most


def test_question_3_what_of_those_who_wait(run: Run) -> None:
    """All that were asked: granted, refused, expired; and how long they waited."""
    found, plain = run.numbers("waiting"), Plain(run.values)
    asked = plain.types["request.received"] + plain.refused.total()
    assert asked == found["asked"]
    assert len(plain.waits_us) == found["granted"]
    assert dict(plain.refused) == found["refused"]
    assert plain.ends["expired"] == found["expired"] == 1
    assert max(plain.waits_us) == found["wait_max_us"] > 0
    codes = Counter(one["code"] for one in run.events("request.queued"))
    assert dict(codes) == found["held_back_by"]
    # Every submission but the one that was sent twice is asked once.
    assert len(acceptance_scenario().jobs) - 2 == asked


def test_question_4_what_of_failures(run: Run) -> None:
    """Faults, interruptions, and when the work went on."""
    found, plain = run.numbers("failing"), Plain(run.values)
    states = Counter(f"node {one['state']}" for one in run.events("node.changed"))
    health = Counter(f"device {one['health']}" for one in run.events("device.health"))
    for name, count in found["faults"].items():
        assert count == (states + health)[name] > 0, name
    reasons = Counter(
        one["reason"]
        for one in run.events("lease.ended")
        if one["reason"] not in {"completed", "failed", "cancelled", "max-run", "idle"}
    )
    assert dict(reasons) == found["interrupted"]
    assert {"node-lost", "device-gone", "preempted", "reclaimed"} == set(reasons)
    assert len(plain.repairs_us) == found["granted_again"] == 4
    assert max(plain.repairs_us) == found["repair_max_us"]


def test_question_5_is_it_clean(run: Run) -> None:
    """Cleanings that were ordered, proved and failed; nothing unclean was granted."""
    found = run.numbers("cleaning")
    ordered = {one["order"] for one in run.events("order.issued") if one["kind"] == "clean"}
    done = [one for one in run.events("order.done") if one["order"] in ordered]
    failed = [one for one in run.events("order.failed") if one["order"] in ordered]
    assert (len(ordered), len(done), len(failed)) == (
        found["ordered"], found["proved"], found["failed"]
    )  # fmt: skip
    assert all(one["evidence"]["processes"] == 0 for one in done)
    quarantined = list(run.events("device.quarantined", "slice.quarantined"))
    assert len(quarantined) == found["quarantined"] == 2
    assert len(list(run.events("device.cleared"))) == found["cleared"] == 2
    assert 0 == found["granted_unclean"]


def test_question_6_who_decides(run: Run) -> None:
    """Acts by author; two persons for a quota; who may not was told no."""
    found = run.numbers("deciding")
    acts = [one for record in decided(run.values) for one in record["events"] if "author" in one]
    assert dict(Counter(one["author"] for one in acts)) == found["authors"]
    asked = {one["ask"]: one["author"] for one in run.events("quota.asked")}
    second = [one for one in run.events("quota.answered") if asked[one["ask"]] != one["author"]]
    assert len(second) == found["by_a_second_person"] == found["quotas_answered"] == 2
    assert {"same_person": 1, "not_owner": 1, "instance_busy": 1} == found["refused_acts"]
    assert found["policies"] == found["reasoned"] == sum(
        "reason" in one and not one["type"].startswith(("lease.", "node.")) for one in acts
    )  # fmt: skip


def test_question_7_how_much_was_used(run: Run) -> None:
    """By the second count of metering."""
    found = run.numbers("using")
    oracle = Oracle(run.values)
    states: Counter[str] = Counter()
    for (_, _, state, cause, _), amount in oracle.sums(0, 10**18).items():
        states[state] += amount
        states[f"{state} {cause}"] += amount
    assert states["allocated"] == found["allocated_milli_us"]
    assert states["allocated running"] == found["used_milli_us"]
    assert states["idle free"] == found["free_milli_us"]
    assert 1000 * sum(oracle.present(0, 10**18).values()) == found["present_milli_us"]
    total = found["used_milli_us"] + found["free_milli_us"] + sum(found["lost_milli_us"].values())
    assert total == found["present_milli_us"]


def test_question_8_can_it_be_checked(run: Run) -> None:
    """Records by verdict, and the digest that `gpuledger verify` finds."""
    found = run.numbers("checking")
    decisions = list(decided(run.values))
    claims = [one for one in run.values if orjson.loads(one)["kind"] == "claim"]
    assert (len(decisions), len(claims)) == (found["effective"], found["claims"])
    assert len(run.values) - len(decisions) - len(claims) == found["void"] > 0
    assert run.verified.digest == found["digest"]


# -- the second account ------------------------------------------------------------------


def seen(offset: int, *events: dict[str, Any]) -> Seen:
    """Return a record of a log that nobody has written."""
    record = Record(f"{PREFIX}.events", 0, offset, 1_000 + offset, b"c", b"")
    return Seen(record, "effective", {"time_us": 1_000 + offset, "events": list(events)})


def grant(lease: str, unit: str, milli: int = 1000, **more: Any) -> dict[str, Any]:
    """Return a grant of one unit on node n."""
    return {
        "type": "lease.granted", "lease": lease, "request": f"{lease}-request",
        "charge_milli": milli, "parts": [{"node": "n", "units": [unit]}], "memory_mib": 10, **more,
    }  # fmt: skip


def there(uuid: str = "A", memory_mib: int = 40) -> dict[str, Any]:
    """Return the discovery of a device."""
    return {
        "type": "device.discovered",
        "device": uuid,
        "node": "n",
        "model": "H100",
        "memory_mib": memory_mib,
    }


def part(name: str, start: int, size: int) -> dict[str, Any]:
    """Return a slice of device A."""
    return {"type": "slice.present", "slice": name, "device": "A", "start": start, "size": size}


#: A site: its pool, its node, its device.
SITE: list[dict[str, Any]] = [
    {"type": "pool.applied", "pool": "p"},
    {"type": "node.registered", "node": "n", "pool": "p"},
    there(),
]
ENDED: dict[str, Any] = {"type": "lease.ended", "lease": "L1", "reason": "completed"}
CLEAN: list[dict[str, Any]] = [
    {"type": "order.issued", "order": "o", "kind": "clean", "lease": "L1", "units": ["A"]},
    {"type": "order.done", "order": "o"},
]
QUOTA_OF_ONE: list[dict[str, Any]] = [
    {"type": "quota.applied", "tenant": "t", "nominal_gpu_milli": 1000, "parent": None},
    *({"type": "request.received", "request": f"L{n}-request", "tenant": "t"} for n in (1, 2)),
]

#: The rule that is broken -> events that break it; those that do not are below.
BROKEN: dict[str, list[list[dict[str, Any]]]] = {
    "observed": [[grant("L1", "B")]],
    "healthy": [
        [{"type": "device.health", "device": "A", "health": "unhealthy"}, grant("L1", "A")],
        [{"type": "device.quarantined", "unit": "A"}, grant("L1", "A")],
    ],
    "online": [
        [{"type": "node.changed", "node": "n", "state": "draining", "mode": "draining"},
         grant("L1", "A")],
        [{"type": "node.changed", "node": "n", "state": "draining", "mode": "draining"},
         {"type": "node.registered", "node": "n", "pool": "p"}, grant("L1", "A")],
        [{"type": "node.registered", "node": "n", "pool": "unknown"}, grant("L1", "A")],
    ],
    "alone": [
        [grant("L1", "A"), grant("L2", "A", 300)],
        [grant("L1", "A", 300), grant("L2", "A")],
        [part("s1", 0, 4), part("s2", 3, 1), grant("L1", "s1", 429), grant("L2", "s2", 143)],
        [part("s1", 0, 4), grant("L1", "s1", 429), grant("L2", "A", 300)],
    ],
    "shares": [[grant("L1", "A", 600), grant("L2", "A", 500)]],
    "memory": [[grant("L1", "A", 100, memory_mib=30), grant("L2", "A", 100, memory_mib=11)]],
    "clean": [[grant("L1", "A"), ENDED, grant("L2", "A")]],
    "once": [[there("B"), grant("L1", "A"), grant("L2", "B", request="L1-request")]],
    "quota": [[there("B"), *QUOTA_OF_ONE, grant("L1", "A"), grant("L2", "B")]],
}  # fmt: skip

GOOD: dict[str, list[dict[str, Any]]] = {
    "one after the other is proved clean": [grant("L1", "A"), ENDED, *CLEAN, grant("L2", "A")],
    "shares of one card": [grant("L1", "A", 500), grant("L2", "A", 500)],
    "memory may be overcommitted where that is said": [
        grant("L1", "A", 100, memory_mib=30),
        grant("L2", "A", 100, memory_mib=30, memory_overcommit_permille=1500),
    ],
    "slices beside each other": [
        part("s1", 0, 4), part("s2", 4, 2), grant("L1", "s1", 429), grant("L2", "s2", 286)
    ],
    "a slice that is gone leaves nobody": [
        part("s1", 0, 4), grant("L1", "s1", 429), ENDED, {"type": "slice.gone", "slice": "s1"},
        grant("L2", "A"),
    ],
    "cleared by an operator": [
        grant("L1", "A"), ENDED, {"type": "device.quarantined", "unit": "A"},
        {"type": "device.cleared", "device": "A"}, grant("L2", "A"),
    ],
    "a quota that two people have raised": [
        there("B"), *QUOTA_OF_ONE,
        {"type": "quota.asked", "ask": "a", "tenant": "t", "nominal_gpu_milli": 2000},
        {"type": "quota.answered", "ask": "a", "approve": True}, grant("L1", "A"), grant("L2", "B"),
    ],
    "back online": [
        {"type": "node.changed", "node": "n", "state": "silent"},
        {"type": "node.changed", "node": "n", "state": "online"}, grant("L1", "A"),
    ],
}  # fmt: skip


def account(events: list[dict[str, Any]]) -> Boundary:
    """Return the account of a site, and of what happens on it."""
    found = Boundary(Window(0, 10**9))
    for offset, event in enumerate([*SITE, *events]):
        found.take(seen(offset, event))
    return found


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_second_account_can_be_broken(rule: str) -> None:
    """By a log that breaks it, and the record that does is named."""
    for events in BROKEN[rule]:
        found = account(events)
        assert {rule} <= {name for name, count in found.broken.items() if count}
        assert [f"events/0@{len(SITE) + len(events) - 1}"] == found.places[f"broken {rule}"]


@pytest.mark.parametrize("name", GOOD)
def test_what_may_be_breaks_no_rule(name: str) -> None:
    """The table of what looks like a fault and is none."""
    found = account(GOOD[name])
    assert 0 == found.broken.total(), dict(found.broken)
    assert found.held["alone"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_the_core_breaks_no_rule_of_the_second_account(seed: int) -> None:
    """On logs to which everything happens."""
    found = trial_of(random_log(seed, 150)).boundary
    assert {} == +found.broken, found.places
    assert found.held["alone"] > 5


def test_a_broken_rule_breaks_the_pack(run: Run) -> None:
    """A check is broken where a grant contradicts it, and not shown where nothing is about it."""
    trial = run.gathered()
    trial.boundary = account(BROKEN["alone"][0])
    verdicts = {one.name: one.verdict for one in checks(trial)}
    assert ("broken", "shown") == (verdicts["alone"], verdicts["second-person"])
    trial.boundary = account([])
    verdicts = {one.name: one.verdict for one in checks(trial)}
    assert "not shown" == verdicts["alone"]
    found = acceptance_report(trial)
    assert found.more["verdicts"]["not shown"] > 5


# -- the command ---------------------------------------------------------------------------


def test_the_command_runs_the_script_and_tells_of_it(tmp_path: Path) -> None:
    """As text, JSON and a page; the ledger is left for others to read."""
    url, page = f"sqlite:{tmp_path / 'poc.sqlite'}", tmp_path / "pack.html"
    arguments = ["--log", url, "report", "acceptance"]
    done = CliRunner().invoke(app, [*arguments, "--run", "--html", str(page)])
    assert 0 == done.exit_code, done.stderr
    assert "void records" not in done.stderr, "the script writes them on purpose"
    assert "Eight questions of a buyer" in done.stdout
    plain = orjson.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert {"shown": 35, "broken": 0, "not shown": 0} == plain["verdicts"]
    assert all(row["numbers"] for section in plain["sections"] if section["name"] == "questions"
               for row in section["rows"])  # fmt: skip
    assert page.read_text().count("<svg") == 2
    again = CliRunner().invoke(
        app, ["--log", "kafka://localhost:1", "report", "acceptance", "--run"]
    )
    assert 2 == again.exit_code


def test_a_reason_that_somebody_gave_is_escaped(run: Run) -> None:
    """What people write stands in the stories; on a page it is text."""
    trial = run.gathered()
    words = "<script>alert(1)</script> & more"
    trial.stories.found[QUOTA].steps[0]["words"] = words
    page, text = page_of(acceptance_report(trial))
    assert 0 == page.tags["script"]
    assert "<script" not in text
    assert words in page.text
    assert [] == page.outside
