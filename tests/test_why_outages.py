"""Why a request waits whose devices are out of use: the cause, since when, and what ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collectors.agent.agent import NodeOptions
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.node import Event
from collectors.health.hearing import WatchOptions
from collectors.nvml.codes import Code
from collectors.nvml.events import XID
from ledger.amounts import time_text
from ledger.answers.outages import Outage
from ledger.cli.explained import explained, waiting
from ledger.explain import Explanation, why
from tests.answers import ask, explain, history, site
from tests.node_support import SECOND, Rig, held_by_nobody_seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.testing import CoreDriver

WHOLE = {"mode": "whole"}


def rig_of(*boards: str, mig: bool = False) -> Rig:
    """Return a rig whose agent listens every second."""
    return Rig(boards, mig=mig, options=NodeOptions(watch=WatchOptions()))


def asked(rig: Rig, name: str = "waits") -> Explanation:
    """Explain a request that waits."""
    found = why(rig.cell.state, history(rig.cell), f"/team/a#{name}")
    assert found is not None
    assert "waiting" == found.status
    return found


async def shut_by(rig: Rig, xid: int) -> int:
    """Let an XID shut the first GPU; return the ledger's time just before."""
    # A driver that gives no verdict of its own: the XID says what the device needs.
    rig.node.gpus[0].recovery_action = None
    await rig.start()
    before_us = rig.cell.now_us
    rig.node.happen(Event(rig.node.gpus[0], XID, xid))
    await rig.settle(3)
    rig.submit("waits", WHOLE)
    return before_us


async def test_an_xid_is_named_with_its_device_since_when_and_what_brings_it_back() -> None:
    """Through the real agent: the fault that shut the only GPU is the reason in `why`."""
    rig = rig_of("L40S")
    before_us = await shut_by(rig, 79)
    found = asked(rig)
    uuid = rig.node.gpus[0].uuid
    (one,) = found.outages
    assert (uuid, "health", "unhealthy", "xid-79") == (one.about, one.kind, one.state, one.code)
    assert "XID 79: the device has fallen off the bus" == one.reason
    assert before_us <= one.since_us <= rig.cell.now_us
    assert one.until.startswith("it was reset (its counters begin anew,")
    text = explained(found)
    assert f"out of use: {uuid}: unhealthy since {time_text(one.since_us)}: xid-79: XID 79" in text
    assert one.until in text
    assert one.until in waiting(found), "who waits with `run` is told the same"
    (seen,) = [each for each in history(rig.cell) if each.position == one.position]
    assert "device.health" in {event["type"] for event in seen.data["events"]}

    rig.node.reboot()
    rig.boot = "machine-boot-2"
    await rig.restart()
    await rig.settle(1)
    assert "granted" == rig.cell.state.requests["/team/a#waits"].state


@pytest.mark.parametrize("action", [1, 2, 4])
async def test_the_drivers_verdict_is_what_ends_it(action: int) -> None:
    """Where the driver asks for something, that is what brings the device back."""
    rig = rig_of("H100-80GB")
    await rig.start()
    rig.node.gpus[0].recovery_action = action
    await rig.settle(15)
    rig.submit("waits", WHOLE)
    (one,) = asked(rig).outages
    assert f"recovery-action-{action}" == one.code
    assert f"the driver's recovery action {action} is carried out" in one.until


async def test_heat_is_over_by_itself() -> None:
    """Nothing has to be done but to wait."""
    rig = rig_of("L40S")
    await rig.start()
    rig.node.gpus[0].temperature_c = 120
    await rig.settle(60)
    rig.submit("waits", WHOLE)
    (one,) = asked(rig).outages
    assert one.reason.startswith("too hot")
    assert "a minute" in one.until


async def test_what_a_change_has_left_is_named_with_who_holds_it() -> None:
    """In use with nobody in sight: the device, the order, the evidence, and what ends it."""
    rig = await held_by_nobody_seen()
    rig.submit("waits", {"mode": "mig", "profile": "3g.40gb"})
    (one,) = asked(rig).outages
    assert ("unhealthy", "in-use") == (one.state, one.reason)
    assert "what is left of the change is gone: its node tries again by itself" == one.until
    assert rig.orders[0].order == one.evidence["order"]


