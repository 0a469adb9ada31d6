"""The bell of a log in a file: who appends rings it, so that who waits need not keep looking.

It is a file beside the log, ``NAME-bell``, that is opened for writing and closed after each
commit, which inotify tells to whoever listens. A ring says that there may be something and never
what, so one too many does no harm; and one that never comes (a writer that died before it, or
one that may not open the file) is waited for no longer than `MISSED_S`. Where there is no
inotify nothing is heard, and readers look as often as they may.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from asyncinotify import Inotify

__all__ = ["MISSED_S", "Bell"]

#: After so long without a ring it is looked all the same; at multiples of it by the steady
#: clock, at one wake-up with whatever else a process does then.
MISSED_S = 2.0


#: What inotify says last of a file (``IN_IGNORED``).
_IGNORED = 0x8000


class Bell:
    """One log's bell. `ring` may be called from any thread, the rest from the event loop's."""

    def __init__(self, log: Path, *, read_only: bool) -> None:
        """Make nothing yet. Who may only read the log does not make its bell either."""
        self._log = log
        self._path = log.with_name(f"{log.name}-bell")
        self._read_only = read_only
        self._ears: Inotify | None = None
        self._tried = False

    def ring(self) -> None:
        """Say that something was committed. Who cannot say so is not heard; that is no error."""
        with contextlib.suppress(OSError):
            try:
                os.close(os.open(self._path, os.O_WRONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                self._make()

    def _make(self) -> None:
        """Make the file: who may write the log may ring, as SQLite's own files beside it are."""
        mode = self._log.stat().st_mode & 0o777
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            os.fchmod(fd, mode)
        finally:
            os.close(fd)

    @property
    def hears(self) -> bool:
        """Whether rings are heard."""
        return self._ears is not None

    def listen(self) -> None:
        """Hear what is rung from here on, if that can be, unless it was tried before."""
        if not self._tried:
            self._tried = True
            if not self._read_only:
                self.ring()
            self._ears = _ears(self._path)

    async def rung(self) -> bool:
        """Return True when it was rung since the last time, or False after `MISSED_S` at most."""
        assert self._ears is not None, "who hears nothing looks"
        now_s = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MISSED_S - now_s % MISSED_S):
                event = await self._ears.get()
                if event.mask & _IGNORED:
                    # The file is gone, and another in its place would not be heard.
                    self.close()
                    self._tried = False
                    self.listen()
                return True
        return False

    def close(self) -> None:
        """Hear nothing any more."""
        if self._ears is not None:
            self._ears.close()
            self._ears = None


def _ears(path: Path) -> Inotify | None:
    """Return what hears a file being closed by who may write it; None: it cannot be heard."""
    try:
        from asyncinotify import Inotify, Mask  # noqa: PLC0415 - does not exist everywhere

        ears = Inotify()
    except (ImportError, OSError):
        # A user has so many of them (`fs.inotify.max_user_instances`); others then look.
        return None
    try:
        ears.add_watch(path, Mask.CLOSE_WRITE)
    except OSError:
        ears.close()
        return None
    return ears
