"""The answer to a request that nobody has made is the one that it would get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.answers.whatif import what_if
from ledger.core.fold import Fold
from schemas.catalogue import adapter
from tests.answers import GANG, ask, quota, site, told

if TYPE_CHECKING:
    from ledger.explain import Explanation
    from ledger.testing import CoreDriver


def asked(**more: Any) -> dict[str, Any]:
    """Return a submission of tenant t for one device."""
    return {
        "tenant": "t",
        "queue": "q",
        "task": {"id": "task"},
        "ask": {"mode": "whole"},
        **more,
    }


def whatif(cell: CoreDriver, **more: Any) -> Explanation:
    """Ask on a copy of the cell, which is what the state must be."""
    copy = Fold()
    for offset, value in enumerate(cell.records):
        copy.apply(offset, value)
    data = orjson.dumps(asked(**more))
    return what_if(copy.cells["c"], adapter("request.submit", 1).validate_json(data))


def busy() -> CoreDriver:
    """Return a cell of two nodes, three quarters held, in which one waits and one may go."""
    cell = site(2, 4, quota=7, preemption="same-tenant")
    quota(cell, "u", 2)
    ask(cell, "low", 3, preemptible=True)
    ask(cell, "firm", 3)
    ask(cell, "waits", 1, 8)
    return cell


ASKS: dict[str, dict[str, Any]] = {
    "granted": {},
    "too many on one node": {"ask": {"mode": "whole", "count": 2}},
    "refused at once": {"ask": {"mode": "whole", "count": 2}, "max_wait_s": 0},
    "evicts": {"ask": {"mode": "whole", "count": 2}, "priority": 5, "tenant": "t"},
    "larger than its quota": {"ask": {"mode": "whole", "count": 8}},
    "no such tenant": {"tenant": "nobody"},
    "no such queue": {"queue": "nowhere"},
    "no such pool": {"ask": {"mode": "whole", "pool": "elsewhere"}},
    "no such model": {"ask": {"mode": "whole", "models": ["B200"]}},
    "no such profile": {"ask": {"mode": "mig", "profile": "1g.10gb"}},
    "a share": {"ask": {"mode": "share", "gpu_milli": 300}},
    "no such template": {"template": "nothing"},
}


@pytest.mark.parametrize("kind", ASKS)
def test_the_answer_is_the_one_that_would_be_given(kind: str) -> None:
    """Granted, reserved, waiting or refused: as the ledger then decides, with its code."""
    cell = busy()
    before = cell.digest()
    found = whatif(cell, **ASKS[kind])
    assert before == cell.digest()
    decision = cell.feed("request.submit", asked(**ASKS[kind]), id="real")
    statuses = {"granted": "granted", "reserved": "reserved", "queued": "waiting"}
    assert statuses.get(decision.code, "refused") == found.status
    if decision.code == "queued":
        assert decision.numbers["reason"] == found.code
    else:
        assert decision.code == found.code
    if found.status == "refused":
        assert found.reason
        refusing = next(rule for rule in found.rules if rule.code == found.code)
        assert ("not met", decision.numbers) == (refusing.verdict, refusing.numbers)
    if found.status == "granted":
        assert found.placed is not None
        parts = cell.lease("real").parts
        assert {one.node: list(one.units) for one in found.placed.chosen} == {
            name: part.units for name, part in parts.items()
        }


def test_c21_a_gang_that_is_refused_is_told_what_would_run() -> None:
    """Also for one that would not wait: the same reason, and the changes that were tried."""
    found = whatif(site(10, 6), ask=GANG, max_wait_s=0)
    assert "needs 12 places of 4, only 10 exist (60 free GPUs in total)" == found.reason
    assert ["10 instead of 12 nodes"] == told(found, "fewer")


def test_larger_than_the_quota_names_the_raise_and_the_smaller_request() -> None:
    """The raise is the least that is enough, and the request that fits is told."""
    found = whatif(site(1, 8, quota=5), ask={"mode": "whole", "count": 7})
    assert "asks 7 GPUs, the quota is at most 5 GPUs" == found.reason
    assert ["5 instead of 7 devices"] == told(found, "fewer")
    assert ["quota t has 2 GPUs more"] == told(found, "quota")


def test_a_queue_limit_names_another_queue() -> None:
    """A queue in which it would run at once is told."""
    cell = site(1, 4)
    cell.queue("small", max_gpus=1)
    found = whatif(cell, queue="small", ask={"mode": "whole", "count": 2})
    assert ("exceeds_queue_limit", "asks 2 GPUs, the queue takes at most 1 GPUs") == (
        found.code,
        found.reason,
    )
    assert ["queue q instead of small"] == told(found, "queue")
    assert ["1 instead of 2 devices"] == told(found, "fewer")
