"""A node's devices, typed, from whoever answers: never raises for what a device lacks.

A device that hangs is unknown with that reason, and is left alone for a while, so that one
sick device does not cost the others a restart of the process at every turn.
"""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from collectors.nvml.readings import Device, DeviceUse, Happenings, Host, Process, Signs
from collectors.nvml.watchdog import ChildFailed, Hung

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Iterable

    from collectors.nvml.watchdog import Asker

__all__ = ["DIED", "HUNG", "Inventory", "NvmlReader", "Routine", "Vigil", "Wanted"]

#: What ``why`` begins with when a call did not return, and when the process died in it.
HUNG = "hung"
DIED = "nvml-process-died"

#: How long a device that hung is left alone at first, and at most, in seconds.
_REST_S = 30.0
_LONGEST_REST_S = 600.0

#: Questions about all devices rest by themselves: under names that no device has.
_EVENTS, _USES, _VIGIL = "events", "uses", "vigil"

_HOST: TypeAdapter[Host] = TypeAdapter(Host)
_DEVICE: TypeAdapter[Device] = TypeAdapter(Device)
_DEVICES: TypeAdapter[list[Device]] = TypeAdapter(list[Device])
_USE: TypeAdapter[DeviceUse] = TypeAdapter(DeviceUse)
_HAPPENINGS: TypeAdapter[Happenings] = TypeAdapter(Happenings)
_SIGNS: TypeAdapter[Signs] = TypeAdapter(Signs)
_ALL_USES: TypeAdapter[list[DeviceUse]] = TypeAdapter(list[DeviceUse])
_PROCESSES: TypeAdapter[tuple[Process, ...] | None] = TypeAdapter(tuple[Process, ...] | None)

#: The name of a question, and its arguments.
_Question = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that one reading of the node gave; devices in the order of the listing.

    A device that was listed and then hung or was lost is in it, with ``why``.
    """

    host: Host
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is about to be asked: arguments of the methods of the same names; None: nothing."""

    uses: dict[str, Any] | None
    pulse: tuple[list[str], list[str]] | None
    signs: list[str]
    events: list[str] | None


class Routine(NamedTuple):
    """What each round of a vigil asks: the devices that are sampled, looked at, listened to.

    Without ``uses`` none is sampled.
    """

    uses: list[str] | None
    uuids: list[str]
    events: list[str]


@dataclass(frozen=True, slots=True)
class Vigil:
    """What came of rounds without the agent: samples, each with the steady time (us) of it.

    ``news``: something has happened or failed, and the node is to be looked at.
    """

    samples: tuple[tuple[int, list[DeviceUse]], ...] = ()
    news: bool = False


@dataclass(slots=True)
class _Rest:
    """A device that hung: why, until when it is left alone, and for how long the last time."""

    why: str
    until_s: float
    for_s: float


