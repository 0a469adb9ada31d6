"""Histories that once broke a rule, each as small as it gets."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.core.outbox import messages
from ledger.core.state import device_state
from ledger.testing import CoreDriver, device, mig_slice
from ledger.wire import message_entry


def _cell(**pool: Any) -> CoreDriver:
    driver = CoreDriver(check=True)
    driver.pool(**pool)
    driver.queue()
    driver.quota()
    return driver


@pytest.mark.parametrize("word", ["cancel", "reclaim"])
def test_an_interrupted_gang_that_is_withdrawn_does_not_run_again(word: str) -> None:
    """A word of a person wins over the retry of an interruption that is still under way."""
    driver = _cell(silent_grace_s=1)
    for name, uuid in (("n1", "GPU-a"), ("n2", "GPU-b")):
        driver.node(name, [device(uuid)])
    driver.submit("r1", {"mode": "whole", "nodes": 2}, retries=3)
    lease = driver.lease("r1").id
    driver.silent("n1")
    driver.tick(driver.now_us + 2_000_000)

    answer = driver.cancel("r1") if word == "cancel" else driver.reclaim(lease)
    driver.answer_all_orders()

    assert "stopping" == answer.code
    assert driver.key("r1") not in driver.state.requests


def test_two_slices_with_one_mig_uuid_are_not_both_leased() -> None:
    """A1: what is reported twice is one instance, or none."""
    driver = _cell()
    twice = [mig_slice("MIG-1", 1, 0), mig_slice("MIG-1", 2, 1)]
    driver.node("n1", [device("GPU-a", mig_enabled=True, compute_slices=7, slices=twice)])

    codes = [driver.submit(name, {"mode": "mig", "profile": "1g.10gb"}).code for name in "ab"]

    assert 1 >= codes.count("granted")


def test_a_grant_that_ends_in_the_same_decision_is_answered() -> None:
    """A5: the final answer is given even when the lease is over before it is said."""
    driver = _cell()
    driver.queue("s", ordering="strict")
    driver.node("n1", [device("GPU-a")])
    driver.submit("big", {"mode": "whole", "count": 2}, queue="s", max_wait_s=1)
    driver.submit("r2", queue="s")
    inventory: dict[str, Any] = {
        "node": "n1", "incarnation": "b2", "epoch": 1, "pool": "main", "devices": [device("GPU-a")]
    }  # fmt: skip

    decision = driver.feed(
        "node.inventory", inventory, source="/nodes/n1", at_us=driver.now_us + 2_000_000
    )
    said = [one[3] for one in messages(driver.state, decision, "events/0@1") if one[0] == "replies"]

    mine = [one for one in said if one["request"] == driver.key("r2")]
    assert 1 == sum(one["final"] for one in mine)


def test_a_node_in_an_unknown_pool_keeps_its_patience() -> None:
    """An order to a node whose pool nobody has applied is not due at once."""
    driver = _cell()
    driver.node("n1", [device("GPU-a")])
    driver.submit("r1")
    driver.node("n1", [device("GPU-a")], pool="typo")
    driver.release(driver.lease("r1").id)
    driver.tick()

    assert "cleaning" == device_state(driver.state.devices["GPU-a"])


def test_a_cheaper_class_of_slices_serves_a_small_quota() -> None:
    """A class that would be charged more than the quota has left is passed over."""
    driver = _cell()
    driver.quota(nominal_gpu_milli=200)
    half = [mig_slice("M1", 1, 0)]
    seventh = [mig_slice("M2", 1, 0)]
    driver.node(
        "n1",
        [device("GPU-a", memory_mib=40_000, mig_enabled=True, compute_slices=2, slices=half)],
    )
    driver.node("n2", [device("GPU-b", mig_enabled=True, compute_slices=7, slices=seventh)])

    assert "granted" == driver.submit("r1", {"mode": "mig", "profile": "1g.10gb"}).code


def test_a_device_of_a_lost_node_serves_where_it_is_seen() -> None:
    """A8: a device that was moved out of a lost node belongs to the node that reports it."""
    driver = _cell(silent_grace_s=1)
    driver.node("n1", [device("GPU-a")])
    driver.silent("n1")
    driver.tick(driver.now_us + 2_000_000)
    driver.node("n2", [device("GPU-a")])

    assert "n2" == driver.state.devices["GPU-a"].node
    assert "granted" == driver.submit("r1").code


def test_a_device_is_not_named_like_a_slice() -> None:
    """A name that looks like the ledger's own is refused with an alarm, and nothing breaks."""
    driver = _cell()
    driver.node("n1", [device("c-s1")])
    driver.node("n2", [device("GPU-b", mig_enabled=True, slices=[mig_slice("M", 1, 0)])])

    assert ["duplicate_device c-s1"] == list(driver.state.alarms)
    assert "c-s1" not in driver.state.devices


def test_long_constraints_keep_the_record_within_its_model() -> None:
    """Thirty-two long model names are cut in the numbers, not in the request."""
    driver = _cell()
    models = [f"model-{number:02}-0123456789" for number in range(32)]

    decision = driver.submit("r1", {"mode": "whole", "models": models})

    assert "no_such_hardware" == decision.numbers["reason"]


def test_another_agent_proves_nothing() -> None:
    """A11: only the node's own agent can say that a device is clean."""
    driver = _cell()
    driver.node("n1", [device("GPU-a")])
    driver.submit("r1")
    driver.release(driver.lease("r1").id)
    (order,) = driver.state.orders

    refused = driver.feed(
        "order.done", {"node": "n1", "incarnation": "b1", "order": order}, source="/nodes/evil"
    )

    assert "wrong_agent" == refused.code
    assert "cleaning" == device_state(driver.state.devices["GPU-a"])


def test_two_interruptions_are_two_notices() -> None:
    """A consumer that drops copies by their id hears of every wait and every stop."""
    driver = _cell()
    driver.node("n1", [device("GPU-a")])
    driver.submit("r1", retries=5)
    said = []
    for number in range(2, 4):
        inventory: dict[str, Any] = {
            "node": "n1", "incarnation": f"b{number}", "epoch": 1, "pool": "main",
            "devices": [device("GPU-a")],
        }  # fmt: skip
        decision = driver.feed("node.inventory", inventory, source="/nodes/n1")
        said += [
            message_entry(one).headers[0]
            for one in messages(driver.state, decision, "events/0@1")
            if one[0] == "replies" and one[3]["answer"] in ("queued", "stopping")
        ]
        driver.answer_all_orders()

    assert 4 == len(said)
    assert len(said) == len(set(said))
