"""Run a command under a lease: ask, wait, start, renew, stop, and end the lease with it.

One loop takes what happens, in order: replies of the ledger, signals, the command's end,
and times that are due. The lease is ended by one release, under an id of its own
(`ledger.handing_over.talk`), however often it is sent and by whom.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ledger.client import ANSWER_S, NoAnswer
from ledger.handing_over.environment import task_environment
from ledger.handing_over.process import Command, started_ticks
from ledger.handing_over.reasons import Reasons
from ledger.handing_over.talk import attempt_of
from ledger.log.port import LogError
from schemas.messages import Reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from typing import Literal

    from ledger.client import Sent
    from ledger.handing_over.owners import Owned, Owners
    from ledger.handing_over.talk import Talk
    from schemas.messages import ReplyPart
    from schemas.requests import RequestSubmit

__all__ = ["Elsewhere", "Plan", "Refused", "Signalled", "Wrapper"]

_BY_SIGNAL = 128

#: Answers that end a wait for a lease.
_NO = frozenset({"rejected", "expired", "cancelled", "refused", "malformed"})


class Refused(Exception):
    """The ledger gives no lease; ``reply`` says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"{reply.answer}: {reply.code}")
        self.reply = reply


class Elsewhere(Exception):
    """The lease is not for this host; it has been given back."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal has come."""

    number: int


@dataclass(frozen=True, slots=True)
class _Exited:
    status: int


@dataclass(frozen=True, slots=True)
class _Broken:
    error: BaseException


