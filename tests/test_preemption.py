"""Evictions: the least set, one way only, and a place that is kept (C13, C23, C25, Q5, Q6)."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.testing import CoreDriver, device


def site(gpus: int = 4, nodes: int = 1, *, nominal: int = 100, **queue: Any) -> CoreDriver:
    """One queue that may evict lower priorities of any tenant, and so many devices."""
    cell = CoreDriver(check=True)
    cell.pool()
    rules: dict[str, Any] = {"preemption": "any-tenant"} | queue
    cell.queue(**rules)
    for tenant in "tu":
        cell.quota(tenant, nominal_gpu_milli=nominal * 1000)
    for at in range(1, nodes + 1):
        cell.node(f"n{at}", [device(f"GPU-{at}{which}") for which in "abcdefgh"[:gpus]])
    return cell


def low(cell: CoreDriver, name: str, count: int = 1, **more: Any) -> None:
    """Let somebody hold devices who may be evicted."""
    answer = cell.submit(name, {"mode": "whole", "count": count}, preemptible=True, **more)
    assert "granted" == answer.code


def high(cell: CoreDriver, name: str = "high", count: int = 1, nodes: int = 1, **more: Any) -> str:
    """Ask with a higher priority; return the code."""
    ask = {"mode": "whole", "count": count, "nodes": nodes}
    return cell.submit(name, ask, priority=100, **more).code


def stopping(cell: CoreDriver) -> set[str]:
    """Return the requests whose leases are told to stop."""
    return {
        lease.request.partition("#")[2]
        for lease in cell.state.leases.values()
        if lease.state == "stopping"
    }


def state_of(cell: CoreDriver, name: str) -> str:
    """Return where a request stands, or how it ended."""
    request = cell.state.requests.get(cell.key(name))
    return request.state if request is not None else cell.state.seen[cell.key(name)][3]


def test_the_evicted_gives_way_and_waits_again() -> None:
    """Reserved at once, granted when clean; the victim keeps its place and its retries."""
    cell = site(1)
    low(cell, "low")
    assert "reserved" == high(cell)
    assert ({"low"}, "reserved") == (stopping(cell), state_of(cell, "high"))
    cell.answer_all_orders()
    assert ("granted", "queued") == (state_of(cell, "high"), state_of(cell, "low"))
    cell.release(cell.lease("high").id)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "low")


def test_the_victim_is_told_by_whom_and_why() -> None:
    """The record names the victim's lease, the request it gives way to, and the rule."""
    cell = site(1)
    low(cell, "low")
    answer = cell.submit("high", {"mode": "whole"}, priority=100)
    told = next(one for one in answer.events if one["type"] == "lease.stopping")
    assert ("preempted", cell.key("high"), "priority") == (
        told["reason"], told["by"], told["rule"],
    )  # fmt: skip


def test_nobody_else_gets_what_is_kept() -> None:
    """A third request of still higher priority that cannot evict waits behind the kept place."""
    cell = site(1)
    low(cell, "low")
    high(cell)
    assert "queued" == cell.submit("third", priority=50).code
    cell.answer_all_orders()
    assert ("granted", "queued") == (state_of(cell, "high"), state_of(cell, "third"))


def test_equal_priority_and_not_preemptible_stay() -> None:
    """Only a lower priority that agreed to it gives way."""
    cell = site(2)
    low(cell, "equal", priority=100)
    cell.submit("firm")
    assert "queued" == high(cell)
    assert set() == stopping(cell)


def test_q6_the_fewest_go() -> None:
    """Two devices are had from the one lease that holds two, not from two leases."""
    cell = site(4)
    low(cell, "one")
    low(cell, "two", 2)
    low(cell, "three")
    assert "reserved" == high(cell, count=2)
    assert {"two"} == stopping(cell)


def test_q6_what_is_free_is_used_first() -> None:
    """One is free: one lease is enough, and it is the lowest priority."""
    cell = site(4)
    low(cell, "a", priority=5)
    low(cell, "b", priority=1)
    low(cell, "c", priority=9)
    assert "reserved" == high(cell, count=2)
    assert {"b"} == stopping(cell)


def test_q6_what_ends_anyway_costs_nobody() -> None:
    """A lease that stops already frees what is needed: nobody else goes."""
    cell = site(2)
    low(cell, "a")
    low(cell, "b")
    cell.cancel("a")
    assert "queued" == high(cell)
    assert {"a"} == stopping(cell)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "high")


def test_a_gang_is_made_room_for_whole() -> None:
    """Two nodes of two: on each only what is needed goes; granted in one piece."""
    cell = site(2, 3)
    for name in "abcdef":
        low(cell, name)
    assert "reserved" == high(cell, count=2, nodes=2)
    assert 4 == len(stopping(cell))
    cell.answer_all_orders()
    assert [2, 2] == [len(part.units) for part in cell.lease("high").parts.values()]


