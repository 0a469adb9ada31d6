"""``bench audit``: a log of millions of events archived, and its books made and checked."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.audit_log import CELL_KEY, DAYS, HEADERS, START_US, site_of
from bench.workload import peak_rss_mib
from ledger.archive.follow import EVERY, Follower, Options
from ledger.billing.charges import Tariff
from ledger.billing.prices import read_prices
from ledger.books.make import Room, open_books
from ledger.books.source import files_of
from ledger.collector import relax
from ledger.log.port import Log, LogError, Record, TopicState, UnknownTopic
from ledger.metering.calendar import Period
from ledger.metering.policy import POLICIES
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.audit_log import Made
    from ledger.books.make import Books
    from ledger.log.port import Entry

__all__ = ["MONTH", "audit", "run", "write_archive"]

PREFIX = "gpuledger"
DAY_US = 86_400_000_000
MONTH = Period("2026-10", START_US, START_US + DAYS * DAY_US)
_TOPIC = full_name(PREFIX, "events")


_ONLY_READ = "the log of a bench is only read: it grows by what the bench makes"


class _Growing(Log):
    """A log of which only the newest records are kept: what a follower has not read yet.

    It is only read: nothing is put on it but by `grow`.
    """

    def __init__(self) -> None:
        self.first = 0
        self.records: list[Record] = []

    def grow(self, made: Iterator[Made], count: int) -> int:
        """Let go of the records, take in up to ``count`` others; return their events."""
        self.first += len(self.records)
        self.records = []
        events = 0
        for offset, one in enumerate(made, self.first):
            events += one.events
            self.records.append(
                Record(_TOPIC, 0, offset, one.time_us, CELL_KEY, one.value, HEADERS)
            )
            if len(self.records) == count:
                break
        return events

    async def partitions(self, topic: str) -> int:
        if topic != _TOPIC:
            raise UnknownTopic(topic)
        return 1

    async def begin(self, topic: str, partition: int) -> int:
        del topic, partition
        return self.first

    async def end(self, topic: str, partition: int) -> int:
        del topic, partition
        return self.first + len(self.records)

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        del topic, partition, wait_s
        return self.records[start - self.first : start - self.first + limit]

    async def append(
        self, topic: str, partition: int | None, entries: Sequence[Entry]
    ) -> list[int]:
        del topic, partition, entries
        raise LogError(_ONLY_READ)

    async def create_topics(self, topics: Mapping[str, TopicState]) -> list[str]:
        del topics
        raise LogError(_ONLY_READ)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicState]:
        del names
        raise LogError(_ONLY_READ)

    async def close(self) -> None:
        return


def write_archive(
    folder: Path, events: int, seed: int, plant: tuple[str, ...] = ()
) -> tuple[int, int, float, float]:
    """Archive a log of so many events; return records, events, seconds of it, and of making it."""
    relax()
    log = _Growing()
    made = site_of(events, seed, plant).records(events)
    records, found, archiving_s, making_s = 0, 0, 0.0, 0.0
    follower = Follower(log, PREFIX, folder, Options(("events",), EVERY))
    while True:
        began = time.perf_counter()
        found += log.grow(made, EVERY)
        grown = time.perf_counter()
        making_s += grown - began
        if not log.records:
            return records, found, archiving_s, making_s
        records += len(log.records)
        asyncio.run(follower.once())
        archiving_s += time.perf_counter() - grown


#: What somebody would write by hand, over the same files: charged time of leases by tenant.
BY_HAND = """
SELECT r.r.tenant,
       CAST(sum(CAST(g.g.charge_milli AS HUGEINT) * (coalesce(e.t, {until}) - g.t)) AS HUGEINT)
FROM (SELECT decided_us AS t, unnest(granted) AS g FROM read_parquet({files})
      WHERE granted IS NOT NULL) AS g
     JOIN (SELECT unnest(received) AS r FROM read_parquet({files})
           WHERE received IS NOT NULL) AS r ON r.r.request = g.g.request
     LEFT JOIN (SELECT decided_us AS t, unnest(ended) AS e FROM read_parquet({files})
                WHERE ended IS NOT NULL) AS e ON e.e.lease = g.g.lease
GROUP BY r.r.tenant ORDER BY r.r.tenant
"""

#: The same over the rows of the books.
BY_HAND_OF_ROWS = """
SELECT g.tenant, CAST(sum(CAST(p.milli AS HUGEINT) * (p.t1 - p.t0)) AS HUGEINT)
FROM tiles AS p JOIN grants AS g ON g.l = p.o
WHERE p.kind LIKE 'allocated %' GROUP BY g.tenant ORDER BY g.tenant
"""

#: One device's day, piece by piece.
DEVICE_DAY = """
WITH pieces AS MATERIALIZED (
    SELECT kind, milli, greatest(t0, $from_us) AS start_us, least(t1, $until_us) AS end_us, o
    FROM tiles WHERE d = $device AND t0 < $until_us AND t1 > $from_us
)
SELECT pieces.*, lease FROM pieces LEFT JOIN granted ON granted.rowid = pieces.o - 1
ORDER BY start_us
"""


def run(events: int, seed: int, folder: Path | None, memory_mib: int) -> dict[str, Any]:
    """Make and archive a log, audit the archive, and time each; the folder is for all files."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        archive = Path(scratch) / "archive"
        before = time.process_time()
        records, found, archiving_s, making_s = write_archive(archive, events, seed)
        worked = time.process_time() - before
        size = sum(one.stat().st_size for one in archive.rglob("*.parquet"))
        # In a process of its own: what making the log has used is no part of the audit.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            audited = apart.submit(audit, archive, Path(scratch), memory_mib).result()
    return {
        "bench": "audit",
        "workload": "a month of a site: cards, slices, shares and nodes leased, ended and cleaned",
        "seed": seed,
        "records": records,
        "events": found,
        "made_events_per_s": round(found / making_s),
        "archive_s": round(archiving_s, 1),
        "archive_events_per_s": round(found / archiving_s),
        "made_and_archived_per_cpu_s": round(found / worked),
        "archive_bytes_per_event": round(size / found, 1),
        **audited,
    }


