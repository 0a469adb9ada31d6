"""Advance reservations: nobody else overlaps them, and who names one runs within it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.answers.rules import asking_of, live_rules
from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.promises.reservations import SHORT
from ledger.testing import CoreDriver, device

MINUTE = 60_000_000
HOUR = 60 * MINUTE
#: The drivers' clock begins at one second.
START, END = 2 * HOUR, 4 * HOUR


def site(nodes: int = 1, gpus: int = 2, **queue: Any) -> CoreDriver:
    """A queue, two tenants and so many devices."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(**queue)
    cell.quota()
    cell.quota("u")
    for at in range(1, nodes + 1):
        report(cell, at, gpus)
    return cell


def report(cell: CoreDriver, at: int, gpus: int = 2, **more: Any) -> None:
    """Let a node tell its devices."""
    cards = [device(f"GPU-{at}{which}") for which in "abcdefgh"[:gpus]]
    cell.node(f"n{at}", cards, **more)


def reserve(cell: CoreDriver, name: str = "demo", **more: Any) -> Any:
    """Reserve two devices of one node for tenant u from two o'clock to four."""
    plain = {"reservation": name, "tenant": "u", "count": 2, "start_us": START, "end_us": END}
    signed = {"author": "op", "reason": "demo day"}
    return cell.feed("reservation.apply", {**plain, **signed, **more}, source="/operator")


def cancel(cell: CoreDriver, name: str = "demo") -> str:
    """Give a reservation up."""
    plain = {"reservation": name, "author": "op", "reason": "rain"}
    return cell.feed("reservation.cancel", plain, source="/operator").code


def within(cell: CoreDriver, name: str, count: int = 1, **more: Any) -> Any:
    """Ask within the reservation, as tenant u."""
    more = {"tenant": "u", "reservation": "demo", **more}
    return cell.submit(name, {"mode": "whole", "count": count}, **more)


def state_of(cell: CoreDriver, name: str) -> str:
    """Return where a request stands."""
    return cell.state.requests[cell.key(name)].state


def chosen(cell: CoreDriver, name: str = "demo") -> list[str]:
    """Return the nodes of a reservation."""
    return cell.state.reservations[name].chosen


def test_only_who_ends_before_runs_before() -> None:
    """Two hours are left: 119 minutes fit, 121 do not, and no end at all does not."""
    cell = site()
    assert ("applied", "n1") == ((answer := reserve(cell)).code, answer.numbers["nodes"])
    assert "planned_for_another" == cell.submit("open", max_wait_s=0).code
    assert "planned_for_another" == cell.submit("long", max_run_s=121 * 60, max_wait_s=0).code
    assert "granted" == cell.submit("short", max_run_s=119 * 60).code
    share = {"mode": "share", "gpu_milli": 1}
    assert "planned_for_another" == cell.submit("share", share, max_wait_s=0).code


def test_within_its_time_only_who_names_it() -> None:
    """It opens at two o'clock sharp; the lease ends at four, however long it may run."""
    cell = site()
    reserve(cell)
    waits = within(cell, "mine", 2)
    assert ("queued", "reservation_not_open") == (waits.code, waits.numbers["reason"])
    assert START == waits.numbers["start_us"]
    cell.tick(START - 1)
    assert "queued" == state_of(cell, "mine")
    opened = [event["type"] for event in cell.tick(START).events]
    assert ["reservation.opened", "lease.granted"] == opened
    assert END == cell.lease("mine").due_us
    assert "queued" == cell.submit("other", max_run_s=60).code
    cell.tick(END)
    assert {} == cell.state.reservations
    assert ("stopping", "max-run") == (cell.lease("mine").state, cell.lease("mine").reason)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "other")


def test_a_shorter_run_ends_by_itself_and_the_next_runs() -> None:
    """Within the two hours one run of half an hour after the other; others never between."""
    cell = site(gpus=2)
    reserve(cell)
    cell.tick(START)
    assert "granted" == within(cell, "first", 2, max_run_s=30 * 60).code
    assert START + 30 * MINUTE + 1_000 == cell.lease("first").due_us
    assert "queued" == cell.submit("other").code
    assert "queued" == within(cell, "second", 2).code
    cell.release(cell.lease("first").id)
    cell.answer_all_orders()
    assert ("granted", "queued") == (state_of(cell, "second"), state_of(cell, "other"))


