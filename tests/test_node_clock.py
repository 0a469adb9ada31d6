"""A node whose wall clock is off: what is due is judged by the ledger's clock and durations."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.agent.ledger_clock import is_past, learn_time, time_is_known
from collectors.fleet.fault_plan import Down
from ledger.wire import input_entry
from tests.fleet_rig import CELL, FleetRig, host
from tests.node_support import SECOND, Rig
from tests.processor_support import POLICY, release

HOUR = 3600 * SECOND
_SLICE = {"mode": "mig", "profile": "2g.20gb"}


async def _reasons(rig: FleetRig, kind: str) -> list[str]:
    return [one["reason"] for one in await rig.told(kind)]


@pytest.mark.parametrize("off_us", [HOUR, -HOUR, 0], ids=["ahead", "behind", "right"])
async def test_c43_a_slice_is_made_leased_and_given_back_whatever_the_nodes_clock_says(
    off_us: int,
) -> None:
    """Nothing is refused or given up for a clock that is an hour off, and nothing takes longer."""
    rig = FleetRig(host("n1", "H100-80GB"))
    await rig.open()
    rig.host().set_clock(off_us)
    await rig.ask("mig", _SLICE)
    assert ["/team/a#mig/1"] == list(rig.state.leases)
    (pid,) = {one.pid for gpu in rig.host().node.gpus for one in gpu.processes}
    assert "alive" == rig.host().processes.state(pid)
    await rig.log.append("gpuledger.requests", None, [release(CELL, "/team/a#mig/1")])
    await rig.live(15)
    assert {} == rig.state.leases
    assert [] == await _reasons(rig, "order.failed")
    took_us = [one["took_us"] for one in await rig.told("order.done")]
    assert len(took_us) == 2, "the change, and the proof of clean"
    assert max(took_us) <= 15 * SECOND
    rig.check()


@pytest.mark.parametrize("off_us", [HOUR, -HOUR, 0], ids=["ahead", "behind", "right"])
async def test_an_order_that_the_ledger_has_given_up_is_past_due_on_every_clock(
    off_us: int,
) -> None:
    """It waited in the topic while the agent was away; by the stamp of a beat it is too late."""
    away = Down(kind="down", incarnation="same", node="n1", at_s=6, for_s=60)
    rig = FleetRig(host("n1", "H100-80GB"), faults=(away,))
    await rig.open(order_timeout_s=30, silent_grace_s=3600)
    rig.host().set_clock(off_us)
    await rig.live(4)
    uuid = rig.host().gpu(0).uuid
    asked: dict[str, Any] = {"device": uuid, "layout": ["7g.80gb"], **POLICY}
    entry = input_entry(CELL, "device.partition", "/ops", "layout", asked)
    await rig.log.append("gpuledger.requests", None, [entry])
    await rig.live(40)
    assert {} == rig.state.orders, "it is given up"
    await rig.live(60)
    assert ["past-due"] == await _reasons(rig, "order.failed")
    assert [] == list(rig.host().gpu(0).instances)
    rig.check()


async def test_what_the_ledgers_clock_says_is_learned_from_its_records_and_kept_for_the_boot() -> (
    None
):
    """A record is never from the future: the latest of them counts, and time since goes on."""
    rig = Rig()
    await rig.start()
    journal = rig.journal
    now_us = rig.time.wall_us
    assert not time_is_known(journal)
    assert not is_past(journal, now_us - HOUR), "nobody knows what time it is"
    learn_time(journal, [now_us - 7 * SECOND, now_us - 5 * SECOND])
    assert is_past(journal, now_us - 6 * SECOND)
    assert not is_past(journal, now_us - 4 * SECOND)
    assert is_past(journal, now_us - 4 * SECOND, 2 * SECOND)
    learn_time(journal, [now_us - HOUR])
    assert is_past(journal, now_us - 6 * SECOND), "an older record takes nothing back"
    rig.time.passes(10 * SECOND)
    assert is_past(journal, now_us + 4 * SECOND)
    rig.time.wall_us -= HOUR
    assert is_past(journal, now_us + 4 * SECOND), "the wall clock has no say"
    assert not is_past(journal, None)
    rig.boot = "machine-boot-2"
    await rig.restart()
    assert not time_is_known(journal), "another boot counts from another zero"


async def test_a_process_that_ends_slowly_has_its_grace_on_a_clock_that_is_ahead() -> None:
    """C43: the proof of clean waits for it by durations, instead of giving up at once."""
    rig = FleetRig(host("n1", "L40S"))
    await rig.open()
    rig.host().set_clock(HOUR)
    await rig.ask("card", {"mode": "whole"})
    gpu = rig.host().gpu(0)
    gpu.leaked_mib = 512
    await rig.log.append("gpuledger.requests", None, [release(CELL, "/team/a#card/1")])
    await rig.live(20)
    assert [] == await _reasons(rig, "order.failed"), "the memory may still be given back"
    gpu.leaked_mib = 0
    await rig.live(5)
    assert [] == await _reasons(rig, "order.failed")
    assert {"healthy"} == {one.health for one in rig.state.devices.values()}
    rig.check()