def audit(archive: Path, scratch: Path, memory_mib: int) -> dict[str, Any]:
    """Audit an archive as a whole; then ask it what an auditor asks."""
    began, before = time.perf_counter(), time.process_time()
    room = Room(":memory:", memory_mib, scratch / "spill")
    books = open_books(archive, PREFIX, room)
    books.meter()
    metered = time.perf_counter()
    books.bill(MONTH, _tariff())
    billed = books.rows(
        "SELECT count(*), CAST(sum(list_atto) AS HUGEINT) // 1000000000 FROM charges"
    )
    done = time.perf_counter()
    findings = {kind: count for kind, (count, _) in books.findings().items()}
    ended, worked = time.perf_counter(), time.process_time() - before
    day = [_device_day(books, number) for number in range(5)]
    total = _seconds_by_state(books)
    tenants, by_tenant = _by_tenant_of_rows(books)
    books.close()
    peak = peak_rss_mib()
    return {
        "full_audit_s": round(ended - began, 1),
        "full_audit_cpu_s": round(worked, 1),
        "meter_s": round(metered - began, 1),
        "bill_s": round(done - metered, 1),
        "checks_s": round(ended - done, 1),
        "peak_rss_mib": peak,
        "found": findings,
        "charges": billed[0][0],
        "list_nanos": billed[0][1],
        "gpu_seconds": total,
        "device_day_ms": round(1000 * median(day), 1),
        **by_tenant,
        **_by_tenant_of_files(archive, scratch, memory_mib, tenants),
    }


def _tariff() -> Tariff:
    prices = {
        "book": "bench", "currency": "EUR", "issuer": "bench", "provider": "bench",
        "host": "bench", "account": "bench",
        "prices": [
            {
                "sku": "gpu", "unit": "GPU-Hours", "list_nanos": 2_500_000_001,
                "valid_from": "2026-01-01T00:00:00Z", "author": "bench", "reason": "a benchmark",
            }
        ],
    }  # fmt: skip
    return Tariff(read_prices(json.dumps(prices).encode()), POLICIES["pool"])


def _device_day(books: Books, number: int) -> float:
    """Return the seconds that one device's day takes, of a card and day that nobody asked yet."""
    from_us = MONTH.start_us + (3 + number) * DAY_US
    about = {"device": 41 + 7 * number, "from_us": from_us, "until_us": from_us + DAY_US}
    began = time.perf_counter()
    books.db.execute(DEVICE_DAY, about).fetchall()
    return time.perf_counter() - began


def _seconds_by_state(books: Books) -> dict[str, int]:
    """Return GPU-seconds, rounded, by what became of them."""
    rows = books.rows(
        "SELECT split_part(CAST(kind AS VARCHAR), ' ', 1) AS state,"
        " CAST(sum(CAST(milli AS HUGEINT) * (t1 - t0)) // 1000000000 AS BIGINT)"
        " FROM tiles GROUP BY state ORDER BY state"
    )
    return dict(rows)


def _by_tenant_of_rows(books: Books) -> tuple[dict[str, int], dict[str, Any]]:
    """Time GPU time by tenant in turn with what somebody would write by hand over the same rows."""
    ours, by_hand, found = [], [], dict[str, int]()
    for _ in range(3):
        began = time.perf_counter()
        found = books.allocated()
        ours.append(time.perf_counter() - began)
        began = time.perf_counter()
        books.rows(BY_HAND_OF_ROWS)
        by_hand.append(time.perf_counter() - began)
    return found, {
        "tenants_s": round(median(ours), 2),
        "by_hand_s": round(median(by_hand), 2),
        "meter_ratio": round(median(ours) / median(by_hand), 2),
    }


def _by_tenant_of_files(
    archive: Path, scratch: Path, memory_mib: int, wanted: dict[str, int]
) -> dict[str, Any]:
    """Time the same from the files, without books; ours looks at void records and supply too.

    Raise `RuntimeError` where ours are not those of the books.
    """
    files = [str(one) for one in files_of(archive, PREFIX)[0]]
    began = time.perf_counter()
    books = open_books(archive, PREFIX, Room(":memory:", memory_mib, scratch / "spill"))
    found = books.tenants()
    ours = time.perf_counter() - began
    until = books.rows("SELECT max(known_us) FROM known")[0][0]
    books.close()
    if found != wanted:
        raise RuntimeError("GPU time by tenant is not that of the books")
    db = Room(":memory:", memory_mib, scratch / "spill").open()
    began = time.perf_counter()
    db.execute(BY_HAND.format(files=files, until=until)).fetchall()
    by_hand = time.perf_counter() - began
    db.close()
    return {
        "files_tenants_s": round(ours, 2),
        "files_by_hand_s": round(by_hand, 2),
        "files_ratio": round(ours / by_hand, 2),
    }
