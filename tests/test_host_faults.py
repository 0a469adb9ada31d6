"""What befalls machines, fault by fault: what the ledger makes of it, and that both sides agree.

The plan is the same for each: a slice and a whole card are leased, the fault strikes for a
minute, and meanwhile two more slices are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from collectors.files import BadFile
from collectors.fleet.fault_plan import (
    MACHINE_KINDS,
    ClockJump,
    Down,
    DriverReload,
    Fault,
    Flapping,
    Hang,
    LeakedMemory,
    Lost,
    PartialCreate,
    PartialDestroy,
    Silent,
    TwoAgents,
    Xid,
    check_nodes,
    read_faults,
)
from ledger.wire import input_entry
from tests.fleet_rig import CELL, FleetRig, host
from tests.processor_support import POLICY, release
from tests.test_tidy import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_WHEN: dict[str, Any] = {"node": "n1", "at_s": 20, "for_s": 60}
#: Longer than the agent's patience.
_LONG: dict[str, Any] = {**_WHEN, "for_s": 150}
_SLICE = {"mode": "mig", "profile": "2g.20gb"}
_MORE = {"mode": "mig", "profile": "1g.10gb"}
_CARD = {"mode": "whole", "models": ["NVIDIA L40S"]}


@dataclass(frozen=True)
class Case:
    """A fault, and what comes of it.

    ``ended`` is why the first two leases end; ``made``: a slice can be made while it lasts;
    ``health``: what is heard of the partitioned GPU.
    """

    fault: Fault
    ended: dict[str, str] = field(default_factory=dict)
    made: bool = False
    health: tuple[str, ...] = ()


_LOST_NODE = {"mig/1": "node-lost", "card/1": "node-lost"}

CASES = {
    "a call hangs": Case(Hang(kind="hang", **_WHEN), health=("unknown", "healthy")),
    "an XID, and the driver asks for a reset": Case(
        Xid(kind="xid", **_WHEN), {"mig/1": "device-fault"}, health=("unhealthy", "healthy")
    ),
    "the GPU is lost": Case(
        Lost(kind="lost", **_WHEN),
        {"mig/1": "device-gone"},
        health=("gone", "unhealthy", "healthy"),
    ),
    "the machine reboots": Case(Down(kind="down", **_WHEN), _LOST_NODE),
    "only the agent is away, for long": Case(
        Down(kind="down", incarnation="same", **_WHEN), _LOST_NODE
    ),
    "only the agent is away, for a moment": Case(
        Down(kind="down", incarnation="same", **{**_WHEN, "for_s": 4}), made=True
    ),
    "the machine is cut off": Case(Silent(kind="silent", **_WHEN), _LOST_NODE),
    "the driver is loaded anew": Case(
        DriverReload(kind="driver-reload", **_WHEN),
        {"mig/1": "failed", "card/1": "failed"},
        made=True,
    ),
    "no compute instance can be made": Case(PartialCreate(kind="partial-create", **_WHEN)),
    "the clock is an hour ahead": Case(ClockJump(kind="clock-jump", by_s=3600, **_WHEN), made=True),
    "the clock is an hour behind": Case(
        ClockJump(kind="clock-jump", by_s=-3600, **_WHEN), made=True
    ),
    "two agents": Case(TwoAgents(kind="two-agents", **_WHEN), made=True),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_fault_and_what_comes_of_it(name: str) -> None:
    """The leases that it ends have the reason, and when it is over both sides agree."""
    case = CASES[name]
    rig = FleetRig(host("n1"), faults=(case.fault,))
    await rig.open()
    await rig.ask("mig", _SLICE)
    await rig.ask("card", _CARD)
    assert {"/team/a#mig/1", "/team/a#card/1"} == set(rig.state.leases)
    await rig.live(10)
    await rig.ask("more", _MORE, max_wait_s=30)
    await rig.ask("bigger", {"mode": "mig", "profile": "3g.40gb"})
    assert case.made == ("/team/a#more/1" in rig.state.leases)
    await rig.live(150)
    assert case.ended == await rig.ended()
    gpu = rig.host().gpu(0)
    assert list(case.health) == await rig.healths(gpu.uuid)
    assert {"healthy"} == {one.health for one in rig.state.devices.values()}
    rig.check()
    # Whoever waits is served, at the latest when an operator has looked at the device.
    clear = {"device": gpu.uuid, **POLICY}
    entry = input_entry(CELL, "device.clear", "/ops", "looked-at", clear)
    await rig.log.append("gpuledger.requests", None, [entry])
    await rig.live(10)
    assert "/team/a#bigger/1" in rig.state.leases
    rig.check()


async def test_a_half_destroyed_slice_keeps_its_device_out_of_use() -> None:
    """It is unhealthy with the evidence until the rest is gone, and then what waited is made."""
    fault = PartialDestroy(kind="partial-destroy", **_LONG)
    rig = FleetRig(host("n1", "H100-80GB"), faults=(fault,))
    await rig.open()
    await rig.ask("small", _MORE)
    await rig.log.append("gpuledger.requests", None, [release(CELL, "/team/a#small/1")])
    await rig.live(20)
    assert {} == rig.state.leases
    await rig.ask("whole", {"mode": "mig", "profile": "7g.80gb"})
    gpu = rig.host().gpu(0)
    await rig.live(90)
    assert "unhealthy" == rig.state.devices[gpu.uuid].health
    assert {} == rig.state.leases
    await rig.live(120)
    assert ["unhealthy", "healthy"] == await rig.healths(gpu.uuid)
    rig.check()


async def test_leaked_memory_is_not_clean() -> None:
    """A slice whose memory stays in use is quarantined, with what was measured."""
    rig = FleetRig(host("n1", "H100-80GB"), faults=(LeakedMemory(kind="leaked-memory", **_LONG),))
    await rig.open()
    await rig.ask("mig", _SLICE)
    await rig.live(20)
    await rig.log.append("gpuledger.requests", None, [release(CELL, "/team/a#mig/1")])
    await rig.live(90)
    evidence = (await rig.told("order.failed"))[-1]["evidence"]
    assert 4096 == evidence["memory_mib"] - evidence["baseline_mib"]
    assert [True] == [one.quarantine is not None for one in rig.state.slices.values()]
    rig.check()


async def test_a_flapping_device_ends_well() -> None:
    """Whatever was placed on it between has ended with the reason, and nothing is left over."""
    rig = FleetRig(host("n1"), faults=(Flapping(kind="flapping", **_WHEN),))
    await rig.open()
    await rig.ask("mig", _SLICE)
    await rig.ask("card", _CARD)
    await rig.live(10)
    await rig.ask("more", _MORE)
    await rig.live(150)
    assert {"device-fault"} == set((await rig.ended()).values())
    assert "mig/1" in await rig.ended()
    assert "/team/a#card/1" in rig.state.leases
    healths = await rig.healths(rig.host().gpu(0).uuid)
    assert "unhealthy" == healths[0]
    rig.check()


def test_the_example_has_every_kind() -> None:
    """And it fits the machines that its first line names."""
    plan = read_faults(ROOT / "examples" / "fleet-faults.toml")
    assert {one.kind for one in plan.fault} == MACHINE_KINDS
    nodes = {f"n{number:04}": 8 for number in range(1, 14)}
    check_nodes(plan, nodes, MACHINE_KINDS)


def test_a_kind_that_machines_do_not_know(tmp_path: Path) -> None:
    """It is refused by name: passed over, the plan would not be what was asked for."""
    path = tmp_path / "plan.toml"
    path.write_text('[[fault]]\nkind = "late"\nnode = "n1"\nat_s = 5\nby_s = 1\n')
    with pytest.raises(BadFile, match="know no fault 'late'"):
        check_nodes(read_faults(path), {"n1": 8}, MACHINE_KINDS)
