"""What every runner does before it holds anything: look at the topics, open the snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.log.topics import check
from ledger.snapshots import SnapshotStore
from schemas.topics import full_name

if TYPE_CHECKING:
    from ledger.log.port import Log
    from processors.settings import Settings

__all__ = ["Refused", "check_topics", "mixed_group", "snapshot_store"]


class Refused(Exception):
    """The worker does not start, or does not go on, as things are set up; says what to change."""


def mixed_group(group: str, runner: str) -> Refused:
    """Return why a ``runner`` cannot join: a broker lets a group have one assignor only."""
    return Refused(
        f"consumer group {group} has workers of another runner, and a {runner} worker cannot join"
        " them: start all workers of a log with the same --runner (gpuledger up is a plain one),"
        " or end the others first; another --prefix is another log with a group of its own"
    )


async def check_topics(log: Log, settings: Settings) -> int:
    """Return the inputs' partition count; raise `Refused` with each setting, found and wanted."""
    findings = await check(log, settings.prefix)
    if findings:
        lines = "\n".join(f"  {finding}" for finding in findings)
        raise Refused(
            f"the topics are not as declared, the worker does not start:\n{lines}\n"
            "`gpuledger topics apply` makes what is missing; a setting is changed at the broker"
        )
    return await log.partitions(full_name(settings.prefix, "requests"))


def snapshot_store(settings: Settings) -> SnapshotStore | None:
    """Return where snapshots are kept, or None when none are wanted."""
    if not settings.snapshot_every:
        return None
    return SnapshotStore(settings.snapshot_folder, full_name(settings.prefix, "events"))
