"""The site that `gpuledger up` makes of an empty log: nothing about it is wrong at first sight."""

from __future__ import annotations

from collectors.simulation.clock import VirtualClock
from collectors.simulation.cluster import Act, Cluster, Scenario
from ledger.cli.site import FLEET
from ledger.log.memory import MemoryLog
from ledger.log.port import TopicState
from ledger.log.topics import declared
from processors.embedded import EmbeddedLoop
from tests.processor_support import settings


async def test_the_starter_site_raises_no_alarm() -> None:
    """Its nodes are there, one of them cut into slices, and no more of those than is reasonable."""
    clock = VirtualClock(1_600_000_000_000_000)
    log = MemoryLog(clock)
    await log.create_topics({name: TopicState(1) for name in declared("gpuledger")})
    pool = {"pool": FLEET.nodes[0].pool, "author": "operator", "reason": "test"}
    acts = [Act(0, "pool", "pool.apply", pool)]
    loop = EmbeddedLoop(log, settings(), clock)
    await Cluster(
        log, loop, clock, Scenario(FLEET.cell, clock.now_us, FLEET.specs(), [], acts)
    ).run()
    shard = loop.engine.shard(0)
    assert shard is not None
    state = shard.fold.cells[FLEET.cell]
    assert {} == state.alarms
    assert {"1g.10gb", "2g.20gb", "3g.40gb"} == {one.profile for one in state.slices.values()}
    assert ["online"] * 3 == [one.state for one in state.nodes.values()]
