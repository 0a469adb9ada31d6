"""No input that passes validation ends anybody by being large, small or odd.

What a worker cannot write, or not read again, ends it at every start: the input is still the
next one. So all that may come in has bounds, and what is made of it is encoded, decoded,
folded, kept as a snapshot and read by everybody who reads the log.
"""

from __future__ import annotations

import re
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.health.kernel_log import Parser
from collectors.nvml.readings import Device, DeviceUse, Memory
from collectors.nvml.report import Standing, device_report
from collectors.use.window import Window
from ledger.archive.columns import table_of
from ledger.audit.sql_texts import VIEWS
from ledger.billing.export import FORMATS, read_exports, write_bill
from ledger.cli.json_text import json_text
from ledger.core.decisions import losing, reservations
from ledger.core.derived.makers import FAILED, read_geometry
from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.evolve import HANDLERS
from ledger.core.limits import MAX_RUN_US
from ledger.core.mig.layouts import MOST_INSTANCES, MOST_PLACES
from ledger.core.outbox import messages
from ledger.ingest import Refusal, ingest
from ledger.log.port import MAX_RECORD_BYTES, Record
from ledger.log.sqlite import SqliteLog
from ledger.metering.report import Report
from ledger.metering.stream import PartitionMeter
from ledger.testing import TEAM, CoreDriver, device, mig_slice
from ledger.wire import input_entry, message_entry
from schemas.base import MAX_INT
from schemas.catalogue import TYPES, adapter
from tests.audit_support import room_with
from tests.billing_support import FOREVER_MONTH, book, issued, price, tariff
from tests.extremes import LONGEST_ID, LONGEST_SOURCE, live, numbers_of
from tests.ledgers import Site
from tests.test_cli import Cli

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOW_US = 1_780_000_000_000_000
#: The longest UUID that a device may have.
LONG_UUID = 96
SMILE = "\N{GRINNING FACE}"


# -- what may come in ------------------------------------------------------------------

_IN = ("requests", "observations", "heartbeats", "usage")


@pytest.mark.parametrize("name", [name for (name, _), one in TYPES.items() if one.topic in _IN])
def test_every_field_of_an_input_has_bounds(name: str) -> None:
    """A number is one that every reader keeps exact, a text no longer than somebody meant."""
    for place, schema in numbers_of(adapter(name, 1).json_schema()):
        if schema["type"] == "string":
            known = "enum" in schema or schema.get("format") == "date-time"
            pattern = re.sub(r"\[(\\.|[^\]\\])*\]", "c", schema.get("pattern", ".*"))
            assert known or not re.search(r"(?<!\\)[*+]|,\}", pattern), f"{place}: {schema}"
        else:
            assert "integer" == schema["type"], place
            assert -MAX_INT <= schema["minimum"] <= schema["maximum"] <= MAX_INT, place


def test_a_node_that_runs_for_months_is_heard() -> None:
    """A heartbeat each two seconds is more than a million after 23 days: nodes fell silent."""
    data = {"node": "n1", "incarnation": "b1", "cell": "c", "beat": 1_000_001}
    entry = input_entry("n1", "node.heartbeat", "/nodes/n1", "x", data)
    record = Record("gpuledger.heartbeats", 0, 0, NOW_US, *entry)
    assert not isinstance(ingest(record, "heartbeats"), Refusal)


# -- what is made of it ----------------------------------------------------------------


def _sizes(driver: CoreDriver, said: Sequence[Any]) -> list[int]:
    """Return the length of a decision's record and of all its messages, which must be read."""
    for _, _, name, payload in said:
        adapter(name, 1).validate_json(orjson.dumps(payload))
    return [len(driver.records[-1]), *(len(message_entry(one).value or b"") for one in said)]


@pytest.mark.parametrize("seed", range(5))
async def test_inputs_at_the_extremes_end_nobody(seed: int) -> None:
    """The cell goes on, each record is one for every reader, and so is each message.

    The driver holds each record against its model and a second fold, and the state against
    the invariants.
    """
    driver = CoreDriver()
    for driver, decision in live(Random(seed), 60):
        if decision.recorded:
            said = messages(driver.state, decision, "events/0@1")
            assert max(_sizes(driver, said)) < MAX_RECORD_BYTES
    again = load_fold(save_fold(driver.fold)).ready()
    assert driver.digest() == digest(again.cells)
    await _read_by_all(driver)


