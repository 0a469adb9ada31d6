"""Explanations: the rule that decided, its numbers, who stands in the way, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from ledger import amounts, wording
from ledger.core.fold import Fold
from ledger.explain import Ambiguous, Explanation, resolve, why
from ledger.log.memory import MemoryLog
from ledger.reading import Seen, read_events
from ledger.show import Shown, show
from ledger.wording import sentence
from schemas.events import EVENT_MODELS, OrderIssued
from tests.ledgers import OPERATOR, PREFIX, TEAM, Site

if TYPE_CHECKING:
    from collections.abc import Mapping


async def new_site(**options: int) -> Site:
    """Return a started site on a memory log."""
    site = Site(MemoryLog())
    await site.start(**options)
    return site


async def history(site: Site) -> list[Seen]:
    """Return all records of the site as a reader sees them."""
    return [seen async for seen in read_events(site.log, PREFIX, 0, Fold())]


async def explain(site: Site, request: str) -> Explanation:
    """Explain a request that is known."""
    found = why(site.state, await history(site), request)
    assert found is not None
    return found


def verdicts(found: Explanation) -> dict[str, str]:
    """Return each rule's verdict by its code."""
    return {rule.code: rule.verdict for rule in found.rules}


def numbers(found: Explanation, code: str) -> Mapping[str, object]:
    """Return what a rule compared."""
    return next(rule.numbers for rule in found.rules if rule.code == code)


async def test_waiting_for_devices() -> None:
    """The rules are asked on the state as it is now; holders and the place in line are named."""
    site = await new_site(gpus=4)
    first = await site.submit("first", 3)
    await site.submit("second", 2)
    third = await site.submit("third", 2)
    found = await explain(site, third)
    assert (found.status, found.code) == ("waiting", "no_capacity")
    assert verdicts(found)["quota_in_use"] == "met"
    assert verdicts(found)["no_capacity"] == "not met"
    assert numbers(found, "no_capacity") == {
        "needs_places": 1,
        "gpus_per_place": 2,
        "places": 0,
        "free_gpus": 1,
    }
    assert found.line is not None
    assert (found.line.place, found.line.length) == (2, 2)
    assert found.line.ahead == (f"{TEAM}#second",)
    assert [one.lease for one in found.holders] == [f"{first}/1"]
    assert found.holders[0].units == ("GPU-0", "GPU-1", "GPU-2")
    assert [step.position for step in found.steps] == ["events/0@7", "events/0@7"]
    assert found.advice


async def test_waiting_for_quota() -> None:
    """The tenant's own leases stand in the way, and the numbers are those now in force."""
    site = await new_site(gpus=4, quota_milli=3000)
    await site.submit("first", 2)
    second = await site.submit("second", 2)
    found = await explain(site, second)
    assert found.code == "quota_in_use"
    assert numbers(found, "quota_in_use") == {
        "asked_milli": 2000,
        "held_milli": 2000,
        "nominal_milli": 3000,
    }
    assert [one.lease for one in found.holders] == [f"{TEAM}#first/1"]
    assert verdicts(found)["no_capacity"] == "met"


async def test_waiting_behind_an_earlier_request() -> None:
    """C17: in a strict queue the earlier request is the reason, and is counted."""
    site = await new_site(gpus=4)
    await site.says("queue.apply", queue="q", ordering="strict", **OPERATOR)
    await site.submit("first", 3)
    await site.submit("large", 4)
    small = await site.submit("small", 1)
    found = await explain(site, small)
    assert found.code == "behind_in_queue"
    assert numbers(found, "behind_in_queue") == {"ordering": "strict", "ahead": 1}
    assert verdicts(found)["no_capacity"] == "met"


async def test_waiting_for_hardware_that_is_not_there() -> None:
    """No device of the model: nobody is named as holding what does not exist."""
    site = await new_site()
    ask = {"mode": "whole", "count": 1, "models": ["B200"]}
    found = await explain(site, await site.submit("r", ask=ask))
    assert found.code == "no_such_hardware"
    assert found.holders == ()
    assert verdicts(found)["no_such_hardware"] == "not met"


