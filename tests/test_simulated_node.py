"""The simulated node keeps the promises of a node agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collectors.fleet.description import (
    DeviceGroup,
    DeviceSpec,
    Fleet,
    NodeGroup,
    NodeSpec,
    SliceSpec,
    device_uuid,
)
from collectors.fleet.fault_plan import DeviceFault, Down, Duplicate, Late, Silent
from collectors.light.node import Ending, SimulatedNode, Timing
from collectors.said import agent_source
from schemas.catalogue import adapter
from schemas.messages import Order
from schemas.observations import ProfileReport

if TYPE_CHECKING:
    from collectors.fleet.fault_plan import Fault
    from collectors.said import Said

US = 1_000_000
NODE = "n1"
UUID = device_uuid(NODE, 0)
TIMING = Timing(start_us=0, stop_us=1 * US, clean_us=2 * US, inventory_every_us=1000 * US)


def spec(devices: int = 2) -> NodeSpec:
    """Return a node with whole devices."""
    return NodeSpec(
        NODE,
        "train",
        tuple(DeviceSpec(device_uuid(NODE, at), "H100", 81_559, at) for at in range(devices)),
        cpu_milli=64_000,
        memory_mib=524_288,
    )


def node(**more: Any) -> SimulatedNode:
    """Return a node that has booted at 0 and told its inventory."""
    made = SimulatedNode(spec(), "dc1", **{"timing": TIMING, **more})
    made.start(0)
    made.take()
    return made


def order(kind: str, lease: str = "/a#r1/1", **more: Any) -> Order:
    """Return an order for the node's first boot."""
    plain = {
        "order": f"{lease}/{kind}",
        "kind": kind,
        "node": NODE,
        "incarnation": "boot-1",
        "cell": "dc1",
        "lease": lease,
        "task": "run-1",
        "units": (UUID,),
        "expected_run_us": 60 * US,
    }
    return Order.model_validate({**plain, **more})


def kinds(said: list[Said]) -> list[str]:
    """Return the types of what was said."""
    return [one.type for one in said]


def said_at(one: SimulatedNode, now_us: int) -> list[Said]:
    """Let time pass and return what is said, each checked as its topic does."""
    one.advance(now_us)
    said = one.take()
    for each in said:
        adapter(each.type, 1).validate_json(each.entry("dc1", NODE).value or b"")
    return said


def test_a_boot_tells_the_whole_inventory_and_again_every_so_often() -> None:
    """Incarnation, epoch and every device; the same facts later under another id."""
    made = SimulatedNode(spec(), "dc1", timing=TIMING)
    assert made.next_us() is None
    made.start(5)
    (first,) = said_at(made, 5)
    assert (first.type, first.data["incarnation"], first.data["epoch"]) == (
        "node.inventory",
        "boot-1",
        1,
    )
    assert [one["uuid"] for one in first.data["devices"]] == [UUID, device_uuid(NODE, 1)]
    assert {one["health"] for one in first.data["devices"]} == {"healthy"}
    assert made.next_us() == 5 + TIMING.inventory_every_us
    (second,) = said_at(made, 5 + TIMING.inventory_every_us)
    assert second.id != first.id
    assert second.data | {"node_time_us": 5} == first.data


def test_slices_are_in_the_inventory() -> None:
    """A device with slices says that MIG is on, and where they stand."""
    small = SliceSpec(profile="1g.10gb", start=6, size=1, compute_slices=1, memory_mib=9_984)
    card = DeviceGroup(count=1, model="H100", memory_mib=81_559, compute_slices=7, slices=(small,))
    (one,) = Fleet(cell="dc1", nodes=(NodeGroup(name=NODE, pool="p", devices=(card,)),)).specs()
    made = SimulatedNode(one, "dc1")
    made.start(0)
    (said,) = said_at(made, 0)
    (device,) = said.data["devices"]
    assert device["mig_enabled"]
    assert [(each["profile"], each["start"]) for each in device["slices"]] == [("1g.10gb", 6)]


