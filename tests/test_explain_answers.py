"""Answers to why: what stands in the way, what was tried, and what would change it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ledger.answers.placed import Placed, granting, placed_by_record
from ledger.cli.explained import explained
from ledger.core.fold import Fold
from ledger.explain import why
from ledger.testing import CoreDriver, device, mig_slice
from tests.answers import GANG, OPERATOR, ask, explain, history, quota, site, there, told
from tests.test_partition import carry_out, cell_with, h100, piece

HOUR = 3_600_000_000


def test_c21_the_reason_counts_places_and_the_change_was_tried() -> None:
    """Ten nodes with six free each and a gang of 12 x 4: places are counted, not GPUs."""
    cell = site(10, 6)
    assert "queued" == cell.submit("gang", GANG).code
    found = explain(cell, "gang")
    expected = "needs 12 places of 4, only 10 exist (60 free GPUs in total)"
    assert expected == found.reason
    assert expected in explained(found)
    assert ["10 instead of 12 nodes"] == told(found, "fewer")
    assert ["2 more nodes have 4 free devices"] == told(found, "supply")
    assert (None, "no_supply") == (there(found.estimate).start_us, there(found.estimate).basis)
    # What was told was true: the smaller gang runs.
    assert "granted" == cell.submit("smaller", GANG | {"nodes": 10}).code


def test_c23_no_victim_would_help() -> None:
    """A low job on a 40 GB GPU is left alone when 80 GB are asked: nothing would be enough."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(preemption="any-tenant")
    cell.quota()
    cell.node("n1", [device("GPU-a", memory_mib=40_960)])
    cell.submit("low", preemptible=True)
    cell.submit("H1", {"mode": "whole", "memory_mib": 81_920}, priority=9)
    found = explain(cell, "H1")
    assert ("no_such_hardware", "no 80 GB GPU") == (found.code, found.reason)
    assert "no_hardware" == there(found.evictions).outcome
    assert "no set of victims would be enough" in explained(found)
    assert () == found.holders


def test_c23_enough_may_be_evicted_but_not_for_this() -> None:
    """Evictable leases that would not make a place are counted, and named is what protects others.

    A place of two devices on one node is asked for; each node has one that may not go.
    """
    cell = site(2, 2, preemption="any-tenant")
    for name in ("a", "b"):
        ask(cell, f"low-{name}", preemptible=True)
        ask(cell, f"firm-{name}")
    assert "queued" == ask(cell, "high", 2, priority=9)
    found = explain(cell, "high")
    assert ("not_enough", 2) == (there(found.evictions).outcome, there(found.evictions).candidates)
    assert "no set of victims would be enough" in there(found.evictions).text
    assert [("they are not preemptible", 2)] == [
        (one.reason, one.count) for one in there(found.evictions).spared
    ]


@pytest.mark.parametrize(
    ("rules", "low", "high", "outcome", "says"),
    {
        "the queue evicts for nobody": (
            {}, {}, {}, "forbidden", "evicts for nobody",
        ),
        "a replica is kept (C25)": (
            {"preemption": "any-tenant"}, {"replicas_min": 1}, {}, "nobody",
            "runs as few replicas as it has to keep",
        ),
        "the priority is not lower": (
            {"preemption": "any-tenant"}, {"priority": 9}, {}, "nobody", "priority is not lower",
        ),
        "it is another tenant's": (
            {"preemption": "same-tenant"}, {}, {"tenant": "u"}, "nobody", "another quota's",
        ),
    }.values(),
)  # fmt: skip
def test_why_nobody_is_evicted(
    rules: dict[str, Any], low: dict[str, Any], high: dict[str, Any], outcome: str, says: str
) -> None:
    """The rule of the queue, or the group of replicas, that protects a lease is told."""
    cell = site(1, 1, **rules)
    ask(cell, "low", preemptible=True, **low)
    assert "queued" == ask(cell, "high", priority=9, **high)
    found = there(explain(cell, "high").evictions)
    assert outcome == found.outcome
    assert says in explained(explain(cell, "high"))


def test_evict_whom_under_what_change_and_by_whose_word() -> None:
    """An operator's word, a milder rule, or a higher priority; each as far as it would do."""
    cell = site(1, 2, preemption="never")
    ask(cell, "one", 2, preemptible=True, priority=3)
    assert "queued" == ask(cell, "wants", priority=5)
    found = explain(cell, "wants")
    assert ["an operator takes back /team/a#one/1 (gpuledger release --reclaim)"] == told(
        found, "reclaim"
    )
    assert [
        "queue q has preemption same-tenant instead of never; then /team/a#one/1 would end"
    ] == told(found, "rule")
    assert {"operator"} == {one.who for one in found.changes}
    cell.queue(preemption="any-tenant")
    assert "reserved" == cell.state.requests[cell.key("wants")].state, "what was told came true"