async def _read_by_all(driver: CoreDriver) -> None:
    """Let the archive, the meter and every view of an audit read the log."""
    values = driver.records
    records = [
        Record("gpuledger.events", 0, at, driver.now_us, b"c", value)
        for at, value in enumerate(values)
    ]
    table = table_of("gpuledger.events", records)
    assert sum(orjson.loads(one)["kind"] == "decision" for one in values) == (
        len(values) - table["seq"].null_count
    )
    meter, report = PartitionMeter(), Report("device")
    rows = [row for offset, value in enumerate(values) for row in meter.apply(offset, value)]
    for row in [*rows, *meter.cut(meter.known_us)]:
        report.take(row)
    report.finish()
    assert json_text([one.plain() for one in report.groups.values()])
    assert report.total().parts_milli_us == report.total().capacity_milli_us
    async with room_with(values) as room:
        for view in VIEWS:
            room.ask(f"SELECT * FROM {view.name}")


@pytest.mark.parametrize("form", FORMATS)
def test_the_highest_price_of_the_largest_site_is_billed(form: str, tmp_path: Path) -> None:
    """Costs are sums and products of whole numbers, and each format has room for them."""
    driver = CoreDriver()
    driver.pool()
    driver.queue()
    driver.quota()
    driver.node("n1", [device("GPU-1", model="M" * 96, memory_mib=10**12)])
    driver.submit("r", max_run_s=1_000_000_000)
    driver.submit("later", at_us=FOREVER_MONTH.end_us)
    costly = tariff(data=book(price("gpu", "GPU-Seconds", MAX_INT)))
    bill = issued(driver.records, FOREVER_MONTH, costly)
    write_bill(tmp_path, bill, costly, form, "1")
    (again,) = read_exports(tmp_path)
    row = again.rows[-1]
    seconds = int(row["PricingQuantity"] or 0)
    assert seconds > 30 * 86_400
    assert str(MAX_INT * seconds) == (row["ListCost"] or "").replace(".", "")


# -- one input, and how much it leads to -----------------------------------------------


def _cell(devices: Sequence[dict[str, Any]], *, check: bool = True) -> CoreDriver:
    driver = CoreDriver(check=check, now_us=NOW_US)
    driver.pool()
    driver.queue()
    driver.quota(nominal_gpu_milli=1_000_000_000)
    driver.node("n1", devices)
    return driver


def test_a_lease_is_extended_no_further_than_a_request_could_ask() -> None:
    """Each extension was let in, until the end was no date, and then no number of 64 bits."""
    cell = _cell([device("GPU-1")])
    cell.submit("r", max_run_s=999_999_999)
    more = {"lease": cell.lease("r").id, "more_s": 1}
    assert "applied" == cell.feed("lease.extend", more).code
    refused = cell.feed("lease.extend", more)
    assert ("exceeds_max_run", MAX_RUN_US) == (refused.code, refused.numbers["queue_max_run_us"])
    assert NOW_US + MAX_RUN_US >= (cell.lease("r").due_us or 0) - 1_000_000


def test_long_evidence_stands_once_in_a_record() -> None:
    """It was written for each of the lease's slices, and the record was too large to append."""
    slices = [[mig_slice(f"MIG-{at}-{n}", n, n) for n in range(7)] for at in range(10)]
    cut = [
        device(f"GPU-{at}", mig_enabled=True, compute_slices=7, slices=slices[at])
        for at in range(10)
    ]
    cell = _cell(cut)
    cell.submit("r", {"mode": "mig", "profile": "1g.10gb", "count": 64})
    cell.release(cell.lease("r").id)
    (order,) = cell.state.orders
    said = {f"k{at}": SMILE * 600 for at in range(64)}
    done = cell.says("order.failed", "n1", order=order, reason="left", evidence=said)
    assert len(cell.records[-1]) < MAX_RECORD_BYTES // 8
    found = [one["evidence"] for one in done.events if one["type"] == "slice.quarantined"]
    assert [{"order": order}] * 64 == found
    assert [said] == [one["evidence"] for one in done.events if one["type"] == "order.failed"]