def test_a_task_runs_as_long_as_expected_and_ends_by_itself() -> None:
    """Started on `prepare`, ended after the run time, each at its own instant."""
    made = node()
    made.hear(order("prepare"), 10)
    assert list(made.running) == ["/a#r1/1"]
    assert made.busy
    (started,) = said_at(made, 10)
    assert (started.type, started.data["lease"]) == ("task.started", "/a#r1/1")
    assert made.next_us() == 10 + 60 * US
    assert not said_at(made, 10 + 60 * US - 1)
    (ended,) = said_at(made, 10 + 60 * US)
    assert ended.type == "task.ended"
    assert (ended.data["how"], ended.data["exit_code"]) == ("completed", 0)
    assert ended.data["took_us"] == 60 * US
    assert not made.busy


def test_a_task_without_expectation_runs_for_the_default() -> None:
    """And a start that takes time does not shorten the run."""
    made = node(timing=Timing(start_us=3, default_run_us=100))
    made.hear(order("prepare", expected_run_us=None), 0)
    assert not said_at(made, 2)
    assert kinds(said_at(made, 3)) == ["task.started"]
    assert not said_at(made, 102)
    assert kinds(said_at(made, 103)) == ["task.ended"]


def test_the_trace_says_how_a_task_ends() -> None:
    """`ending` is asked with the order, so it can look the task up."""
    made = node(ending=lambda given: Ending(7, "failed", 3 if given.task == "run-1" else None))
    made.hear(order("prepare"), 0)
    (_, ended) = said_at(made, 7)
    assert (ended.data["how"], ended.data["exit_code"]) == ("failed", 3)


def test_stop_ends_a_running_task() -> None:
    """The task is stopped after the time that stopping takes, with how long it ran."""
    made = node()
    made.hear(order("prepare"), 0)
    made.hear(order("stop"), 10 * US)
    assert kinds(said_at(made, 11 * US - 1)) == ["task.started"]
    (ended,) = said_at(made, 11 * US)
    assert (ended.data["how"], ended.data["took_us"]) == ("stopped", 11 * US)
    assert not said_at(made, 100 * US)


def test_stop_before_the_start_means_never_started() -> None:
    """A task that was being made ready, and one that was never ordered."""
    made = node(timing=Timing(start_us=50, stop_us=10))
    made.hear(order("prepare"), 0)
    made.hear(order("stop"), 0)
    made.hear(order("stop", "/a#r2/1"), 0)
    said = said_at(made, 1000)
    assert [(one.data["lease"], one.data["how"]) for one in said] == [
        ("/a#r2/1", "never-started"),
        ("/a#r1/1", "never-started"),
    ]


def test_stop_that_crosses_the_end_is_answered_by_the_end() -> None:
    """What was said already is not said again, unless the order comes again."""
    made = node()
    made.hear(order("prepare"), 0)
    (_, ended) = said_at(made, 60 * US)
    made.hear(order("stop"), 60 * US)
    assert not said_at(made, 70 * US)
    made.hear(order("stop"), 70 * US)
    assert said_at(made, 70 * US) == [ended]


def test_clean_is_proved_with_evidence_and_ends_what_is_left() -> None:
    """A lease that the ledger gave up may still run here: cleaning ends it without a word."""
    made = node()
    made.hear(order("prepare"), 0)
    made.hear(order("clean"), 1 * US)
    assert not made.running
    said = said_at(made, 100 * US)
    assert kinds(said) == ["task.started", "order.done"]
    assert said[1].data["order"] == "/a#r1/1/clean"
    assert said[1].data["took_us"] == 2 * US
    assert said[1].data["evidence"] == {"processes": 0, "memory_mib": 4, "baseline_mib": 4}


