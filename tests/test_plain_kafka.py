"""The plain runner on a real Kafka, in processes of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import kafka_workers
from tests.processor_support import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

RUNNER = "plain"


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
async def test_plain(
    case: Callable[..., Awaitable[None]], kafka: str, kafka_prefix: str, tmp_path: Path
) -> None:
    """The plain runner does what every worker must."""
    await case(RUNNER, kafka, kafka_prefix, tmp_path)


def test_no_broker(tmp_path: Path, unused_tcp_port: int) -> None:
    """Without a broker the worker says so and ends with 3."""
    env = {"GPULEDGER_LOG": f"kafka://127.0.0.1:{unused_tcp_port}"}
    worker = Worker(RUNNER, env, tmp_path / "worker.log")
    worker.start()
    assert 3 == worker.running.wait(60)
    assert "cannot be reached" in worker.output()
