"""``gpuledger sql`` and ``report``: what is printed, what is put on record, and where."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ledger.archive.follow import Follower, Options
from ledger.audit import query_record
from ledger.audit.sql_texts import REPORTS, VIEWS
from ledger.audit.tables import TABLES
from ledger.cli import app
from ledger.cli.json_text import json_text
from ledger.cli.report import _IDS, _TIMES
from ledger.log.port import Entry, LogUnavailable
from ledger.log.sqlite import SqliteLog
from schemas.audit import AuditQuery
from tests.audit_support import fill
from tests.ledgers import PREFIX, TEAM, Site

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log and its archive."""
    folder = tmp_path_factory.mktemp("cli")

    async def make() -> None:
        async with SqliteLog(folder / "gpuledger.sqlite") as log:
            await fill(Site(log))
            await Follower(log, PREFIX, folder / "archive", Options(("events",))).once()

    asyncio.run(make())
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs the command in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GPULEDGER_SOURCE", "/team/audit")
    monkeypatch.delenv("GPULEDGER_LOG", raising=False)

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return invoke


def questions(folder: Path) -> list[AuditQuery]:
    """Return what is on record on the log."""

    async def read() -> list[AuditQuery]:
        async with SqliteLog(folder / "gpuledger.sqlite", read_only=True) as log:
            records = await log.read(f"{PREFIX}.audit", 0, 0, 1000)
            return [AuditQuery.model_validate_json(one.value or b"", strict=False)
                    for one in records]  # fmt: skip

    return asyncio.run(read())


def test_u5_a_question_is_on_record(run: Any, folder: Path) -> None:
    """Answered, refused and reports alike, with who asked; wrong usage asks nothing."""
    assert 0 == run("sql", "SELECT 1 AS one").exit_code
    before = len(questions(folder))
    assert "1\n" == run("sql", "SELECT 1 AS one", "--csv").stdout.splitlines(keepends=True)[1]
    refused = run("sql", "DROP TABLE records", "--source", "/team/other")
    assert 1 == refused.exit_code
    assert "a query is a SELECT; this is DROP" in refused.stderr
    held = run("report", "who-held", "--at", "2999-01-01T02:00:00+02:00", "--json")
    assert {"GPU-0", "GPU-1", "GPU-2"} == {
        orjson.loads(line)["device"] for line in held.stdout.splitlines()
    }
    assert 2 == run("report", "who-held", "--at", "yesterday").exit_code
    assert 2 == run("sql").exit_code
    found = questions(folder)[before:]
    assert [
        ("sql", "SELECT 1 AS one", "answered", 1),
        ("sql", "DROP TABLE records", "refused", 0),
        ("report", REPORTS["who-held"].query[:4000], "answered", 3),
    ] == [(one.kind, one.text, one.outcome, one.rows) for one in found]
    assert "who-held" == found[2].name
    assert {"at": "2999-01-01T00:00:00+00:00"} == found[2].parameters
    rows = run("sql", "SELECT who, outcome FROM queries", "--json").stdout.splitlines()
    assert {"who": "/team/other", "outcome": "refused"} in map(orjson.loads, rows)


@pytest.mark.parametrize(
    ("report", "option", "what"),
    [
        ("device-history", "--device", "device or slice"),
        ("interrupted", "--node", "node"),
        ("denials", "--tenant", "tenant"),
        ("waits-of", "--request", "request"),
        ("lease-life", "--lease", "lease"),
        ("ordered-by", "--who", "source or author"),
    ],
)
def test_an_id_that_no_record_is_about_is_told(
    run: Any, folder: Path, report: str, option: str, what: str
) -> None:
    """No row of what is not there is no answer (exit 1); of what is there it is one (exit 0)."""
    unknown = run("report", report, option, "GPU-nobody")
    assert (1, "") == (unknown.exit_code, unknown.stdout)
    assert f"there is no record of {what} GPU-nobody up to events/0@" in unknown.stderr
    assert questions(folder)[-1].name == report


def test_every_id_that_a_report_takes_is_looked_for(run: Any) -> None:
    """A new option of a report is a time, or an id whose absence is told."""
    options = {one.name for text in REPORTS.values() for one in text.parameters}
    assert options == _TIMES | _IDS.keys()
    early = run("report", "who-held", "--at", "1999-01-01T00:00:00Z", "--device", "GPU-0")
    assert (0, 1) == (early.exit_code, len(early.stdout.splitlines()))
    assert "nothing was there at 1999-01-01T00:00:00+00:00: the first" in early.stderr
    assert "" == run("report", "who-held", "--at", "2999-01-01T00:00:00Z").stderr


