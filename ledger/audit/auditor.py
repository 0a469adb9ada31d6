"""Ask a question of a ledger: load a copy, ask, put the question on record, show the rows.

>>> async with audit("sqlite:gpuledger.sqlite") as ledger:
...     result = await ledger.ask("SELECT tenant, count(*) FROM leases GROUP BY tenant")
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

import orjson

from ledger.audit.frames import arrow_bytes, arrow_table, read_frame, write_frame
from ledger.audit.query_record import keeper_of, queries_of
from ledger.audit.raw import raw_rows
from ledger.audit.sql import AtLimit, BadQuery, Limits, Result
from ledger.audit.tables import QUERIES
from ledger.client import default_source
from ledger.log.url import open_log
from ledger.reading import Damaged
from ledger.version import version
from schemas.audit import MAX_QUERY_CHARACTERS, AuditQuery
from schemas.events import EVENT_MODELS
from schemas.limits import MAX_TEXT, RECORD_VERSION
from schemas.topics import DEFAULT_PREFIX, full_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
    from types import TracebackType

    import pyarrow as pa

    from ledger.audit.tables import Table
    from ledger.log.port import Log
    from ledger.reading import Upto

__all__ = ["Auditor", "Room", "audit", "client_name", "load"]

#: Text of one line, as a record may have it.
_LINE = re.compile(r"[\x00-\x1f\x7f]+")


class Room:
    """The process with the copy (`ledger.audit.sandbox`). Give it rows, `settle`, then `ask`."""

    def __init__(self, limits: Limits, program: str = "ledger.audit.sandbox") -> None:
        """Start it, with an environment that says nothing of the one that asks.

        ``program`` is the module whose ``main`` runs there.
        """
        self._limits = limits
        self._topic = "events"
        self._process = subprocess.Popen(  # noqa: S603 - a module of this program
            [sys.executable, "-P", "-c", f"from {program} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the one that asks, who ends the whole group.
            process_group=0,
            env={
                "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
                # Other libraries' threads would not live through a fork.
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        known = {"version": RECORD_VERSION, "events": list(EVENT_MODELS)}
        self._send(b"C", orjson.dumps({"limits": limits.plain(), "known": known}))

    def put(self, table: Table, rows: pa.Table) -> None:
        """Add rows of one table; before `settle`."""
        self._send(b"T", table.name.encode() + b"\0" + arrow_bytes(rows))

    def renew(self, table: Table, rows: pa.Table) -> None:
        """Put rows of one table in the place of those that are there."""
        self._send(b"N", table.name.encode() + b"\0" + arrow_bytes(rows))

    def take(self, topic: str, rows: pa.Table) -> None:
        """Take in raw rows of one partition; before `settle`. Raises as `settle` does."""
        self._topic = topic
        self._send(b"R", arrow_bytes(rows))

    def settle(self) -> None:
        """Make it ready for questions.

        Raise `Damaged` for a record that no reader could take, `AtLimit` where the ledger
        does not fit.
        """
        self._send(b"G", b"")
        self._reply()

    def ask(self, text: str, parameters: Mapping[str, str | None] | None = None) -> Result:
        """Return the answer; raise `BadQuery`, `AtLimit`."""
        question = {"text": text, "parameters": dict(parameters or {})}
        try:
            payload = orjson.dumps(question)
        except orjson.JSONEncodeError as error:
            raise BadQuery(f"the query is no text: {error}") from None
        self._send(b"Q", payload)
        letter, answer = self._reply()
        assert letter == b"A"
        # Not orjson: an integer may have more than 64 bits.
        plain = json.loads(answer)
        if "error" in plain:
            raise (AtLimit if plain["error"] == "limit" else BadQuery)(plain["text"])
        rows = [tuple(row) for row in plain["rows"]]
        return Result(tuple(plain["columns"]), tuple(plain["types"]), rows, plain["cut"])

    def export(self, query: str) -> Iterator[pa.Table]:
        """Yield all rows of a query of this program's own."""
        self._send(b"X", query.encode())
        while True:
            letter, payload = self._reply()
            if letter == b"O":
                return
            yield arrow_table(payload)

    def _send(self, letter: bytes, payload: bytes) -> None:
        assert self._process.stdin is not None
        try:
            write_frame(self._process.stdin, letter, payload)
        except BrokenPipeError:
            self._reply()

    def _reply(self) -> tuple[bytes, bytes]:
        """Return the next frame; raise what an error says."""
        assert self._process.stdout is not None
        frame = read_frame(self._process.stdout)
        if frame is None:
            raise AtLimit(
                f"the process with the copy has ended ({self._process.wait()}): more memory than"
                " the machine has? Allow less with --memory-mib, or less of the log with --at"
            )
        if frame[0] == b"E":
            plain = orjson.loads(frame[1])
            if plain["error"] == "damaged":
                raise Damaged(
                    self._topic, plain["partition"], plain["offset"], plain["code"], plain["text"]
                )  # fmt: skip
            raise AtLimit(plain["text"])
        return frame

    def close(self) -> None:
        """End the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        """Return itself, to be closed at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()


