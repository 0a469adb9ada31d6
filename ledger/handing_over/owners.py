"""Which wrapper on this host answers for which request, so that a dead one's can be ended.

A file for each, written before the request is sent and removed when its end is in the
log. The ledger does not depend on them: without one a lease ends by its longest run.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from ledger.handing_over.process import boot_id, started_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Owned", "Owners", "Taken", "default_folder"]

_FORMAT = 1


class Taken(Exception):
    """Another wrapper on this host, which lives, answers for the request."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A request and the wrapper that answers for it.

    ``lease`` is empty while it waits, ``child`` 0 while nothing runs; ``grouped``: the child
    leads a group of its own. ``how`` is what the lease was being ended with.
    """

    log: str
    prefix: str
    cell: str
    source: str
    id: str
    host: str
    boot: str
    pid: int
    started: int
    lease: str = ""
    child: int = 0
    child_started: int = 0
    grouped: bool = False
    how: str = ""

    @property
    def request(self) -> str:
        """The request's whole id."""
        return f"{self.source}#{self.id}"

    @property
    def wrapper_lives(self) -> bool:
        """Say whether the wrapper is still there; one of another host is taken to be."""
        if self.host != socket.gethostname():
            return True
        return self.boot == boot_id() and started_ticks(self.pid) == self.started

    @property
    def child_lives(self) -> bool:
        """Say whether the command is still there."""
        return (
            self.child > 0
            and self.boot == boot_id()
            and started_ticks(self.child) == self.child_started
        )


class Owners:
    """The files, in one folder that only its user can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, log: str, prefix: str, cell: str, source: str, event_id: str) -> Owned:
        """Answer for a request from now on; raise `Taken`, and OSError of the folder."""
        mine = Owned(
            log,
            prefix,
            cell,
            source,
            event_id,
            socket.gethostname(),
            boot_id(),
            os.getpid(),
            started_ticks(os.getpid()) or 0,
        )
        before = self._read(self._path(mine))
        if before is not None and before.wrapper_lives:
            raise Taken(f"process {before.pid} on {before.host} runs {mine.request} already")
        self.write(mine)
        return mine

    def write(self, owned: Owned) -> None:
        """Keep the file as it is to be, whole or not at all."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(owned)
        new = path.with_suffix(f".{os.getpid()}.new")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(orjson.dumps({"format": _FORMAT, **asdict(owned)}))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def remove(self, owned: Owned) -> None:
        """Forget it: what ends the lease is in the log."""
        self._path(owned).unlink(missing_ok=True)

    def dead(self) -> Iterator[Owned]:
        """Yield what wrappers of this host have left behind."""
        for path in sorted(self._folder.glob("*.json")):
            found = self._read(path)
            if found is not None and not found.wrapper_lives:
                yield found

    def _path(self, owned: Owned) -> Path:
        # A request's id may not be a file's name, and is one in each log only.
        about = f"{owned.log}\0{owned.prefix}\0{owned.cell}\0{owned.request}"
        return self._folder / f"{blake2b(about.encode(), digest_size=12).hexdigest()}.json"

    def _read(self, path: Path) -> Owned | None:
        """Return what a file says; None for none, and for one of another version."""
        try:
            plain = orjson.loads(path.read_bytes())
            if plain.pop("format") != _FORMAT:
                return None
            return Owned(**plain)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def default_folder(environment: Mapping[str, Any]) -> Path:
    """Return where the files are: ``GPULEDGER_RUNS``, else below the user's state folder."""
    named = environment.get("GPULEDGER_RUNS")
    if named:
        return Path(named)
    state = environment.get("XDG_STATE_HOME")
    return Path(state or Path.home() / ".local" / "state") / "gpuledger" / "runs"
