"""The process in which questions are asked: it has a copy of the ledger and nothing else.

Theory of operation. Whoever asks starts this process with an empty environment and sends it
the rows; it opens no log. Each question is asked in a fork of it that is thrown away after:
a question can spoil no copy but its own. Before the fork sees the question the kernel is
told that it may open no file, write none, have so much memory and live so long. So the
limits hold also where the database does not look at them: while it makes a constant, plans,
or runs one long function.

A fork is safe here because nothing else runs in the process: the database's own threads are
ended before, and begun again in the fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import orjson
import pyarrow as pa

from ledger.audit.frames import arrow_bytes, arrow_table, read_frame, write_frame
from ledger.audit.loading import Known, Unreadable, Verdicts, take_rows
from ledger.audit.sql import (
    AtLimit,
    BadQuery,
    Ledger,
    Limits,
    out_of_memory,
    out_of_time,
    too_large,
)
from ledger.audit.sql_texts import TEXTS
from ledger.audit.tables import TABLES, constants

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from ledger.audit.tables import Table

__all__ = ["main"]

#: What a question's process may take beside the database's memory: stacks, Python, the answer.
_BESIDE_BYTES = 256 * 1_048_576

#: How long after the soft stop the kernel ends it, in seconds.
_GRACE_S = 0.5

#: Longest text of an error that is told.
_TOLD = 2_000

#: Rows of an export at a time.
_EXPORTED = 50_000


def main(tables: Sequence[Table] = TABLES) -> None:
    """Serve frames from stdin until it ends; the answers go to stdout.

    ``tables`` are those of the copy.
    """
    # Whatever else writes to stdout must not get between two frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with suppress(BrokenPipeError):
        _Room(sys.stdin.buffer, answers, tables).serve()


class _Room:
    """The copy, and what has been taken in of each partition."""

    def __init__(self, questions: IO[bytes], answers: IO[bytes], tables: Sequence[Table]) -> None:
        self._questions = questions
        self._answers = answers
        self._tables = {one.name: one for one in tables}
        self._verdicts: dict[int, Verdicts] = {}
        self._null = os.open(os.devnull, os.O_WRONLY)
        self._known = Known(0, ())
        self._partition = 0
        self.limits = Limits()
        self.ledger = Ledger(self.limits, ())

    def serve(self) -> None:
        """Do what each frame says."""
        acts = {b"C": self._begin, b"T": self._table, b"N": self._anew,
                b"R": self._raw, b"G": self._settle,
                b"Q": self._ask, b"X": self._export}  # fmt: skip
        while (frame := read_frame(self._questions)) is not None:
            try:
                acts[frame[0]](frame[1])
            except Unreadable as fault:
                self._say(b"E", error="damaged", partition=self._partition, offset=fault.offset,
                          code=fault.code, text=fault.detail)  # fmt: skip
            except AtLimit as error:
                self._say(b"E", error="limit", text=str(error))
            except (duckdb.OutOfMemoryException, MemoryError):
                self._say(b"E", error="limit", text=str(too_large(self.limits)))

    def _say(self, letter: bytes, **plain: object) -> None:
        write_frame(self._answers, letter, orjson.dumps(plain))

    def _begin(self, payload: bytes) -> None:
        told = orjson.loads(payload)
        self._known = Known(**told["known"])
        self.limits = Limits(**told["limits"])
        self.ledger = Ledger(self.limits, tuple(self._tables.values()))
        # What Python needs for such a value is loaded now: a fork may open no file.
        self.ledger.db.execute("SELECT TIMESTAMPTZ '2026-01-01 00:00:00Z'").fetchall()
        for table, rows in constants().items():
            if table.name in self._tables:
                self.ledger.put(table, rows)

    def _table(self, payload: bytes) -> None:
        name, _, rows = payload.partition(b"\0")
        self.ledger.put(self._tables[name.decode()], arrow_table(rows))

    def _anew(self, payload: bytes) -> None:
        """Put rows of one table in the place of those that are there."""
        self.ledger.clear(self._tables[payload.partition(b"\0")[0].decode()])
        self._table(payload)

    def _raw(self, payload: bytes) -> None:
        rows = arrow_table(payload)
        if rows.num_rows:
            partition = self._partition = rows["partition"][0].as_py()
            verdicts = self._verdicts.setdefault(partition, Verdicts())
            take_rows(self.ledger.db, rows, verdicts, self._known)

    def _settle(self, _payload: bytes) -> None:
        """Everything is in: make what stands on it, and end the database's own threads."""
        for text in TEXTS:
            self.ledger.db.execute(text.create)
        self.ledger.db.execute("SET threads = 1")
        self._say(b"O")

    # -- questions -------------------------------------------------------------

    def _ask(self, payload: bytes) -> None:
        question = orjson.loads(payload)
        most = 2 * self.limits.result_mib * 1_048_576 + 1_048_576
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.dup2(self._null, 2)
                self._answer(question, writing)
            finally:
                os._exit(0)
        os.close(writing)
        answer = bytearray()
        with os.fdopen(reading, "rb", buffering=0) as stream:
            while len(answer) <= most and (part := stream.read(1_048_576)):
                answer += part
        if len(answer) > most:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status or len(answer) > most or not answer.endswith(b"\n"):
            self._say(b"E", error="limit", text=str(_ended(status, self.limits)))
        else:
            write_frame(self._answers, b"A", bytes(answer))

    def _answer(self, question: dict[str, Any], writing: int) -> None:
        """Ask, in the fork."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self.limits.seconds + _GRACE_S)
        # Before the kernel's limits: the database looks at the machine for its threads.
        self.ledger.db.execute(f"SET threads = {int(self.limits.threads)}")
        self.ledger.lock()
        _confine(self.limits)
        try:
            found = self.ledger.query(question["text"], question["parameters"])
            plain = {"columns": found.columns, "types": found.types, "rows": found.rows,
                     "cut": found.cut}  # fmt: skip
            # Not orjson: an integer may have more than 64 bits.
            told = json.dumps(plain)
        except AtLimit as error:
            told = json.dumps({"error": "limit", "text": str(error)[:_TOLD]})
        except MemoryError:
            told = json.dumps({"error": "limit", "text": str(out_of_memory(self.limits))})
        except BadQuery as error:
            told = json.dumps({"error": "refused", "text": str(error)[:_TOLD]})
        left = memoryview(told.encode(errors="replace") + b"\n")
        while left:
            left = left[os.write(writing, left) :]

    def _export(self, payload: bytes) -> None:
        """Send all rows of one of this program's own queries."""
        reader = self.ledger.db.sql(payload.decode()).to_arrow_reader(_EXPORTED)
        sent = 0
        for batch in reader:
            write_frame(self._answers, b"B", arrow_bytes(pa.Table.from_batches([batch])))
            sent += batch.num_rows
        if not sent:
            write_frame(self._answers, b"B", arrow_bytes(reader.schema.empty_table()))
        self._say(b"O", rows=sent)


def _confine(limits: Limits) -> None:
    """Let the kernel refuse files, and memory beyond the limit."""
    import resource  # noqa: PLC0415 - of Unix only

    statm = Path("/proc/self/statm")
    if statm.exists():
        now = int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = now + limits.memory_mib * 1_048_576 + _BESIDE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for name in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
        resource.setrlimit(name, (0, 0))


def _ended(status: int, limits: Limits) -> AtLimit:
    """Return what is said of a question whose process ended without an answer."""
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return out_of_time(limits)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return AtLimit(f"the answer is larger than {2 * limits.result_mib} MiB; ask for less")
    return AtLimit(f"{out_of_memory(limits)}; its process has ended with status {status}")