def test_u5_what_cannot_be_put_on_record_is_not_shown(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that takes no record gives no answer (exit 3)."""

    async def full(*_: Any) -> Any:
        raise LogUnavailable("the disk is full")

    monkeypatch.setattr(SqliteLog, "append", full)
    asked = run("sql", "SELECT 12345 AS secret")
    assert 3 == asked.exit_code
    assert "12345" not in asked.stdout
    assert "the disk is full" in asked.stderr


def test_an_archive_keeps_questions_beside_it(
    run: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file beside the folder, which stays as it is; where that cannot be, it is said."""
    before = {path: path.read_bytes() for path in (folder / "archive").rglob("*.parquet")}
    asked = run("sql", "SELECT count(*) FROM leases", "--log", "archive:archive", "--csv")
    assert ["2"] == asked.stdout.splitlines()[1:]
    assert not asked.stderr
    (line,) = (folder / "archive-queries.jsonl").read_text().splitlines()
    kept = orjson.loads(line)
    assert ("/team/audit", "answered", 1) == (kept["who"], kept["outcome"], kept["rows"])
    assert before == {path: path.read_bytes() for path in (folder / "archive").rglob("*.parquet")}

    def refused(*_: Any) -> int:
        raise PermissionError

    monkeypatch.setattr("ledger.audit.query_record.os.open", refused)
    again = run("sql", "SELECT 1", "--log", "archive:archive", "--csv")
    assert ["1"] == again.stdout.splitlines()[1:]
    assert "this question is not on record" in again.stderr


def test_u4_exported_twice_is_the_same_bytes(run: Any, folder: Path) -> None:
    """Every table and view, with the range of the log and the version in the footer."""
    for name in ("one", "two"):
        assert 0 == run("sql", "--export", name).exit_code
    files = {path.name: path.read_bytes() for path in (folder / "one").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (folder / "two").iterdir()}
    names = [one.name for one in TABLES if one.name != "queries"] + [one.name for one in VIEWS]
    assert sorted(f"{name}.parquet" for name in names) == sorted(files)
    leases = pq.read_table(folder / "one" / "leases.parquet")
    assert {f"{TEAM}#a/1", f"{TEAM}#b/1"} == set(leases["lease"].to_pylist())
    about = pq.read_metadata(folder / "one" / "alarms.parquet").metadata
    assert b"[11]" == about[b"gpuledger.upto"]
    assert b"gpuledger.events" == about[b"gpuledger.topic"]
    assert about[b"gpuledger.made_by"].startswith(b"gpuledger")
    assert 2 == run("sql", "--export", "one").exit_code
    assert ["export", "export"] == [one.kind for one in questions(folder)][-2:]


def test_the_list_of_reports(run: Any) -> None:
    """``report`` alone is the list; as JSON it has the SQL and the columns."""
    listed = run("report").stdout
    assert run("report", "list").stdout == listed
    assert all(f"\n{name} " in listed for name in REPORTS)
    plain = {
        one["report"]: one for one in map(orjson.loads, run("report", "--json").stdout.splitlines())
    }
    assert set(REPORTS) == set(plain)
    assert ["at", "device", "tenant", "node"] == [
        one["name"] for one in plain["who-held"]["options"]
    ]
    for name in ("who-held", "policy-diff"):
        shown = run("report", name, "--help")
        assert 0 == shown.exit_code
        assert all(f"--{one.name}" in shown.stdout for one in REPORTS[name].parameters)


def test_tables_are_described(run: Any) -> None:
    """Every table, view and macro, with its columns."""
    lines = [orjson.loads(line) for line in run("sql", "--tables", "--json").stdout.splitlines()]
    kinds = {
        kind: [one[kind] for one in lines if kind in one] for kind in ("table", "view", "macro")
    }
    assert [one.name for one in TABLES] == kinds["table"]
    assert [one.name for one in VIEWS] == kinds["view"]
    assert "gpu_seconds(tenant, from, to)" in kinds["macro"]
    assert "leases (view): one row a lease" in run("sql", "--tables").stdout


async def test_what_others_write_on_the_topic_is_seen(tmp_path: Path) -> None:
    """A record that is no question is a row too, and not passed over."""
    async with SqliteLog(tmp_path / "log") as log:
        await fill(Site(log))
        await log.append(f"{PREFIX}.audit", 0, [Entry(b"/x", b"{}"), Entry(b"/x", None)])
        found = (await query_record.queries_of(log, PREFIX)).to_pylist()
    assert [("/x", "unreadable")] * 2 == [(one["who"], one["outcome"]) for one in found]


async def test_a_log_from_before_gets_the_topic(tmp_path: Path) -> None:
    """The first question makes the topic as it is declared."""
    query = AuditQuery.model_validate(
        {"kind": "sql", "text": "", "text_bytes": 0, "text_sha256": "0" * 64, "upto": (),
         "outcome": "answered", "took_us": 0, "client": "x"}
    )  # fmt: skip
    async with SqliteLog(tmp_path / "log") as log:
        assert "audit/0@0" == await query_record.keep_on_log(log, "other", "/x", query)
        assert "audit/0@1" == await query_record.keep_on_log(log, "other", "/x", query)
        assert 1 == await log.partitions("other.audit")


def test_json_has_all_digits_of_a_number_of_more_than_64_bits(run: Any) -> None:
    """Sums of a large site are so large: thousandths x microseconds, MiB x microseconds."""
    done = run("sql", "SELECT 2::HUGEINT ** 100 AS n, [3, -(2::HUGEINT ** 70)] AS more", "--json")
    assert (0, "") == (done.exit_code, done.stderr)
    assert {"n": 2**100, "more": [3, -(2**70)]} == json.loads(done.stdout)
    assert {"a": {"b": 2**64}, "c": "2026-01-01"} == json.loads(
        json_text({"a": {"b": 2**64}, "c": date(2026, 1, 1)})
    )


def test_a_time_that_is_none_in_utc_is_wrong_usage(run: Any) -> None:
    """The first hours of the year 1 in the east are in no year of UTC."""
    done = run("report", "who-held", "--at", "0001-01-01T00:00:00+14:00")
    assert (2, True) == (done.exit_code, "is a time such as" in done.stderr)
