"""Open a log by its URL, as given in ``GPULEDGER_LOG`` or ``--log``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.log.port import Log, LogError
from ledger.log.wakeup import wall_clock_us

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPENERS", "BadLogUrl", "OpenOptions", "open_log"]

_MAX_PORT = 65_535


class BadLogUrl(LogError, ValueError):
    """The URL names no kind of log, or not where it is. A mistake of the caller."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What a caller may ask of any kind of log; a kind ignores what it cannot do."""

    #: Refuse appends, and create nothing. (Kafka: access lists at the broker decide.)
    read_only: bool = False
    #: The append time in UTC microseconds. (Kafka: the broker's clock.)
    clock: Callable[[], int] = wall_clock_us


def open_log(url: str, *, read_only: bool = False, clock: Callable[[], int] = wall_clock_us) -> Log:
    """Return the log at ``url``.

    ``sqlite:PATH``, ``kafka://HOST:PORT[,...]``, ``archive:DIR`` (files, read
    only) or ``memory:``.

    Call it in a running event loop. A Kafka log connects at its first use.
    Raise `BadLogUrl` for a URL that is none of these, and `LogUnavailable` or
    `LogDamaged` for a SQLite file that cannot be opened.
    """
    scheme, colon, rest = url.partition(":")
    opener = OPENERS.get(scheme) if colon else None
    if opener is None:
        kinds = ", ".join(f"{name}:" for name in OPENERS)
        raise BadLogUrl(f"{url!r} is not the URL of a log; it begins with one of {kinds}")
    return opener(rest, OpenOptions(read_only, clock))


def _open_memory(rest: str, options: OpenOptions) -> Log:
    # Adapters are imported when asked for: aiokafka alone takes longer than a short command.
    from ledger.log.memory import MemoryLog  # noqa: PLC0415

    if rest:
        raise BadLogUrl(f"memory: takes nothing after the colon, found {rest!r}")
    return MemoryLog(options.clock)


def _open_sqlite(rest: str, options: OpenOptions) -> Log:
    from ledger.log.sqlite import SqliteLog  # noqa: PLC0415

    if not rest or rest == ":memory:":
        raise BadLogUrl("sqlite: needs the path of a file, for example sqlite:ledger.sqlite")
    return SqliteLog(rest, clock=options.clock, read_only=options.read_only)


def _open_kafka(rest: str, _options: OpenOptions) -> Log:
    from ledger.log.kafka import KafkaLog  # noqa: PLC0415

    servers = rest.removeprefix("//").removesuffix("/")
    if not rest.startswith("//") or not all(map(_is_server, servers.split(","))):
        raise BadLogUrl(f"kafka: needs //HOST:PORT[,HOST:PORT], found {rest!r}")
    return KafkaLog(servers)


def _open_archive(rest: str, _options: OpenOptions) -> Log:
    from ledger.log.archive import ArchiveLog  # noqa: PLC0415

    if not rest:
        raise BadLogUrl("archive: needs the folder of an archive, for example archive:evidence")
    return ArchiveLog(rest)


def _is_server(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    return bool(host and colon) and port.isascii() and port.isdigit() and int(port) <= _MAX_PORT


#: How each kind of log is opened: what follows the colon, and the options. Others may be added.
OPENERS: dict[str, Callable[[str, OpenOptions], Log]] = {
    "sqlite": _open_sqlite,
    "kafka": _open_kafka,
    "archive": _open_archive,
    "memory": _open_memory,
}