def test_the_least_priority_that_would_evict() -> None:
    """The least one is told; one less does nothing."""
    cell = site(1, 1, preemption="any-tenant")
    ask(cell, "low", preemptible=True, priority=7)
    assert "queued" == ask(cell, "wants", priority=7)
    assert ["the request has priority 8 or more; leases of a lower one would end"] == told(
        explain(cell, "wants"), "priority"
    )
    assert "reserved" == ask(cell, "more", priority=8)


def test_quota_at_each_level_of_the_tree() -> None:
    """Nominal, used, kept back and borrowed, and of whom; the raise is told where it is needed."""
    cell = site(1, 8)
    quota(cell, "org", 8)
    quota(cell, "t", 2, parent="org", borrowing_gpu_milli=2000)
    quota(cell, "u", 6, parent="org", lending_gpu_milli=4000)
    ask(cell, "mine", 4)
    assert "queued" == ask(cell, "wants")
    found = explain(cell, "wants")
    own, above = found.quota
    assert ("t", 2000, 4000, 0) == (own.quota, own.nominal, own.used, own.available)
    assert (2000, ("u",), 2000) == (own.borrowed, own.lenders, own.borrowing_limit)
    assert ("org", 8000, 4000, 2000) == (
        above.quota, above.nominal, above.used, above.available,
    )  # fmt: skip
    assert "quota_in_use" == found.code
    assert "borrows 2 GPUs of u" in explained(found)
    assert [f"/team/a#{name}/1" for name in ("mine",)] == [one.lease for one in found.holders]
    # The tenants have all of org's: it has to be raised too, or t may not be (Q3).
    assert ["quota t has 1 GPUs more and quota org has 1 GPUs more"] == told(found, "quota")
    quota(cell, "org", 9)
    quota(cell, "t", 3, parent="org", borrowing_gpu_milli=2000)
    assert "granted" == cell.state.requests[cell.key("wants")].state


def test_borrowers_hold_what_is_nominally_mine() -> None:
    """Where the quota is short because another borrows it, the borrower is named as such."""
    cell = site(1, 4)
    quota(cell, "org", 4)
    quota(cell, "t", 2, parent="org")
    quota(cell, "u", 2, parent="org")
    ask(cell, "borrows", 4, tenant="u")
    assert "queued" == ask(cell, "wants", 2)
    found = explain(cell, "wants")
    (holder,) = found.holders
    assert ("/team/a#borrows/1", True) == (holder.lease, holder.borrows)
    assert "queue q has reclaim any instead of never" in " ".join(told(found, "rule"))


def test_quota_and_devices_are_short_at_once() -> None:
    """One change alone would not do: the raise is told together with the eviction."""
    cell = site(1, 2)
    quota(cell, "org", 2)
    quota(cell, "t", 1, parent="org", borrowing_gpu_milli=0)
    quota(cell, "u", 1, parent="org")
    cell.quota("v", nominal_gpu_milli=1000)
    ask(cell, "mine")
    ask(cell, "other", tenant="v")
    quota(cell, "org", 3)
    assert "queued" == ask(cell, "wants")
    found = explain(cell, "wants")
    assert "quota_in_use" == found.code
    # Taking back its own lease would free both; no other lease would.
    assert ["an operator takes back /team/a#mine/1 (gpuledger release --reclaim)"] == told(
        found, "reclaim"
    )
    ask(cell, "keeps", tenant="u", replicas_min=1)
    assert [] == told(found, "quota"), "no device is free: the raise alone would not let it run"


def test_a_budget_says_when_it_is_whole_again_and_what_it_covers() -> None:
    """GPU-hours: what is left, the shorter run that it covers, and the next period."""
    cell = site(1, 4)
    quota(cell, "t", 4, budget={"gpu_hours": 2, "period_s": 36_000})
    assert "granted" == ask(cell, "first", max_run_s=3600)
    assert "queued" == ask(cell, "wants", max_run_s=7200)
    found = explain(cell, "wants")
    assert "budget_spent" == found.code
    assert "asks 2 GPU-hours, quota t has 1 GPU-hours left" == found.reason
    assert ["a longest run of 3,600 s"] == told(found, "run")
    assert ["the budget of quota t has 1 GPU-hours more"] == told(found, "quota")
    assert (36_000_000_000, "period") == (
        there(found.estimate).start_us,
        there(found.estimate).basis,
    )
    budget = next(one for one in found.quota if one.resource == "gpu_time")
    assert (2 * HOUR * 1000, HOUR * 1000) == (budget.nominal, budget.available)


