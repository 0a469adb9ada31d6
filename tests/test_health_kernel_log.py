"""The kernel's log: which lines tell an XID, and where reading goes on."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from collectors.health import kernel_log
from collectors.health.kernel_log import KernelLog, KernelXid, Parser, message_of

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = "0000:3b:00"
#: What stands in the place of the kernel's ring.
RING = Path("ring")

LINES: dict[str, tuple[str, KernelXid | None]] = {
    "the whole device, with its process": (
        "[Fri Aug 30 11:43:14 2024] NVRM: Xid (PCI:0000:3b:00): 109, pid=1797828, name=pt, Ch 8",
        KernelXid(AT, 109, pid=1797828),
    ),
    "a process that is not known": (
        "NVRM: Xid (PCI:0000:3b:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception",
        KernelXid(AT, 13),
    ),
    "a process in quotes": (
        "NVRM: Xid (PCI:0000:3b:00): 31, pid='1234', name='python3', MMU Fault",
        KernelXid(AT, 31, pid=1234),
    ),
    "no process at all": (
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        KernelXid(AT, 79),
    ),
    "a GPU instance": (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9)",
        KernelXid(AT, 94, gi=5, pid=7194),
    ),
    "a compute instance": (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:11 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
        KernelXid(AT, 13, gi=11, ci=2, pid=9),
    ),
    "an old driver, a function and a long domain": (
        "NVRM: Xid (00000000:3B:00.0): 14, Channel 00000001",
        KernelXid(AT, 14),
    ),
    "lost without an XID": (
        "NVRM: GPU at PCI:0000:3b:00.0 has fallen off the bus.",
        KernelXid(AT, 79),
    ),
    "another driver": ("mlx5_core 0000:3b:00.0: Xid (PCI:0000:3b:00): 79,", None),
    "a line about the device": ("NVRM: GPU at PCI:0000:3b:00: GPU-1234", None),
}


@pytest.mark.parametrize(("line", "found"), LINES.values(), ids=LINES.keys())
def test_a_line_of_the_driver(line: str, found: KernelXid | None) -> None:
    """The address, the number, and what else is there; what is no XID is nothing."""
    assert found == Parser().parse(line)


def test_a_loss_that_is_told_in_three_lines() -> None:
    """The address stands two lines before; a later line without one is about nobody."""
    parser = Parser()
    lines = (
        "NVRM: The NVIDIA GPU 0000:3b:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [None, None, KernelXid(AT, 79), None] == [parser.parse(line) for line in lines]
    far = (lines[0], "a", "b", "c", lines[2])
    assert [None] * 5 == [parser.parse(line) for line in far]


def xid(number: int) -> str:
    """Return a line with an XID."""
    return f"NVRM: Xid (PCI:{AT}): {number}, pid=1\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with one XID in it."""
    found = tmp_path / "kern.log"
    found.write_text(xid(1))
    return found


def numbers(log: KernelLog) -> list[int]:
    """Read on; return the XIDs."""
    return [one.xid for one in log.read()]


def add(path: Path, text: str) -> None:
    """Write to the end of the log."""
    with path.open("a") as file:
        file.write(text)


def test_a_file_is_followed_from_its_end_and_half_a_line_waits(path: Path) -> None:
    """What was there is history; a line counts when it is whole, once."""
    log = KernelLog(path)
    assert [] == numbers(log)
    whole = xid(2)
    add(path, whole[:30])
    assert [] == numbers(log)
    add(path, whole[30:] + xid(3))
    assert [2, 3] == numbers(log)
    assert [] == numbers(log)
    log.close()


def test_a_file_that_is_rotated_or_cut_is_read_anew(path: Path) -> None:
    """The rest of the old file comes first, then the new one from its beginning."""
    log = KernelLog(path)
    add(path, xid(2))
    path.rename(path.with_suffix(".1"))
    path.write_text(xid(3))
    assert [2, 3] == numbers(log)
    path.write_text(xid(4)[:10] + "\n")
    assert [] == numbers(log)
    add(path, xid(5))
    assert [5] == numbers(log)
    log.close()


def test_a_new_file_that_cannot_be_opened_yet_is_opened_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rotates the log may give it its rights last; until then the old one is read."""
    log = KernelLog(path)
    path.rename(path.with_suffix(".1"))
    path.write_text(xid(3))

    def refused(*_: Any) -> int:
        raise PermissionError(13, "denied")

    with monkeypatch.context() as patched:
        patched.setattr("collectors.health.kernel_log.os.open", refused)
        assert [] == numbers(log)
        add(path.with_suffix(".1"), xid(2))
        assert [2] == numbers(log)
    assert [3] == numbers(log)
    log.close()


def test_reading_goes_on_at_a_position(path: Path) -> None:
    """Another start of the agent reads what came meanwhile; of another file all of it."""
    log = KernelLog(path)
    log.close()
    add(path, xid(2))
    again = KernelLog(path, log.position)
    assert [2] == numbers(again)
    again.close()
    path.unlink()
    path.with_suffix(".new").write_text(xid(3))
    path.with_suffix(".new").rename(path)
    anew = KernelLog(path, [again.position[0] + 1, 9999] if again.position else None)
    assert [3] == numbers(anew)
    anew.close()


def test_one_reading_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is read the next time; what has no lines does not stand in the way."""
    log = KernelLog(path)
    monkeypatch.setattr(kernel_log, "_MOST_BYTES", len(xid(2)) + 5)
    add(path, xid(2) + xid(3))
    assert [[2], [3], []] == [numbers(log) for _ in range(3)]
    add(path, "x" * 1000 + "\n" + xid(4))
    assert [4] == [one for _ in range(50) for one in numbers(log)]
    log.close()


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Write to what is opened in the place of ``/dev/kmsg``: one record a read, as it has it."""
    reads, writes = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reads.setblocking(False)
    real = os.open

    def opened(path: Any, *more: Any, **named: Any) -> int:
        return os.dup(reads.fileno()) if path == RING else real(path, *more, **named)

    monkeypatch.setattr(os, "open", opened)
    yield writes
    reads.close()
    writes.close()


def test_the_ring_of_the_kernel(ring: socket.socket) -> None:
    """What was there is history; what has a number that was read is not read again."""
    for number in (5, 6):
        ring.send(f"4,{number},1234,-;{xid(number)} SUBSYSTEM=pci\n".encode())
    log = KernelLog(RING)
    assert [6] == log.position
    ring.send(f"4,7,1234,-;{xid(7)} SUBSYSTEM=pci\n".encode())
    assert [7] == numbers(log)
    assert [] == numbers(log)
    log.close()
    for number in (6, 7, 9):
        ring.send(f"4,{number},1234,-;{xid(number)}".encode())
    again = KernelLog(RING, log.position)
    assert [9] == numbers(again)
    assert [9] == again.position
    again.close()


def test_a_record_of_the_ring() -> None:
    """Its number and its text, without what follows on lines of its own."""
    record = b"6,1234,5678,-,caller=T1;NVRM: a text\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    assert (1234, "NVRM: a text") == message_of(record)


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    """Whoever opens it says that XIDs come from NVML alone."""
    with pytest.raises(OSError, match="absent"):
        KernelLog(tmp_path / "absent")
