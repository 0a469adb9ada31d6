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
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncinotify import Inotify

__all__ = ["MISSED_S", "Bell"]

#: After so long without a ring it is looked all the same; at multiples of it by the steady
#: clock, at one wake-up with whatever else a process does then.
MISSED_S = 2.0

#: A file is rung, and what else has its name is let be: to open a pipe that nobody reads would
#: wait, and a link leads to what is somebody else's.
_RING = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW

#: After this the next ring is of another file: it was moved (``IN_MOVE_SELF``), or it is gone,
#: which is what inotify says last of a file (``IN_IGNORED``).
_GONE = 0x800 | 0x8000


class Bell:
    """One log's bell. `ring` may be called from any thread, the rest from the event loop's."""

    def __init__(self, log: Path, *, read_only: bool) -> None:
        """Make nothing yet. Who may only read the log does not make its bell either."""
        # The same one by whatever name the log was opened, as SQLite's own files beside it are.
        self._log = Path(os.path.realpath(log))
        self._path = Path(f"{self._log}-bell")
        self._read_only = read_only
        self._ears: Inotify | None = None
        #: When it is tried again to hear it, by the steady clock.
        self._again_s = 0.0

    def ring(self) -> None:
        """Say that something was committed. Who cannot say so is not heard; that is no error."""
        with contextlib.suppress(OSError):
            try:
                os.close(os.open(self._path, _RING))
            except FileNotFoundError:
                self._make()

    def _make(self) -> None:
        """Make the file: who may write the log may ring, as SQLite's own files beside it are."""
        log = self._log.stat()
        mode = log.st_mode & 0o777
        fd = os.open(self._path, _RING | os.O_CREAT | os.O_EXCL, mode)
        try:
            os.fchmod(fd, mode)
            if os.geteuid() == 0:
                os.fchown(fd, log.st_uid, log.st_gid)
        finally:
            os.close(fd)

    @property
    def hears(self) -> bool:
        """Whether rings are heard."""
        return self._ears is not None

    def listen(self) -> None:
        """Hear what is rung from here on, if that can be; else it is tried again in a while.

        Who only reads does not make a bell, and somebody else may; what stood in its place may go.
        """
        now_s = time.monotonic()
        if self._ears is None and now_s >= self._again_s:
            self._again_s = now_s + MISSED_S
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
                if event.mask & _GONE:
                    # Another in its place would not be heard.
                    self.close()
                    self._again_s = 0.0
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
    except (ImportError, OSError, MemoryError, RuntimeError):
        # A user has so many of them (`fs.inotify.max_user_instances`); others then look. And
        # ctypes, by which it is called, does not work where no memory may be made executable.
        return None
    try:
        # What is no file nobody rings.
        if stat.S_ISREG(path.lstat().st_mode):
            ears.add_watch(path, Mask.CLOSE_WRITE | Mask.MOVE_SELF)
            return ears
    except OSError:
        pass
    ears.close()
    return None