def test_another_model_profile_or_share_that_fits_now() -> None:
    """Each is really placed before it is told, and what does not fit is not."""
    cell = site(1, 1)
    cell.node("n2", [device("A100-a", model="A100")])
    slices = [mig_slice("MIG-0", gi=7, start=0)]
    cell.node("n3", [device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)])
    cell.submit("first", {"mode": "whole", "models": ["H100"]})
    cell.submit("wants", {"mode": "whole", "models": ["H100"]})
    found = explain(cell, "wants")
    assert ["model A100 instead"] == told(found, "model")
    assert ["1 x MIG 1g.10gb"] == told(found, "profile")
    cell.submit("share", {"mode": "share", "gpu_milli": 600, "models": ["A100"]})
    cell.submit("second", {"mode": "share", "gpu_milli": 500, "models": ["A100"]})
    found = explain(cell, "second")
    assert ["a share of 40.00 % of a device instead of 50.00 %"] == told(found, "fewer")
    assert "needs 50.00 % of a device, the most free on one is 40.00 %" == found.reason


def test_behind_in_a_strict_queue() -> None:
    """The other ordering, and the priority that goes first, are told."""
    cell = site(1, 4, ordering="strict")
    ask(cell, "first", 3)
    ask(cell, "large", 4, priority=2)
    assert "queued" == ask(cell, "small")
    found = explain(cell, "small")
    assert "1 earlier in its strict queue wait for the same kind of device" == found.reason
    assert ["queue q has the ordering backfill instead of strict"] == told(found, "ordering")
    assert ["the request has priority 3 or more"] == told(found, "priority")


def test_behind_one_that_waits_for_the_same_quota() -> None:
    """Who waits for its quota holds back the later ones of that quota, and is counted."""
    cell = site(1, 4, quota=3, ordering="strict")
    ask(cell, "runs", 2)
    ask(cell, "large", 2)
    assert "queued" == ask(cell, "small")
    found = explain(cell, "small")
    assert "behind_in_queue" == found.code
    assert "1 earlier in its strict queue wait for the same kind of device" == found.reason


def test_c21_the_quota_of_a_model_is_what_is_full() -> None:
    """Where all that is free is of a model whose limit is reached, that limit is named (Q4)."""
    cell = site(1, 1)
    cell.node("n2", [device("GPU-b1", model="B"), device("GPU-b2", model="B")])
    quota(cell, "t", 4, limits=[{"resource": "model:B", "nominal": 1000}])
    cell.submit("other", {"mode": "whole", "models": ["H100"]})
    cell.submit("one", {"mode": "whole", "models": ["B"]})
    answer = cell.submit("next", {"mode": "whole"})
    assert ("queued", "quota_in_use") == (answer.code, answer.numbers["reason"])
    wanted = {"resource": "model:B", "asked": 1000, "available": 0}
    assert wanted.items() <= answer.numbers.items()
    found = explain(cell, "next")
    assert "quota_in_use" == found.code
    assert "asks 1 B, its quota has 0 B left" == found.reason
    rule = next(one for one in found.rules if one.code == "quota_in_use")
    assert ("not met", "model:B") == (rule.verdict, rule.numbers["resource"])


def test_planned_for_an_earlier_one_and_the_run_that_ends_before() -> None:
    """Back-fill: what is free is promised; a run that ends before the plan's start would go."""
    cell = site(1, 4, ordering="backfill")
    ask(cell, "first", 3, max_run_s=100)
    ask(cell, "large", 4, max_run_s=100)
    assert "queued" == ask(cell, "long", max_run_s=500)
    found = explain(cell, "long")
    assert "planned_for_another" == found.code
    assert "what is free is planned for /team/a#large" == found.reason
    assert ["a longest run of 99 s"] == told(found, "run")
    assert "plan" == there(explain(cell, "large").estimate).basis
    assert "granted" == ask(cell, "short", max_run_s=99)


