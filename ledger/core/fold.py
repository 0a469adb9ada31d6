"""The fold: what a reader of the log believes, record by record (DESIGN 2.1).

The record at offset *o* must be the next one. A claim sets the token. A
decision counts only if its token is the current one, its seq is the next one
and its source offset is newer than the last decided from that topic; otherwise
it is *void*: kept and counted, without effect, for every reader alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import orjson

from ledger.core.derived.index import rebuild
from ledger.core.derived.unindexed import Unindexed
from ledger.core.evolve import HANDLERS, RuleBroken, empty, settle
from ledger.core.lifecycles import IllegalTransition
from schemas.limits import RECORD_VERSION
from schemas.upcast import UnknownVersion, upcast

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["Fold", "Head", "LogDamaged"]


class LogDamaged(Exception):
    """The log itself is wrong: which record, and how. Nobody may go past it."""

    def __init__(self, offset: int, code: str, detail: str) -> None:
        """Name the offset, a stable code, and what was found."""
        super().__init__(f"events@{offset}: {code}: {detail}")
        self.offset = offset
        self.code = code
        self.detail = detail


@dataclass(slots=True)
class Head:
    """Where the fold stands in its partition, and the counts of what it has read.

    ``sources`` holds the last decided offset of each input topic.
    """

    offset: int = 0
    token: str = ""
    seq: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    claims: int = 0
    decisions: int = 0
    void: int = 0
    time_us: int = 0


@dataclass(slots=True)
class Fold:
    """One partition of the ledger: its head and its cells.

    A fold that only reads keeps no index (`reading`), which halves its work;
    `ready` makes the indexes, and from then on they are kept.
    """

    head: Head = field(default_factory=Head)
    cells: dict[str, State] = field(default_factory=dict)
    indexed: bool = True

    def reading(self) -> Self:
        """Stop keeping indexes, until `ready`."""
        self.indexed = False
        for state in self.cells.values():
            state.index = Unindexed()
        return self

    def ready(self) -> Self:
        """Make the indexes, so that decisions can be made."""
        if not self.indexed:
            self.indexed = True
            for state in self.cells.values():
                rebuild(state)
        return self

    def cell(self, name: str) -> State:
        """Return the cell's state, empty when nothing has happened in it."""
        found = self.cells.get(name)
        if found is None:
            found = self.cells[name] = empty(name, indexed=self.indexed)
        return found

    def apply(self, offset: int, value: bytes | None) -> tuple[str, dict[str, Any]]:
        """Take in one record; return its verdict (``claim``, ``effective``, ``void``) and itself.

        Raise `LogDamaged`; the fold must then be thrown away.
        """
        head = self.head
        if offset != head.offset:
            raise LogDamaged(
                head.offset, "gap", f"the next record should be {head.offset}, it is {offset}"
            )
        record = _read(offset, value)
        try:
            kind = record["kind"]
            if kind == "decision":
                verdict = self._decision(record)
            elif kind == "claim":
                head.token = record["token"]
                head.claims += 1
                verdict = "claim"
            else:
                raise LogDamaged(offset, "unknown_type", f"kind {kind!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise LogDamaged(offset, _code(error), _detail(error)) from error
        head.offset = offset + 1
        return verdict, record

    def _decision(self, record: dict[str, Any]) -> str:
        head = self.head
        topic, source = record["source"]
        if (
            record["token"] != head.token
            or record["seq"] != head.seq + 1
            or source <= head.sources.get(topic, -1)
        ):
            head.void += 1
            return "void"
        state = self.cells.get(record["cell"]) or self.cell(record["cell"])
        now_us = record["time_us"]
        for event in record["events"]:
            HANDLERS[event["type"]](state, event, now_us)
        given = record["input"]
        key = f"{given['source']}#{given['id']}"
        settle(state, now_us, topic, key, given["fp"], record["outcome"]["code"])
        self.advance(topic, source, now_us)
        return "effective"

    def advance(self, topic: str, source: int, time_us: int) -> None:
        """Count an effective decision: also called by the one who has just decided it."""
        head = self.head
        head.seq += 1
        head.sources[topic] = source
        head.decisions += 1
        head.time_us = max(head.time_us, time_us)


def _read(offset: int, value: bytes | None) -> dict[str, Any]:
    if not value:
        raise LogDamaged(offset, "empty_value", "a record of the ledger carries no data")
    try:
        record = orjson.loads(value)
        if not isinstance(record, dict):
            raise LogDamaged(offset, "not_an_object", "the record is no JSON object")
        return record if record.get("v") == RECORD_VERSION else upcast(record)
    except orjson.JSONDecodeError as error:
        raise LogDamaged(offset, "not_json", str(error)) from error
    except UnknownVersion as error:
        raise LogDamaged(offset, "unknown_version", str(error)) from error


def _code(error: Exception) -> str:
    if isinstance(error, RuleBroken):
        return error.invariant
    return "A4" if isinstance(error, IllegalTransition) else "bad_field"


def _detail(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"missing or unknown {error}"
    return str(error)