def test_c23_a_no_eviction_when_it_cannot_help() -> None:
    """The low job holds a 40 GB device, 80 GB are needed: nobody is evicted."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(preemption="any-tenant")
    cell.quota()
    cell.node("n1", [device("GPU-a", memory_mib=40_960)])
    low(cell, "low")
    answer = cell.submit("high", {"mode": "whole", "memory_mib": 81_920}, priority=100)
    assert ("queued", "no_such_hardware") == (answer.code, answer.numbers["reason"])
    assert set() == stopping(cell)


def test_c23_b_one_victim_two_devices() -> None:
    """L1 holds both devices; it is evicted once, and the two lines get two different ones."""
    cell = site(2)
    low(cell, "L1", 2)
    assert "reserved" == high(cell, "H2", count=2)
    assert {"L1"} == stopping(cell)
    cell.answer_all_orders()
    units = next(iter(cell.lease("H2").parts.values())).units
    assert (2, 2) == (len(units), len(set(units)))


def test_c23_a_failed_place_is_on_record_and_given_back() -> None:
    """The device turns out broken: the place is let go, the request waits again, by a record."""
    cell = site(1)
    low(cell, "low")
    high(cell)
    answer = cell.health("GPU-1a", "unhealthy")
    assert "request.unreserved" in [event["type"] for event in answer.events]
    assert ("queued", None) == (state_of(cell, "high"), cell.state.devices["GPU-1a"].kept_for)
    assert 1000 == cell.state.quotas["t"].leaving["gpu"]


def test_v1_a_kept_place_is_given_when_another_gives_its_quota_back() -> None:
    """It waits for its quota, whoever of the tree makes room there: not for the evicted alone."""
    cell = site(3, nominal=2)
    low(cell, "low")
    cell.submit("other")
    assert "reserved" == high(cell)
    cell.release(cell.lease("other").id)
    assert ({"low"}, "granted") == (stopping(cell), state_of(cell, "high"))


@pytest.mark.parametrize(("nominal", "then"), [(3, "granted"), (1, "queued")])
def test_s2_a_kept_place_follows_its_quota_at_once(nominal: int, then: str) -> None:
    """Given when the quota is raised, let go when it is lowered; not only after a load (C23)."""
    cell = site(3, nominal=2)
    low(cell, "low")
    cell.submit("other")
    assert "reserved" == high(cell)
    cell.quota("t", nominal_gpu_milli=nominal * 1000)
    assert ({"low"}, then) == (stopping(cell), state_of(cell, "high"))


def test_v1_the_cpu_beside_a_kept_place_is_there_for_others_when_it_is_let_go() -> None:
    """Also where the kept device itself is not free yet, and whoever waits is of another tree."""
    cell = site(0)
    cell.node("n1", [device("GPU-a"), device("GPU-b")], cpu_milli=10_000)
    low(cell, "low")
    low(cell, "more", priority=5)
    assert "reserved" == high(cell, beside={"cpu_milli": 6_000})
    cell.release(cell.lease("more").id)
    (clean,) = [one.id for one in cell.state.orders.values() if one.kind == "clean"]
    cell.order_done(clean)
    assert "queued" == cell.submit("late", tenant="u", beside={"cpu_milli": 6_000}).code
    cell.cancel("high")
    assert ({"low"}, "granted") == (stopping(cell), state_of(cell, "late"))


def test_c23_no_eviction_without_quota() -> None:
    """The preemptor's own quota is full of its own equals: evicting another helps nobody."""
    cell = site(2, nominal=1)
    cell.submit("mine")
    low(cell, "theirs", tenant="u")
    assert "queued" == high(cell)
    assert set() == stopping(cell)


def test_c25_a_preempted_task_is_not_finished() -> None:
    """Minimum 2 of 4: two may be evicted, no third; their exit code 0 changes nothing."""
    cell = site(4)
    for at in range(4):
        low(cell, f"j{at}", task={"id": "J1"}, replicas_min=2)
    assert "reserved" == high(cell, count=2)
    gone = stopping(cell)
    assert 2 == len(gone)
    for name in sorted(gone):
        cell.task_ended(cell.lease(name).id, "n1", "completed")
    assert ["queued", "queued"] == [state_of(cell, name) for name in sorted(gone)]
    assert "queued" == high(cell, "more")
    assert set() == stopping(cell)


def test_c25_the_evicted_are_charged_until_they_end() -> None:
    """Held until 10:00:05, by the lease's own record."""
    cell = site(1)
    low(cell, "low")
    granted_us = cell.lease("low").granted_us
    high(cell)
    lease = cell.lease("low").id
    cell.now_us += 5_000_000
    answer = cell.task_ended(lease, "n1", "completed")
    ended = next(event for event in answer.events if event["type"] == "lease.ended")
    assert ("preempted", answer.time_us - granted_us) == (ended["reason"], ended["held_us"])


def test_the_last_replica_of_a_service_stays() -> None:
    """An online service of one replica is not evicted unless it says that it may."""
    cell = site(1)
    low(cell, "serve", task={"id": "s", "type": "online-inference"})
    assert "queued" == high(cell)
    cell = site(1)
    low(cell, "serve", task={"id": "s", "type": "online-inference"}, replicas_min=0)
    assert "reserved" == high(cell)


