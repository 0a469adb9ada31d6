"""Hold a stored ledger against everything that must be true of it, without trusting anybody.

Theory of operation. Every partition is read once, from its first record to the
end. Two checks go along. The first looks at each record alone and at its place:
offsets without a hole, JSON that every reader reads alike, the model of its
type, the fingerprint of the input it answers. The second is the fold with all
its domain rules. A fault stops the fold of that partition, because what comes
after means nothing without what was lost; the first check goes on to the end,
so one report names a fault of each kind. At the end the invariants of the
state are checked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import TypeAdapter, ValidationError

from ledger.core import invariants
from ledger.core.digest import digest
from ledger.core.fold import Fold, LogDamaged
from ledger.ingest import fingerprint
from ledger.log import port
from ledger.log.port import MAX_RECORD_BYTES
from ledger.reading import cells_of
from schemas.catalogue import wire_type
from schemas.faults import first_fault
from schemas.limits import RECORD_VERSION
from schemas.records import LedgerRecord
from schemas.strict_json import JsonFault, loads_strict
from schemas.topics import full_name
from schemas.upcast import UnknownVersion, upcast

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.log.port import Log, Record

__all__ = ["Fault", "PartitionReport", "Report", "verify_log"]

_CHUNK = 5000
_WAIT_S = 5.0
_RECORD: TypeAdapter[Any] = TypeAdapter(LedgerRecord)
_KIND_TYPES = {
    "claim": wire_type("ledger.claim").encode(),
    "decision": wire_type("ledger.decision").encode(),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that must not be in a ledger.

    ``kind`` is ``hole``, ``overlap``, ``out_of_order``, a code of malformed JSON,
    ``unknown_version``, ``bad_field``, ``bad_envelope``, ``fingerprint``,
    ``cell_twice``, ``storage``, ``unreadable``, the id of an invariant, or one of those of
    `ledger.proof.check.Verdict`.
    ``offset`` is where the first of the kind stands; for an invariant of the
    state it is the last record that was folded. ``more`` counts the others.
    """

    kind: str
    topic: str
    partition: int
    offset: int
    detail: str
    more: int = 0

    @property
    def position(self) -> str:
        """Return ``TOPIC/PARTITION@OFFSET``."""
        return f"{self.topic}/{self.partition}@{self.offset}"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What one partition holds. ``folded`` is the offset up to which its state is known."""

    partition: int
    begin: int
    end: int
    records: int
    claims: int
    decisions: int
    void: int
    folded: int
    digest: str


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify_log`; ``digest`` is that of all cells together."""

    prefix: str
    faults: tuple[Fault, ...]
    partitions: tuple[PartitionReport, ...]
    cells: int
    digest: str

    @property
    def ok(self) -> bool:
        """Say whether nothing was found."""
        return not self.faults

    @property
    def counts(self) -> dict[str, int]:
        """Return how many of everything there are, all partitions together."""
        summed = {
            name: sum(getattr(one, name) for one in self.partitions)
            for name in ("records", "claims", "decisions", "void")
        }
        faults = sum(1 + one.more for one in self.faults)
        return {"partitions": len(self.partitions), **summed, "cells": self.cells, "faults": faults}

    def plain(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        return {
            "ok": self.ok,
            "counts": self.counts,
            "digest": self.digest,
            "faults": [asdict(one) for one in self.faults],
            "partitions": [asdict(one) for one in self.partitions],
        }


async def verify_log(
    log: Log, prefix: str, progress: Callable[[int, int], None] | None = None
) -> Report:
    """Read the whole ledger and return what was found; faults are returned, not raised.

    ``progress`` is called with the records read and the records there are. The
    log's own errors pass, except that damaged storage is a fault.
    """
    topic = full_name(prefix, "events")
    found = _Faults(topic)
    folds: dict[int, Fold] = {}
    reports: list[PartitionReport] = []
    numbers = range(await log.partitions(topic))
    total = sum([await log.end(topic, number) for number in numbers])
    done = 0
    for number in numbers:
        begin, end = await log.begin(topic, number), await log.end(topic, number)
        check = _Partition(number, found)
        while check.next < end:
            try:
                records = await log.read(topic, number, check.next, _CHUNK, _WAIT_S)
            except port.LogDamaged as error:
                found.add("storage", number, check.next, str(error))
                break
            if not records:
                found.add("hole", number, check.next, _missing(check.next, end))
                break
            for record in records:
                check.take(record)
            done += len(records)
            if progress is not None:
                progress(done, total)
        folds[number] = check.fold
        check.judge_state()
        reports.append(check.report(begin, end))
    _cells_live_once(folds, found)
    cells = cells_of(folds)
    # One partition has the digest of all cells already; a large state takes seconds to digest.
    total_digest = reports[0].digest if len(reports) == 1 else digest(cells)
    return Report(prefix, found.all(), tuple(reports), len(cells), total_digest)


class _Faults:
    """The first fault of each kind, and how many more there are."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._first: dict[str, Fault] = {}
        self._count: Counter[str] = Counter()

    def add(self, kind: str, partition: int, offset: int, detail: str) -> None:
        self._count[kind] += 1
        if kind not in self._first:
            self._first[kind] = Fault(kind, self._topic, partition, offset, detail)

    def all(self) -> tuple[Fault, ...]:
        return tuple(
            Fault(
                one.kind,
                one.topic,
                one.partition,
                one.offset,
                one.detail,
                self._count[one.kind] - 1,
            )
            for one in self._first.values()
        )


@dataclass(slots=True)
class _Partition:
    """The check of one partition, record after record."""

    number: int
    found: _Faults
    fold: Fold = field(default_factory=lambda: Fold().reading())
    folding: bool = True
    next: int = 0
    read: int = 0

    def take(self, record: Record) -> None:
        """Check one record as the next of the partition."""
        self.read += 1
        self._place(record)
        try:
            plain = self._alone(record)
            if self.folding:
                self._in_order(plain)
                self.fold.apply(record.offset, record.value)
        except _Wrong as wrong:
            self._stop(wrong.kind, record.offset, wrong.detail)
        except LogDamaged as fault:
            self._stop(fault.code, record.offset, fault.detail)
        except Exception as error:  # noqa: BLE001 - whatever a damaged record breaks is a finding
            self._stop("unreadable", record.offset, f"{type(error).__name__}: {error}")

    def _stop(self, kind: str, offset: int, detail: str) -> None:
        self.found.add(kind, self.number, offset, detail)
        self.folding = False

    def _place(self, record: Record) -> None:
        """Compare the offset with the one that must come next; go on from what is there."""
        if record.offset > self.next:
            self._stop("hole", self.next, _missing(self.next, record.offset))
        elif record.offset < self.next:
            self._stop("overlap", record.offset, f"the next offset should be {self.next}")
        self.next = record.offset + 1

    def _alone(self, record: Record) -> dict[str, Any]:
        """Check what a record says of itself; return it. Raise `_Wrong` for the first fault."""
        plain = _decoded(record.value)
        try:
            if plain.get("v") == RECORD_VERSION:
                _RECORD.validate_json(record.value or b"")
            else:
                plain = upcast(plain)
                _RECORD.validate_json(orjson.dumps(plain))
        except UnknownVersion as error:
            raise _Wrong("unknown_version", str(error)) from None
        except ValidationError as error:
            raise _Wrong("bad_field", _first(error)) from None
        key = plain["cell"].encode() if plain["kind"] == "decision" else None
        headers = dict(record.headers)
        if record.key != key or headers.get("ce_type") != _KIND_TYPES[plain["kind"]]:
            raise _Wrong("bad_envelope", "key or ce_type are not those of the record")
        if plain["kind"] == "decision":
            _fingerprint_fits(plain["input"])
        return plain

    def _in_order(self, plain: dict[str, Any]) -> None:
        """Refuse a void record of the writer that holds the partition: it never makes one.

        Void records come from a writer that has lost the partition; one with the
        current token has been moved, or its neighbour has.
        """
        head = self.fold.head
        if plain["kind"] != "decision" or plain["token"] != head.token:
            return
        topic, source = plain["source"]
        if plain["seq"] != head.seq + 1:
            detail = f"decision {plain['seq']} follows decision {head.seq} of the same writer"
            raise _Wrong("out_of_order", detail)
        if source <= head.sources.get(topic, -1):
            detail = f"{topic}@{source} is decided after {topic}@{head.sources[topic]}"
            raise _Wrong("out_of_order", detail)

    def judge_state(self) -> None:
        """Check the invariants of the state that the partition folds to."""
        if not self.folding:
            return
        self.fold.ready()
        last = max(self.fold.head.offset - 1, 0)
        for state in self.fold.cells.values():
            try:
                broken = invariants.check(state)
            except Exception as error:  # noqa: BLE001 - it names something that is not there
                detail = f"cell {state.cell}: {type(error).__name__}: {error}"
                self.found.add("unreadable", self.number, last, detail)
            else:
                for one in broken:
                    self.found.add(one.invariant, self.number, last, f"{one.about}: {one.detail}")

    def report(self, begin: int, end: int) -> PartitionReport:
        """Return the partition's part of the report."""
        head = self.fold.head
        return PartitionReport(
            self.number,
            begin,
            end,
            self.read,
            head.claims,
            head.decisions,
            head.void,
            head.offset,
            digest(self.fold.cells),
        )


class _Wrong(Exception):
    """A record has a fault of this kind."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


def _decoded(value: bytes | None) -> dict[str, Any]:
    """Return the record as JSON that every reader reads alike.

    What orjson writes again as the same bytes holds no name twice and no
    number that would be rounded, so the strict reader sees only the others.
    """
    try:
        plain = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        plain = None
    if isinstance(plain, dict) and orjson.dumps(plain) == value:
        return plain
    try:
        return loads_strict(value, limit_bytes=MAX_RECORD_BYTES)
    except JsonFault as fault:
        raise _Wrong(fault.code, fault.detail) from None


def _fingerprint_fits(given: dict[str, Any]) -> None:
    """Hold the input that a decision carries against the fingerprint beside it."""
    made = fingerprint(wire_type(given["type"], given["version"]), given["data"])
    if made != given["fp"]:
        detail = f"the input {given['source']}#{given['id']} is not the one that was decided"
        raise _Wrong("fingerprint", f"{detail}: {made}, recorded {given['fp']}")


def _first(error: ValidationError) -> str:
    place, message = first_fault(error)
    return f"{'.'.join(map(str, place))[:200]}: {message[:200]}"


def _missing(first: int, following: int) -> str:
    """Name a hole: the entries from ``first`` up to, not including, ``following``."""
    count = following - first
    if count == 1:
        return f"1 entry missing: {first}"
    return f"{count} entries missing: {first} to {following - 1}"


def _cells_live_once(folds: dict[int, Fold], found: _Faults) -> None:
    """Find cells that two partitions decide: neither would see the other's leases."""
    home: dict[str, int] = {}
    for number, fold in folds.items():
        for name in fold.cells:
            first = home.setdefault(name, number)
            if first != number:
                last = max(fold.head.offset - 1, 0)
                found.add("cell_twice", number, last, f"cell {name} is in partition {first} too")