async def test_waiting_says_what_is_out_of_use() -> None:
    """Devices that are unhealthy, in quarantine, being cleaned or on a drained node are named."""
    site = await new_site(gpus=2)
    await site.says(
        "device.health", "/nodes/n1", node="n1", incarnation="b1", device="GPU-1",
        health="unhealthy",
    )  # fmt: skip
    first = await site.submit("first", 1)
    await site.says("lease.release", TEAM, lease=f"{first}/1")
    found = await explain(site, await site.submit("second", 2))
    since = amounts.time_text(found.outages[0].since_us)
    assert found.out_of_use == (
        "GPU-0: being cleaned",
        f"GPU-1: unhealthy since {since}; back when its node reports it healthy",
    )


async def test_refused_at_once() -> None:
    """A refusal stands on its record: rules before were met, rules after were not reached."""
    site = await new_site(quota_milli=2000)
    name = await site.submit("r", 3)
    found = await explain(site, name)
    assert (found.status, found.code) == ("refused", "exceeds_quota")
    seen = verdicts(found)
    assert seen["exceeds_queue_limit"] == "met"
    assert seen["exceeds_quota"] == "not met"
    assert seen["quota_in_use"] == "not reached"
    assert numbers(found, "exceeds_quota") == {"asked_milli": 3000, "nominal_milli": 2000}


async def test_granted_running_and_ended() -> None:
    """From grant to end every step has its record."""
    site = await new_site()
    name = await site.submit("r", 2)
    assert (await explain(site, name)).status == "granted"
    await site.says("task.started", "/nodes/n1", node="n1", incarnation="b1", lease=f"{name}/1")
    assert (await explain(site, name)).status == "running"
    await site.finish(f"{name}/1")
    found = await explain(site, name)
    assert (found.status, found.code) == ("completed", "granted")
    assert set(verdicts(found).values()) == {"met"}
    texts = [step.text for step in found.steps]
    assert any("GPU-0, GPU-1 on n1" in text for text in texts)
    assert texts[-1].startswith("request /team/a#r has ended")


async def test_interrupted_and_waiting_again() -> None:
    """A node that restarts ends the lease; the request is in line again and says why."""
    site = await new_site(gpus=1)
    name = await site.submit("r", 1, retries=1)
    await site.says(
        "node.inventory", "/nodes/n1", node="n1", incarnation="b2", epoch=1, pool="main",
        devices=[{"uuid": "GPU-0", "model": "H100", "memory_mib": 81_920}],
    )  # fmt: skip
    found = await explain(site, name)
    assert found.status == "waiting"
    assert any("waits again" in step.text for step in found.steps)
    assert any("node-restarted" in step.text for step in found.steps)
    assert found.out_of_use == ("GPU-0: being cleaned",)


async def test_expired_and_cancelled_requests_keep_their_reason() -> None:
    """What held a request back until it ended is still told afterwards."""
    site = await new_site(gpus=1)
    await site.submit("first", 1)
    name = await site.submit("r", 1)
    await site.says("request.cancel", TEAM, request=name)
    found = await explain(site, name)
    assert (found.status, found.code) == ("cancelled", "no_capacity")


async def test_what_others_tried_is_a_step() -> None:
    """A release by another owner changes nothing, and is told."""
    site = await new_site()
    name = await site.submit("r", 1)
    await site.says("lease.release", "/team/b", lease=f"{name}/1")
    found = await explain(site, name)
    assert found.status == "granted"
    assert found.steps[-1].code == "not_owner"


