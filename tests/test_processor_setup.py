"""Settings are checked, and what a worker says goes to stderr alone."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from ledger.log.memory import MemoryLog
from ledger.log.port import TopicState
from ledger.log.topics import declared
from ledger.shard import ShardCounts
from processors.metrics import Metrics, MetricsServer
from processors.settings import Settings
from processors.setup import Refused, check_topics
from tests.processor_support import ROOT, settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting has its variable; the worker's name says which process it is."""
    monkeypatch.setenv("GPULEDGER_LOG", "kafka://h:1")
    monkeypatch.setenv("GPULEDGER_TICK_S", "0.5")
    found = Settings()
    assert ("kafka://h:1", 0.5) == (found.log, found.tick_s)
    assert found.worker != Settings(worker="w").worker


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"session_timeout_s": 8, "group_heartbeat_s": 3}, "session_timeout_s"),
        ({"rebalance_timeout_s": 5}, "rebalance_timeout_s"),
        ({"heartbeat_limit_s": 1, "tick_s": 2}, "heartbeat_limit_s"),
        ({"batch": 0}, "batch"),
        ({"batch": 1001}, "batch"),
        ({"prefix": "a.b"}, "prefix"),
        ({"metrics_port": 0}, "metrics_port"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], named: str) -> None:
    """The message names the setting."""
    with pytest.raises(ValidationError, match=named):
        Settings(**given)


def test_snapshots_lie_beside_the_file() -> None:
    """Where nothing is said the snapshots of a file are its neighbours."""
    assert Settings(log="sqlite:/a/l.sqlite").snapshot_folder == Path("/a/l.sqlite-snapshots")
    assert Settings(log="kafka://h:1").snapshot_folder == Path(".gpuledger/snapshots/h-1")
    assert Settings(snapshots=Path("x")).snapshot_folder == Path("x")


async def test_topics_that_do_not_match_are_refused() -> None:
    """Every finding is named with what was found and what is wanted."""
    log = MemoryLog()
    topics = declared("gpuledger", 2)
    topics["gpuledger.observations"] = TopicState(3)
    del topics["gpuledger.orders"]
    await log.create_topics(topics)
    with pytest.raises(Refused) as refused:
        await check_topics(log, settings())
    said = str(refused.value)
    assert "gpuledger.observations: partitions is 3, wanted 2 as gpuledger.events has" in said
    assert "gpuledger.orders: topic is missing, wanted present" in said
    await log.close()


@pytest.mark.parametrize("form", ["json", "console"])
def test_log_lines_go_to_stderr(form: str) -> None:
    """Ours and the libraries', in one form; stdout stays empty."""
    code = (
        "import logging, structlog; from processors.logs import configure_logs;"
        f" from processors.settings import Settings; configure_logs(Settings(log_format={form!r}));"
        " structlog.get_logger('ours').info('hello', partition=3);"
        " logging.getLogger('aiokafka').warning('theirs %s', 5);"
        " logging.getLogger('aiokafka').info('too much')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert "theirs 5" in lines[1]
    if form == "json":
        first = orjson.loads(lines[0])
        assert ("hello", 3, "info") == (first["event"], first["partition"], first["level"])


def test_metrics_are_served_on_the_loopback(unused_tcp_port: int) -> None:
    """What was counted can be fetched while the server runs; a port that is taken is refused."""
    metrics = Metrics()
    counts = ShardCounts(dead_letters=2)
    counts.codes["granted"] = 5
    metrics.worked(counts)
    metrics.lag("requests", 3, 7)
    with MetricsServer(metrics, unused_tcp_port):
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}/metrics") as answer:
            said = answer.read().decode()
        with pytest.raises(Refused, match="metrics_port"), MetricsServer(metrics, unused_tcp_port):
            pass
    assert 'gpuledger_decisions_total{code="granted"} 5.0' in said
    assert "gpuledger_dead_letters_total 2.0" in said
    assert 'gpuledger_lag_records{partition="3",topic="requests"} 7.0' in said
    metrics.forget(3)
    assert 'partition="3"' not in str(list(metrics.registry.collect()))
