"""Why a run waits, found out again and again: the log is read once, and then what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.cli.common import Session
from ledger.cli.waiting import explainer
from ledger.log.memory import MemoryLog
from schemas.topics import full_name
from tests.ledgers import PREFIX, Site

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.log.port import Record

EVENTS = full_name(PREFIX, "events")
SESSION = Session("memory:", PREFIX, json=False, named=True)


class Noted(MemoryLog):
    """A log that notes which of the ledger's records were read, by their offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[int] = []

    async def read(
        self, topic: str, partition: int, start: int, limit: int = 1000, wait_s: float = 0.0
    ) -> list[Record]:
        """See `ledger.log.port.Log.read`."""
        found = await super().read(topic, partition, start, limit, wait_s)
        if topic == EVENTS:
            self.offsets += [one.offset for one in found]
        return found


async def _health(site: Site, health: str) -> None:
    about = {"node": "n1", "incarnation": "b1", "device": "GPU-3", "reason": "too hot"}
    await site.says("device.health", "/nodes/n1", health=health, **about)


async def test_each_look_reads_what_is_new_and_no_more() -> None:
    """And says what one says that has read all of the log, whatever has happened meanwhile."""
    log = Noted()
    site = Site(log)
    await site.start(gpus=4)
    await site.submit("first", 3)
    waits = await site.submit("second", 4)
    explain = explainer(SESSION, log, "c", waits)
    happens: dict[str, Callable[[], Awaitable[object]]] = {
        "nothing": lambda: log.end(EVENTS, 0),
        "a device falls sick": lambda: _health(site, "unhealthy"),
        "another is before it": lambda: site.submit("third", 4, priority=1),
        "it is well again": lambda: _health(site, "healthy"),
        "the other ends": lambda: site.finish("/team/a#first/1"),
        "it is withdrawn": lambda: site.says("request.cancel", request=f"{waits[:-6]}third"),
    }
    said: dict[str, str] = {}
    seen = 0
    for name, happen in happens.items():
        await happen()
        log.offsets.clear()
        said[name] = await explain()
        assert list(range(seen, seen := await log.end(EVENTS, 0))) == log.offsets, name
        assert await explainer(SESSION, log, "c", waits)() == said[name], name
    assert len(happens) == len(set(said.values())), "each of it is another reason"
    assert "GPU-3: unhealthy since" in said["a device falls sick"]
    assert "place 2 of 2" in said["another is before it"]