@pytest.mark.parametrize("kind", ["prepare", "stop", "clean"])
def test_an_order_that_comes_again_is_answered_again_and_not_done_again(kind: str) -> None:
    """Same answer, same id; while it is being carried out there is none yet."""
    made = node(timing=Timing(start_us=5, stop_us=5, clean_us=5))
    if kind != "prepare":
        made.hear(order("prepare"), 0)
        said_at(made, 5)
    made.hear(order(kind), 10)
    made.hear(order(kind), 12)
    (answer,) = said_at(made, 15)
    made.hear(order(kind), 20)
    assert said_at(made, 20) == [answer]
    assert len(made.running) == (kind == "prepare")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"incarnation": "boot-0"}, "other incarnation"),
        ({"node": "n2"}, "other node"),
        ({"cell": "dc2"}, "other cell"),
    ],
)
def test_orders_for_others_are_refused(wrong: dict[str, Any], reason: str) -> None:
    """Nothing is done and nothing is said: the ledger has given those orders up itself."""
    made = node()
    made.hear(order("prepare", **wrong), 0)
    assert not made.running
    assert not said_at(made, 1000 * US - 1)
    assert made.refused == {reason: 1}


def test_a_restart_is_a_new_incarnation_without_tasks() -> None:
    """Orders that were meant for the boot before are refused."""
    made = node()
    made.hear(order("prepare"), 0)
    fault = Down(kind="down", node=NODE, at_s=0)
    made.turn(fault, 10 * US, begins=True)
    assert (made.connected, made.busy) == (False, False)
    made.hear(order("stop"), 11 * US)
    assert not said_at(made, 20 * US)
    made.turn(fault, 20 * US, begins=False)
    assert made.connected
    (inventory,) = said_at(made, 500 * US)
    assert (inventory.data["incarnation"], inventory.data["epoch"]) == ("boot-2", 1)
    assert made.refused == {"other incarnation": 1}


def test_an_agent_restart_keeps_tasks_and_raises_the_epoch() -> None:
    """Everything that was due meanwhile is told, before the inventory and at its own time."""
    made = node()
    made.hear(order("prepare"), 0)
    said_at(made, 0)
    fault = Down(kind="down", node=NODE, at_s=0, incarnation="same")
    made.turn(fault, 10 * US, begins=True)
    assert not said_at(made, 70 * US)
    made.turn(fault, 80 * US, begins=False)
    ended, inventory = said_at(made, 80 * US)
    assert (ended.type, ended.data["node_time_us"]) == ("task.ended", 60 * US)
    assert (inventory.data["incarnation"], inventory.data["epoch"]) == ("boot-1", 2)


def test_a_node_that_was_cut_off_tells_first_and_hears_then() -> None:
    """Kept back in order: what happened, what is there, then the answers to what was ordered."""
    made = node()
    made.hear(order("prepare"), 0)
    said_at(made, 0)
    fault = Silent(kind="silent", node=NODE, at_s=0)
    made.turn(fault, 10 * US, begins=True)
    made.hear(order("prepare", "/a#r2/1"), 20 * US)
    assert not said_at(made, 70 * US)
    assert list(made.running) == []
    made.turn(fault, 80 * US, begins=False)
    assert kinds(said_at(made, 80 * US)) == ["task.ended", "node.inventory", "task.started"]


def test_everything_twice_and_answers_late() -> None:
    """Duplicates are the same records; a late answer is late by what the plan says."""
    made = node()
    twice: Fault = Duplicate(kind="duplicate", node=NODE, at_s=0)
    late: Fault = Late(kind="late", node=NODE, at_s=0, by_s=30)
    made.turn(twice, 0, begins=True)
    made.turn(late, 0, begins=True)
    made.hear(order("clean"), 0)
    assert not said_at(made, 32 * US - 1)
    first, second = said_at(made, 32 * US)
    assert first == second
    made.turn(twice, 40 * US, begins=False)
    made.turn(late, 40 * US, begins=False)
    made.hear(order("clean", "/a#r2/1"), 40 * US)
    assert len(said_at(made, 42 * US)) == 1


