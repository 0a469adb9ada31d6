"""The timeline: everything that touched an id, the time between, and the ids beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ledger.explain import Ambiguous
from ledger.replay.records import follow
from ledger.replay.states import fold_at
from ledger.replay.timeline import Timeline
from ledger.testing import CoreDriver, device, mig_slice
from tests.ledgers import PREFIX
from tests.replay_support import log_of

if TYPE_CHECKING:
    from pathlib import Path


def lived_in() -> CoreDriver:
    """Return a cell in which one request has run on one of two devices and ended."""
    cell = CoreDriver()
    cell.pool("main")
    cell.queue("q")
    cell.quota("t", nominal_gpu_milli=4000)
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("r1")
    lease = cell.lease("r1").id
    cell.submit("r2")
    cell.task_started(lease, "n1")
    cell.task_ended(lease, "n1")
    for order in list(cell.state.orders):
        cell.order_done(order)
    return cell


async def timeline(cell: CoreDriver, folder: Path, name: str, first: int = 0) -> Timeline:
    """Return the timeline of an id from a place on."""
    found = Timeline(name)
    async with await log_of("memory", folder, cell.records) as log:
        folds = await fold_at(log, PREFIX, {0: first})
        async for seen, names in follow(log, PREFIX, {0: len(cell.records)}, folds):
            found.take(seen, names)
    found.finish()
    return found


LIFE = ["R+", "L+", "L>", "L/", "L-", "O+", "R-", "O-"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("r1", "request"), ("/team/a#r1", "request"), ("r1/1", "lease"), ("/team/a#r1/1", "lease")],
)
async def test_of_a_request_and_its_lease(name: str, kind: str, tmp_path: Path) -> None:
    """Every step once, in log order, to the proof that the device is clean."""
    found = await timeline(lived_in(), tmp_path, name)
    wanted = LIFE if kind == "request" else [one for one in LIFE if one not in ("R+", "R-")]
    assert [one.line.code for one in found.steps] == wanted
    assert kind in found.kinds
    assert "GPU-a" in found.links["device"]
    assert "GPU-b" not in found.links["device"]
    assert list(found.links["tenant"]) == ["t"]


async def test_durations_are_between_the_steps(tmp_path: Path) -> None:
    """The first has none; they sum up to the whole time."""
    steps = (await timeline(lived_in(), tmp_path, "r1")).steps
    assert steps[0].since_us is None
    assert sum(one.since_us or 0 for one in steps) == (
        steps[-1].line.time_us - steps[0].line.time_us
    )


@pytest.mark.parametrize(
    ("name", "kind", "first", "steps"),
    [
        ("GPU-a", "device", "D+", 7),
        ("GPU-b", "device", "D+", 2),
        ("n1", "node", "N+", 10),
        ("q", "queue", "W=", 11),
        ("t", "tenant", "Q=", 11),
        ("c-o1", "order", "O+", 2),
        ("main", "pool", "P=", 11),
        ("c", "cell", "P=", 16),
    ],
)
async def test_of_other_ids(name: str, kind: str, first: str, steps: int, tmp_path: Path) -> None:
    """What events do not name belongs to it all the same: a tenant's leases, a pool's nodes."""
    found = await timeline(lived_in(), tmp_path, name)
    assert kind in found.kinds
    assert found.steps[0].line.code == first
    assert len(found.steps) == steps


async def test_from_a_place_on_what_belongs_together_is_known_from_the_state(
    tmp_path: Path,
) -> None:
    """The end of a lease is its tenant's, also when its grant lies before the place."""
    cell = lived_in()
    whole = await timeline(cell, tmp_path, "t")
    later = await timeline(cell, tmp_path, "t", len(cell.records) - 3)
    assert [one.line for one in later.steps] == [
        one.line for one in whole.steps[-len(later.steps) :]
    ]
    assert "L-" in [one.line.code for one in later.steps]


async def test_an_unknown_id_has_no_steps_and_a_short_one_must_be_one_thing(tmp_path: Path) -> None:
    """Two sources have used the id: they are named."""
    cell = lived_in()
    assert (await timeline(cell, tmp_path, "nothing")).steps == []
    cell.feed(
        "request.submit",
        {"tenant": "t", "queue": "q", "task": {"id": "x"}, "ask": {"mode": "whole", "count": 1}},
        source="/team/b",
        id="r1",
    )
    with pytest.raises(Ambiguous, match="/team/b#r1"):
        await timeline(cell, tmp_path, "r1")


async def test_a_quota_is_touched_by_all_below_it(tmp_path: Path) -> None:
    """Organisation, tenant, project; a project without a quota counts at its tenant's."""
    cell = CoreDriver()
    cell.pool("main"), cell.queue("q")
    tree = {"tenant": "org"}, {"tenant": "t", "parent": "org"}, {"tenant": "t", "project": "p"}
    for quota in tree:
        words = {"nominal_gpu_milli": 4000, "author": "operator", "reason": "test", **quota}
        assert cell.feed("quota.apply", words, source="/operator").code == "applied"
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    cell.submit("with", project="p")
    cell.submit("without", project="x")
    granted = {
        name: [
            request
            for step in (await timeline(cell, tmp_path, name)).steps
            if step.line.code == "L+"
            for request in step.line.named["request"]
        ]
        for name in ("org", "t", "t/p")
    }
    both = [cell.key("with"), cell.key("without")]
    assert granted == {"org": both, "t": both, "t/p": both[:1]}


async def test_a_slice_is_found_by_each_of_its_names(tmp_path: Path) -> None:
    """Its own id, its MIG UUID, and the device it is on: all have its lease."""
    cell = CoreDriver()
    cell.pool("main"), cell.queue("q"), cell.quota("t")
    card = device("GPU-m", mig_enabled=True, slices=[mig_slice("MIG-1", 1, 0)])
    cell.node("n1", [card])
    cell.submit("r1", {"mode": "mig", "profile": "1g.10gb"})
    (unit,) = cell.lease("r1").parts["n1"].units
    for name, kind in ((unit, "slice"), ("MIG-1", "mig_uuid"), ("GPU-m", "device")):
        found = await timeline(cell, tmp_path, name)
        assert kind in found.kinds
        assert "L+" in [step.line.code for step in found.steps]
