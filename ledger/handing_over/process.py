"""The command that runs under a lease: started, signalled, stopped, and its end told.

It gets a process group of its own, so that a signal and the end reach what it has
started too. Only where it runs in a terminal's foreground it stays in the group of
the wrapper: the terminal then sends its signals to both, and reading from it works.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.proc_stat import split_stat

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Mapping, Sequence

__all__ = ["Command", "boot_id", "end_group", "in_foreground", "started_ticks"]

#: What a shell returns for a command that is not there, and for one that cannot be run.
_NOT_FOUND = 127
_NOT_RUNNABLE = 126
#: What a shell adds to the number of the signal that ended a command.
_BY_SIGNAL = 128

#: How often a group that was told to end is looked at, in seconds.
_LOOK_S = 0.05


class Command:
    """A running command. ``pid`` is also the id of its group, where it has one (``grouped``)."""

    def __init__(self, process: Process, *, grouped: bool) -> None:
        self._process = process
        self.grouped = grouped
        self.pid = process.pid

    @classmethod
    async def start(cls, words: Sequence[str], environment: Mapping[str, str]) -> Command:
        """Start it; raise OSError when it cannot be (`failure_status` says the exit status)."""
        grouped = not in_foreground()
        # 0 makes a new group; None keeps the wrapper's.
        group = 0 if grouped else None
        process = await asyncio.create_subprocess_exec(
            *words, env=dict(environment), process_group=group
        )
        return cls(process, grouped=grouped)

    @staticmethod
    def failure_status(error: OSError) -> int:
        """Return what a shell returns for a command that could not be started."""
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE

    async def wait(self) -> int:
        """Return its exit status once it has ended, as a shell has it: 128 + n for a signal."""
        status = await self._process.wait()
        return _BY_SIGNAL - status if status < 0 else status

    def send(self, number: int) -> None:
        """Pass a signal on, unless the terminal has sent it to the command itself."""
        if not self.grouped and number == signal.SIGINT:
            return
        # What has ended meanwhile needs no signal, and what has become another user's takes none.
        with suppress(ProcessLookupError, PermissionError):
            if self.grouped:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)

    async def stop(self, grace_s: float) -> None:
        """Tell it to end, and end it after the grace period; `wait` tells when it has."""
        self.send(signal.SIGTERM)
        await asyncio.sleep(grace_s)
        self.send(signal.SIGKILL)

    async def end_rest(self, grace_s: float) -> None:
        """End what the command has left behind in its group: the devices are given back."""
        if self.grouped:
            await end_group(self.pid, grace_s)


async def end_group(group: int, grace_s: float) -> None:
    """End every process of a group: SIGTERM, after the grace period SIGKILL.

    What has become another user's (``sudo``) takes no signal, and is its node's to find.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        until = asyncio.get_running_loop().time() + grace_s
        while asyncio.get_running_loop().time() < until:
            os.killpg(group, 0)
            await asyncio.sleep(_LOOK_S)
        os.killpg(group, signal.SIGKILL)


def in_foreground() -> bool:
    """Say whether this process is in the foreground of the terminal that is its stdin."""
    try:
        number = sys.stdin.fileno()
        return os.isatty(number) and os.tcgetpgrp(number) == os.getpgrp()
    except (OSError, ValueError):
        return False


def started_ticks(pid: int) -> int | None:
    """Return when a process was started, in ticks since the boot; None when it is gone.

    With the boot's id this names a process for ever: numbers of processes come back.
    0 where the system has no ``/proc`` and the process is there.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _there(pid)
    _, fields = split_stat(text)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _there(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0


def boot_id() -> str:
    """Return the id of this boot of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
