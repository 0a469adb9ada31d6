"""Fault plans: how they are read, and what each fault does to a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from collectors.files import BadFile
from collectors.fleet.description import read_fleet
from collectors.fleet.fault_plan import (
    CleanFails,
    DeviceFault,
    Down,
    FaultPlan,
    Silent,
    StopUnanswered,
    check_nodes,
    read_faults,
    turns,
)
from tests.simulated_site import SimulatedSite
from tests.test_tidy import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from collectors.fleet.fault_plan import Fault

US = 1_000_000
_SILENT_UNTIL_15 = '[[fault]]\nkind = "silent"\nnode = "n1"\nat_s = 5\nfor_s = 10\n'


def test_the_example_has_every_kind() -> None:
    """And it fits the example of a fleet."""
    plan = read_faults(ROOT / "examples" / "faults.toml")
    assert {fault.kind for fault in plan.fault} == {
        "down",
        "silent",
        "device",
        "clean-fails",
        "stop-unanswered",
        "duplicate",
        "late",
    }
    fleet = read_fleet(ROOT / "examples" / "fleet.toml")
    check_nodes(plan, {one.name: len(one.devices) for one in fleet.specs()})


def test_json_says_the_same(tmp_path: Path) -> None:
    """A plan may be JSON as well as TOML."""
    toml, json = tmp_path / "plan.toml", tmp_path / "plan.json"
    toml.write_text('[[fault]]\nkind = "silent"\nnode = "n1"\nat_s = 5\n')
    json.write_bytes(orjson.dumps({"fault": [{"kind": "silent", "node": "n1", "at_s": 5}]}))
    assert read_faults(toml) == read_faults(json)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[fault]\n", "not TOML"),
        ('[[fault]]\nkind = "meteor"\nnode = "n1"\nat_s = 5\n', "fault.0"),
        ('[[fault]]\nkind = "late"\nnode = "n1"\nat_s = 5\n', "by_s"),
        ('[[fault]]\nkind = "silent"\nnode = "n1"\nat_s = -5\n', "at_s"),
        ('[[fault]]\nkind = "silent"\nnode = "n1"\nat_s = 5\nfor_s = 0\n', "for_s"),
        ('[[fault]]\nkind = "silent"\nnode = "n1"\nat_s = "5"\n', "at_s"),
        ('[[fault]]\nkind = "silent"\nnode = "n1"\nat_s = 5\nwhy = "x"\n', "why"),
        (
            _SILENT_UNTIL_15 + '[[fault]]\nkind = "down"\nnode = "n1"\nat_s = 14\n',
            "begins before",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """The file's name, the place in it, and the reason."""
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(BadFile, match=told) as caught:
        read_faults(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """By name, without a trace."""
    with pytest.raises(BadFile, match="No such file"):
        read_faults(tmp_path / "none.toml")


def test_a_plan_must_fit_the_fleet() -> None:
    """Nodes and devices that are not there cannot fail."""
    silent = Silent(kind="silent", node="n2", at_s=0)
    with pytest.raises(BadFile, match="'n2'"):
        check_nodes(FaultPlan(fault=(silent,)), {"n1": 8})
    card = DeviceFault(kind="device", node="n1", at_s=0, device=8, health="gone")
    with pytest.raises(BadFile, match="device 8"):
        check_nodes(FaultPlan(fault=(card,)), {"n1": 8})


def test_turns_are_in_order_and_ends_come_first() -> None:
    """A fault may follow another at the same second."""
    first = Silent(kind="silent", node="n1", at_s=10, for_s=5)
    second = Down(kind="down", node="n1", at_s=15)
    found = turns(FaultPlan(fault=(second, first)), 100)
    assert [(turn.at_us, turn.fault, turn.begins) for turn in found] == [
        (100 + 10 * US, first, True),
        (100 + 15 * US, first, False),
        (100 + 15 * US, second, True),
    ]


# What follows runs each fault against a real ledger, in virtual time: one node with two
# devices, one request for both of them that runs for 1000 s and may be tried once more.


async def run(*faults: Fault, acts: list[tuple[int, str, dict[str, Any]]] | None = None) -> Any:
    """Run one request through the faults; return the site after it."""
    site = SimulatedSite(FaultPlan(fault=faults), retries=1)
    await site.run(acts or [])
    return site


def reasons(site: Any) -> list[str]:
    """Return why the leases ended."""
    return [event["reason"] for event in site.events if event["type"] == "lease.ended"]


async def test_without_faults_the_request_completes() -> None:
    """One lease, held for exactly the run time, its devices proved clean."""
    site = await run()
    assert reasons(site) == ["completed"]
    (ended,) = [event for event in site.events if event["type"] == "lease.ended"]
    assert ended["held_us"] == 1000 * US
    assert site.device_states == ["available", "available"]


async def test_a_reboot_within_the_grace_interrupts() -> None:
    """The new incarnation tells it; the request runs again and completes."""
    site = await run(Down(kind="down", node="n1", at_s=100, for_s=40))
    assert reasons(site) == ["node-restarted", "completed"]
    assert site.ended_at_s == 140 + 2 + 1000
    assert site.device_states == ["available", "available"]


async def test_a_long_absence_loses_the_node() -> None:
    """Silent after the heartbeat limit, lost after the grace; cleaned when it is back."""
    site = await run(Down(kind="down", node="n1", at_s=100, for_s=500))
    assert reasons(site) == ["node-lost", "completed"]
    lost = next(one for one in site.timed if one[1].get("state") == "lost")
    assert lost[0] == 100 + site.heartbeat_limit_s + site.grace_s
    assert site.device_states == ["available", "available"]


async def test_an_agent_restart_interrupts_nothing() -> None:
    """The tasks ran on, and so does the lease."""
    site = await run(Down(kind="down", node="n1", at_s=100, for_s=40, incarnation="same"))
    assert reasons(site) == ["completed"]


async def test_a_short_silence_interrupts_nothing() -> None:
    """Silent and back: the lease goes on; what ended meanwhile is told late."""
    site = await run(Silent(kind="silent", node="n1", at_s=980, for_s=60))
    assert reasons(site) == ["completed"]
    states = [event["state"] for event in site.events if event["type"] == "node.changed"]
    assert "silent" in states
    assert site.ended_at_s == 1040


async def test_a_long_silence_ends_the_task_that_ran_on() -> None:
    """The zombie is ended by cleaning before its devices are leased again."""
    site = await run(Silent(kind="silent", node="n1", at_s=100, for_s=500))
    assert reasons(site) == ["node-lost", "completed"]
    assert site.ended_at_s == 600 + 2 + 1000
    assert site.device_states == ["available", "available"]


async def test_an_unhealthy_device_keeps_its_lease_but_gets_no_other() -> None:
    """Health alone ends nothing: the task may still be running well."""
    fault = DeviceFault(kind="device", node="n1", at_s=100, device=1, health="unhealthy")
    site = await run(fault)
    assert reasons(site) == ["completed"]
    assert site.device_states == ["available", "unhealthy"]


async def test_a_gone_device_interrupts_and_is_cleaned_when_it_is_back() -> None:
    """The request waits until both devices are there again."""
    fault = DeviceFault(kind="device", node="n1", at_s=100, device=1, health="gone", for_s=400)
    site = await run(fault)
    assert reasons(site) == ["device-gone", "completed"]
    assert site.ended_at_s == 500 + 2 + 1000
    assert site.device_states == ["available", "available"]


async def test_a_failed_clean_quarantines_with_evidence() -> None:
    """Nothing leases the devices until somebody gives a word."""
    site = await run(CleanFails(kind="clean-fails", node="n1", at_s=0))
    assert reasons(site) == ["completed"]
    assert site.device_states == ["quarantined", "quarantined"]
    (shut, _) = [event for event in site.events if event["type"] == "device.quarantined"]
    assert shut["evidence"] == {"processes": 1, "memory_mib": 1_028, "baseline_mib": 4}


async def test_an_unanswered_stop_times_out_and_quarantines() -> None:
    """The lease ends when the order's time is up; its devices were not proved stopped."""
    cancel = (100, "request.cancel", {"request": SimulatedSite.REQUEST})
    site = await run(StopUnanswered(kind="stop-unanswered", node="n1", at_s=0), acts=[cancel])
    (timed_out,) = [event for event in site.events if event["type"] == "order.timed-out"]
    assert timed_out["order"].startswith("dc1-o")
    assert site.device_states == ["quarantined", "quarantined"]
    assert site.ended_at_s == 100 + site.order_timeout_s


async def test_a_stop_is_answered() -> None:
    """The same cancellation without the fault, for comparison."""
    cancel = (100, "request.cancel", {"request": SimulatedSite.REQUEST})
    site = await run(acts=[cancel])
    assert reasons(site) == ["cancelled"]
    assert site.ended_at_s == 101
    assert site.device_states == ["available", "available"]