async def test_a_change_that_failed_is_named_until_the_device_is_asked_again() -> None:
    """The second failure in a row: the device is well, and is left alone for a while."""
    rig = Rig()
    await rig.start()
    rig.node.faults = [Fault("nvmlDeviceCreateGpuInstanceWithPlacement", Code.NO_PERMISSION)]
    rig.submit("waits", {"mode": "mig", "profile": "3g.40gb"})
    await rig.settle(30)
    (one,) = asked(rig).outages
    assert ("partition", "partition_failed") == (one.kind, one.code)
    assert "no-permission" in one.reason
    assert "its node reports it whole and well again" in one.until
    rig.node.faults.clear()
    await rig.settle(700)
    assert "granted" == rig.cell.state.requests["/team/a#waits"].state


# -- on records alone ------------------------------------------------------------------------


def unhealthy(cell: CoreDriver, health: str = "unhealthy", **more: Any) -> None:
    """Let the node say that the device is not healthy."""
    cell.says("device.health", "n1", device="GPU-1a", health=health, **more)


def quarantine(cell: CoreDriver) -> None:
    """Let a proof of clean fail."""
    ask(cell, "first")
    cell.release(cell.lease("first").id)
    (order,) = cell.state.orders
    cell.says("order.failed", "n1", order=order, reason="memory is left", evidence={"mib": 7})


CASES: dict[str, tuple[Callable[[CoreDriver], object], str, str]] = {
    "in quarantine": (quarantine, "quarantine", "gpuledger device clear"),
    "unknown": (lambda cell: unhealthy(cell, "unknown"), "health", "it can be read again"),
    "nothing more is known": (unhealthy, "health", "its node reports it healthy"),
    "held back": (
        lambda cell: unhealthy(cell, reason="well again, held back for 60 s after 3 faults"),
        "health", "it stays well for as long as it is held back",
    ),
    "a row that failed": (
        lambda cell: unhealthy(cell, reason="a row of memory could not be remapped"),
        "health", "it is replaced",
    ),
    "a node that is drained": (
        lambda cell: cell.node_set("n1", "draining"), "node", "gpuledger node set",
    ),
    "a node that is silent": (lambda cell: cell.silent("n1"), "node", "it is heard again"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_way_of_being_out_of_use(name: str) -> None:
    """The cause is on record with its time, and what ends it is told; afterwards it is not."""
    what, kind, until = CASES[name]
    cell = site(gpus=1)
    what(cell)
    shut_us = cell.now_us
    cell.tick(at_us=cell.now_us + SECOND)
    ask(cell, "waits")
    (one,) = explain(cell, "waits").outages
    assert (kind, shut_us) == (one.kind, one.since_us)
    assert until in one.until
    (line,) = explain(cell, "waits").out_of_use
    assert one.text in line


def test_an_outage_goes_on_from_where_it_began_and_ends() -> None:
    """Another word of the same outage keeps its beginning; healthy again, it is forgotten."""
    cell = site(gpus=1)
    unhealthy(cell, reason="first")
    began_us = cell.now_us
    unhealthy(cell, "unknown", reason="second")
    ask(cell, "waits")
    (one,) = explain(cell, "waits").outages
    assert (began_us, "unknown", "second") == (one.since_us, one.state, one.reason)
    assert began_us < (one.state_us or 0) <= cell.now_us
    first, then = time_text(began_us), time_text(one.state_us or 0)
    assert one.text.startswith(f"unknown since {then} (out of use since {first}): second")
    unhealthy(cell, "unknown", reason="third")
    (more,) = explain(cell, "waits").outages
    assert (one.since_us, one.state_us) == (more.since_us, more.state_us)
    unhealthy(cell, "healthy")
    assert "granted" == cell.state.requests[cell.key("waits")].state
    unhealthy(cell, reason="third")
    ask(cell, "later")
    (again,) = explain(cell, "later").outages
    assert again.since_us > began_us


def test_an_outage_in_words() -> None:
    """What happened, since when, what was measured, and what ends it; code or not."""
    one = Outage("GPU-a", "health", "unhealthy", "xid-79", "gone", 0, "events/0@1", "it is reset",
                 {"pid": 7})  # fmt: skip
    assert (
        "unhealthy since 1970-01-01T00:00:00.000Z: xid-79: gone (pid 7); back when it is reset"
    ) == one.text
