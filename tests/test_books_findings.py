"""Each kind of fault that an audit names is found where it was put, and named; and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from bench.audit import MONTH
from bench.audit_log import site_of
from ledger.books.make import open_books
from tests.billing_support import tariff
from tests.books import archived

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ledger.books.make import Books

EVENTS = 6_000

#: A record, as JSON.
Plain = dict[str, Any]


@pytest.fixture(scope="module")
def values() -> list[bytes]:
    """Return the log of a small site with slices, shares, whole cards and whole nodes."""
    return [one.value for one in site_of(EVENTS).records(EVENTS)]


def audited(values: Sequence[bytes], folder: Path) -> Books:
    """Return the books of a log, with its bill."""
    archived([values], folder)
    books = open_books(folder)
    books.meter()
    books.bill(MONTH, tariff())
    return books


def found_in(values: Sequence[bytes], folder: Path) -> dict[str, list[str]]:
    """Return what an audit finds, without what it does not find."""
    books = audited(values, folder)
    found = {kind: words for kind, (count, words) in books.findings().items() if count}
    books.close()
    return found


def changed(
    values: Sequence[bytes], about: str, change: Callable[[Plain, Plain], None], skip: int = 20
) -> list[bytes]:
    """Return the log with one record changed: one of those with an event of a type, not the first.

    ``change`` is given the record and that event.
    """
    log = list(values)
    for at, value in enumerate(log):
        if f'"{about}"'.encode() not in value:
            continue
        plain = orjson.loads(value)
        for event in plain.get("events", ()):
            if event["type"] == about:
                skip -= 1
                if skip == 0:
                    change(plain, event)
                    log[at] = orjson.dumps(plain)
                    return log
    raise AssertionError(f"the log has no {about} to change")


def test_nothing_is_found_in_a_log_without_a_fault(values: list[bytes], tmp_path: Path) -> None:
    """Else what is found of a planted fault says nothing."""
    assert found_in(values, tmp_path) == {}


def test_an_end_told_twice_is_a_duplicate(values: list[bytes], tmp_path: Path) -> None:
    """Within one record, so that no number is left out."""
    named: list[str] = []

    def twice(plain: Plain, event: Plain) -> None:
        named.append(event["lease"])
        plain["events"].append(event)

    found = found_in(changed(values, "lease.ended", twice), tmp_path)
    assert found["duplicate"] == [f"lease {named[0]} ended 2 times"]


def test_a_request_received_twice_is_a_duplicate(values: list[bytes], tmp_path: Path) -> None:
    """Its lease would be charged twice."""
    named: list[str] = []

    def twice(plain: Plain, event: Plain) -> None:
        named.append(event["request"])
        plain["events"].append(event)

    found = found_in(changed(values, "request.received", twice), tmp_path)
    assert f"request {named[0]} was received 2 times" in found["duplicate"]


def test_a_lease_granted_twice_is_a_duplicate_and_an_overlap(
    values: list[bytes], tmp_path: Path
) -> None:
    """Once more with the start of its task: the device is held twice."""
    grants = {
        event["lease"]: event
        for value in values
        for event in orjson.loads(value).get("events", ())
        if event["type"] == "lease.granted"
    }
    named: list[str] = []

    def again(plain: Plain, event: Plain) -> None:
        named.append(event["lease"])
        plain["events"].append(grants[event["lease"]])

    found = found_in(changed(values, "lease.started", again), tmp_path)
    assert found["duplicate"] == [f"lease {named[0]} was granted 2 times"]
    assert any(f"lease {named[0]} brings" in one for one in found["overlap"])


def test_an_end_of_a_lease_that_nobody_was_granted_is_found(
    values: list[bytes], tmp_path: Path
) -> None:
    """It has no time of its own to hold against."""

    def other(plain: Plain, event: Plain) -> None:
        plain["events"].append({**event, "lease": "/team/t00#nobody/1"})

    found = found_in(changed(values, "lease.ended", other), tmp_path)
    assert found == {"held": ["lease /team/t00#nobody/1 ended and was never granted"]}


def test_a_time_told_wrong_is_found(values: list[bytes], tmp_path: Path) -> None:
    """By one microsecond."""
    named: list[str] = []

    def longer(_: Plain, event: Plain) -> None:
        named.append(f"lease {event['lease']} lasted {event['held_us']} us, its end says ")
        event["held_us"] += 1

    found = found_in(changed(values, "lease.ended", longer), tmp_path)
    assert list(found) == ["held"]
    assert [one.startswith(named[0]) for one in found["held"]] == [True]


def test_more_shares_than_a_card_has_are_an_overlap(values: list[bytes], tmp_path: Path) -> None:
    """What asked for a quarter asked for all of it: two are twice a card, three are three."""
    log = list(values)
    for at, value in enumerate(log):
        plain = orjson.loads(value)
        for event in plain.get("events", ()):
            if event["type"] == "request.received" and event["need"].get("gpu_milli") == 250:
                event["need"]["gpu_milli"] = 1000
                log[at] = orjson.dumps(plain)
    found = found_in(log, tmp_path)
    assert len(found["overlap"]) == 5
    assert all(one.endswith("000 thousandths") for one in found["overlap"])


def test_a_slice_leased_twice_is_an_overlap(values: list[bytes], tmp_path: Path) -> None:
    """Two leases on one slice: one of another slice is told to be on this."""
    held: list[str] = []
    log = list(values)
    for at, value in enumerate(log):
        plain = orjson.loads(value)
        for event in plain.get("events", ()):
            if event["type"] != "lease.granted" or "-s" not in event["parts"][0]["units"][0]:
                continue
            held.append(event["parts"][0]["units"][0])
            if len(held) == 2:
                event["parts"][0]["units"] = held[:1]
                log[at] = orjson.dumps(plain)
                found = found_in(log, tmp_path)
                assert any(f"brings {held[0]} to 2000" in one for one in found["overlap"])
                return
    raise AssertionError("the log has no two leases of slices")


def test_a_number_left_out_is_a_gap(values: list[bytes], tmp_path: Path) -> None:
    """The record is gone, and those after it keep their numbers."""
    middle = len(values) // 2
    found = found_in([*values[:middle], *values[middle + 1 :]], tmp_path)
    assert found["gap"] == [f"events/0@{middle} has number {middle + 1}, {middle} is missing"]


@pytest.mark.parametrize(
    ("kind", "damage", "words"),
    [
        ("conservation", "UPDATE tiles SET t1 = t1 - 1 WHERE rowid = 100", "parts sum to"),
        ("conservation", "DELETE FROM tiles WHERE rowid = 100", "parts sum to"),
        ("bill", "DELETE FROM lines WHERE d = 7 AND end_s - start_s > 1000", "is billed for"),
        ("bill", "INSERT INTO lines SELECT * FROM lines WHERE d = 7", "is billed for"),
        ("bill", "UPDATE lines SET r = NULL WHERE d = 7", "no price for"),
    ],
)
def test_books_that_do_not_add_up_are_found(
    values: list[bytes], tmp_path: Path, kind: str, damage: str, words: str
) -> None:
    """Time lost, told wrong or billed twice, and lines without a price: in the books themselves."""
    books = audited(values, tmp_path)
    books.db.execute(damage)
    found = {name: words for name, (count, words) in books.findings().items() if count}
    books.close()
    assert kind in found
    assert any(words in one for one in found[kind])