def test_an_experiment_ends_when_it_is_evicted() -> None:
    """By its type, or as the request says."""
    cell = site(2)
    low(cell, "eval", task={"id": "e", "type": "evaluation"})
    low(cell, "train", recovery="end")
    high(cell, count=2)
    cell.answer_all_orders()
    assert ["preempted", "preempted"] == [state_of(cell, name) for name in ("eval", "train")]


def test_c13_parts_given_back_are_waited_for() -> None:
    """J1 has 1 of its 3 left, J2 takes 3: usage is 4, and J1's two restarts wait."""
    cell = site(8, nominal=4)
    for at in range(3):
        cell.submit(f"j{at}", task={"id": "J1"})
    for at in range(2):
        cell.task_ended(cell.lease(f"j{at}").id, "n1", "completed")
    assert 1000 == cell.state.quotas["t"].used["gpu"]
    assert "granted" == cell.submit("J2", {"mode": "whole", "count": 3}).code
    again = [cell.submit(f"again{at}", task={"id": "J1"}).code for at in range(2)]
    assert ["queued", "queued"] == again
    assert 4000 == cell.state.quotas["t"].used["gpu"]


def borrowers() -> CoreDriver:
    """Tenants t and u lend each other what they do not use: 2 each, of 4."""
    cell = site(4, preemption="never", reclaim="any")
    cell.quota("org", nominal_gpu_milli=4000)
    for tenant in "tu":
        plain = {"tenant": tenant, "nominal_gpu_milli": 2000, "parent": "org"}
        cell.feed("quota.apply", plain | {"author": "op", "reason": "x"}, source="/operator")
    return cell


def test_borrowed_capacity_comes_back() -> None:
    """U is entitled to 2: two of t's leases go, the latest, whatever their priority."""
    cell = borrowers()
    for name in "abcd":
        cell.submit(name, tenant="t", priority=1000)
    assert "reserved" == cell.submit("mine", {"mode": "whole", "count": 2}, tenant="u").code
    assert {"c", "d"} == stopping(cell)
    rules = {one.reason for one in cell.state.leases.values()}
    assert {None, "preempted"} == rules
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "mine")
    assert (2000, 2000) == tuple(cell.state.quotas[name].used["gpu"] for name in "tu")


def test_beyond_ones_own_nothing_is_reclaimed() -> None:
    """U asks for 3 of its 2: the third is not its own, so nobody goes."""
    cell = borrowers()
    for name in "abcd":
        cell.submit(name, tenant="t")
    assert "queued" == cell.submit("mine", {"mode": "whole", "count": 3}, tenant="u").code
    assert set() == stopping(cell)


def test_q5_no_two_evict_each_other_in_turn() -> None:
    """What was reclaimed is not taken back: t is not entitled to a third."""
    cell = borrowers()
    for name in "abcd":
        cell.submit(name, tenant="t")
    cell.submit("mine", {"mode": "whole", "count": 2}, tenant="u")
    for _ in range(5):
        cell.answer_all_orders()
        cell.tick()
    assert ["queued", "queued"] == [state_of(cell, name) for name in "cd"]
    assert "granted" == state_of(cell, "mine")


def test_q1_the_evicted_counts_where_it_was_held() -> None:
    """While the evicted leases stop, their tenant may not start others in their stead."""
    cell = site(4, nominal=2)
    low(cell, "a")
    low(cell, "b")
    cell.quota("u", nominal_gpu_milli=9000)
    assert "queued" == cell.submit("more", priority=0).code
    assert "reserved" == high(cell, tenant="u", count=3)
    assert 1 == len(stopping(cell))
    assert "queued" == state_of(cell, "more")


def test_a_cancelled_preemptor_lets_go() -> None:
    """What was kept for it is there for others again, and its quota is given back."""
    cell = site(1)
    low(cell, "low")
    high(cell)
    assert "cancelled" == cell.cancel("high").code
    assert (None, 0) == (
        cell.state.devices["GPU-1a"].kept_for,
        cell.state.quotas["t"].used.get("gpu", 0),
    )
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "low")


def test_a_quota_lowered_meanwhile_grants_nothing() -> None:
    """Q1: between the eviction and the grant the quota is lowered: the place is let go."""
    cell = site(1)
    low(cell, "low", tenant="u")
    high(cell)
    cell.quota("t", nominal_gpu_milli=0)
    cell.answer_all_orders()
    assert ("queued", "granted") == (state_of(cell, "high"), state_of(cell, "low"))


def test_shares_give_way_on_one_device() -> None:
    """The fewest shares that make room for 700 thousandths."""
    cell = site(1)
    for name, milli in (("a", 300), ("b", 600), ("c", 100)):
        ask = {"mode": "share", "gpu_milli": milli}
        assert "granted" == cell.submit(name, ask, preemptible=True).code
    ask = {"mode": "share", "gpu_milli": 600}
    assert "reserved" == cell.submit("high", ask, priority=9).code
    assert {"b"} == stopping(cell)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "high")
