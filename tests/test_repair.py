"""A gang's place is kept whole through repair (A10), for a stated time."""

from __future__ import annotations

from typing import Any

from ledger.testing import CoreDriver, device

SECOND = 1_000_000
GANG: dict[str, Any] = {"mode": "whole", "count": 2, "nodes": 2}


def site(nodes: int = 2, gpus: int = 2, **queue: Any) -> CoreDriver:
    """A queue and so many nodes; a gang of two nodes by two devices runs on the first two."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue(**queue)
    cell.quota()
    for at in range(1, 3):
        report(cell, at, gpus)
    assert "granted" == cell.submit("gang", GANG, retries=1).code
    assert {"n1", "n2"} == set(cell.lease("gang").parts)
    for at in range(3, nodes + 1):
        report(cell, at, gpus)
    return cell


def report(cell: CoreDriver, at: int, gpus: int = 2, **more: Any) -> None:
    """Let a node tell its devices."""
    cards = [device(f"GPU-{at}{which}") for which in "abcdefgh"[:gpus]]
    cell.node(f"n{at}", cards, **more)


def lose(cell: CoreDriver, uuid: str) -> None:
    """Let a device of the gang fall off its bus; its nodes stop and clean."""
    cell.health(uuid, "gone")
    cell.answer_all_orders()


def state_of(cell: CoreDriver, name: str) -> str:
    """Return where a request stands."""
    return cell.state.requests[cell.key(name)].state


def test_a10_what_is_left_is_kept() -> None:
    """One device of four is gone: the three that are free are nobody else's; then it is back."""
    cell = site()
    lose(cell, "GPU-1a")
    assert "queued" == state_of(cell, "gang")
    small = cell.submit("small")
    assert ("queued", "planned_for_another") == (small.code, small.numbers["reason"])
    assert "queued" == cell.submit("part", {"mode": "share", "gpu_milli": 100}).code
    report(cell, 1)
    cell.answer_all_orders()
    assert ("granted", "queued") == (state_of(cell, "gang"), state_of(cell, "small"))
    assert {} == cell.state.index.repairs


def test_a10_a_spare_node_completes_it() -> None:
    """The surviving node and a spare one: the gang runs again as soon as its devices are clean."""
    cell = site(3)
    cell.health("GPU-1a", "gone")
    assert "queued" == cell.submit("other", {"mode": "whole", "count": 2, "nodes": 2}).code
    cell.answer_all_orders()
    assert {"n2", "n3"} == set(cell.lease("gang").parts)
    assert "granted" == cell.submit("small").code
    assert ["GPU-1b"] == cell.lease("small").parts["n1"].units


def test_a10_the_hold_ends() -> None:
    """After ten minutes, as an event; whoever waited for what is free gets it then."""
    cell = site()
    lose(cell, "GPU-1a")
    cell.submit("small")
    until_us = cell.state.requests[cell.key("gang")].repair
    assert until_us is not None
    due_us = until_us.until_us
    ended = next(event["type"] for event in cell.tick(due_us - 1).events or [{"type": "nothing"}])
    assert ("nothing", "queued") == (ended, state_of(cell, "small"))
    events = [event["type"] for event in cell.tick(due_us).events]
    assert ["request.repair-over", "lease.granted"] == events
    assert "granted" == state_of(cell, "small")


def test_a10_a_stated_time() -> None:
    """The queue says how long: here a minute, and in another queue not at all."""
    cell = site(repair_hold_s=60)
    interrupted_us = cell.now_us
    lose(cell, "GPU-1a")
    kept = cell.state.requests[cell.key("gang")].repair
    assert kept is not None
    assert 0 < kept.until_us - interrupted_us - 60 * SECOND < SECOND
    other = site(repair_hold_s=None)
    lose(other, "GPU-1a")
    assert other.state.requests[other.key("gang")].repair is None
    assert "granted" == other.submit("small").code


def test_a10_a_lost_node_that_comes_back() -> None:
    """The other node is kept, and the lost one too as soon as it is there again."""
    cell = site()
    cell.silent("n1")
    cell.tick(cell.now_us + 60 * SECOND)
    cell.answer_all_orders()
    cell.submit("first")
    cell.submit("second")
    report(cell, 1)
    clean = sorted(one.id for one in cell.state.orders.values())
    cell.order_done(clean[0])
    assert ["queued"] * 2 == [state_of(cell, "first"), state_of(cell, "second")]
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "gang")


def test_a10_a_gang_on_one_node() -> None:
    """Eight devices of a node, one gone: seven are kept."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    report(cell, 1, 8)
    cell.submit("gang", {"mode": "whole", "count": 8}, retries=1)
    lose(cell, "GPU-1h")
    assert "queued" == cell.submit("small").code
    report(cell, 1, 8)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "gang")


def test_what_is_beside_is_free_for_all() -> None:
    """Of three devices on the second node two are kept: the third is leased as ever."""
    cell = site(gpus=3)
    assert "granted" == cell.submit("filler").code
    assert ["n1"] == list(cell.lease("filler").parts)
    lose(cell, "GPU-1a")
    assert "granted" == cell.submit("small").code
    assert ["n2"] == list(cell.lease("small").parts)
    assert "planned_for_another" == cell.submit("late", max_wait_s=0).code
    cell.release(cell.lease("filler").id)
    cell.answer_all_orders()
    assert "granted" == state_of(cell, "gang")


def test_an_earlier_one_in_line_may_take_it() -> None:
    """A higher priority is not held back; the gang waits on with what is left."""
    cell = site()
    lose(cell, "GPU-1a")
    assert "granted" == cell.submit("urgent", priority=9).code
    assert "queued" == cell.submit("small").code


def test_a_cancelled_gang_lets_go() -> None:
    """What was kept is there at once for who waited."""
    cell = site()
    lose(cell, "GPU-1a")
    cell.submit("small")
    cell.cancel("gang")
    assert "granted" == state_of(cell, "small")


def test_without_a_retry_nothing_is_kept() -> None:
    """The request has ended: there is nobody to keep it for."""
    cell = CoreDriver(check=True)
    cell.pool()
    cell.queue()
    cell.quota()
    report(cell, 1)
    report(cell, 2)
    cell.submit("gang", GANG)
    lose(cell, "GPU-1a")
    assert "granted" == cell.submit("small").code


def test_another_that_is_lost_is_kept_no_longer() -> None:
    """The second node goes into maintenance too: what is on the first is still kept."""
    cell = site()
    lose(cell, "GPU-1a")
    cell.node_set("n2", "maintenance")
    assert "queued" == cell.submit("small").code
    cell.health("GPU-1b", "unhealthy")
    cell.node_set("n2", "online")
    assert "queued" == state_of(cell, "small")
    live, again = cell.state, cell.replayed().cell("c")
    assert live.index.deadlines.standing(live) == again.index.deadlines.standing(again)
    assert live.index.repairs == again.index.repairs
