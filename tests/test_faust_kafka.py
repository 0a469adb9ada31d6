"""The Faust worker on a real Kafka, in processes of its own."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests import kafka_workers
from tests.processor_support import Worker, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RUNNER = "faust"


@pytest.mark.parametrize(
    "case",
    [
        kafka_workers.end_to_end,
        kafka_workers.refuses_topics,
        kafka_workers.refuses_another_runner,
        kafka_workers.stops_at_damage,
        kafka_workers.takes_offsets_for_nothing,
        kafka_workers.survives_garbage,
    ],
    ids=lambda case: case.__name__,
)
async def test_faust(
    case: Callable[..., Awaitable[None]], kafka: str, kafka_prefix: str, tmp_path: Path
) -> None:
    """The Faust worker does what every worker must."""
    await case(RUNNER, kafka, kafka_prefix, tmp_path)


async def test_ended_while_it_cannot_join(kafka: str, kafka_prefix: str, tmp_path: Path) -> None:
    """A worker that the group has not let in yet ends when it is asked to, within seconds."""
    async with kafka_workers.scene(RUNNER, kafka, kafka_prefix, tmp_path) as found:
        first = found.worker()
        await until(lambda: "partition claimed" in first.output(), found.site)
        # A member that is stopped answers no rebalance: the group lets nobody in.
        first.signal(signal.SIGSTOP)
        second = found.worker()
        await until(lambda: "worker starts" in second.output(), found.site)
        await asyncio.sleep(1.5)
        assert 0 == await asyncio.to_thread(second.stop, 10.0)


def test_no_broker(tmp_path: Path, unused_tcp_port: int) -> None:
    """Without a broker the worker says so and ends with 3."""
    env = {"GPULEDGER_LOG": f"kafka://127.0.0.1:{unused_tcp_port}"}
    worker = Worker(RUNNER, env, tmp_path / "worker.log")
    worker.start()
    assert 3 == worker.running.wait(60)
    assert "cannot be reached" in worker.output()
