"""The fold: what a reader of the log believes, record by record (DESIGN 2.1).

The record at offset *o* must be the next one. A claim sets the token. A
decision counts only if its token is the current one, its seq is the next one
and its source offset is newer than the last decided from that topic; otherwise
it is *void*: kept and counted, without effect, for every reader alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.evolve import RuleBroken, empty, evolve, settle
from ledger.core.lifecycles import IllegalTransition
from schemas.upcast import UnknownVersion, upcast

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["Fold", "Head", "LogDamaged"]


class LogDamaged(Exception):  # noqa: N818 - the word of DESIGN section 5 (exit 4)
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
    """One partition of the ledger: its head and its cells."""

    head: Head = field(default_factory=Head)
    cells: dict[str, State] = field(default_factory=dict)

    def cell(self, name: str) -> State:
        """Return the cell's state, empty when nothing has happened in it."""
        found = self.cells.get(name)
        if found is None:
            found = self.cells[name] = empty(name)
        return found

    def apply(self, offset: int, value: bytes | None) -> tuple[str, dict[str, Any]]:
        """Take in one record; return its verdict (``claim``, ``effective``, ``void``) and itself.

        Raise `LogDamaged`; the fold must then be thrown away.
        """
        if offset != self.head.offset:
            raise LogDamaged(
                self.head.offset,
                "gap",
                f"the next record should be {self.head.offset}, it is {offset}",
            )
        record = self._read(offset, value)
        verdict = self._judge(offset, record)
        self.head.offset = offset + 1
        return verdict, record

    def _read(self, offset: int, value: bytes | None) -> dict[str, Any]:
        if not value:
            raise LogDamaged(offset, "empty_value", "a record of the ledger carries no data")
        try:
            record = orjson.loads(value)
            if not isinstance(record, dict):
                raise LogDamaged(offset, "not_an_object", "the record is no JSON object")
            return record if record.get("v") == 1 else upcast(record)
        except orjson.JSONDecodeError as error:
            raise LogDamaged(offset, "not_json", str(error)) from error
        except UnknownVersion as error:
            raise LogDamaged(offset, "unknown_version", str(error)) from error

    def _judge(self, offset: int, record: dict[str, Any]) -> str:
        head = self.head
        try:
            if record["kind"] == "decision":
                topic, source = record["source"]
                if (
                    record["token"] != head.token
                    or record["seq"] != head.seq + 1
                    or source <= head.sources.get(topic, -1)
                ):
                    head.void += 1
                    return "void"
                self._decision(record, topic)
                self.advance(topic, source, record["time_us"])
                return "effective"
            if record["kind"] == "claim":
                head.token = record["token"]
                head.claims += 1
                return "claim"
        except (KeyError, TypeError, ValueError) as error:
            code = _code(error)
            raise LogDamaged(offset, code, _detail(error)) from error
        raise LogDamaged(offset, "unknown_type", f"kind {record['kind']!r}")

    def _decision(self, record: dict[str, Any], topic: str) -> None:
        state = self.cell(record["cell"])
        now_us = record["time_us"]
        for event in record["events"]:
            evolve(state, event, now_us)
        given = record["input"]
        settle(
            state,
            time_us=now_us,
            topic=topic,
            key=f"{given['source']}#{given['id']}",
            fingerprint=given["fp"],
            code=record["outcome"]["code"],
        )

    def advance(self, topic: str, source: int, time_us: int) -> None:
        """Count an effective decision: also called by the one who has just decided it."""
        head = self.head
        head.seq += 1
        head.sources[topic] = source
        head.decisions += 1
        head.time_us = max(head.time_us, time_us)


def _code(error: Exception) -> str:
    if isinstance(error, RuleBroken):
        return error.invariant
    return "A4" if isinstance(error, IllegalTransition) else "bad_field"


def _detail(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"missing or unknown {error}"
    return str(error)
