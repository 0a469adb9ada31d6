"""Every example is accepted by what reads it; those that are programs run on a real Kafka."""

from __future__ import annotations

import ast
import asyncio
import sys
from typing import TYPE_CHECKING

import orjson
import pytest

from collectors.fake_nvml.described import Described, node_of
from collectors.files import read_model
from collectors.fleet.description import read_fleet
from collectors.fleet.fault_plan import read_faults
from collectors.light.agent import Agent, AgentOptions
from collectors.simulation.scenario import read_scenario
from collectors.simulation.traces import read_helios
from ledger.billing.prices import read_prices
from ledger.log.kafka import KafkaLog
from ledger.log.topics import apply
from ledger.policy_files import read_policy, read_site
from ledger.wire import input_entry
from schemas.catalogue import adapter
from schemas.topics import full_name
from tests.processor_support import POLICY, Worker
from tests.test_tidy import ROOT, imported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

EXAMPLES = ROOT / "examples"
CELL, TENANT, QUEUE = "main", "vision", "default"


@pytest.mark.parametrize("name", ["producer.py", "reader.py"])
def test_an_example_is_short_and_needs_nothing_of_ours(name: str) -> None:
    """At most 30 lines, and only aiokafka beside the standard library."""
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) <= 30
    modules = {each.split(".")[0] for _, each in imported(ast.parse(text))}
    assert modules - set(sys.stdlib_module_names) == {"aiokafka"}


def _node(path: Path) -> None:
    node_of(read_model(path, Described))


def _policies(kind: str) -> Callable[[Path], object]:
    """Read as a file of the kind, and as a site, which a what-if takes."""

    def read(path: Path) -> object:
        text = path.read_text()
        return read_policy(text, kind, ABOUT) and read_site(text, ABOUT)

    return read


#: Who and why, as the options of a command say it.
ABOUT = {"author": "me", "reason": "to try it"}

#: Example -> what the commands that take it read it with; what is not here is no input.
READ_WITH: dict[str, Callable[[Path], object]] = {
    "compose/fleet.toml": read_fleet,
    "faults.toml": read_faults,
    "fleet-faults.toml": read_faults,
    "fleet.toml": read_fleet,
    "helios/faults.toml": read_faults,
    "helios/fleet.toml": read_fleet,
    "helios/helios_venus_2vc_sept.csv": lambda path: read_helios(path, queue="train"),
    "helios/scenario.toml": lambda path: read_scenario(path, jobs=10),
    "node.toml": _node,
    "prices.yaml": lambda path: read_prices(path.read_bytes()),
    "quotas.yaml": _policies("quota"),
    "request.json": lambda path: adapter("request.submit", 1).validate_json(path.read_bytes()),
    "site.yaml": lambda path: read_site(path.read_text(), ABOUT),
    "templates.yaml": _policies("template"),
}


@pytest.mark.parametrize("name", READ_WITH)
def test_an_example_is_accepted_by_what_reads_it(name: str) -> None:
    """As it stands, without a word of complaint."""
    assert READ_WITH[name](EXAMPLES / name) != []


def test_no_example_is_left_out() -> None:
    """A new file is in the table above, or is a program or prose."""
    files = {
        str(path.relative_to(EXAMPLES))
        for path in EXAMPLES.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".md", ".pyc")
    }
    assert files == READ_WITH.keys()


async def example(name: str, *arguments: str) -> list[str]:
    """Run an example to its end; return the lines that it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        EXAMPLES / name,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(90):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        pytest.fail(f"{name} did not end: {out.decode()} {err.decode()}")
    assert process.returncode == 0, err.decode()
    return out.decode().splitlines()


@pytest.fixture
async def site(kafka: str, kafka_prefix: str, tmp_path: Path) -> AsyncIterator[KafkaLog]:
    """A cell on the broker: its policy, a worker, and the nodes of examples/fleet.toml."""
    worker = Worker(
        "plain",
        {
            "GPULEDGER_LOG": f"kafka://{kafka}",
            "GPULEDGER_PREFIX": kafka_prefix,
            "GPULEDGER_SNAPSHOTS": str(tmp_path / "snapshots"),
        },
        tmp_path / "worker.log",
    )
    async with KafkaLog(kafka) as log:
        await apply(log, kafka_prefix, 2)
        policies = (
            ("pool", {"pool": "train"}),
            ("queue", {"queue": QUEUE}),
            ("quota", {"tenant": TENANT, "nominal_gpu_milli": 8_000}),
        )
        entries = [
            input_entry(CELL, f"{kind}.apply", "/ops", kind, {**data, **POLICY})
            for kind, data in policies
        ]
        await log.append(full_name(kafka_prefix, "requests"), None, entries)
        worker.start()
        fleet = read_fleet(EXAMPLES / "fleet.toml")
        assert fleet.cell == CELL
        agent = Agent(log, CELL, fleet.specs(), options=AgentOptions(prefix=kafka_prefix))
        stop = asyncio.Event()
        running = asyncio.create_task(agent.run(stop))
        try:
            yield log
        finally:
            stop.set()
            await running
            worker.kill()


@pytest.mark.kafka
@pytest.mark.slow
async def test_producer_and_reader(site: KafkaLog, kafka: str, kafka_prefix: str) -> None:
    """A request is granted with what a process needs, and the ledger shows why."""
    printed = await example("producer.py", kafka, CELL, TENANT, QUEUE, kafka_prefix)
    replies = [orjson.loads(line) for line in printed]
    assert replies[-1]["final"]
    assert replies[-1]["answer"] == "granted"
    (part,) = replies[-1]["parts"]
    (uuid,) = part["units"]
    assert part["environment"]["CUDA_VISIBLE_DEVICES"] == uuid
    assert part["cdi"] == [f"nvidia.com/gpu={uuid}"]
    topic = full_name(kafka_prefix, "events")
    count = sum([await site.end(topic, partition) for partition in range(2)])
    lines = await example("reader.py", kafka, kafka_prefix, f"{count}")
    (submitted,) = [line for line in lines if " request.submit: " in line]
    place, _, told = submitted.partition(" ")
    assert f"events/{place}" in {reply["position"] for reply in replies}
    assert told in (
        "request.submit: granted [request.received lease.granted]",
        "request.submit: queued [request.received request.queued]",
    )
    # Every decision so far, each on a line of its own.
    assert len([line for line in lines if " pool.apply: applied [pool.applied" in line]) == 1
    assert len(lines) < count