def test_short_evidence_stands_with_each_unit() -> None:
    """Who looks at a device that was put away has what was found there beside it."""
    cell = _cell([device("GPU-1")])
    cell.submit("r")
    cell.release(cell.lease("r").id)
    (order,) = cell.state.orders
    done = cell.says("order.failed", "n1", order=order, reason="left", evidence={"pid": 7})
    assert {"pid": 7} == done.events[0]["evidence"]


def test_the_largest_grant_is_answered() -> None:
    """16,384 devices of the longest UUIDs: the answer was too large, and was given at each load."""
    nodes, count = 1024, 16
    cell = _cell([])
    for node in ("n1", "n2"):
        names = [f"GPU-{node}-{at}-".ljust(LONG_UUID, "x") for at in range(count)]
        cell.node(node, [device(name) for name in names])
    granted = cell.submit(
        LONGEST_ID, {"mode": "whole", "count": count, "nodes": 2}, source=LONGEST_SOURCE
    )
    sizes = _sizes(cell, messages(cell.state, granted, "events/0@1"))
    assert nodes // 2 * max(sizes) < MAX_RECORD_BYTES
    with pytest.raises(ValueError, match="pattern"):
        cell.node("n3", [device("x" * (LONG_UUID + 1))])


def test_a_node_that_goes_on_without_devices_ends_their_leases_step_by_step() -> None:
    """More is held of a few shared devices than one record takes; the others are let be."""
    devices = [device(f"GPU-{at}") for at in range(3)]
    cell = _cell(devices[:2], check=False)
    for at in range(800):
        cell.submit(f"r{at}", {"mode": "share", "gpu_milli": 2})
    cell.node("n1", devices)
    cell.submit("stays")
    first = len(cell.records)
    cell.node("n1", devices[2:])
    assert "device-gone" == cell.state.nodes["n1"].unsettled
    for _ in range(10):
        cell.tick()
    assert [f"{TEAM}#stays/1"] == list(cell.state.leases)
    reasons = [orjson.loads(value)["events"] for value in cell.records[first:]]
    ended = [one["reason"] for events in reasons for one in events if one["type"] == "lease.ended"]
    assert ["device-gone"] * 800 == ended
    assert 1 < len(reasons) < 10
    assert cell.digest() == digest(cell.replayed().cells)


def test_a_device_that_is_gone_ends_its_leases_while_others_are_cleaned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node on which much is to be cleaned is unsettled; what runs there is not being ended."""
    cell = _cell([device("GPU-1")], check=False)
    cell.submit("r")
    event = {"type": "node.unsettled", "node": "n1", "reason": losing.UNCLEAN}
    HANDLERS["node.unsettled"](cell.state, event, cell.now_us)
    # More is to be cleaned there than the records until then take.
    monkeypatch.setattr(losing, "_clean", lambda _turn, _node: False)
    cell.says("device.health", "n1", device="GPU-1", health="gone")
    assert {} == cell.state.leases


def test_a_device_of_many_long_slices_is_opened_again() -> None:
    """What stands on it is told in one line of text, which was longer than a line may be."""
    cell = _cell([])
    name = "1g." + "x" * 40
    kind = {"profile": name, "size": 1, "compute_slices": 0, "memory_mib": 1}
    made = [{**mig_slice(f"MIG-{at}", at, at), **kind, "compute_slices": 1} for at in range(16)]
    cell.node("n1", [device("GPU-1", mig_enabled=True, slices=made)])
    fold_alarm = {"type": "alarm.raised", "code": FAILED, "about": "GPU-1", "numbers": {}}
    for fold in (cell.fold, cell.twin):
        HANDLERS["alarm.raised"](fold.cell("c"), fold_alarm, cell.now_us)
    again = cell.node("n1", [device("GPU-1", mig_enabled=True, slices=made)], epoch=2)
    (opened,) = [one for one in again.events if one["type"] == "device.reopened"]
    assert 16 == opened["evidence"]["slices"]


def test_a_node_that_many_reservations_are_on_moves_them_in_several_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand reservations of a thousand nodes each were moved in one."""
    monkeypatch.setattr(reservations, "MAX_MOVED", 2)
    cell = _cell([device("GPU-1")])
    cell.node("n2", [device("GPU-2")])
    hour_us = 3_600_000_000
    for at in range(1, 6):
        window = {"start_us": NOW_US + at * hour_us, "end_us": NOW_US + (at + 1) * hour_us}
        said = {"reservation": f"r{at}", "tenant": "t", "author": "op", "reason": "", **window}
        cell.feed("reservation.apply", said, source="/operator")
    assert [["n1"]] * 5 == [one.chosen for one in cell.state.reservations.values()]
    done = [cell.node_set("n1", "maintenance"), cell.tick(), cell.tick(), cell.tick()]
    moved = [[one["type"] for one in each.events].count("reservation.moved") for each in done]
    assert [2, 2, 1, 0] == moved
    assert [["n2"]] * 5 == [one.chosen for one in cell.state.reservations.values()]
    assert not cell.state.alarms