async def load(
    log: Log, prefix: str, limits: Limits | None = None, upto: Upto | None = None
) -> tuple[Room, tuple[int, ...]]:
    """Return a room with all of the ledger (or up to ``upto``) in it, and where it ends.

    That is, by partition, the first offset that is not in it. Raises as `Room.settle` and
    `ledger.audit.raw.raw_rows` do.
    """
    room = Room(limits or Limits())
    topic = full_name(prefix, "events")
    try:
        ends = []
        for partition in range(await log.partitions(topic)):
            end = 0
            async for rows in raw_rows(log, prefix, partition, upto):
                room.take(topic, rows)
                end += rows.num_rows
            ends.append(end)
        room.put(QUERIES, await queries_of(log, prefix))
        room.settle()
    except BaseException:
        room.close()
        raise
    return room, tuple(ends)


class Auditor:
    """Asks questions of one copy. Each is on record before its rows are returned (U5)."""

    def __init__(
        self,
        room: Room,
        ends: tuple[int, ...],
        keep: Callable[[AuditQuery], Awaitable[str]],
    ) -> None:
        """Ask in ``room``, which has the ledger up to ``ends``; ``keep`` puts on record."""
        self.room = room
        self.ends = ends
        self._keep = keep
        #: Where the last question is on record; empty where it could not be.
        self.kept = ""

    async def ask(
        self,
        text: str,
        parameters: Mapping[str, str | None] | None = None,
        *,
        report: str | None = None,
    ) -> Result:
        """Return the answer; raise `BadQuery`. Nothing is shown that is not on record."""
        started = time.monotonic_ns()
        outcome: dict[str, Any] = {"outcome": "answered"}
        failed: BadQuery | None = None
        found = Result((), (), [])
        try:
            found = self.room.ask(text, parameters)
            outcome |= {"rows": len(found.rows), "cut": bool(found.cut)}
        except BadQuery as error:
            failed = error
            kind = "stopped" if isinstance(error, AtLimit) else "refused"
            outcome = {"outcome": kind, "detail": _line(str(error))}
        took_us = (time.monotonic_ns() - started) // 1000
        await self.record(
            text, "sql" if report is None else "report", took_us=took_us, name=report,
            parameters={name: _line(one) for name, one in (parameters or {}).items() if one},
            **outcome,
        )  # fmt: skip
        if failed is not None:
            raise failed
        return found

    async def record(self, text: str, kind: str, **more: object) -> None:
        """Put on record that this was asked; raise the log's errors."""
        whole = text.encode(errors="replace")
        query = AuditQuery.model_validate(
            {
                "kind": kind,
                "text": whole.decode()[:MAX_QUERY_CHARACTERS],
                "text_bytes": len(whole),
                "text_sha256": sha256(whole).hexdigest(),
                "upto": self.ends,
                "client": client_name(),
                **more,
            }
        )
        self.kept = await self._keep(query)


@asynccontextmanager
async def audit(
    url: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    who: str | None = None,
    limits: Limits | None = None,
    upto: Upto | None = None,
) -> AsyncIterator[Auditor]:
    """Load a copy of the ledger at ``url`` for the block, and ask as ``who``.

    Raises as `load` does. There is no way not to be on record of a log that can be written
    to; for an archive see `ledger.audit.query_record`.
    """
    log = open_log(url, read_only=True)
    try:
        room, ends = await load(log, prefix, limits, upto)
    finally:
        await log.close()
    with room:
        yield Auditor(room, ends, keeper_of(url, prefix, who or default_source()))


def client_name() -> str:
    """Return which version of this program asks (U4)."""
    return f"gpuledger {version()}"


def _line(text: str) -> str:
    return _LINE.sub(" ", text)[:MAX_TEXT]
