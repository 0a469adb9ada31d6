"""XIDs in the kernel's log, which tells of some that NVML does not deliver.

Of ``/dev/kmsg`` each record has a number: what was read in this boot is not read again. A
plain file is followed by its length, also when it is rotated. Reading never waits, and is
bounded; what is left is read the next time.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KernelLog", "KernelXid", "Parser", "message_of"]

#: The most of a file, and the most records of the kernel's ring, of one reading.
_MOST_BYTES, _MOST_RECORDS = 1_048_576, 2_000

#: The longest record of the kernel's ring, in bytes.
_RECORD = 8_192

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?"
    r"(?: GPU-I:(?P<gi>[0-9]{1,2}))?(?: GPU-CI:(?P<ci>[0-9]{1,2}))?\): (?P<xid>[0-9]{1,6}),?"
    r"(?: pid='?(?P<pid>[0-9]{1,10}))?",
    re.IGNORECASE,
)
#: A device that is lost without an XID: in one line, or with its address two lines before.
_GPU = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?"
    r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})",
    re.IGNORECASE,
)
_FALLEN = re.compile(r"NVRM:.*fallen off the bus", re.IGNORECASE)
_FALLEN_XID = 79
#: After how many lines an address is no longer what a line without one is about.
_NEAR = 3


@dataclass(frozen=True, slots=True)
class KernelXid:
    """An XID of the device at a PCI address (``0000:cb:00``, without the function)."""

    address: str
    xid: int
    gi: int | None = None
    ci: int | None = None
    pid: int | None = None


class Parser:
    """Finds XIDs in lines that come one after the other."""

    def __init__(self) -> None:
        """Have seen no line."""
        self._address = ""
        self._age = _NEAR

    def parse(self, line: str) -> KernelXid | None:
        """Return what a line tells, or None."""
        found = _XID.search(line)
        if found is not None:
            parts = {name: found[name] for name in ("gi", "ci", "pid")}
            known = {name: int(text) for name, text in parts.items() if text is not None}
            return KernelXid(_short(found["address"]), int(found["xid"]), **known)
        self._age += 1
        gpu = _GPU.search(line)
        if gpu is not None:
            self._address, self._age = _short(gpu["address"]), 0
        if _FALLEN.search(line) and self._address and self._age < _NEAR:
            told, self._address = self._address, ""
            return KernelXid(told, _FALLEN_XID)
        return None


def _short(address: str) -> str:
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def message_of(record: bytes) -> tuple[int, str]:
    """Return number and text of a record of ``/dev/kmsg``: ``6,1234,5678,-;text``."""
    head, _, rest = record.partition(b";")
    text = rest.partition(b"\n")[0].decode(errors="replace")
    return int(head.split(b",")[1]), text


class KernelLog:
    """Follows one log from where ``position`` says, or from its end at the first time.

    Raise `OSError` where the log cannot be opened at all.
    """

    def __init__(self, path: Path, position: list[int] | None = None) -> None:
        """Open it. ``position`` is what this had as its own in the same boot."""
        self._path = path
        self._parser = Parser()
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        kind = os.fstat(self.fd)
        self._ring = not stat.S_ISREG(kind.st_mode)
        #: Of the ring the number read last, of a file its inode and how far it was read.
        self.position = position
        if self._ring:
            if position is None:
                # What is there is history, and its last number is where another start goes on.
                while self._records():
                    pass
        elif position is None or position[0] != kind.st_ino or position[1] > kind.st_size:
            start = kind.st_size if position is None else 0
            self.position = [kind.st_ino, start]

    def close(self) -> None:
        """Let go of the log."""
        os.close(self.fd)

    def has_more(self) -> bool:
        """Say whether there may be something to read; of a file that cannot be told."""
        return not self._ring or bool(select.select([self.fd], [], [], 0)[0])

    def read(self) -> list[KernelXid]:
        """Return the XIDs since the last reading, in the order of the log."""
        lines = self._records() if self._ring else self._lines()
        return [found for line in lines if (found := self._parser.parse(line)) is not None]

    def _records(self) -> list[str]:
        found = []
        for _ in range(_MOST_RECORDS):
            try:
                record = os.read(self.fd, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The ring has gone round: what was overwritten is lost, and the rest is there.
                continue
            if not record:
                break
            number, text = message_of(record)
            if self.position is None or number > self.position[0]:
                self.position = [number]
                found.append(text)
        return found

    def _lines(self) -> list[str]:
        assert self.position is not None, "a file has one from the beginning"
        found = self._more()
        with contextlib.suppress(OSError):
            now = self._path.stat()
            if now.st_ino != self.position[0]:
                # It was rotated; all that was written to the old one has been read.
                new = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                os.close(self.fd)
                self.fd = new
                self.position = [now.st_ino, 0]
                found += self._more()
            elif now.st_size < self.position[1]:
                self.position = [now.st_ino, 0]
                found += self._more()
        return found

    def _more(self) -> list[str]:
        """Return the whole lines that are new; half a line waits for its rest."""
        assert self.position is not None, "a file has one from the beginning"
        inode, at = self.position
        data = os.pread(self.fd, _MOST_BYTES, at)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == _MOST_BYTES:
            # No line is that long: what is no log must not stand in the way of what follows.
            whole = data
        self.position = [inode, at + len(whole)]
        return whole.decode(errors="replace").splitlines()
