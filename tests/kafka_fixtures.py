"""A real Kafka for tests, one for each test run, shared by its worker processes.

Found in this order: ``KAFKA_BOOTSTRAP``, the broker of docker-compose.yml when a
container engine runs, a broker of our own (Java and Maven). When there is none
the tests fail and say what to install; they are never skipped.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from deploy.kafka_local import LocalKafka, compose_bootstrap, end, file_lock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

#: Where the processes of one test run keep what they share; set by the first of them.
_RUN_DIRECTORY = "GPULEDGER_TEST_RUN"


def pytest_configure(config: pytest.Config) -> None:
    """Make the directory that the run's worker processes, started later, find in `os.environ`."""
    if not hasattr(config, "workerinput"):
        os.environ[_RUN_DIRECTORY] = tempfile.mkdtemp(prefix="gpuledger-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the broker that this run started: workers are gone by now."""
    if hasattr(config, "workerinput"):
        return
    directory = Path(os.environ.pop(_RUN_DIRECTORY))
    started = directory / "pid"
    if started.exists():
        end(int(started.read_text()))
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def kafka() -> str:
    """Return the address (``host:port``) of a broker that tests may use, not break."""
    given = os.environ.get("KAFKA_BOOTSTRAP")
    if given:
        return given
    directory = Path(os.environ[_RUN_DIRECTORY])
    address = directory / "bootstrap"
    with file_lock(directory / "lock"):
        if not address.exists():
            bootstrap = compose_bootstrap()
            if bootstrap is None:
                broker = LocalKafka(directory / "broker")
                broker.start()
                bootstrap = broker.bootstrap
                (directory / "pid").write_text(f"{broker.detach()}")
            address.write_text(bootstrap)
        return address.read_text()


@pytest.fixture
async def kafka_prefix(kafka: str) -> AsyncIterator[str]:
    """Return a topic prefix for one test; topics made under it are removed afterwards."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    yield prefix
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
    await admin.start()
    try:
        made = [name for name in await admin.list_topics() if name.startswith(f"{prefix}.")]
        if made:
            await admin.delete_topics(made)
    finally:
        await admin.close()


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Callable[[], LocalKafka]]:
    """Return a maker of started brokers that the test may kill; all are ended afterwards."""
    made: list[LocalKafka] = []

    def make() -> LocalKafka:
        broker = LocalKafka(tmp_path / f"broker-{len(made)}")
        made.append(broker)
        broker.start()
        return broker

    yield make
    for broker in made:
        broker.kill()
