"""The agent's side of the NVML process: ask, wait so long, kill, start again.

What hangs costs the answer that was asked for and a restart (about 0.2 s), not the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

import orjson
import structlog

from collectors.nvml.calls import WATCH_BYTES, Refused
from collectors.nvml.codes import Code

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["ANSWER_S", "Asker", "ChildFailed", "Hung", "NvmlChild"]

_log = structlog.get_logger(__name__)

#: How long one answer may take, in seconds. A whole device takes milliseconds; the driver
#: gives up on a GPU's own processor after 6 s of waiting for it (XID 119).
ANSWER_S = 10.0

#: In so many parts of that time it is looked which call is being made. A question of many calls
#: that goes on from one to the next is slow and does not hang, up to so many times as long.
_LOOKS = 4
_SLOWEST = 6

#: The longest answer, in bytes: a device with everything on it is some 20 KiB.
_MOST_BYTES = 4 * 1_048_576

#: How long a process may take to start, in seconds, before it calls anything.
_START_S = 60.0

#: How long a killed process may take to be gone. One that waits for the kernel's driver
#: cannot be ended; it is left behind, and so many may be left behind.
_DIES_S = 1.0
_MOST_LEFT = 8

_CODES = {one.name.lower().replace("_", "-"): one for one in Code}


class Hung(Exception):
    """NVML did not answer in time. ``call`` is the function and device it was in."""

    def __init__(self, op: str, call: str, waited_s: float) -> None:
        """Say what was asked, where it hangs, and how long was waited."""
        super().__init__(f"{call or op} has not returned for {waited_s:g} s")
        self.op = op
        self.call = call


class ChildFailed(Exception):
    """The NVML process has died, or made a mistake; the next question starts another."""


class Asker(Protocol):
    """Whoever answers the questions of `ops.OPS`: a child process, or a fake node.

    ``ask`` raises `Refused`, `Hung` or `ChildFailed`; an answer is a dataclass of
    `readings`, or the same as plain JSON values.
    """

    async def ask(
        self,
        op: str,
        *,
        timeout_s: float | None = None,
        hurry: asyncio.Event | None = None,
        **arguments: Any,
    ) -> Any:
        """Ask one question; ``timeout_s`` is how long a call of it may take [`ANSWER_S`].

        One that waits (`vigil`) is answered at once when ``hurry`` is set.
        """

    async def close(self) -> None:
        """End whatever answers."""


class NvmlChild:
    """NVML in a process of its own, started at the first question. One question at a time."""

    def __init__(self, *, fake: Path | None = None, answer_s: float = ANSWER_S) -> None:
        """Start nothing yet. ``fake`` describes a node to answer from instead of hardware."""
        self._fake = fake
        self._answer_s = answer_s
        self._turn = asyncio.Lock()
        self._child: Process | None = None
        self._asked = 0
        self._left: list[Process] = []
        # A file and no pipe: the child must be able to say where it is without being read.
        self._watch = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as this
        #: How often a child was started.
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process that answers now, if there is one."""
        return None if self._child is None else self._child.pid

    async def ask(
        self,
        op: str,
        *,
        timeout_s: float | None = None,
        hurry: asyncio.Event | None = None,
        **arguments: Any,
    ) -> Any:
        """See `Asker.ask`."""
        limit_s = self._answer_s if timeout_s is None else timeout_s
        async with self._turn:
            try:
                # A machine under load is slow to start a process, which is no hanging call.
                child = self._child or await self._start()
                async with self._as_long_as_it_goes_on(limit_s), _hurried(child, hurry):
                    return await self._exchange(child, op, arguments)
            except TimeoutError:
                call = self._where()
                await self._end()
                _log.warning("nvml hangs", op=op, call=call, waited_s=limit_s)
                raise Hung(op, call, limit_s) from None
            except asyncio.CancelledError:
                # The answer would be taken for that of the next question.
                await self._end()
                raise

    async def close(self) -> None:
        """See `Asker.close`."""
        async with self._turn:
            await self._end()
        self._watch.close()

    @contextlib.asynccontextmanager
    async def _as_long_as_it_goes_on(self, limit_s: float) -> AsyncIterator[None]:
        """Raise `TimeoutError` in the block when one call takes as long as the limit.

        What a round wants is one question of hundreds of calls: on a node that is slow, no
        device would be at fault that is killed in its turn, and the others' answers with it.
        """
        loop, looks = asyncio.get_running_loop(), [""]
        next_look: asyncio.TimerHandle

        def look() -> None:
            nonlocal next_look
            looks.append(self._where())
            alike = len(looks) > _LOOKS and len(set(looks[-_LOOKS:])) == 1
            if alike or len(looks) > _LOOKS * _SLOWEST:
                limit.reschedule(loop.time())
            else:
                next_look = loop.call_later(limit_s / _LOOKS, look)

        next_look = loop.call_later(limit_s / _LOOKS, look)
        try:
            async with asyncio.timeout(None) as limit:
                yield
        finally:
            next_look.cancel()

    async def _exchange(self, child: Process, op: str, arguments: dict[str, Any]) -> Any:
        assert child.stdin is not None, "it was started with pipes"
        assert child.stdout is not None, "it was started with pipes"
        self._asked += 1
        question = {"id": self._asked, "op": op, "with": arguments}
        try:
            child.stdin.write(orjson.dumps(question) + b"\n")
            await child.stdin.drain()
            line = await child.stdout.readline()
        except (ConnectionError, ValueError) as error:
            await self._end()
            raise ChildFailed(f"the NVML process cannot be talked to: {error}") from None
        if not line.endswith(b"\n"):
            where = self._where()
            await self._end()
            raise ChildFailed(f"the NVML process has died in {where or op}")
        found = orjson.loads(line)
        if found.get("id") != self._asked:
            await self._end()
            raise ChildFailed(f"an answer to question {found.get('id')}, not {self._asked}")
        if "refused" in found:
            raise Refused(_CODES.get(found["refused"], Code.UNKNOWN), found["function"])
        if "error" in found:
            raise ChildFailed(found["error"])
        return found["value"]

    async def _start(self) -> Process:
        self._left = [one for one in self._left if one.returncode is None]
        if len(self._left) >= _MOST_LEFT:
            raise ChildFailed(f"{len(self._left)} killed NVML processes do not end")
        os.ftruncate(self._watch.fileno(), 0)
        command = [sys.executable, "-m", "collectors.nvml.child"]
        command += ["--watch-fd", str(self._watch.fileno())]
        if self._fake is not None:
            command += ["--fake", str(self._fake)]
        self._child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self._watch.fileno(),),
            limit=_MOST_BYTES,
        )
        self.starts += 1
        assert self._child.stdout is not None, "it was started with pipes"
        try:
            async with asyncio.timeout(_START_S):
                ready = await self._child.stdout.readline()
        except TimeoutError:
            ready = b""
        if not ready:
            await self._end()
            raise ChildFailed("the NVML process does not start; its stderr says why")
        return self._child

    async def _end(self) -> None:
        """Kill the child. It may be in a call that even SIGKILL does not end: go on then."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        try:
            async with asyncio.timeout(_DIES_S):
                await child.wait()
        except TimeoutError:
            self._left.append(child)

    def _where(self) -> str:
        """Return the call that the child is in, from the watch file."""
        return os.pread(self._watch.fileno(), WATCH_BYTES, 0).decode(errors="replace").strip("\0 ")


@contextlib.asynccontextmanager
async def _hurried(child: Process, hurry: asyncio.Event | None) -> AsyncIterator[None]:
    """End what the child waits for in the block when the event is set: by an empty line."""
    if hurry is None:
        yield
        return

    async def tell() -> None:
        await hurry.wait()
        assert child.stdin is not None, "it was started with pipes"
        child.stdin.write(b"\n")

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
