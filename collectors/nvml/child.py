"""The process in which NVML runs: questions in by one pipe, answers out by another.

A call of NVML can hang for ever, and a thread that hangs in it cannot be ended; a process
can. So the agent calls nothing itself: `watchdog` starts this, and kills it when an answer
takes too long. One question at a time, one JSON object a line::

    {"id": 7, "op": "device", "with": {"uuid": "GPU-..."}}
    {"id": 7, "value": {...}}
    {"id": 7, "refused": "in-use", "function": "nvmlGpuInstanceDestroy"}
    {"id": 7, "error": "no question is called 'devices'"}

An empty line is no question: it ends a question that waits (`vigil`) before its time. The end
of the questions is the end of the process. Started with ``--fake FILE`` it answers
from a described node (`collectors.fake_nvml.described`) instead of from the hardware.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from collectors.nvml.calls import Refused, watch
from collectors.nvml.codes import word
from collectors.nvml.ops import OPS
from collectors.nvml.session import Session
from ledger.collector import relax

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

__all__ = ["Questions", "answer", "main", "serve"]

#: The most bytes of questions that are read at once.
_CHUNK = 65_536

#: Linux: the signal that this process gets when the one that started it ends.
_PARENT_DEATH_SIGNAL = 1


def answer(session: Session, question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question; whatever goes wrong is in the answer."""
    number, name = question.get("id"), question.get("op")
    work = OPS.get(name) if isinstance(name, str) else None
    if work is None:
        return {"id": number, "error": f"no question is called {name!r}"}
    try:
        return {"id": number, "value": work(session, **question.get("with", {}))}
    except Refused as refused:
        return {"id": number, "refused": word(refused.code), "function": refused.function}
    except Exception as error:  # noqa: BLE001 - a mistake in one question must not end the rest
        return {"id": number, "error": f"{type(error).__name__}: {error}"[:500]}


class Questions:
    """The lines of a pipe, of which it can be said whether there is another one."""

    def __init__(self, fd: int) -> None:
        """Read this pipe; nobody else may, since what was read ahead is kept here."""
        self._fd = fd
        self._read = b""

    def __iter__(self) -> Iterator[bytes]:
        """Return the lines that are not empty, until the pipe's end."""
        while True:
            line, end, rest = self._read.partition(b"\n")
            if end:
                self._read = rest
                if line:
                    yield line
                continue
            chunk = os.read(self._fd, _CHUNK)
            if not chunk:
                return
            self._read += chunk

    def another_within(self, wait_s: float) -> bool:
        """Say whether there is another line, or the end, within so many seconds."""
        return bool(self._read or select.select([self._fd], [], [], wait_s)[0])


def serve(questions: Questions, answers: BinaryIO) -> None:
    """Answer questions, one a line, until there are no more."""
    session = Session(pause=questions.another_within)
    answers.write(orjson.dumps({"ready": True}) + b"\n")
    answers.flush()
    for line in questions:
        answers.write(orjson.dumps(answer(session, orjson.loads(line))) + b"\n")
        answers.flush()
    session.close()


def main(arguments: list[str] | None = None) -> None:
    """Serve the standard streams. What libraries print goes to stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch-fd", type=int, help="file that names the call being made")
    parser.add_argument("--fake", type=Path, help="a described node instead of the hardware")
    given = parser.parse_args(arguments)
    _end_with_parent()
    # Ctrl-C at a terminal is for the agent, who ends this process in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(given.watch_fd)
    # A round makes thousands of objects and no cycles; to look for some costs a tenth of it.
    relax()
    if given.fake is not None:
        from collectors.fake_nvml.described import install  # noqa: PLC0415 - not with hardware

        install(given.fake)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(Questions(sys.stdin.fileno()), answers)


def _end_with_parent() -> None:
    """Ask the kernel to end this process with its parent, also when it hangs in a call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    main()
