"""The books of an archive: the same as the meter, the bill, and a count by other means."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from ledger.books.make import Room, open_books
from ledger.log.port import LogDamaged
from ledger.metering.calendar import Period
from tests.billing_support import FOREVER_MONTH, tariff
from tests.books import STEPS, archived, by_books, by_ledger, compare
from tests.metering_logs import random_log, with_void_records
from tests.metering_oracle import Oracle


def test_three_ways_of_counting_agree_to_the_microsecond_and_the_nano() -> None:
    """50 random logs; ``python -m tests.books --logs 1000`` has more of them."""
    assert not compare(range(50))


def test_a_way_that_counts_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One lease a microsecond longer, by one of the three ways."""
    values = random_log(3, STEPS)
    key, amount = next(iter(by_ledger(values).times.items()))

    def wrong(_: object) -> object:
        found = by_ledger(values)
        found.times[key] = amount + 1
        return found

    monkeypatch.setattr("tests.books.by_ledger", wrong)
    assert ["ledger" in text for text in compare([3])] == [True]


def test_void_records_change_nothing() -> None:
    """Decisions of others in between: those of a log's own past, written again."""
    plain = [random_log(seed, STEPS) for seed in range(6)]
    disturbed = [with_void_records(values, Random(1)) for values in plain]
    assert sum(map(len, disturbed)) > sum(map(len, plain))
    assert by_books(disturbed) == by_books(plain)


def test_gpu_time_by_tenant_is_that_of_the_whole_books() -> None:
    """The shorter way to one number, on logs with slices, shares and devices that go."""
    logs = [random_log(seed, STEPS) for seed in range(8)]
    for values in logs:
        with TemporaryDirectory() as folder:
            archived([values], Path(folder))
            books = open_books(Path(folder))
            found = books.tenants()
            books.close()
        oracle, wanted = Oracle(values), dict[str, int]()
        for stretches in oracle.stretches.values():
            for begin, until, (state, _, unit, milli, owner), _ in stretches:
                length = (oracle.now_us if until is None else until) - begin
                if state == "allocated" and length:
                    tenant = oracle.amounts[owner, unit]["request"]["tenant"]
                    wanted[tenant] = wanted.get(tenant, 0) + milli * length
        assert {name: amount for name, amount in found.items() if amount} == wanted


def test_a_bill_of_part_of_a_log_is_that_of_the_part(tmp_path: Path) -> None:
    """Seconds, prices and rounding within bounds that cut charges."""
    values = random_log(5, STEPS)
    archived([values], tmp_path)
    books = open_books(tmp_path)
    books.meter()
    books.bill(Period("part", 300_000_000, 900_000_000), tariff())
    spans = books.rows("SELECT min(start_s), max(end_s) FROM charges")
    twice = books.rows(
        "SELECT count(*) FROM charges AS a JOIN charges AS b ON a.d = b.d AND a.s = b.s"
        " AND a.o = b.o AND a.kind = b.kind AND a.start_s < b.start_s AND b.start_s < a.end_s"
    )
    books.close()
    assert spans == [(300, 900)]
    assert twice == [(0,)]


def test_a_random_log_has_no_findings(tmp_path: Path) -> None:
    """The core keeps the rules that an audit looks at."""
    archived([random_log(seed, STEPS) for seed in range(30)], tmp_path)
    books = open_books(tmp_path)
    books.meter()
    books.bill(FOREVER_MONTH, tariff())
    found = books.findings()
    books.close()
    assert {kind: count for kind, (count, _) in found.items() if count} == {}


def test_a_hole_in_the_archive_is_said(tmp_path: Path) -> None:
    """Files are missing at the beginning: the books would be wrong."""
    archived([random_log(0, STEPS)], tmp_path)
    first = next(tmp_path.rglob("*.parquet"))
    first.rename(first.with_name(f"{7:020d}-{7 + 10**6:020d}.parquet"))
    with pytest.raises(LogDamaged, match="offsets 0 to 6"):
        open_books(tmp_path, room=Room(memory_mib=256))
