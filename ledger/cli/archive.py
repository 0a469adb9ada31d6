"""Files of the log: write them as it grows, make them fewer, check them, make a log of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ledger.cli.common import EXIT_DAMAGED, No, Session, Usage, command

if TYPE_CHECKING:
    from ledger.archive.check import Checked
    from ledger.archive.follow import Follower, Written

__all__ = ["register"]

_DEFAULT = "follow"

FolderArgument = Annotated[Path, typer.Argument(help="folder of the archive", metavar="DIR")]


class _Group(TyperGroup):
    """``archive --to DIR`` is ``archive follow --to DIR``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own
        asked = args[:1]
        if asked and asked[0].startswith("-") and asked[0] not in ctx.help_option_names:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=_Group,
        help="The log in Parquet files, and back. 'archive --to DIR' is 'archive follow --to DIR'.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    command(group, _DEFAULT)(follow)
    command(group, "list")(list_files)
    command(group, "check")(check)
    command(group, "compact")(compact_files)
    command(group, "restore")(restore_log)
    app.add_typer(group, name="archive")


async def follow(
    session: Session,
    *,
    to: Annotated[Path, typer.Option("--to", help="folder; what is there is continued")],
    once: Annotated[
        bool, typer.Option("--once", help="write what the log has now, and end")
    ] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option(help="without prefix; may be repeated  [events and usage]"),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="every topic")] = False,
    every: Annotated[int | None, typer.Option(help="offsets of a full file  [100000]")] = None,
    flush_s: Annotated[
        float, typer.Option(help="how often to write a file that is not full yet")
    ] = 60.0,
) -> None:
    """Copy the log into Parquet files as it grows, until SIGTERM or Ctrl-C.

    The folder is a whole ledger: every reading command takes --log archive:DIR.
    Kill it at any moment; it goes on where the files end. Exit 4 when the log lacks
    what the archive needs, or is another log than the archived one.
    """
    from ledger.archive.follow import EVERY, Follower, Options
    from ledger.cli.site import stop_on_signals

    every = EVERY if every is None else every
    if every < 1 or flush_s <= 0:
        raise Usage("--every is at least 1, and --flush-s more than 0")
    options = Options(_topics(topic, all_topics=all_topics), every, flush_s)
    counted = {"files": 0, "records": 0}

    def written(one: Written) -> None:
        counted["files"] += 1
        counted["records"] += one.added
        if not once:
            session.emit(_plain(one), _line(one))

    async with session.open() as log:
        follower = Follower(log, session.prefix, to, options, written=written, note=session.note)
        if once:
            follower.progress = session.progress("archiving")
            await follower.once()
            _summary(session, follower, counted)
            return
        session.note(f"archiving {session.url} into {to}; Ctrl-C ends")
        await follower.follow(stop_on_signals())


def _topics(named: list[str] | None, *, all_topics: bool) -> tuple[str, ...]:
    from ledger.archive.follow import Options
    from schemas.topics import TOPICS

    known = [one.suffix for one in TOPICS]
    if all_topics:
        if named:
            raise Usage("--all-topics and --topic: give one of them")
        return tuple(known)
    for one in named or ():
        if one not in known:
            raise Usage(f"--topic is one of {', '.join(known)}, not {one!r}")
    return tuple(named) if named else Options().topics


def _plain(one: Written) -> dict[str, Any]:
    file = one.file
    return {
        "file": str(file.path),
        "topic": file.topic,
        "partition": file.partition,
        "first": file.first,
        "last": file.last,
        "added": one.added,
        "bytes": one.size,
        "full": one.full,
    }


def _line(one: Written) -> str:
    file = one.file
    return (
        f"{file.topic}/{file.partition} {file.first} to {file.last}: {one.added:,} new records,"
        f" {one.size:,} bytes"
    )


def _summary(session: Session, follower: Follower, counted: dict[str, int]) -> None:
    to = follower.folder
    session.emit(
        {"folder": str(to), **counted},
        f"{counted['records']:,} new records in {counted['files']} files\n"
        f"gpuledger verify --log archive:{to}",
    )