class NvmlReader:
    """Asks typed questions. ``clock`` is a steady clock, in seconds."""

    def __init__(self, asker: Asker, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask through this; whoever made the asker closes it."""
        self._asker = asker
        self._clock = clock
        self._resting: dict[str, _Rest] = {}
        #: By the question's name and device: what was asked ahead, and its answer.
        self._ahead: dict[tuple[str, str | None], tuple[dict[str, Any] | None, Any]] = {}
        #: What a vigil has heard, which is told once, and so kept for the next `events`.
        self._heard: Any = None

    @asynccontextmanager
    async def at_once(self, wanted: Wanted) -> AsyncIterator[None]:
        """Ask by one question what is then asked within the block, one after the other.

        Each question wakes two processes, which costs more than most answers. Where a call
        hangs its device rests, and what is asked in the block is asked apart, of the others.
        """
        await self._get_ahead(self._questions(wanted))
        try:
            yield
        finally:
            self._ahead.clear()

    async def _get_ahead(self, questions: list[_Question]) -> None:
        if len(questions) <= 1:
            return
        try:
            answers = await self._asker.ask("several", questions=questions)
        except Hung as hung:
            self._rest_what_hangs(hung, _devices_of(questions))
        except ChildFailed:
            return  # in which of them it has died is told when they are asked apart
        else:
            self._ahead = {
                (op, arguments.get("uuid")): (arguments, answer)
                for (op, arguments), answer in zip(questions, answers, strict=True)
            }

    def _questions(self, wanted: Wanted) -> list[_Question]:
        """Return the questions; events last, so that none is lost by a call that hangs."""
        found: list[_Question] = []
        if wanted.uses is not None and not self._rests(_USES):
            found.append(self._of_uses(**wanted.uses))
        if wanted.pulse is not None:
            found.append(self._of_pulse(*wanted.pulse))
        found += [("signs", {"uuid": uuid}) for uuid in self._awake(wanted.signs)]
        if wanted.events is not None and self._heard is None and not self._rests(_EVENTS):
            found.append(self._of_events(wanted.events, 0))
        return found

    def distrust(self) -> None:
        """Let nothing that was got ahead be an answer: something has happened since."""
        self._ahead.clear()

    async def _ask(self, op: str, **arguments: Any) -> Any:
        """Ask, unless just that was asked ahead: each answer is good once."""
        asked, answer = self._ahead.pop((op, arguments.get("uuid")), (None, None))
        # What has happened is told once, whatever devices it was asked of.
        if asked is not None and (asked == arguments or op == "events"):
            return answer
        return await self._asker.ask(op, **arguments)

    async def host(self) -> Host:
        """Read driver and listing."""
        try:
            return _HOST.validate_python(await self._asker.ask("host"))
        except Hung as hung:
            return Host(_why(hung))
        except ChildFailed as failed:
            return Host(f"{DIED}: {failed}")

    async def device(self, uuid: str, *, watched: bool = False) -> Device:
        """Read one device, whole; ``watched`` as in `inventory.read_device`."""
        found, why = await self._about(uuid, "device", watched=watched)
        return Device(uuid, why) if why else _DEVICE.validate_python(found)

    async def use(self, uuid: str, **more: Any) -> DeviceUse:
        """Sample one device's use; the keywords are those of `use.read_use`."""
        found, why = await self._about(uuid, "use", **more)
        return DeviceUse(uuid, why) if why else _USE.validate_python(found)

    async def uses(
        self, uuids: Iterable[str], *, since_us: dict[str, int] | None = None, **more: bool
    ) -> list[DeviceUse]:
        """Sample devices at one question; a device that cannot be sampled has ``why``.

        The other keywords are those of `use.read_uses`.
        A call that hangs costs this sample of all of them, and its device a rest.
        """
        named = list(uuids)
        if self._rests(_USES):
            return [DeviceUse(uuid, self._resting[_USES].why) for uuid in named]
        op, arguments = self._of_uses(named, since_us=since_us, **more)
        asked = arguments["uuids"]
        found, why = {}, ""
        try:
            answer = await self._ask(op, **arguments)
            found = {one.uuid: one for one in _ALL_USES.validate_python(answer)}
        except Hung as hung:
            why = _why(hung)
            self._rest_what_hangs(hung, asked, _USES)
        except ChildFailed as failed:
            why = f"{DIED}: {failed}"
        return [found.get(uuid) or DeviceUse(uuid, why or self._rested(uuid)) for uuid in named]

    def _of_uses(
        self, uuids: Iterable[str], *, since_us: dict[str, int] | None = None, **more: bool
    ) -> _Question:
        return "uses", {"uuids": self._awake(uuids), "since_us": since_us, **more}

    async def processes(self, uuid: str) -> tuple[Process, ...] | None:
        """Read who is on a device; None when that cannot be said, which is not nobody."""
        found, _ = await self._about(uuid, "processes")
        return _PROCESSES.validate_python(found)

    async def signs(self, uuid: str) -> Signs:
        """Read how one device is: the driver's verdict, heat, ECC errors, remapped rows."""
        found, why = await self._about(uuid, "signs")
        return Signs(uuid, why) if why else _SIGNS.validate_python(found)

    async def survey(self, uuid: str) -> dict[str, str]:
        """Ask which calls work on a device (`survey.survey`); one that hangs fails ``name``."""
        found, why = await self._about(uuid, "survey")
        return {"name": why} if why else dict(found)

    async def events(self, uuids: Iterable[str], *, wait_ms: int = 0) -> Happenings:
        """Read what has happened to devices since the last question, of those that answer.

        A call that hangs in it costs the device that it was about a rest, or the question
        where that is not known: the others are watched again after it.
        """
        if self._rests(_EVENTS):
            return Happenings(why=self._resting[_EVENTS].why)
        op, arguments = self._of_events(uuids, wait_ms)
        try:
            found, self._heard = self._heard or await self._ask(op, **arguments), None
        except Hung as hung:
            self._rest_what_hangs(hung, arguments["uuids"], _EVENTS)
            return Happenings(why=_why(hung))
        except ChildFailed as failed:
            why = f"{DIED}: {failed}"
            return Happenings(why=self._rest(_EVENTS, why, self._resting.get(_EVENTS)))
        self._resting.pop(_EVENTS, None)
        return _HAPPENINGS.validate_python(found)

    def _of_events(self, uuids: Iterable[str], wait_ms: int) -> _Question:
        return "events", {"uuids": self._awake(uuids), "wait_ms": wait_ms}

    async def pulse(
        self, uuids: list[str], whole: Iterable[str]
    ) -> tuple[set[str], list[Device]] | None:
        """Ask which devices are to be read whole, and read some (`pulse.pulse`).

        None: everything is to be read. Of devices that rest nothing is asked: they are due
        when their time comes.
        """
        op, arguments = self._of_pulse(uuids, whole)
        asked = arguments["uuids"]
        resting = set(uuids) - set(asked)
        try:
            found = await self._ask(op, **arguments)
        except Hung as hung:
            about = self._rest_what_hangs(hung, asked)
            return None if about is None else ({about}, [])
        except ChildFailed:
            return None
        if found["listing"]:
            return None
        return set(found["changed"]) | resting, _DEVICES.validate_python(found["read"])

    def _of_pulse(self, uuids: Iterable[str], whole: Iterable[str]) -> _Question:
        asked = self._awake(uuids)
        return "pulse", {"uuids": asked, "whole": [uuid for uuid in whole if uuid in asked]}

    @property
    def is_well(self) -> bool:
        """Whether nothing rests that hung."""
        return not any(self._rests(name) for name in self._resting)

    async def vigil(
        self,
        asked: Routine,
        rounds: int,
        every_us: int,
        hurry: asyncio.Event,
    ) -> Vigil:
        """Let NVML's process make so many rounds alone (`vigil.vigil`), unless ``hurry`` is set.

        When a call hangs its device rests, and the samples of the rounds before are lost with
        the process. One that fails otherwise rests itself: it would fail again at once, for as
        long as nothing else does. Each pause must be shorter than a call may take, and all of it
        than a question may: ten seconds and a minute.
        """
        more = asked._asdict() | {"rounds": rounds, "every_us": every_us}
        try:
            found = await self._asker.ask("vigil", hurry=hurry, **more)
        except Hung as hung:
            self._rest_what_hangs(hung, {*asked.uuids, *(asked.uses or ())}, _VIGIL)
            return Vigil(news=True)
        except ChildFailed as failed:
            self._rest(_VIGIL, f"{DIED}: {failed}", self._resting.get(_VIGIL))
            return Vigil(news=True)
        self._resting.pop(_VIGIL, None)
        self._heard = found["events"]
        samples = [(at_us, _ALL_USES.validate_python(one)) for at_us, one in found["samples"]]
        return Vigil(tuple(samples), found["news"])

    def _rest_what_hangs(
        self, hung: Hung, uuids: Iterable[str], otherwise: str | None = None
    ) -> str | None:
        """Leave the device of these alone whose call hangs, or ``otherwise``; return which."""
        about = next((uuid for uuid in uuids if uuid in hung.call), otherwise)
        if about is not None:
            self._rest(about, _why(hung), self._resting.get(about))
        return about

    async def inventory(self) -> Inventory:
        """Read the node: the listing, then each device by UUID, one after the other."""
        host = await self.host()
        uuids = [one.uuid for one in host.listed if one.uuid is not None]
        return Inventory(host, tuple([await self.device(uuid, watched=True) for uuid in uuids]))

    async def _about(self, uuid: str, op: str, **more: Any) -> tuple[Any, str]:
        """Ask about a device; return the answer, or None and why there is none."""
        rest = self._resting.get(uuid)
        if rest is not None and self._rests(uuid):
            return None, rest.why
        try:
            found = await self._ask(op, uuid=uuid, **more)
        except Hung as hung:
            return None, self._rest(uuid, _why(hung), rest)
        except ChildFailed as failed:
            return None, self._rest(uuid, f"{DIED}: {failed}", rest)
        self._resting.pop(uuid, None)
        return found, ""

    def _rested(self, name: str) -> str:
        rest = self._resting.get(name)
        return "resting" if rest is None else rest.why

    def _awake(self, uuids: Iterable[str]) -> list[str]:
        return [uuid for uuid in uuids if not self._rests(uuid)]

    def _rests(self, name: str) -> bool:
        rest = self._resting.get(name)
        return rest is not None and self._clock() < rest.until_s

    def _rest(self, uuid: str, why: str, before: _Rest | None) -> str:
        """Leave a device alone, twice as long as the last time."""
        for_s = _REST_S if before is None else min(2 * before.for_s, _LONGEST_REST_S)
        self._resting[uuid] = _Rest(why, self._clock() + for_s, for_s)
        return why


def _devices_of(questions: list[_Question]) -> set[str]:
    """Return the devices that questions are about."""
    lists = [arguments.get("uuids", [arguments.get("uuid")]) for _, arguments in questions]
    return {uuid for one in lists for uuid in one}


def _why(hung: Hung) -> str:
    return f"{HUNG}: {hung}"