def test_reserved_tells_what_is_kept_and_who_is_leaving() -> None:
    """A place is kept: the leases that end for it, and the time by which their nodes answer."""
    cell = site(1, 2, preemption="any-tenant")
    ask(cell, "low", 2, preemptible=True)
    assert "reserved" == ask(cell, "high", priority=9)
    found = explain(cell, "high")
    assert ("reserved", "reserved") == (found.status, found.code)
    assert {"n1": ["GPU-1a"]} == found.kept
    assert ["/team/a#low/1"] == [one.lease for one in found.holders]
    assert "kept" == there(found.estimate).basis
    assert "kept for it: GPU-1a on n1" in explained(found)


def test_evicted_by_whom_under_which_rule_and_what_became_of_it() -> None:
    """The victim's story has the other request, the rule, the times, and the next attempt."""
    cell = site(1, 1, preemption="any-tenant")
    ask(cell, "low", preemptible=True)
    ask(cell, "high", priority=9)
    assert "not over yet" in explained(explain(cell, "low"))
    cell.answer_all_orders()
    (ending,) = explain(cell, "low").endings
    assert ("preempted", "/team/a#high", "priority") == (ending.reason, ending.by, ending.rule)
    assert "waits again" == ending.became
    cell.release(cell.lease("high").id)
    cell.answer_all_orders()
    (ending,) = explain(cell, "low").endings
    assert "granted again: lease /team/a#low/2" == ending.became


def test_taken_back_by_an_operator() -> None:
    """Who it was and their words are told, of the request that has ended."""
    cell = site(1, 1)
    ask(cell, "mine")
    cell.reclaim(cell.lease("mine").id)
    cell.answer_all_orders()
    found = explain(cell, "mine")
    (ending,) = found.endings
    assert ("reclaimed", "operator", "test") == (ending.reason, ending.by, ending.why)
    assert "ended: reclaimed" == ending.became
    assert "reclaimed by operator: test" in explained(found)


def placed_of(cell: CoreDriver, name: str) -> Placed:
    """Say where a request was placed and why, by the state before the record that granted it."""
    seen, granted = granting(history(cell), cell.key(name)) or (None, None)
    assert seen is not None
    assert granted is not None
    fold = Fold()
    for offset in range(seen.record.offset):
        fold.apply(offset, cell.records[offset])
    return placed_by_record(fold.cells["c"], seen, granted)


def test_why_this_device() -> None:
    """The fullest node that is enough is chosen; the next best are told with their numbers."""
    cell = site(3, 4)
    ask(cell, "a", 2)
    ask(cell, "b", 3)
    ask(cell, "mine", 1)
    ask(cell, "later", 1)
    placed = placed_of(cell, "mine")
    assert [("n2", 1, 0)] == [(one.node, one.free_before, one.free_after) for one in placed.chosen]
    assert ["n1", "n3"] == [one.node for others in placed.others for one in others]
    assert 3 == placed.nodes_with_room
    assert ("best-fit", "main") == (placed.rule, placed.numbers["pool"])


def test_a_slice_that_was_made_for_a_request_was_free_to_it() -> None:
    """Its node had room, and has what it had but for that slice."""
    cell = cell_with(h100("GPU-a", piece("1g.10gb", 0)))
    cell.submit("mine", {"mode": "mig", "profile": "3g.40gb"})
    carry_out(cell)
    placed = placed_of(cell, "mine")
    assert [("n1", 1, 0)] == [(one.node, one.free_before, one.free_after) for one in placed.chosen]
    assert 1 == placed.nodes_with_room


def test_m8_requested_reserved_and_delivered_are_three_numbers() -> None:
    """More memory than was asked for is given: what is lost to that is to be seen."""
    cell = site(1, 1)
    cell.submit("mine", {"mode": "whole", "memory_mib": 6000})
    found = there(explain(cell, "mine").amounts)
    assert (6000, 81_920, 81_920) == (
        found.requested_memory_mib, found.reserved_memory_mib, found.delivered_memory_mib,
    )  # fmt: skip
    assert "memory: requested 6,000 MiB, reserved 81,920 MiB" in explained(explain(cell, "mine"))


def test_a_place_in_line_is_counted_over_all_shapes() -> None:
    """Shapes that need the same devices are one line; the first of those ahead are named."""
    cell = site(1, 4)
    ask(cell, "holds", 3)
    for at in range(15):
        ask(cell, f"w{at}", 2 + at % 3, priority=at % 2)
    found = there(explain(cell, "w14").line)
    assert (15, 15) == (found.place, found.length)
    ranks = sorted((one.rank, one.id) for one in cell.state.requests.values() if not one.lease)
    assert tuple(name for _, name in ranks[:10]) == found.ahead


