"""Why a request waits, found out while somebody waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.cli.common import Session
    from ledger.log.port import Log

__all__ = ["explainer"]


def explainer(session: Session, log: Log, cell: str, request: str) -> Callable[[], Awaitable[str]]:
    """Return a function that says why the request waits: the reason, and what would change it.

    The first time it reads the log, and later what is new: a site where hundreds wait has
    millions of records, which each of them would go over again every minute.
    """
    from ledger.answers.outages import Outages
    from ledger.cli.explained import waiting
    from ledger.core.fold import Fold
    from ledger.explain import why
    from ledger.log.partition import partition_of
    from ledger.reading import Damaged, read_events
    from schemas.topics import full_name

    fold, outages = Fold().reading(), Outages()

    async def explain() -> str:
        nonlocal fold, outages
        count = await log.partitions(full_name(session.prefix, "events"))
        partition = partition_of(cell.encode(), count)
        try:
            async for seen in read_events(log, session.prefix, partition, fold):
                outages.take(seen)
        except Damaged as error:
            # What a fold holds after that is worth nothing.
            fold, outages = Fold().reading(), Outages()
            return str(error)
        state = fold.ready().cells.get(cell)
        found = None if state is None else why(state, (), request, outages)
        return "" if found is None else waiting(found)

    return explain
