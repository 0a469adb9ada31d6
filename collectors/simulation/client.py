"""The requesters' side: what was answered to whom, read from the replies topic."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import orjson

from schemas.topics import full_name

if TYPE_CHECKING:
    from ledger.log.port import Log

__all__ = ["Client"]

_READ = 5000


class Client:
    """Reads every reply there is, and counts per request what was said."""

    def __init__(self, log: Log, prefix: str) -> None:
        """Begin with the oldest reply."""
        self._log = log
        self._topic = full_name(prefix, "replies")
        self._positions: list[int] | None = None
        #: Request -> its final answers, and how many times each was given.
        self.finals: dict[str, Counter[str]] = {}
        #: Requests of which nothing more will be heard.
        self._over: set[str] = set()

    @property
    def ended(self) -> int:
        """How many requests have come to their end, whatever it was."""
        return len(self._over)

    async def read(self) -> None:
        """Read what is new."""
        if self._positions is None:
            count = await self._log.partitions(self._topic)
            self._positions = [await self._log.begin(self._topic, at) for at in range(count)]
        for partition in range(len(self._positions)):
            while records := await self._log.read(
                self._topic, partition, self._positions[partition], _READ
            ):
                self._positions[partition] = records[-1].offset + 1
                for record in records:
                    self._take(orjson.loads(record.value or b"{}"))

    def _take(self, reply: dict[str, object]) -> None:
        request, answer = str(reply["request"]), str(reply["answer"])
        if reply["final"]:
            self.finals.setdefault(request, Counter())[answer] += 1
        if answer in ("ended", "rejected", "expired", "cancelled", "malformed"):
            self._over.add(request)
