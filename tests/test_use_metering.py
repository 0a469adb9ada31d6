"""Used beside requested, reserved and delivered: from the usage topic into the meter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.cli.meter import _groups
from ledger.log.memory import MemoryLog
from ledger.log.port import Entry
from ledger.log.topics import apply
from ledger.metering.report import Report
from ledger.metering.stream import PartitionMeter
from ledger.metering.usage import UsageBook, read_usage
from ledger.testing import CoreDriver, device, mig_slice
from ledger.wire import input_entry

if TYPE_CHECKING:
    from collections.abc import Sequence

S = 1_000_000
T = 1_700_000_000 * S
PREFIX = "gpuledger"


class Meter:
    """A log whose clock the test turns, with one node's records of use on it."""

    def __init__(self) -> None:
        self.now_us = T
        self.log = MemoryLog(lambda: self.now_us)
        self.number = 0

    async def write(
        self, at_us: int, leases: Sequence[tuple[str, str, int, int]], **more: Any
    ) -> Entry:
        """Write a window of ten seconds: lease, unit, thousandths, and for how long."""
        if not self.number:
            await apply(self.log, PREFIX, 1)
        self.number += 1
        names = ("lease", "unit", "busy_permille", "measured_us")
        data = {
            "node": "n1",
            "incarnation": "b1",
            "window_us": 10 * S,
            "devices": [],
            "leases": [dict(zip(names, one, strict=True)) for one in leases],
        }
        entry = input_entry(
            "n1", "node.usage", "/nodes/n1/agent", f"use-{self.number}", data | more
        )
        await self.again(at_us, entry)
        return entry

    async def again(self, at_us: int, entry: Entry) -> None:
        """Write a record as it is."""
        self.now_us = at_us
        await self.log.append(f"{PREFIX}.usage", None, [entry])

    async def book(self) -> UsageBook:
        """Read what the log has of use."""
        return await read_usage(self.log, PREFIX)


async def test_windows_are_where_the_log_took_them_and_as_long_as_the_node_says() -> None:
    """Whatever the node's wall clock says (C43); a late append cuts the next one's beginning."""
    meter = Meter()
    await meter.write(T + 10 * S, [("l", "GPU-a", 500, 10 * S)], node_time_us=1)
    await meter.write(T + 19 * S, [("l", "GPU-a", 1000, 10 * S)], node_time_us=5 * T)
    await meter.write(T + 40 * S, [("l", "GPU-a", 0, 4 * S)])
    book = await meter.book()
    assert [] == book.conflicts
    assert (5_000 * S + 9_000 * S, 19 * S) == book.used("l", "GPU-a", T, T + 30 * S)
    assert (0, 4 * S) == book.used("l", "GPU-a", T + 30 * S, T + 60 * S), "measured, and idle"
    assert (None, 0) == book.used("l", "GPU-a", T + 20 * S, T + 36 * S), "not measured"
    assert (500 * S, S) == book.used("l", "GPU-a", T + 5 * S, T + 6 * S)


async def test_c37_a_record_counts_once() -> None:
    """A copy is no more; the same id with other content is a conflict; others are no records."""
    meter = Meter()
    entry = await meter.write(T + 10 * S, [("l", "GPU-a", 500, 10 * S)])
    await meter.again(T + 20 * S, entry)
    other = entry._replace(value=(entry.value or b"").replace(b"500", b"900"))
    await meter.again(T + 30 * S, other)
    for value in (b"{", None, b'{"node":"n1"}'):
        await meter.again(T + 40 * S, Entry(b"n1", value, entry.headers[:0]))
    book = await meter.book()
    assert ["/nodes/n1/agent#use-1"] == book.conflicts
    assert (5_000 * S, 10 * S) == book.used("l", "GPU-a", T, T + 60 * S)


async def test_a_log_without_the_topic_has_no_samples() -> None:
    """As logs from before have none: unknown, and no error."""
    book = await read_usage(MemoryLog(), PREFIX)
    assert (None, 0) == book.used("l", "GPU-a", 0, T)


async def test_a_slice_counts_as_the_part_of_a_device_that_it_is() -> None:
    """Half of a seventh for ten seconds; by the slice's own id, which the MIG UUID is not."""
    cell = CoreDriver(now_us=T)
    cell.pool()
    cell.queue()
    cell.quota()
    card = device("GPU-a", compute_slices=7, mig_enabled=True, slices=[mig_slice("MIG-1", 7, 0)])
    cell.node("n1", [card])
    cell.submit("J1", {"mode": "mig", "profile": "1g.10gb"}, at_us=T + S)
    lease = cell.lease("J1").id
    cell.feed("lease.release", {"lease": lease}, source="/team/a", at_us=T + 101 * S)
    meter = Meter()
    await meter.write(T + 50 * S, [(lease, "MIG-1", 500, 10 * S)])
    book = await meter.book()
    report, partition = Report(usage=book), PartitionMeter()
    for offset, value in enumerate(cell.records):
        verdict, record = partition.fold.apply(offset, value)
        book.note(record)
        for one in partition.take(verdict, record):
            report.take(one)
    for one in partition.cut(partition.known_us):
        report.take(one)
    report.finish()

    total = report.total()
    delivered = total.parts["allocated"]
    assert 143 * 100 * S == delivered
    assert 143 * 10 * S // 2 == total.used_milli_us
    assert 10 * S == total.measured_us
    line = _groups(report, total).splitlines()[-1]
    assert line.endswith("0.000  10.00 %"), "little is known of what was used, and that is said"
    assert 100 * S == total.held_us
    assert {"requested_milli_us", "reserved_milli_us", "used_milli_us"} <= total.plain().keys()
