"""SQL over the ledger: the answers are right, and nothing else can be reached."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from ledger.audit.sql import BadQuery, Ledger, Limits, load
from ledger.audit.tables import EVENTS, RECORDS, VIEWS, batches
from ledger.log.memory import MemoryLog
from ledger.log.sqlite import SqliteLog
from ledger.reading import Upto
from tests.ledgers import PREFIX, TEAM, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def fill(site: Site) -> None:
    """Give a site requests that were granted, ended, wait and were refused."""
    await site.start(gpus=4)
    await site.submit("a", 2)
    await site.finish(f"{TEAM}#a/1")
    await site.submit("b", 3)
    await site.submit("c", 2)
    await site.submit("d", 2, max_wait_s=0)


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    """Return a locked database with a small ledger in it."""
    site = Site(MemoryLog())
    await fill(site)
    found = await load(site.log, PREFIX, Limits(rows=100, seconds=2.0, memory_mib=256))
    yield found
    found.close()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT request, state, last_no, leases FROM requests ORDER BY request",
            [
                (f"{TEAM}#a", "completed", None, 1),
                (f"{TEAM}#b", "granted", None, 1),
                (f"{TEAM}#c", "queued", "no_capacity", 0),
                (f"{TEAM}#d", "rejected", "no_capacity", 0),
            ],
        ),
        (
            "SELECT lease, tenant, charge_milli, reason, held_us > 0 FROM leases ORDER BY lease",
            [
                (f"{TEAM}#a/1", "t", 2000, "completed", True),
                (f"{TEAM}#b/1", "t", 3000, None, None),
            ],
        ),
        (
            f"SELECT unit, node FROM holdings WHERE lease = '{TEAM}#a/1' ORDER BY unit",
            [("GPU-0", "n1"), ("GPU-1", "n1")],
        ),
        (
            "SELECT request, code, numbers->>'free_gpus' FROM refusals",
            [(f"{TEAM}#d", "no_capacity", "1")],
        ),
        ("SELECT type, author FROM policy ORDER BY 1 LIMIT 1", [("pool.applied", "ops")]),
        ("SELECT kind, verdict, count(*) FROM records GROUP BY ALL ORDER BY 1 LIMIT 1",
         [("claim", "claim", 1)]),
        ("SELECT count(*) FROM decisions", [(10,)]),
        ("SELECT data->>'model' FROM events WHERE device = 'GPU-0' LIMIT 1", [("H100",)]),
        ("FROM events SELECT count(*) WHERE type = 'lease.granted'", [(2,)]),
        ("WITH x AS (SELECT 1 AS a) SELECT a FROM x;", [(1,)]),
    ],
)  # fmt: skip
async def test_answers(ledger: Ledger, query: str, rows: list[tuple[object, ...]]) -> None:
    """Tables and views say what the ledger says."""
    assert ledger.query(query).rows == rows


async def test_every_described_column_is_there(ledger: Ledger) -> None:
    """The description is what the tables are made from; the views can all be read."""
    for table in (RECORDS, EVENTS):
        result = ledger.query(f"SELECT * FROM {table.name}")
        assert list(result.columns) == [name for name, _, _ in table.columns]
        assert list(result.types) == [kind for _, kind, _ in table.columns]
    for view in VIEWS:
        assert ledger.query(f"SELECT * FROM {view.name}").columns


async def test_as_of() -> None:
    """Only what was there at that time."""
    site = Site(MemoryLog())
    await fill(site)
    found = await load(site.log, PREFIX, None, Upto(offsets={0: 3}))
    assert found.query("SELECT count(*) FROM records").rows == [(3,)]
    found.close()


#: Statements that try to get out, to write, or to change what they may do.
ATTEMPTS = """
INSERT INTO records SELECT * FROM records
UPDATE events SET tenant = 'x'
DELETE FROM events
DROP TABLE records
DROP VIEW leases
CREATE TABLE x AS SELECT 1
CREATE TEMP TABLE x AS SELECT 1
CREATE OR REPLACE VIEW leases AS SELECT 1
CREATE MACRO f() AS 1
CREATE SECRET s (TYPE http)
ALTER TABLE records ADD COLUMN x INT
TRUNCATE records
COMMENT ON TABLE records IS 'x'
WITH x AS (DELETE FROM events RETURNING *) SELECT * FROM x
WITH x AS (INSERT INTO records SELECT * FROM records RETURNING *) SELECT * FROM x
WITH x AS (UPDATE events SET n = 1 RETURNING *) SELECT * FROM x
COPY events TO '{folder}/out.csv'
COPY (SELECT 1) TO '{file}'
COPY records FROM '{secret}'
EXPORT DATABASE '{folder}/out'
IMPORT DATABASE '{folder}'
ATTACH '{file}' AS log
ATTACH '{file}' AS log (TYPE sqlite)
ATTACH ':memory:' AS other
DETACH memory
USE memory
VACUUM
CHECKPOINT
INSTALL httpfs
LOAD httpfs
LOAD '{file}'
INSTALL sqlite FROM community
SET memory_limit = '100GB'
SET GLOBAL enable_external_access = true
SET lock_configuration = false
RESET memory_limit
PRAGMA enable_external_access = true
PRAGMA temp_directory = '{folder}'
PRAGMA database_list
CALL pragma_version()
BEGIN TRANSACTION
COMMIT
ROLLBACK
PREPARE p AS SELECT 1
EXECUTE p
EXPLAIN ANALYZE SELECT 1
SELECT 1; SELECT 2
SELECT 1; DROP TABLE records
SELECT 1; COPY events TO '{folder}/out.csv'
ROLLBACK; DELETE FROM events
SELECT * FROM read_text('{secret}')
SELECT * FROM read_blob('{secret}')
SELECT * FROM read_csv('{secret}')
SELECT * FROM read_csv_auto('{secret}')
SELECT * FROM read_json('{secret}')
SELECT * FROM read_ndjson_objects('{secret}')
SELECT * FROM read_parquet('{secret}')
SELECT * FROM parquet_metadata('{secret}')
SELECT * FROM parquet_kv_metadata('{secret}')
SELECT * FROM sniff_csv('{secret}')
SELECT * FROM '{secret}'
SELECT * FROM '{secret}.csv'
SELECT * FROM '{file}'
SELECT * FROM read_duckdb('{file}')
SELECT * FROM sqlite_scan('{file}', 'records')
SELECT * FROM glob('{folder}/*')
SELECT * FROM glob('/etc/*')
SELECT * FROM read_text('../../../../etc/passwd')
SELECT * FROM read_text('http://127.0.0.1:9/')
SELECT * FROM read_parquet('s3://bucket/key')
SELECT * FROM query('COPY events TO ''{folder}/x''')
SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')
SELECT * FROM query_table('{secret}')
SELECT (SELECT content FROM read_text('{secret}'))
SELECT getenv('HOME')
SELECT * FROM outside
SELECT * FROM incoming
SELECT * FROM enable_logging()
SELECT * FROM duckdb_secrets()
PIVOT events ON type USING count(*)
"""


@pytest.fixture(scope="module")
def attempts() -> list[str]:
    """Return the attempts, one a line."""
    return [line for line in ATTEMPTS.splitlines() if line]


async def test_u5_nothing_can_be_written_or_reached(tmp_path: Path, attempts: list[str]) -> None:
    """U5: every attempt is refused, and neither the ledger nor its folder has changed."""
    outside = duckdb.sql("SELECT 'secret' AS secret")  # a name that Python knows and SQL must not
    file, secret = tmp_path / "log.sqlite", tmp_path / "secret"
    secret.write_text("a,b\n1,2\n")
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    async with SqliteLog(file) as log:
        await fill(Site(log))
        found = await load(log, PREFIX, Limits(rows=100, seconds=5.0))

    def fingerprints() -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()
        }

    before = fingerprints()
    rows = found.query("SELECT count(*) FROM events").rows
    got_through = []
    for attempt in attempts:
        text = attempt.format(folder=tmp_path, file=file, secret=secret)
        try:
            result = found.query(text)
        except BadQuery:
            continue
        got_through.append((text, result.rows[:1]))
    assert got_through == []
    assert fingerprints() == before
    assert found.query("SELECT count(*) FROM events").rows == rows
    assert outside is not None
    found.close()


@pytest.mark.parametrize(
    "query",
    ["", "   ", "-- nothing", "SELEC 1", "SELECT * FROM nowhere", "SELECT 1 +", "SELECT \x00"],
)
async def test_wrong_queries_are_explained(ledger: Ledger, query: str) -> None:
    """A mistake is one message, and the database stays usable."""
    with pytest.raises(BadQuery):
        ledger.query(query)
    assert ledger.query("SELECT 1").rows == [(1,)]


async def test_rows_are_limited(ledger: Ledger) -> None:
    """More rows than the limit are cut, and it is said."""
    result = ledger.query("SELECT * FROM range(101)")
    assert len(result.rows) == 100
    assert result.cut
    assert not ledger.query("SELECT * FROM range(100)").cut


async def test_time_is_limited(ledger: Ledger) -> None:
    """A query without an end is stopped, and the database stays usable."""
    started = time.monotonic()
    with pytest.raises(BadQuery, match="stopped after 2 s"):
        ledger.query(
            "SELECT count(*) FROM range(10000000) a, range(100000) b WHERE a.range + b.range < 0"
        )
    assert time.monotonic() - started < 20
    assert ledger.query("SELECT 1").rows == [(1,)]


async def test_memory_is_limited(ledger: Ledger) -> None:
    """A query that needs more memory than it may have fails; it does not spill into files."""
    with pytest.raises(BadQuery, match=r"[Mm]emory"):
        ledger.query(
            "SELECT count(*) FROM (SELECT DISTINCT hash(range) || repeat('x', 100)"
            " FROM range(30000000))"
        )
    assert ledger.query("SELECT 1").rows == [(1,)]


async def test_a_ledger_that_does_not_fit_is_said() -> None:
    """Loading is limited too."""
    site = Site(MemoryLog())
    await fill(site)
    found = Ledger(Limits(memory_mib=4))
    async for records, events in batches(site.log, PREFIX):
        rows = pa.concat_tables([records] * 5000), pa.concat_tables([events] * 5000)
        with pytest.raises(BadQuery, match="does not fit into 4 MiB"):
            found.add(*rows)
    found.close()