async def test_unknown_requests_and_short_ids() -> None:
    """An id without its source is enough as long as one source has used it."""
    site = await new_site()
    name = await site.submit("r", 1)
    cells = site.shard.fold.cells.values()
    assert why(site.state, await history(site), f"{TEAM}#other") is None
    assert resolve(cells, "r") == name
    assert resolve(cells, "r/1") == f"{name}/1"
    assert resolve(cells, "nobody") == "nobody"
    data = {"tenant": "t", "queue": "q", "task": {"id": "r"}, "ask": {"mode": "whole"}}
    await site.says("request.submit", "/team/b", "r", **data)
    with pytest.raises(Ambiguous, match="2 things"):
        resolve(site.shard.fold.cells.values(), "r")


# -- show -------------------------------------------------------------------------


async def shown(site: Site, name: str) -> Shown:
    """Show an id."""
    return show(site.shard.fold.cells, await history(site), name)


async def test_any_id_leads_to_all_that_it_touched() -> None:
    """Request, lease, order, device, node, tenant, queue and pool all lead to each other."""
    site = await new_site()
    name = await site.submit("r", 2)
    await site.says("lease.release", TEAM, lease=f"{name}/1")
    order = next(iter(site.state.orders))
    everything = {
        "request": name,
        "lease": f"{name}/1",
        "order": order,
        "unit": "GPU-1",
        "node": "n1",
        "tenant": "t",
        "queue": "q",
    }
    for start in ("r", name, f"{name}/1", "GPU-1", "t", "q", "n1"):
        found = await shown(site, start)
        assert found.found, start
        for kind, other in everything.items():
            if other in (start, name) and start in ("r", name, other):
                continue
            if kind in ("tenant", "queue") and start not in ("r", name, "t", "q"):
                continue  # upwards it is the request that is named, and leads there
            assert other in found.touched.get(kind, {}), (start, kind)
        assert [step.time_us for step in found.timeline] == sorted(
            step.time_us for step in found.timeline
        )


async def test_things_that_are_no_more_are_still_told() -> None:
    """An order that was answered is in no table; its records are there."""
    site = await new_site()
    name = await site.submit("r", 1)
    await site.says("lease.release", TEAM, lease=f"{name}/1")
    order = next(iter(site.state.orders))
    await site.says("order.done", "/nodes/n1", node="n1", incarnation="b1", order=order)
    found = await shown(site, order)
    assert [(thing.kind, thing.state) for thing in found.things] == [("order", None)]
    assert len(found.timeline) == 2
    assert not (await shown(site, "nothing")).found


async def test_a_name_may_be_several_things() -> None:
    """A pool and a queue of one name are both shown."""
    site = await new_site()
    await site.says("queue.apply", queue="main", **OPERATOR)
    found = await shown(site, "main")
    assert {thing.kind for thing in found.things} == {"pool", "queue"}


async def test_short_ids_of_two_sources_are_ambiguous() -> None:
    """Two sources may use one id: the caller has to say which."""
    site = await new_site()
    await site.submit("r", 1)
    data = {"tenant": "t", "queue": "q", "task": {"id": "r"}, "ask": {"mode": "whole"}}
    await site.says("request.submit", "/team/b", "r", **data)
    with pytest.raises(Ambiguous):
        await shown(site, "r")


def test_every_event_has_a_sentence() -> None:
    """No type falls back to its bare name; a type of the future does."""
    assert set(wording._WORDS) == set(EVENT_MODELS)
    assert sentence({"type": "x.y"}) == "x.y"


@pytest.mark.parametrize("kind", get_args(OrderIssued.model_fields["kind"].annotation))
def test_every_kind_of_order_has_a_sentence(kind: str) -> None:
    """Also of one that is about no lease, as a change of the MIG mode."""
    about = {"lease": "r/1"} if kind in ("clean", "stop") else {}
    event = {"type": "order.issued", "order": "o1", "kind": kind, "node": "n1", "units": ["GPU-0"]}
    said = sentence({**event, **about, "steps": [], "enabled": False})
    assert said.startswith("n1 was ordered to ")
    assert said.endswith("(o1)")
    assert "GPU-0" in said