def test_what_is_not_reserved_is_for_all() -> None:
    """One of two devices is reserved: the other is leased without an end, and no second one."""
    cell = site()
    reserve(cell, count=1)
    assert "granted" == cell.submit("endless").code
    assert "planned_for_another" == cell.submit("second", max_wait_s=0).code
    assert "granted" == cell.submit("short", max_run_s=600).code
    cell.tick(START)
    cell.answer_all_orders()
    assert "granted" == within(cell, "mine").code
    assert "queued" == within(cell, "more").code


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"tenant": "t"}, "not_reserved_for"),
        ({"reservation": "other"}, "unknown_reservation"),
        ({"count": 3}, "exceeds_reservation"),
    ],
)
def test_who_may_name_it(more: dict[str, Any], code: str) -> None:
    """Its own tenant, for no more than it holds; anything else is refused for good."""
    cell = site(gpus=4)
    reserve(cell)
    assert code == within(cell, "mine", more.pop("count", 1), **more).code
    slices = {"mode": "mig", "profile": "1g.10gb"}
    mig = cell.submit("mig", slices, tenant="u", reservation="demo")
    assert "exceeds_reservation" == mig.code


def test_the_nodes_are_those_that_will_be_free() -> None:
    """Of three nodes one never ends, one ends at noon, one is free: in time are two."""
    cell = site(3)
    for name, run in (("never", None), ("noon", 3600), ("free", 60)):
        cell.submit(name, {"mode": "whole", "count": 2}, max_run_s=run)
    cell.release(cell.lease("free").id)
    cell.answer_all_orders()
    refused = reserve(cell, nodes=3)
    assert "no_capacity" == refused.code
    numbers = {"needs_places": 3, "gpus_per_place": 2, "places": 2, "start_us": START}
    assert numbers == refused.numbers
    assert {} == cell.state.reservations
    assert "applied" == reserve(cell).code
    assert ["n3"] == chosen(cell), "what is free soonest"
    assert "applied" == reserve(cell, "two").code
    assert ["n2"] == chosen(cell, "two")


def test_a_lease_is_not_extended_into_a_reservation() -> None:
    """It may end at the start at the latest; within a reservation at its end."""
    cell = site()
    cell.submit("noon", {"mode": "whole", "count": 2}, max_run_s=3600)
    assert "applied" == reserve(cell).code
    lease = cell.lease("noon").id
    more = {"lease": lease, "more_s": 3600}
    assert "planned_for_another" == cell.feed("lease.extend", more).code
    assert "applied" == cell.feed("lease.extend", {"lease": lease, "more_s": 3000}).code
    cell.tick(START)
    cell.answer_all_orders()
    within(cell, "mine", max_run_s=3600)
    more = {"lease": cell.lease("mine").id, "more_s": 3600}
    assert "exceeds_reservation" == cell.feed("lease.extend", more).code
    more["more_s"] = 3500
    assert "applied" == cell.feed("lease.extend", more).code


def test_overlapping_reservations() -> None:
    """What one has the other has not, unless they are one after the other."""
    cell = site(2)
    assert "applied" == reserve(cell, "first").code
    assert "applied" == reserve(cell, "second", start_us=3 * HOUR, end_us=5 * HOUR).code
    assert ["n1"] == chosen(cell, "first")
    assert ["n2"] == chosen(cell, "second")
    assert "no_capacity" == reserve(cell, "third", start_us=HOUR, end_us=3 * HOUR + 1).code
    assert "applied" == reserve(cell, "fourth", start_us=END, end_us=5 * HOUR).code
    assert ["n1"] == chosen(cell, "fourth")
    assert "applied" == reserve(cell, "first", count=1).code, "replaced, by itself not in the way"
    assert "applied" == reserve(cell, "fifth", count=1).code
    assert ["n1"] == chosen(cell, "fifth")


def test_a_node_that_fails_is_replaced() -> None:
    """Before the start others are chosen if there are any; else an alarm says it is short."""
    cell = site(2)
    reserve(cell)
    assert ["n1"] == chosen(cell)
    moved = cell.node_set("n1", "draining").events
    assert ["reservation.moved"] == [
        event["type"] for event in moved if event["type"].startswith("reservation")
    ]
    assert ["n2"] == chosen(cell)
    cell.health("GPU-2a", "unhealthy")
    assert f"{SHORT} demo" in cell.state.alarms
    assert ["n2"] == chosen(cell)
    cell.node_set("n1", "online")
    assert ["n1"] == chosen(cell)
    assert {} == cell.state.alarms
    cell.tick(START)
    assert "granted" == within(cell, "mine").code
    assert ["GPU-1a"] == cell.lease("mine").parts["n1"].units
    cell.health("GPU-1b", "unhealthy")
    assert f"{SHORT} demo" in cell.state.alarms, "after the start a person has to look"


