"""``bench audit``: its logs are a ledger's, what is planted in them is found, and its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.audit import MONTH, run, write_archive
from bench.audit_log import FAULTS, Site, site_of
from ledger.books.make import FINDINGS, open_books
from ledger.core.fold import Fold
from ledger.core.invariants import check
from tests.billing_support import tariff
from tests.books import by_ledger_lines, by_ledger_times, of_books

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ledger.books.make import Books

EVENTS = 12_000


@pytest.fixture(scope="module")
def values() -> list[bytes]:
    """Return the log of a small site: one node of slices, one of shares, two leased whole."""
    return [one.value for one in site_of(EVENTS).records(EVENTS)]


def test_the_log_keeps_every_rule_of_the_domain(values: list[bytes]) -> None:
    """The fold checks each event; the invariants are looked at in the end.

    But for V1: here a request waits for one place, and for no other that is free.
    """
    fold = Fold()
    verdicts = [fold.apply(offset, value)[0] for offset, value in enumerate(values)]
    assert verdicts == ["claim", *["effective"] * (len(values) - 1)]
    for state in fold.cells.values():
        assert {one.invariant for one in check(state)} <= {"V1"}


def test_the_same_seed_makes_the_same_log(values: list[bytes]) -> None:
    """To the byte; another seed another one."""
    assert values == [one.value for one in site_of(EVENTS).records(EVENTS)]
    assert values != [one.value for one in site_of(EVENTS, seed=2).records(EVENTS)]


def test_the_log_has_what_a_site_has() -> None:
    """All ways to lease, waiting, silence, idleness and sick cards."""
    text = b"".join(one.value for one in Site(10).records(60_000)).decode()
    for what in (
        '"mode":"mig"', '"mode":"share"', '"count":8', '"request.queued"', '"lease.idle"',
        '"state":"silent"', '"health":"unhealthy"', '"health":"healthy"', '"how":"failed"',
    ):  # fmt: skip
        assert what in text, what


def _audited(folder: Path, *plant: str) -> Books:
    write_archive(folder, EVENTS, 1, plant)
    books = open_books(folder)
    books.meter()
    books.bill(MONTH, tariff())
    return books


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    """Return the books of the log, as nothing is planted in it."""
    made = _audited(tmp_path_factory.mktemp("books"))
    yield made
    made.close()


def test_the_books_of_the_log_are_what_the_meter_says(values: list[bytes], books: Books) -> None:
    """Every unit's time, on the bench's own kind of log."""
    assert of_books(books, 1)[0].times == by_ledger_times(values)
    assert {kind: count for kind, (count, _) in books.findings().items()} == dict.fromkeys(
        FINDINGS, 0
    )


def test_the_bill_of_the_log_is_what_the_ledger_issues(values: list[bytes], books: Books) -> None:
    """Every line to the nano: nearly all leases here take their usual course, unlike elsewhere."""
    usual, leases = books.rows(
        "SELECT (SELECT count(*) FROM turns WHERE calm), (SELECT count(*) FROM granted)"
    )[0]
    assert usual > leases // 4
    assert of_books(books, 1)[0].lines == by_ledger_lines(values, MONTH)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, tmp_path: Path) -> None:
    """Each kind by its name, with what it is about."""
    books = _audited(tmp_path, fault)
    found = books.findings()
    books.close()
    count, words = found[fault]
    assert count == 1
    assert len(words) == 1


def test_the_bench_prints_its_figures(tmp_path: Path) -> None:
    """A run of a small log has all fields, and nothing is found in it."""
    row = run(EVENTS, 1, tmp_path, 512)
    assert row["records"] < row["events"] >= EVENTS
    assert row["found"] == dict.fromkeys(FINDINGS, 0)
    for name in (
        "archive_events_per_s", "full_audit_s", "peak_rss_mib", "meter_ratio", "device_day_ms",
    ):  # fmt: skip
        assert row[name] > 0, name