def test_nothing_raw_is_printed() -> None:
    """People read no None, no bare microseconds, and no hundred device names."""
    cell = site(20, 8, max_run_s=3600)
    ask(cell, "gang", 8, 20, max_run_s=60)
    assert "queued" == ask(cell, "wants", 8, 20)
    for name in ("gang", "wants"):
        text = explained(explain(cell, name))
        assert "None" not in text
        assert "_us" not in text
        assert " us " not in text
        assert "_milli" not in text
        assert max(map(len, text.splitlines())) < 600, text
    assert "and 16 more nodes" in explained(explain(cell, "gang"))
    assert "and 152 more" in explained(explain(cell, "wants"))
    plain = orjson.loads(orjson.dumps(explain(cell, "wants").plain()))
    assert 160 == len(plain["holders"][0]["units"]), "JSON keeps all"


def test_a_refused_request_is_told_what_would_run_now() -> None:
    """A no on record keeps its reason; what would change it is tried on the state as it is."""
    cell = site(1, 4)
    ask(cell, "holds", 2)
    assert "no_capacity" == ask(cell, "wants", 3, max_wait_s=0)
    found = explain(cell, "wants")
    assert "needs 3 on one node, no node has so many free (2 free GPUs in total)" == found.reason
    assert ["2 instead of 3 devices"] == told(found, "fewer")
    cell.release(cell.lease("holds").id)
    cell.answer_all_orders()
    found = explain(cell, "wants")
    assert ["again"] == [one.kind for one in found.changes]
    assert "no_capacity" == found.code
    assert "granted" == ask(cell, "wants-again", 3, max_wait_s=0)


def test_more_nodes_alone_are_no_answer_where_the_quota_is_short() -> None:
    """A quota that is short as well has to be raised too, and both are said together."""
    cell = site(1, 4, quota=5)
    ask(cell, "holds", 3)
    assert "queued" == ask(cell, "wants", 4)
    found = explain(cell, "wants")
    assert [] == told(found, "supply")
    assert ["quota t has 2 GPUs more, and 1 more node has 4 free devices"] == told(
        found, "quota+supply"
    )


def test_a_request_that_would_be_refused_again_is_not_told_to_wait() -> None:
    """No queue lets it in later, and its template wants the same field again."""
    cell = site(1, 1, tenants=["t"])
    assert "granted" == ask(cell, "holds", expected_run_s=60)
    assert "not_admitted" == ask(cell, "other", tenant="u")
    assert () == explain(cell, "other").changes
    plain = {"template": "d", "task_type": "training", "default": True, "required": ["checkpoint"]}
    assert "applied" == cell.feed("template.apply", plain | OPERATOR, source="/operator").code
    cell.release(cell.lease("holds").id)
    cell.answer_all_orders()
    assert "template_requires" == ask(cell, "bare")
    found = explain(cell, "bare")
    assert ["it says checkpoint itself"] == told(found, "say")
    assert "template d wants the request to say itself: checkpoint" == found.reason
    assert ["say"] == [one.kind for one in found.changes]


def test_a_change_that_a_template_would_refuse_again_names_all_that_is_missing() -> None:
    """Another model alone would be refused for what the request does not say, again and again."""
    cell = site(1, 1)
    wants = {"required": ["max_run_s", "checkpoint"], "default": True}
    plain = {"template": "d", "task_type": "training", **wants, **OPERATOR}
    assert "applied" == cell.feed("template.apply", plain, source="/operator").code
    asked = {"mode": "whole", "models": ["B200"]}
    assert "template_requires" == cell.submit("bare", asked).code
    (change,) = explain(cell, "bare").changes
    said = "model H100 instead, and it says max_run_s, checkpoint itself"
    assert (said, False) == (change.text, change.tried)
    whole: dict[str, Any] = {"max_run_s": 60, "checkpoint": "s3://x"}
    assert "granted" == cell.submit("said", {"mode": "whole"}, **whole).code


def test_an_operators_record_that_was_refused_has_no_rules_of_requests() -> None:
    """Why of a reservation that has no room says that, and nothing of queues or licences."""
    cell = site(1, 1)
    window = {"start_us": 10 * HOUR, "end_us": 11 * HOUR}
    plain = {"reservation": "r", "tenant": "t", "count": 4, **window, **OPERATOR}
    decision = cell.feed("reservation.apply", plain, source="/operator")
    assert "no_capacity" == decision.code
    given = history(cell)[-1].data["input"]
    found = why(cell.state, history(cell), f"{given['source']}#{given['id']}")
    assert ("refused", "no_capacity", ()) == (
        there(found).status, there(found).code, there(found).rules
    )  # fmt: skip
