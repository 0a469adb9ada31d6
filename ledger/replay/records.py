"""The records between two places in log order, each with what it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.reading import Seen, Upto, read_events
from ledger.replay.legend import ANSWER, CLAIM, VOID, code_of
from ledger.replay.names import Named, Names
from ledger.steps import outcome_text
from ledger.wording import sentence

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from ledger.core.fold import Fold
    from ledger.log.port import Log
    from ledger.replay.position import Place

__all__ = ["Line", "follow", "lines_of", "one_line"]


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that a record says: an event, or the answer when there is none.

    ``code`` is of `ledger.replay.legend`; ``named`` is all that it is about.
    """

    position: str
    time_us: int
    cell: str
    code: str
    text: str
    named: Named

    def plain(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        ids = {kind: list(names) for kind, names in self.named.items()}
        return {
            "position": self.position,
            "time_us": self.time_us,
            "cell": self.cell,
            "code": self.code,
            "text": self.text,
            "ids": ids,
        }


async def follow(
    log: Log, prefix: str, place: Place, folds: Mapping[int, Fold]
) -> AsyncIterator[tuple[Seen, Names]]:
    """Yield the records up to a place after the folds have taken them in, in log order.

    Log order is a partition's own; between partitions it is that of the append times.
    Raises as `ledger.reading.read_events` does.
    """
    known: dict[int, Names] = {}
    readers: dict[int, AsyncIterator[Seen]] = {}
    ahead: dict[int, Seen] = {}
    for number, end in place.items():
        known[number] = Names()
        for state in folds[number].cells.values():
            known[number].know(state)
        upto = Upto(offsets={number: end})
        readers[number] = read_events(log, prefix, number, folds[number], upto)
        await _step(readers, ahead, number)
    while ahead:
        number = min(ahead, key=lambda one: (ahead[one].record.time_us, one))
        yield ahead.pop(number), known[number]
        await _step(readers, ahead, number)


async def _step(
    readers: Mapping[int, AsyncIterator[Seen]], ahead: dict[int, Seen], number: int
) -> None:
    found = await anext(readers[number], None)
    if found is not None:
        ahead[number] = found


def lines_of(seen: Seen, names: Names) -> Iterator[Line]:
    """Yield a line for each event of a record; one, when it has no event or no effect."""
    data = seen.data
    time_us, cell = data["time_us"], data.get("cell", "")
    if seen.verdict == "claim":
        text = f"{data['worker']} on {data['host']} claimed the partition"
        yield Line(seen.position, time_us, cell, CLAIM, one_line(text), {})
        return
    if seen.verdict == "void":
        text = f"void: {outcome_text(data)}"
        yield Line(seen.position, time_us, cell, VOID, one_line(text), {})
        return
    for event in data["events"]:
        named = names.take(event)
        text = one_line(sentence(event))
        yield Line(seen.position, time_us, cell, code_of(event["type"]), text, named)
    if not data["events"]:
        given = data["input"]
        named = names.of({**given["data"], "request": _asked(given)})
        yield Line(seen.position, time_us, cell, ANSWER, one_line(outcome_text(data)), named)


def _asked(given: Mapping[str, Any]) -> str | None:
    """Return the request that an input without consequence was about, when it was about one."""
    if given["type"] == "request.submit":
        return f"{given['source']}#{given['id']}"
    asked = given["data"].get("request")
    return asked if isinstance(asked, str) else None


def one_line(text: str) -> str:
    """Keep a text on one line, and its control characters from the terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