def test_ids_are_never_used_twice() -> None:
    """Over boots and agent restarts, every observation and heartbeat has an id of its own."""
    made = SimulatedNode(spec(), "dc1", timing=TIMING)
    made.start(0)
    ids = []
    for step in range(1, 6):
        now_us = step * 100 * US
        ids += [one.id for one in said_at(made, now_us)] + [made.heartbeat(now_us).id]
        fault = Down(kind="down", node=NODE, at_s=0, incarnation="same" if step % 2 else "new")
        made.turn(fault, now_us, begins=True)
        made.turn(fault, now_us + 1, begins=False)
    assert len(ids) == len(set(ids)) == 10


def test_records_are_keyed_and_signed() -> None:
    """Observations by cell, heartbeats by node, both from the node's agent."""
    made = SimulatedNode(spec(), "dc1")
    made.start(0)
    entry = made.take()[0].entry("dc1", NODE)
    assert entry.key == b"dc1"
    assert ("ce_source", agent_source(NODE).encode()) in entry.headers
    assert agent_source(NODE) == "/nodes/n1/agent"
    beat = made.heartbeat(7)
    adapter("node.heartbeat", 1).validate_json(beat.entry(NODE, NODE).value or b"")
    assert beat.data["beat"] == 1


def test_a_gone_device_starts_nothing() -> None:
    """An order that crossed the loss of its device ends before it began."""
    made = node()
    made.turn(
        DeviceFault(kind="device", node=NODE, at_s=0, device=0, health="gone"), 0, begins=True
    )
    made.hear(order("prepare"), 1)
    gone, ended = said_at(made, 1)
    assert (gone.type, gone.data["health"]) == ("device.health", "gone")
    assert (ended.type, ended.data["how"]) == ("task.ended", "never-started")
    assert not made.running


def _partitioned(profile: str, *starts: int) -> ProfileReport:
    return ProfileReport(profile=profile, size=2, compute_slices=2, memory_mib=9_000, starts=starts)


def _partition_order(name: str, *steps: dict[str, Any]) -> Order:
    return Order.model_validate(
        {
            "order": name,
            "kind": "partition",
            "node": NODE,
            "incarnation": "boot-1",
            "cell": "dc1",
            "units": [UUID],
            "steps": list(steps),
        },
        strict=False,
    )


def test_a_partition_order_changes_what_the_inventory_tells() -> None:
    """What was created is said in the answer and told from then on, until the next boot."""
    kind = DeviceSpec(
        UUID, "A30", 24_576, 0, compute_slices=4, profiles=(_partitioned("2g.12gb", 0, 2),)
    )
    node = SimulatedNode(NodeSpec(NODE, "main", (kind,)), "dc1", timing=TIMING)
    node.start(0)
    (first,) = node.take()
    assert (True, []) == (
        first.data["devices"][0]["mig_enabled"],
        first.data["devices"][0]["slices"],
    )
    create = {"do": "create", "profile": "2g.12gb", "start": 2}
    node.hear(_partition_order("c-o1", create), 0)
    node.advance(1 * US)
    (done,) = node.take()
    (made,) = done.data["slices"]
    assert ("order.done", 2, "2g.12gb") == (done.type, made["start"], made["profile"])
    # The same place again cannot be: it says so, and what it has.
    node.hear(_partition_order("c-o2", create), 1 * US)
    node.advance(2 * US)
    failed, inventory = node.take()
    assert ("order.failed", "insufficient resources") == (failed.type, failed.data["reason"])
    assert [made] == inventory.data["devices"][0]["slices"]
    gone = {"do": "destroy", "profile": "2g.12gb", "start": 2, "mig_uuid": made["mig_uuid"]}
    node.hear(_partition_order("c-o3", gone), 2 * US)
    node.advance(3 * US)
    assert ["order.done"] == [said.type for said in node.take()]
    for said in (first, done, failed, inventory):
        adapter(said.type, 1).validate_python(said.data, strict=False)