def list_files(session: Session, folder: FolderArgument) -> None:
    """List the files that are the log, in order: what to give to another tool.

    While a follower or a compaction writes, a folder may hold a file and a longer one
    that has superseded it: 'DIR/**/*.parquet' may see records twice, this list does not.
    """
    from ledger.archive.folder import list_partition, partitions_of, topics_of

    rows = [
        {
            "topic": topic,
            "partition": number,
            "first": file.first,
            "last": file.last,
            "bytes": file.path.stat().st_size,
            "file": str(file.path),
        }
        for topic in topics_of(folder)
        for number in range(partitions_of(folder, topic))
        for file in list_partition(folder, topic, number).files
    ]
    session.emit_rows(rows, ["topic", "partition", "first", "last", "bytes", "file"])


def check(session: Session, folder: FolderArgument) -> None:
    """Read every file and name each that is missing, cut off or changed. Exit 4 for any.

    This looks at the files of all topics; 'gpuledger verify --log archive:DIR' judges
    the ledger that is in them.
    """
    from ledger.archive.check import check_archive

    found = check_archive(folder, session.progress("checking"))
    session.emit(found.plain(), _checked(found))
    if found.wrong:
        raise typer.Exit(EXIT_DAMAGED)


def _checked(found: Checked) -> str:
    lines = [f"{found.records:,} records in {found.files:,} files"]
    if found.left_over:
        lines.append(
            f"{found.left_over} files that a broken-off change has left: no part of the log, and"
            " removed by the next"
        )
    lines += [
        f"DAMAGED {one.topic}/{one.partition}@{one.first}: {one.kind}: {one.detail}"
        for one in found.wrong
    ]
    lines.append(
        "what to do: put the files back from a copy, or move what is damaged out of the archive"
        " and run 'gpuledger archive' on the log again: it writes what is missing"
        if found.wrong
        else "no file is missing between others, cut off or changed"
    )
    return "\n".join(lines)


def compact_files(
    session: Session,
    folder: FolderArgument,
    every: Annotated[
        int | None, typer.Option(help="offsets of a compacted file  [1000000]")
    ] = None,
) -> None:
    """Make few large files of many small ones. A follower may go on meanwhile."""
    from ledger.archive.compact import EVERY, Merged, compact

    every = EVERY if every is None else every
    if every < 1:
        raise Usage("--every is at least 1")

    def merged(one: Merged) -> None:
        file = one.file
        plain = {
            "file": str(file.path),
            "topic": file.topic,
            "partition": file.partition,
            "first": file.first,
            "last": file.last,
            "files": len(one.files),
            "bytes": one.size,
        }
        session.emit(plain, f"{file.path}: {len(one.files)} files in one, {one.size:,} bytes")

    if not compact(folder, every, merged=merged):
        session.note("nothing to compact")


async def restore_log(
    session: Session,
    folder: FolderArgument,
    *,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="every topic of the archive, not events alone")
    ] = False,
    replication: Annotated[int, typer.Option(help="copies of each record (Kafka)")] = 1,
) -> None:
    """Make the log at --log (Kafka or SQLite, empty) of an archive: same records, same offsets.

    What was written is read back and compared. Run it again when it was broken off.
    Exit 1 when the log holds something else; nothing is changed then.
    """
    from ledger.archive.folder import topics_of
    from ledger.archive.restore import NotEmpty, restore
    from ledger.log.archive import ArchiveLog

    if session.url.startswith("archive:"):
        raise Usage("--log is the log to write: sqlite:PATH or kafka://HOST:PORT")
    async with ArchiveLog(folder) as source:
        suffixes = ["events"]
        if all_topics:
            whole = f"{session.prefix}."
            suffixes = [one.removeprefix(whole) for one in topics_of(folder)
                        if one.startswith(whole)]  # fmt: skip
        try:
            async with session.open(write=True, make=True) as target:
                done = await restore(
                    source, target, session.prefix, suffixes, replication,
                    session.progress("restoring"),
                )  # fmt: skip
        except NotEmpty as error:
            raise No(str(error)) from None
    session.emit(
        {
            "records": done.records,
            "before": done.before,
            "filled": done.filled,
            "digest": done.digest,
        },
        f"{done.records:,} records restored, {done.before:,} were there; all read back and equal\n"
        f"  digest      {done.digest}",
    )