_Event = Reply | Signalled | _Exited | _Broken


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be run, and how.

    ``node`` is this host's name in the ledger; ``any_node`` starts the command here even if
    the lease is for another. ``renew_s`` lengthens the longest run by so much whenever it
    nears; None: never. ``again`` waits and starts anew when the lease was interrupted and
    the request queued again. ``why_every_s`` is how often a wait is explained.
    """

    request: RequestSubmit
    words: tuple[str, ...]
    environment: Mapping[str, str]
    node: str
    any_node: bool = False
    renew_s: int | None = None
    grace_s: float = 10.0
    again: bool = False
    answer_s: float = ANSWER_S
    why_every_s: float = 60.0


@dataclass(slots=True)
class _Held:
    """The lease that the command runs under, and what has become of it."""

    lease: str
    #: The ledger has ended it: there is nothing to give back.
    over: bool = False
    stopping: str = ""
    due_s: float | None = None
    renewals: int = 0


class Wrapper:
    """Carries a plan out.

    ``tell`` says to people what happens: a word, a text, and what it is about.
    ``explainer`` makes, for each wait, what says why the request waits, in words.
    """

    def __init__(
        self,
        plan: Plan,
        talk: Talk,
        owners: Owners,
        owned: Owned,
        tell: Callable[..., None],
        explainer: Callable[[], Callable[[], Awaitable[str]]],
    ) -> None:
        self._plan = plan
        self._talk = talk
        self._owners = owners
        self._owned = owned
        self._tell = tell
        self._events: asyncio.Queue[_Event] = asyncio.Queue()
        self._reasons = Reasons(explainer, tell, lambda one: self._events.put_nowait(_Broken(one)))
        self._clock = asyncio.get_running_loop().time
        self._used_s = 0.0
        self._signal = 0
        #: How many leases the request had when it was last seen to wait.
        self._waits_after = 0
        self._granted: Reply | None = None
        #: The end of a lease could not be put on the log.
        self._left = False

    def signal(self, number: int) -> None:
        """Take a signal: it is passed on to the command, or ends the wait."""
        self._events.put_nowait(Signalled(number))

    async def run(self) -> int:
        """Return the exit status: the command's, or 128 + n for a signal during the wait.

        Raise `Refused`, `Elsewhere`, `NoAnswer`, and the log's errors. What was asked for is
        withdrawn and what was granted given back, or stays on file for a clean-up.
        """
        sent = await self._talk.submit(self._plan.request)
        hearing = asyncio.create_task(self._listen(sent.replies_from))
        try:
            status = await self._run()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        if not self._left:
            self._owners.remove(self._owned)
        return status

    async def _run(self) -> int:
        while True:
            granted = await self._wait()
            if granted is None:
                return _BY_SIGNAL + self._signal
            status = await self._hold(granted)
            again = self._waits_after >= (granted.attempt or 1)
            if not again:
                return status
            if not self._plan.again or self._signal:
                await self._withdraw("its command has ended")
                return status
            self._tell("again", "the lease was interrupted; the request is in the queue again")

    async def _listen(self, start: int) -> None:
        try:
            await self._talk.listen(start, self._events.put_nowait)
        except (LogError, OSError) as error:
            self._events.put_nowait(_Broken(error))

    async def _next(self, due_s: float | None) -> _Event | None:
        """Return what happens next; None when ``due_s`` comes first."""
        event = None
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due_s):
                event = await self._events.get()
        if isinstance(event, _Broken):
            raise event.error
        return event

    # -- waiting -----------------------------------------------------------------------

    async def _wait(self) -> Reply | None:
        """Wait for the next lease, saying why; None when a signal ended the wait."""
        if self._granted is not None and (self._granted.attempt or 1) > self._waits_after:
            return self._granted
        due_s, first = self._clock() + self._plan.answer_s, self._waits_after == 0
        with self._reasons:
            while True:
                event = await self._next(due_s)
                if event is None and first:
                    # Nobody decides now; who does later must not give a lease to nobody.
                    await self._talk.cancel("nobody has answered in time")
                    self._owners.remove(self._owned)
                    raise NoAnswer(self._talk.request, self._plan.answer_s)
                if isinstance(event, Signalled):
                    self._signal = event.number
                    await self._withdraw("interrupted while it waited")
                    return None
                if isinstance(event, Reply):
                    if self._ends_wait(event):
                        return event
                    mine = event.input == self._talk.request
                    if not mine or event.answer not in ("queued", "reserved"):
                        continue
                    self._tell(event.answer, f"{event.code}", request=self._talk.request)
                first = False
                self._reasons.look()
                due_s = self._clock() + self._plan.why_every_s

    def _ends_wait(self, reply: Reply) -> bool:
        """Say whether a reply is the grant; raise `Refused` for a no."""
        if reply.input != self._talk.request:
            return False
        if reply.answer in _NO or (reply.answer == "ended" and self._waits_after):
            self._owners.remove(self._owned)
            raise Refused(reply)
        self._take_note(reply, None)
        return self._granted is reply and (reply.attempt or 1) > self._waits_after

    async def _withdraw(self, reason: str) -> None:
        """Cancel the request, and give back what was granted before that was decided."""
        reply = await self._answer(await self._talk.cancel(reason))
        if reply is not None and reply.answer == "stopping" and self._granted is not None:
            await self._answer(await self._talk.release(self._granted.lease or "", "failed"))
        self._tell("cancelled", reason, request=self._talk.request)

    async def _answer(self, sent: Sent) -> Reply | None:
        """Return the answer to what was sent, taking note of what else is said.

        None when none comes in time, or a signal does: what was sent is in the log.
        """
        due_s = self._clock() + self._plan.answer_s
        while True:
            event = await self._next(due_s)
            if isinstance(event, Signalled):
                self._signal = event.number
            if event is None or isinstance(event, Signalled):
                return None
            if isinstance(event, Reply):
                self._take_note(event, None)
                if event.input == sent.key:
                    return event

    # -- running -----------------------------------------------------------------------

    async def _hold(self, granted: Reply) -> int:
        """Run the command under the lease; give the lease back; return the exit status."""
        began_s, held = self._clock(), _Held(granted.lease or "")
        self._owned = replace(self._owned, lease=held.lease)
        self._owners.write(self._owned)
        part = self._my_part(granted)
        if part is None:
            await self._end(held, "failed")
            nodes = ", ".join(one.node for one in granted.parts)
            self._owners.remove(self._owned)
            raise Elsewhere(
                f"{held.lease} is for {nodes}, and this is {self._plan.node}; it was given back"
            )
        environment = {
            **self._plan.environment,
            **task_environment(held.lease, self._talk.request, part),
        }
        try:
            command = await Command.start(self._plan.words, environment)
        except OSError as error:
            self._tell("failed", f"{self._plan.words[0]}: {error.strerror}", lease=held.lease)
            await self._end(held, "failed")
            return Command.failure_status(error)
        async with self._ended_with(command):
            after_s = self._clock() - began_s
            async with self._talk.telling_begun(held.lease, part.node, after_s):
                status = await self._attend(command, held, part)
            self._used_s += self._clock() - began_s
            await self._end(held, "failed" if status else "completed")
        return status

    def _my_part(self, granted: Reply) -> ReplyPart | None:
        """Return the part on this host; any, where told that this will do."""
        here = (part for part in granted.parts if part.node == self._plan.node)
        return next(here, granted.parts[0] if self._plan.any_node else None)

    @asynccontextmanager
    async def _ended_with(self, command: Command) -> AsyncIterator[None]:
        """Whatever goes wrong here, the command does not outlive it."""
        watching = asyncio.create_task(self._tell_exit(command))
        try:
            yield
        finally:
            if not watching.done():
                stopping = asyncio.create_task(command.stop(self._plan.grace_s))
                await asyncio.wait([watching])
                stopping.cancel()

    async def _tell_exit(self, command: Command) -> None:
        self._events.put_nowait(_Exited(await command.wait()))

    async def _attend(self, command: Command, held: _Held, part: ReplyPart) -> int:
        """Be there until the command has ended; return its exit status."""
        self._owned = replace(
            self._owned,
            child=command.pid,
            child_started=started_ticks(command.pid) or 0,
            grouped=command.grouped,
        )
        self._owners.write(self._owned)
        self._tell(
            "started", f"{self._plan.words[0]} as process {command.pid}",
            lease=held.lease, node=part.node, pid=command.pid,
        )  # fmt: skip
        if self._plan.renew_s is not None and self._plan.request.max_run_s is not None:
            left_s = self._plan.request.max_run_s - self._used_s
            held.due_s = self._clock() + left_s - min(left_s, self._plan.renew_s) / 2
        stopping: asyncio.Task[None] | None = None
        while True:
            event = await self._next(held.due_s)
            if isinstance(event, _Exited):
                break
            if event is None:
                await self._renew(held)
            elif isinstance(event, Signalled):
                self._signal = event.number
                command.send(event.number)
            elif isinstance(event, Reply):
                self._take_note(event, held)
                if held.stopping and stopping is None:
                    self._tell("stopping", held.stopping, lease=held.lease)
                    stopping = asyncio.create_task(command.stop(self._plan.grace_s))
        if stopping is not None:
            stopping.cancel()
        await command.end_rest(self._plan.grace_s)
        self._tell("exited", f"status {event.status}", lease=held.lease, status=event.status)
        return event.status

    async def _renew(self, held: _Held) -> None:
        held.renewals += 1
        held.due_s = None
        if not held.stopping:
            await self._talk.extend(held.lease, self._plan.renew_s or 1, held.renewals)

    def _take_note(self, reply: Reply, held: _Held | None) -> None:
        """Take in what a reply says of the lease, and of the request after it."""
        if reply.input.startswith(f"{self._talk.request}.extend."):
            self._extended(reply, held)
        if reply.input != self._talk.request:
            return
        attempt = reply.attempt or 0
        if reply.answer == "granted" and reply.parts:
            # One that is over is told without its parts.
            self._granted = reply
        if reply.answer == "queued" and attempt:
            self._waits_after = max(self._waits_after, attempt)
        if held is None or attempt < attempt_of(held.lease):
            return
        if reply.answer == "reminded":
            self._tell("reminded", "its devices are idle", lease=held.lease, **reply.numbers)
        elif reply.answer == "stopping" and reply.lease == held.lease:
            held.stopping = held.stopping or str(reply.numbers.get("reason", reply.code))
        elif reply.answer in ("ended", "queued") or attempt > attempt_of(held.lease):
            held.over = True
            how = reply.numbers.get("how", reply.numbers.get("interrupted_by", reply.code))
            held.stopping = held.stopping or f"the lease has ended: {how}"

    def _extended(self, reply: Reply, held: _Held | None) -> None:
        more_s = self._plan.renew_s or 0
        if reply.answer == "applied" and "due_us" in reply.numbers:
            self._tell("renewed", f"for {more_s} s more", due_us=reply.numbers["due_us"])
            if held is not None:
                # The next is asked for as long before the new end as this one was.
                held.due_s = self._clock() + more_s
        elif reply.code != "unchanged":
            self._tell("not renewed", f"{reply.code}; it ends at its longest run", **reply.numbers)

    async def _end(self, held: _Held, how: Literal["completed", "failed"]) -> None:
        """Give the lease back, once; what cannot be said stays on file for a clean-up."""
        self._owned = replace(self._owned, how=how)
        self._owners.write(self._owned)
        if held.over:
            return
        try:
            reply = await self._answer(await self._talk.release(held.lease, how))
            if reply is None and held.stopping:
                # An interrupted request may go back to its queue, and nobody waits for it.
                await self._talk.cancel("its command has ended")
        except (LogError, OSError) as error:
            self._left = True
            self._tell("left", f"{error}; gpuledger run --recover gives it back", lease=held.lease)
            return
        word = "no answer yet; it is in the log" if reply is None else reply.code
        self._tell("ended", f"{how}: {word}", lease=held.lease)