def test_a_cancelled_reservation_lets_go() -> None:
    """Who waits within it is answered, who runs goes on, and the rest is for all."""
    cell = site()
    reserve(cell)
    within(cell, "mine")
    cell.submit("other")
    assert "cancelled" == cancel(cell)
    assert "granted" == state_of(cell, "other")
    assert "reservation-over" == cell.state.seen[cell.key("mine")][3]
    assert "unknown_reservation" == cancel(cell)
    assert {} == cell.state.index.booked


def test_who_waits_in_vain_is_answered_at_the_end() -> None:
    """At four o'clock all that wait within it end, however many a record takes."""
    cell = site()
    reserve(cell, count=1)
    cell.tick(START)
    names = [f"r{at}" for at in range(3)]
    for name in names:
        within(cell, name)
    assert ["granted", "queued", "queued"] == [state_of(cell, name) for name in names]
    cell.tick(END)
    assert {"reservation-over"} == {cell.state.seen[cell.key(name)][3] for name in names[1:]}


def test_an_end_in_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of two events the reservation is there until all are answered."""
    cell = site()
    reserve(cell)
    for at in range(5):
        within(cell, f"r{at}", 2)
    monkeypatch.setattr("ledger.core.decisions.reservations.MAX_DUE", 2)
    monkeypatch.setattr("ledger.core.decisions.due.MAX_DUE", 2)
    monkeypatch.setattr("ledger.testing.MAX_DUE", 2)
    cancel(cell)
    assert 4 == len(cell.state.requests), "one beside the event itself"
    again = cell.replayed().cell("c")
    standing = cell.state.index.deadlines.standing
    assert again.index.deadlines.standing(again) == standing(cell.state)
    while cell.state.reservations:
        cell.tick()
    assert {} == cell.state.requests


def test_an_interrupted_one_runs_again_within_it() -> None:
    """Its node restarts: the retry has the rest of the time, and then waits as others do."""
    cell = site()
    reserve(cell)
    cell.tick(START)
    within(cell, "mine", 2, retries=2)
    report(cell, 1, incarnation="b2")
    assert "queued" == cell.submit("other").code
    cell.answer_all_orders()
    assert END == cell.lease("mine").due_us
    cancel(cell)
    report(cell, 1, incarnation="b3")
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "mine"), "its reservation is gone: as any other, the first"


def test_a_strict_queue_is_not_held_up_by_it() -> None:
    """One that waits for its time holds back nobody, and is held back by nobody."""
    cell = site(gpus=4, ordering="strict")
    reserve(cell)
    within(cell, "mine", 2)
    assert "granted" == cell.submit("other").code
    cell.submit("big", {"mode": "whole", "count": 4}, priority=5)
    cell.tick(START)
    assert "granted" == state_of(cell, "mine")


def test_a_plan_keeps_clear_of_it() -> None:
    """Back-fill: who needs three hours is planned after the reservation, or elsewhere."""
    cell = site(2, ordering="backfill")
    cell.submit("one", {"mode": "whole", "count": 2}, max_run_s=600)
    cell.submit("two", {"mode": "whole", "count": 2}, max_run_s=1200)
    reserve(cell)
    assert ["n1"] == chosen(cell)
    cell.submit("long", {"mode": "whole", "count": 2}, max_run_s=3 * 3600)
    plan = cell.state.requests[cell.key("long")].plan
    assert plan is not None
    assert (["n2"], cell.lease("two").due_us) == (plan.nodes, plan.start_us)


def test_nobody_is_evicted_for_what_is_reserved() -> None:
    """A higher priority with no end may not take by force what would overlap it."""
    cell = site(preemption="any-tenant")
    cell.submit("low", {"mode": "whole", "count": 2}, preemptible=True, max_run_s=3600)
    reserve(cell)
    assert "queued" == cell.submit("urgent", priority=9).code
    assert "granted" == state_of(cell, "low")
    assert "reserved" == cell.submit("brief", priority=9, max_run_s=600).code
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "brief")


def test_a_time_that_has_passed() -> None:
    """It is refused; one that has begun already counts from now."""
    cell = site()
    cell.tick(3 * HOUR)
    assert "window_past" == reserve(cell, start_us=0, end_us=HOUR).code
    assert "applied" == reserve(cell).code
    assert "granted" == within(cell, "mine", 2).code


def test_snapshot_and_replay() -> None:
    """A loaded state is the live one, and what is due next too."""
    cell = site(2)
    reserve(cell)
    within(cell, "mine", 2)
    loaded = load_fold(save_fold(cell.fold)).ready()
    assert digest(loaded.cells) == cell.digest()
    again = loaded.cell("c")
    assert again.index.booked == cell.state.index.booked
    assert again.index.deadlines.standing(again) == cell.state.index.deadlines.standing(cell.state)


ACTS = st.one_of(
    st.tuples(
        st.just("reserve"), st.sampled_from("xyz"), st.integers(1, 3), st.integers(1, 2),
        st.integers(0, 9), st.integers(1, 5),
    ),
    st.tuples(st.just("cancel"), st.sampled_from("xyz")),
    st.tuples(
        st.just("ask"), st.sampled_from([None, None, "x", "y", "z"]), st.integers(0, 3),
        st.sampled_from([None, 1, 3, 9]), st.booleans(), st.integers(0, 5),
    ),
    st.tuples(st.just("share"), st.sampled_from([None, None, "x"]), st.sampled_from([None, 2])),
    st.tuples(st.just("release"), st.integers(0, 9)),
    st.tuples(st.just("health"), st.sampled_from(["GPU-1a", "GPU-2b", "GPU-3c"]),
              st.sampled_from(["healthy", "unhealthy"])),
    st.tuples(st.just("mode"), st.sampled_from(["n1", "n2", "n3"]),
              st.sampled_from(["online", "draining"])),
    st.tuples(st.just("answer")),
    st.tuples(st.just("time"), st.integers(1, 4)),
)  # fmt: skip


class _Ledger:
    """Drives a cell and follows, from the events alone, who holds what until when."""

    def __init__(self, ordering: str) -> None:
        self.cell = site(3, 3, ordering=ordering, preemption="any-tenant")
        self.windows: dict[str, tuple[list[str], int, int, int]] = {}

    def act(self, act: tuple[Any, ...]) -> None:
        cell, kind, args = self.cell, act[0], act[1:]
        now = cell.now_us
        if kind == "reserve":
            name, count, nodes, begins, lasts = args
            start = now + begins * MINUTE
            more = {"count": count, "nodes": nodes, "start_us": start}
            reserve(cell, name, end_us=start + lasts * MINUTE, **more)
        elif kind == "cancel":
            cancel(cell, args[0])
        elif kind == "ask":
            name, count, run, low, priority = args
            more = {} if name is None else {"reservation": name, "tenant": "u"}
            more |= {} if run is None else {"max_run_s": run * 60}
            ask = {"mode": "whole", "count": count}
            cell.submit(None, ask, preemptible=low, priority=priority, retries=1, **more)
        elif kind == "share":
            name, run = args
            more = {} if name is None else {"reservation": name, "tenant": "u"}
            more |= {} if run is None else {"max_run_s": run * 60}
            cell.submit(None, {"mode": "share", "gpu_milli": 400}, **more)
        elif kind == "release" and cell.state.leases:
            leases = sorted(cell.state.leases)
            cell.release(leases[args[0] % len(leases)])
        elif kind == "health":
            cell.health(*args)
        elif kind == "mode":
            cell.node_set(*args)
        elif kind == "answer":
            cell.answer_all_orders()
        elif kind == "time":
            cell.tick(now + args[0] * MINUTE)

    def look(self) -> None:
        """On the nodes of a reservation enough is held by nobody who would overlap it."""
        state = self.cell.state
        for one in state.reservations.values():
            if f"{SHORT} {one.name}" in state.alarms or one.cancelled:
                continue
            at_us = max(one.start_us, state.now_us)
            for name in one.chosen:
                free = 0
                for uuid in state.nodes[name].devices:
                    leases = [state.leases.get(lease) for lease in state.devices[uuid].holds]
                    others = [
                        lease
                        for lease in leases
                        if lease is not None
                        and lease.state != "stopping"
                        and state.requests[lease.request].reservation != one.name
                        and (lease.due_us is None or lease.due_us > at_us)
                    ]
                    free += not others
                assert free >= one.count, f"{one.name} on {name}: {free} of {one.count}"


@settings(max_examples=40, deadline=None)
@given(acts=st.lists(ACTS, min_size=5, max_size=25),
       ordering=st.sampled_from(["best-effort", "strict", "backfill"]))  # fmt: skip
def test_no_lease_of_another_overlaps_a_reservation(
    acts: list[tuple[Any, ...]], ordering: str
) -> None:
    """Whatever is asked, reserved, given back, broken or let pass (A15)."""
    ledger = _Ledger(ordering)
    for act in acts:
        ledger.act(act)
        ledger.look()
    assert digest(ledger.cell.replayed().cells) == ledger.cell.digest()


def _two_kinds(**queue: Any) -> CoreDriver:
    """One node with a device of each of two models; the one is reserved, and its time begins."""
    cell = site(0, **queue)
    cell.node("n1", [device("GPU-a", model="A10", memory_mib=24_000), device("GPU-h")])
    reserve(cell, count=1, models=["H100"])
    cell.tick(START)
    return cell


@pytest.mark.parametrize("ask", [{"mode": "whole"}, {"mode": "share", "gpu_milli": 500}])
def test_a15_who_runs_within_takes_of_what_is_reserved(ask: dict[str, Any]) -> None:
    """Another model on the same node is not the reservation's, and may be another's."""
    cell = _two_kinds()
    cell.health("GPU-h", "unhealthy")
    answer = cell.submit("mine", ask, tenant="u", reservation="demo")
    assert ("queued", "planned_for_another") == (answer.code, answer.numbers["reason"])
    (unmet,) = [
        one.code
        for one in live_rules(
            cell.state, asking_of(cell.state, cell.state.requests[cell.key("mine")])
        )
        if one.verdict == "not met"
    ]
    assert "planned_for_another" == unmet
    cell.health("GPU-h", "healthy")
    assert ["GPU-h"] == cell.lease("mine").parts["n1"].units


def test_a15_nobody_is_evicted_within_for_another_model() -> None:
    """Whoever is of the lower priority, and holds what is not reserved, stays."""
    cell = _two_kinds(preemption="any-tenant")
    assert "granted" == cell.submit("low", {"mode": "whole", "models": ["A10"]},
                                    preemptible=True).code  # fmt: skip
    cell.health("GPU-h", "unhealthy")
    assert "queued" == within(cell, "mine", priority=9).code
    assert "granted" == cell.lease("low").state


def test_a15_a_place_kept_within_is_let_go_when_another_model_is_reserved() -> None:
    """The reservation is applied again, of other devices, while its request waits for one."""
    cell = _two_kinds(preemption="any-tenant")
    cell.quota("u", nominal_gpu_milli=1_000)
    cell.submit("low", {"mode": "whole", "models": ["A10"]}, tenant="u", preemptible=True)
    assert "reserved" == within(cell, "mine", priority=9).code
    assert "GPU-h" in cell.state.requests[cell.key("mine")].kept["n1"]
    assert "applied" == reserve(cell, count=1, models=["A10"]).code
    cell.answer_all_orders()
    assert ["GPU-a"] == cell.lease("mine").parts["n1"].units


def test_s2_a_place_kept_for_the_quota_alone_is_let_go_when_time_moves_it() -> None:
    """It would still run when the reservation begins: seen at once, and not only after a load."""
    cell = site(preemption="any-tenant")
    cell.pool(order_timeout_s=4 * 3_600)
    cell.quota("t", nominal_gpu_milli=1_000)
    cell.submit("low", preemptible=True, max_run_s=90 * 60)
    reserve(cell)
    assert "reserved" == cell.submit("high", max_run_s=60 * 60, priority=9).code
    cell.tick(START - 50 * MINUTE)
    assert "queued" == state_of(cell, "high")


def test_why_and_what_would_help() -> None:
    """A waiting request is told that its time has not begun; another, of a shorter run."""
    cell = site()
    reserve(cell)
    within(cell, "mine")
    cell.submit("other", {"mode": "whole", "count": 2})
    mine, other = (cell.state.requests[cell.key(name)] for name in ("mine", "other"))
    unmet = [
        one.code
        for one in live_rules(cell.state, asking_of(cell.state, mine))
        if one.verdict == "not met"
    ]
    assert "reservation_not_open" == unmet[0]
    (rule,) = [
        one
        for one in live_rules(cell.state, asking_of(cell.state, other))
        if one.verdict == "not met"
    ]
    numbers = {"planned_nodes": 1, "planned_for": "reservation demo", "start_us": START}
    assert ("planned_for_another", numbers) == (rule.code, rule.numbers)
