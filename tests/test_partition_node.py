"""A simulated node carries out what the ledger plans, over the messages between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from collectors.fleet.description import DeviceSpec, NodeSpec
from collectors.light.node import SimulatedNode
from collectors.light.tasks import Timing
from collectors.said import agent_source
from ledger.core.outbox import messages
from ledger.testing import TEAM, CoreDriver
from schemas.catalogue import adapter
from schemas.observations import ProfileReport
from tests.test_partition import H100, profiles

if TYPE_CHECKING:
    from ledger.core.decide import Decision

SECOND = 1_000_000


class Site:
    """One cell and one simulated node that hear each other."""

    def __init__(self, policy: str) -> None:
        self.cell = CoreDriver(check=True)
        self.cell.pool(partition=policy)
        self.cell.queue()
        self.cell.quota()
        self.replies: list[dict[str, Any]] = []
        kinds = tuple(ProfileReport.model_validate(one, strict=False) for one in profiles(H100))
        devices = tuple(
            DeviceSpec(f"GPU-{at}", "H100", 81_920, at, compute_slices=7, profiles=kinds)
            for at in range(2)
        )
        timing = Timing(stop_us=0, clean_us=0)
        self.node = SimulatedNode(NodeSpec("n1", "main", devices), "c", timing=timing)
        self.node.start(self.cell.now_us)
        self.listen()

    def say(self, kind: str, plain: dict[str, Any], *, source: str = TEAM, **more: Any) -> str:
        """Feed an input, hand its orders over, and let the node answer what is done at once."""
        decision = self.cell.feed(kind, plain, source=source, **more)
        self.deliver(decision)
        return decision.code

    def deliver(self, decision: Decision) -> None:
        """Carry what the decision has to say to those whom it concerns."""
        for topic, _, kind, plain in messages(self.cell.state, decision, "events/0@1"):
            message = adapter(kind, 1).validate_json(orjson.dumps(plain))
            if topic == "orders":
                self.node.hear(message, self.cell.now_us)
            else:
                self.replies.append(plain)

    def listen(self, seconds: int = 0) -> None:
        """Let time pass on the node, and hear what it says until it has nothing more to say."""
        at_us = self.cell.now_us + seconds * SECOND
        self.node.advance(at_us)
        while said := self.node.take():
            for one in said:
                at_us = max(at_us, self.cell.now_us + 1)
                self.say(one.type, one.data, source=agent_source("n1"), at_us=at_us)
            self.node.advance(at_us)


def test_a_request_gets_its_slice_made_leased_and_given_back() -> None:
    """From the request to the proof of clean; the second gets the first one's slice."""
    site = Site("create")
    ask = {"tenant": "t", "queue": "q", "task": {"id": "x"}, "expected_run_s": 60}
    mig = {"ask": {"mode": "mig", "profile": "3g.40gb"}}
    assert "reserved" == site.say("request.submit", ask | mig, id="r1")
    assert {} == site.cell.state.leases
    site.listen(1)
    (lease,) = site.cell.state.leases.values()
    granted = next(one for one in site.replies if one["answer"] == "granted")
    (unit,) = lease.parts["n1"].units
    name = site.cell.state.slices[unit].mig_uuid
    assert name == granted["parts"][0]["environment"]["CUDA_VISIBLE_DEVICES"]
    site.listen(100)
    assert {} == site.cell.state.leases
    assert "granted" == site.say("request.submit", ask | mig, id="r2")
    assert 1 == len(site.cell.state.slices)


def test_an_idle_device_gets_a_new_layout() -> None:
    """Two devices full of small idle slices; one of them is made anew as a whole."""
    site = Site("relayout")
    for uuid in ("GPU-0", "GPU-1"):
        layout = {"device": uuid, "layout": ["1g.10gb"] * 7, "author": "op", "reason": "small"}
        assert "applied" == site.say("device.partition", layout, source="/operator")
        site.listen(5)
    assert 14 == len(site.cell.state.slices)
    ask = {"tenant": "t", "queue": "q", "task": {"id": "x"}}
    mig = {"ask": {"mode": "mig", "profile": "7g.80gb"}}
    assert "reserved" == site.say("request.submit", ask | mig, id="r1")
    site.listen(5)
    assert "granted" == site.cell.state.requests[f"{TEAM}#r1"].state
    assert 8 == len(site.cell.state.slices)


def test_the_least_memory_asked_is_what_is_on_record_beside_what_is_given() -> None:
    """M8: 12000 MiB were asked, 20096 MiB are leased."""
    site = Site("create")
    asked = {"ask": {"mode": "mig", "memory_mib": 12_000}}
    ask = {"tenant": "t", "queue": "q", "task": {"id": "x"}}
    site.say("request.submit", ask | asked, id="r1")
    site.listen(5)
    request = site.cell.state.requests[f"{TEAM}#r1"]
    assert request.charge is not None
    assert (12_000, 20_096) == (request.need.memory_mib, request.charge.memory_mib)