WIDE = {
    "more instances at once than any board": (MOST_INSTANCES + 1, 1, 1),
    "more places than any board": (8, 1, MOST_PLACES // 8 + 1),
}


@pytest.mark.parametrize("wide", WIDE.values(), ids=WIDE)
def test_a_device_of_endless_layouts_is_not_planned(wide: tuple[int, int, int]) -> None:
    """To choose among them took the worker minutes, at the next request for a slice."""
    slices, size, kinds = wide
    profiles = [
        {"profile": f"{at}g.x", "size": size, "compute_slices": 1, "memory_mib": 1,
         "starts": range(slices)}
        for at in range(kinds)
    ]  # fmt: skip
    assert None is read_geometry(profiles, 64)
    assert None is not read_geometry(profiles[:1], 7)


# -- what a node reads -----------------------------------------------------------------


def test_a_device_whose_memory_cannot_be_is_left_out_and_its_agent_goes_on() -> None:
    """A driver that told all bits set for the memory ended the agent, and again at each start."""
    total = 0xFFFF_FFFF_FFFF_FFFF // 1_048_576
    odd = Device("GPU-1", model="M", memory=Memory(total, None, 0, 0), recovery_action=0)
    report, notes = device_report(odd, Standing("n1", "main"))
    assert None is report
    assert ["DeviceReport left out: memory_mib"] == [one.text.rpartition(": ")[0] for one in notes]


def test_a_number_that_cannot_be_costs_no_window() -> None:
    """The record of a node's use is one; what one device tells wrongly is missing, and said so."""
    window = Window()
    well = DeviceUse("GPU-1", gpu_percent=50)
    mad = DeviceUse("GPU-2", gpu_percent=50, temperature_c=0xFFFF_FFFF, power_mw=1 << 60)
    window.add(1_000_000, [well, mad], 1_000_000)
    many = [{"pid": 1, "memory_mib": 1 << 60}, {"pid": 0}]
    found = window.close({"GPU-2": many}) | {"window_us": 1, "node": "n1", "incarnation": "b1"}
    used = adapter("node.usage", 1).validate_json(orjson.dumps(found))
    assert [500, 500] == [one.busy_permille for one in used.devices]
    second = used.devices[1]
    assert (None, None) == (second.temperature_c, second.power_mw)
    assert {"power_mw": "implausible", "temperature_c": "implausible"} == second.missing
    assert [(1, None)] == [(one.pid, one.memory_mib) for one in second.processes]


def test_a_line_with_an_endless_number_is_read() -> None:
    """Python makes no number of thousands of digits, and raised in the node's agent."""
    line = f"NVRM: Xid (PCI:0000:0b:00): 48, pid={'9' * 5_000}, name=x"
    found = Parser().parse(line)
    assert found is not None
    assert (48, 9_999_999_999) == (found.xid, found.pid)


# -- the command line ------------------------------------------------------------------


@pytest.fixture
async def cli(tmp_path: Path) -> Cli:
    """Return the command on a small site's log."""
    async with SqliteLog(tmp_path / "log.sqlite") as log:
        await Site(log).start(gpus=1)
    return Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)


NO_INPUTS = {
    "a number of more than 64 bits": ("submit", "--tenant=t", "--queue=q", f"--max-run-s={10**24}"),
    "an argument that is no text": ("why", "\udcff"),
}


@pytest.mark.parametrize("given", NO_INPUTS.values(), ids=NO_INPUTS)
def test_what_is_no_input_is_said_to_be_none(cli: Cli, given: tuple[str, ...]) -> None:
    """The command says what is wrong in a line; it never ends with a trace."""
    done = cli(*given)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("gpuledger: ")
    assert 1 == len(done.stderr.splitlines())
