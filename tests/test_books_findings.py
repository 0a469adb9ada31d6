"""Each kind of fault that an audit names is found where it was put, and named; and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from bench.audit import MONTH
from bench.audit_log import site_of
from ledger.books.make import open_books
from ledger.log.port import LogDamaged
from tests.billing_support import tariff
from tests.books import archived

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from ledger.books.make import Books

EVENTS = 2_000

#: A record, as JSON.
Plain = dict[str, Any]
#: A log in which something is wrong, and what is found there: kind -> what all words of it have.
Planted = tuple[list[bytes], dict[str, str]]


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


def _ended_twice(values: list[bytes]) -> Planted:
    """Within one record, so that no number is left out."""
    named: list[str] = []

    def twice(plain: Plain, event: Plain) -> None:
        named.append(event["lease"])
        plain["events"].append(event)

    log = changed(values, "lease.ended", twice)
    return log, {"duplicate": f"lease {named[0]} ended 2 times", "overlap": named[0]}


def _received_twice(values: list[bytes]) -> Planted:
    """Its lease would be charged twice."""
    named: list[str] = []

    def twice(plain: Plain, event: Plain) -> None:
        named.append(event["request"])
        plain["events"].append(event)

    log = changed(values, "request.received", twice)
    return log, {
        "duplicate": f"request {named[0]} was received 2 times",
        "overlap": f"lease {named[0]}/1 brings",
        "conservation": "its parts sum to",
    }


def _granted_twice(values: list[bytes]) -> Planted:
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

    log = changed(values, "lease.started", again)
    return log, {
        "duplicate": f"lease {named[0]} was granted 2 times",
        "overlap": f"lease {named[0]} brings",
        "held": f"lease {named[0]} lasted",
        "conservation": "its parts sum to",
    }


def _ended_and_never_granted(values: list[bytes]) -> Planted:
    """It has no time of its own to hold against."""
    named: list[str] = []

    def other(plain: Plain, event: Plain) -> None:
        named.append(f"{event['lease']}0")
        plain["events"].append({**event, "lease": named[0]})

    log = changed(values, "lease.ended", other)
    return log, {"held": f"lease {named[0]} ended and was never granted"}


def _time_told_wrong(values: list[bytes]) -> Planted:
    """By one microsecond."""
    named: list[str] = []

    def longer(_: Plain, event: Plain) -> None:
        was_us = event["held_us"]
        event["held_us"] += 1
        named.append(f"lease {event['lease']} lasted {was_us} us, its end says {was_us + 1}")

    return changed(values, "lease.ended", longer), {"held": named[0]}


def _more_shares_than_a_card(values: list[bytes]) -> Planted:
    """What asked for a quarter asked for all of it: two are twice a card, three are three."""
    log = list(values)
    for at, value in enumerate(log):
        plain = orjson.loads(value)
        for event in plain.get("events", ()):
            if event["type"] == "request.received" and event["need"].get("gpu_milli") == 250:
                event["need"]["gpu_milli"] = 1000
                log[at] = orjson.dumps(plain)
    return log, {
        "overlap": "000 thousandths",
        "conservation": "its parts sum to",
        "bill": "is billed for",
    }


def _slice_leased_twice(values: list[bytes]) -> Planted:
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
                return log, {"overlap": f"brings {held[0]} to 2000"}
    raise AssertionError("the log has no two leases of slices")


def _number_left_out(values: list[bytes]) -> Planted:
    """The record is gone, and those after it keep their numbers."""
    middle = len(values) // 2
    log = [*values[:middle], *values[middle + 1 :]]
    return log, {"gap": f"@{middle} has number {middle + 1}, {middle} is missing"}


#: What is wrong with a log -> how it is put there; the first has nothing wrong.
PLANTS: dict[str, Callable[[list[bytes]], Planted]] = {
    "nothing": lambda values: (values, {}),
    "an end told twice": _ended_twice,
    "a request received twice": _received_twice,
    "a lease granted twice": _granted_twice,
    "an end of a lease that nobody was granted": _ended_and_never_granted,
    "a time told wrong": _time_told_wrong,
    "more shares than a card has": _more_shares_than_a_card,
    "a slice leased twice": _slice_leased_twice,
    "a number left out": _number_left_out,
}


def audited(logs: Sequence[Sequence[bytes]], folder: Path) -> Books:
    """Return the books of logs, each a partition of one archive, with their bill."""
    archived(logs, folder)
    books = open_books(folder)
    books.meter()
    books.bill(MONTH, tariff())
    return books


@pytest.fixture(scope="module")
def values() -> list[bytes]:
    """Return the log of a small site with slices, shares, whole cards and whole nodes."""
    return [one.value for one in site_of(EVENTS).records(EVENTS)]


def of_its_own(value: bytes, number: int) -> bytes:
    """Return a record of the site's twin: its teams, cards and slices have names of their own."""
    for old in ("/team", "GPU-", "bench-s"):
        value = value.replace(old.encode(), f"{old}{number}-".encode())
    return value


@pytest.fixture(scope="module")
def found(
    values: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[dict[str, str], dict[str, list[str]]]]:
    """Return what was to be found of each plant, and what one audit of all of them has found.

    All at once, since to begin an audit takes longer than to audit so little.
    """
    sites = ([of_its_own(value, number) for value in values] for number in range(len(PLANTS)))
    planted = [plant(site) for plant, site in zip(PLANTS.values(), sites, strict=True)]
    books = audited([log for log, _ in planted], tmp_path_factory.mktemp("planted"))
    findings = books.findings(1000)
    books.close()
    told = {}
    for number, name in enumerate(PLANTS):
        marks = (f"/team{number}-", f"GPU-{number}-", f"events/{number}@")
        mine = {
            kind: [one for one in words if any(mark in one for mark in marks)]
            for kind, (_, words) in findings.items()
        }
        told[name] = (planted[number][1], {kind: words for kind, words in mine.items() if words})
    count = sum(len(words) for _, mine in told.values() for words in mine.values())
    assert count == sum(count for count, _ in findings.values()), "each is about one of the sites"
    return told


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_found_and_named_and_nothing_else(
    name: str, found: dict[str, tuple[dict[str, str], dict[str, list[str]]]]
) -> None:
    """Of the kinds that it is or that follow from it; of a log without a fault nothing at all."""
    wanted, told = found[name]
    assert wanted.keys() == told.keys()
    for kind, words in told.items():
        assert [one for one in words if wanted[kind] not in one] == []


@pytest.fixture(scope="module")
def sound(values: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    """Return books that add up."""
    books = audited([values], tmp_path_factory.mktemp("sound"))
    yield books
    books.close()


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
    sound: Books, kind: str, damage: str, words: str
) -> None:
    """Time lost, told wrong or billed twice, and lines without a price: in the books themselves."""
    sound.db.execute("BEGIN")
    sound.db.execute(damage)
    found = {name: words for name, (count, words) in sound.findings().items() if count}
    sound.db.execute("ROLLBACK")
    assert [count for count, _ in sound.findings().values() if count] == []
    assert kind in found
    assert any(words in one for one in found[kind])


def test_l7_a_record_of_another_kind_is_not_passed_over(
    values: list[bytes], tmp_path: Path
) -> None:
    """A later version's, or nobody's: what follows cannot be counted without it."""
    log = list(values)
    log[30] = orjson.dumps({**orjson.loads(log[30]), "kind": "later"})
    with pytest.raises(LogDamaged, match="events/0@30 is neither claim nor decision"):
        audited([log], tmp_path)
