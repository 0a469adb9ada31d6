"""What was put aside: list it, look at it, and put it back where it came from.

A dead letter is the record as it was, with the reason in headers beside its
own. Putting one back sends the same key, value and headers to the same topic
and partition again; it stays among the dead letters, which nobody edits. That
is safe to repeat: what was decided in the meantime is recognised by its id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.ingest import ERROR_HEADER, original_headers
from ledger.log.port import Entry, LogError, UnknownTopic
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ledger.log.port import Log, Record

__all__ = ["CannotRedrive", "DeadLetter", "find", "original", "read_all", "redrive"]

_CHUNK = 1000


class CannotRedrive(LogError):
    """The letter holds a part of the record only, and the record itself is gone."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that was put aside.

    ``topic``, ``partition`` and ``offset`` are where it came from, ``time_us``
    when it was appended there; all but ``record`` are as its headers say, so
    they are empty or -1 where somebody else wrote to the topic. ``whole_bytes``
    is the value's length when the letter holds only the first part of it.
    """

    record: Record
    topic: str
    partition: int
    offset: int
    time_us: int
    code: str
    detail: str
    whole_bytes: int | None

    @property
    def position(self) -> str:
        """Return ``PARTITION@OFFSET`` in the dead letters, the name of the letter."""
        return f"{self.record.partition}@{self.record.offset}"

    @property
    def origin(self) -> str:
        """Return ``TOPIC/PARTITION@OFFSET`` of the record."""
        return f"{self.topic}/{self.partition}@{self.offset}"

    def plain(self) -> dict[str, Any]:
        """Return what is known of it as one JSON object, without the value."""
        value = self.record.value
        return {
            "letter": self.position,
            "origin": self.origin,
            "time_us": self.time_us,
            "code": self.code,
            "detail": self.detail,
            "key": None if self.record.key is None else _text(self.record.key),
            "bytes": None if value is None else len(value),
            "whole_bytes": self.whole_bytes,
        }

    def whole(self) -> dict[str, Any]:
        """Return all of it: headers and value, each as text, or as hex where it is none."""
        value = self.record.value
        return {
            **self.plain(),
            "headers": [
                [name, _text(each)] for name, each in original_headers(self.record.headers)
            ],
            "value": None if value is None else _text(value),
        }


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"hex:{raw.hex()}"


async def read_all(log: Log, prefix: str) -> AsyncIterator[DeadLetter]:
    """Yield the dead letters that the log has now, partition after partition."""
    topic = full_name(prefix, "dead-letters")
    for partition in range(await log.partitions(topic)):
        at = await log.begin(topic, partition)
        end = await log.end(topic, partition)
        while at < end:
            records = await log.read(topic, partition, at, min(_CHUNK, end - at), 5.0)
            if not records:
                break
            for record in records:
                at = record.offset + 1
                yield _letter(record)


async def find(log: Log, prefix: str, position: str) -> DeadLetter | None:
    """Return the letter named ``PARTITION@OFFSET``; None when there is none.

    Raise ValueError when that is no such name.
    """
    partition, at, offset = position.partition("@")
    if not at or not partition.isdecimal() or not offset.isdecimal():
        raise ValueError(f"{position!r} names no dead letter; PARTITION@OFFSET does, like 0@17")
    topic = full_name(prefix, "dead-letters")
    if int(partition) >= await log.partitions(topic):
        return None
    records = await log.read(topic, int(partition), int(offset), 1)
    return _letter(records[0]) if records and records[0].offset == int(offset) else None


def _letter(record: Record) -> DeadLetter:
    # Ours stand last: a record that came with such headers of its own does not hide them.
    about = {
        name.removeprefix(ERROR_HEADER): _text(value)
        for name, value in record.headers
        if name.startswith(ERROR_HEADER)
    }
    whole = about.get("whole_length")
    return DeadLetter(
        record,
        about.get("topic", ""),
        _number(about.get("partition")),
        _number(about.get("offset")),
        _number(about.get("time")),
        about.get("code", ""),
        about.get("message", ""),
        None if whole is None else _number(whole),
    )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else -1


async def original(log: Log, letter: DeadLetter) -> Entry:
    """Return the record as it was: from where it came as long as it is there, else the letter's.

    Raise `CannotRedrive` when neither has all of it.
    """
    kept = letter.record
    try:
        records = await log.read(letter.topic, letter.partition, letter.offset, 1)
    except UnknownTopic:
        records = []
    if records and records[0].offset == letter.offset:
        found = records[0]
        if found.key == kept.key and (found.value or b"").startswith(kept.value or b""):
            return Entry(found.key, found.value, found.headers)
    if letter.whole_bytes is not None:
        raise CannotRedrive(
            f"letter {letter.position} holds {len(kept.value or b'')} of {letter.whole_bytes}"
            f" bytes, and {letter.origin} is no longer in the log"
        )
    return Entry(kept.key, kept.value, original_headers(kept.headers))


async def redrive(log: Log, letter: DeadLetter) -> str:
    """Put the record back where it came from; return where it is now.

    Raise `CannotRedrive` or `UnknownTopic` with nothing appended.
    """
    entry = await original(log, letter)
    (offset,) = await log.append(letter.topic, letter.partition, [entry])
    return f"{letter.topic}/{letter.partition}@{offset}"
