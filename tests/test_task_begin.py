"""The start of a requester's command on record: whose it may be, and the waits that it tells."""

from __future__ import annotations

import pytest

from ledger.answers.waits import Wait
from ledger.cli.explained import explained
from ledger.testing import TEAM
from tests.answers import ask, explain, site

BEGIN = {"node": "n1", "said_us": 77, "after_us": 250_000}


def test_the_waits_of_a_request() -> None:
    """From asking to grant, from there to the start; the command's own start is the better."""
    cell = site(gpus=1)
    ask(cell, "first")
    first = cell.lease("first").id
    second_us = cell.now_us + 1_000_000
    cell.tick(at_us=second_us - 1)
    ask(cell, "second")
    assert () == explain(cell, "second").waits, "it has no lease yet"
    asked_us = cell.now_us
    cell.release(first)
    cell.answer_all_orders()
    lease = cell.lease("second").id
    granted_us = cell.now_us
    (wait,) = explain(cell, "second").waits
    assert Wait(lease, asked_us, granted_us) == wait
    cell.task_started(lease, "n1")
    (wait,) = explain(cell, "second").waits
    assert Wait(lease, asked_us, granted_us, cell.now_us, "node") == wait
    assert "applied" == cell.feed("task.begin", {"lease": lease, **BEGIN}).code
    found = explain(cell, "second")
    assert (Wait(lease, asked_us, granted_us, cell.now_us, "requester", 77),) == found.waits
    assert "from there for its command to start" in explained(found)
    assert "was started on n1, 0.25 s after its grant was heard" in explained(found)


def test_a_lease_after_another_has_a_wait_of_its_own() -> None:
    """It is counted from where the request waited again."""
    cell = site(nodes=1, gpus=1)
    ask(cell, "r", retries=1)
    cell.health("GPU-1a", "gone")
    cell.answer_all_orders()
    again_us = cell.now_us
    cell.health("GPU-1a", "healthy")
    cell.node("n1", [{"uuid": "GPU-1a", "model": "H100", "memory_mib": 81_920}])
    cell.answer_all_orders()
    first, *later = explain(cell, "r").waits
    assert later, "it was granted again"
    assert first.granted_us <= later[0].since_us <= again_us


@pytest.mark.parametrize(
    ("change", "source", "code"),
    [
        ({"lease": "/team/a#nobody/1"}, TEAM, "unknown_lease"),
        ({}, "/stranger", "not_owner"),
        ({"node": "n9"}, TEAM, "wrong_node"),
    ],
)
def test_what_is_not_so_is_refused(change: dict[str, str], source: str, code: str) -> None:
    """Of another's lease, of none, and on a node that it is not on."""
    cell = site()
    ask(cell, "r")
    said = {"lease": cell.lease("r").id, **BEGIN, **change}
    assert code == cell.feed("task.begin", said, source=source).code


def test_a_lease_that_is_over_has_nothing_to_begin() -> None:
    """The word comes late, and changes nothing."""
    cell = site()
    ask(cell, "r")
    lease = cell.lease("r").id
    cell.release(lease)
    assert "already_released" == cell.feed("task.begin", {"lease": lease, **BEGIN}).code
