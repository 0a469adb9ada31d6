"""The commands that answer: why (now and then), whatif submit, estimates, and the state then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from ledger.log.sqlite import SqliteLog
from tests.ledgers import Site
from tests.test_cli import Cli

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
async def lived(tmp_path: Path) -> Cli:
    """Return the command on a log in which one lease is held, one waits and one was evicted."""
    async with SqliteLog(tmp_path / "log.sqlite") as log:
        site = Site(log)
        await site.start(gpus=4)
        await site.submit("a", 3, max_run_s=100)
        await site.submit("b", 2)
        await site.submit("c", 9, max_wait_s=0)
    return Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)


def test_why_of_what_waits_and_of_what_was_given(lived: Cli) -> None:
    """The reason in words, the changes, the start; and for a lease, why there."""
    text = lived("why", "b").stdout
    assert "needs 2 on one node, no node has so many free (1 free GPUs in total)" in text
    assert "requester: 1 instead of 2 devices" in text
    assert "should start by 20" in text
    assert "None" not in text
    found = lived.json("why", "b")
    assert "max_run" == found["estimate"]["basis"]
    text = lived("why", "a/1").stdout
    assert "why there: best-fit: the fewest free that is enough" in text
    assert "chosen   GPU-0, GPU-1, GPU-2 on n1 (4 free, 1 left)" in text
    assert "memory: requested not stated, reserved 245,760 MiB, delivered 245,760 MiB" in text


def test_why_as_it_was(lived: Cli) -> None:
    """At an earlier record the request was not there yet, or waited for another reason."""
    position = lived.json("why", "b")["steps"][0]["position"]
    assert "waiting" == lived.json("why", "b", "--at", position)["status"]
    offset = int(position.rpartition("@")[2])
    done = lived("why", "b", "--at", f"events/0@{offset - 1}")
    assert 1 == done.returncode
    assert lived("why", "b", "--at", "1999-01-01T00:00:00Z").returncode == 1
    assert lived("why", "b", "--at", "yesterday").returncode == 2
    head = lived("state", "--at", "2999-01-01T00:00:00Z").stdout.splitlines()[0]
    assert head.startswith("cell c at 2999-01-01T00:00:00Z, the last decision was at 20")


def test_whatif_submit_writes_nothing(lived: Cli) -> None:
    """From a file or stdin; exit 1 for a no; the log is as it was."""
    before = (lived.folder / "log.sqlite").read_bytes()
    small = {"tenant": "t", "queue": "q", "task": {"id": "x"}, "ask": {"mode": "whole"}}
    (lived.folder / "small.json").write_bytes(orjson.dumps(small))
    found = lived.json("whatif", "submit", "small.json")
    assert ("granted", "n1") == (found["status"], found["placed"]["chosen"][0]["node"])
    large = orjson.dumps(small | {"ask": {"mode": "whole", "count": 9}}).decode()
    done = lived("whatif", "submit", "-", given=large)
    assert 0 == done.returncode
    assert "waiting: no_capacity" in done.stdout
    done = lived("whatif", "submit", "-", given=large.replace('"t"', '"nobody"'))
    assert 1 == done.returncode
    assert "it would be refused: the tenant has no quota record" in done.stderr
    assert lived("whatif", "submit", "-", given="{").returncode == 2
    assert before == (lived.folder / "log.sqlite").read_bytes()


def test_estimates_by_command(lived: Cli) -> None:
    """One row for each basis, and one for all."""
    rows = [orjson.loads(row) for row in lived("estimates", "--json").stdout.splitlines()]
    assert [("max_run", 1, 1, 0), ("all", 1, 1, 0)] == [
        (row["basis"], row["waits"], row["predicted"], row["started"]) for row in rows
    ]
    assert "basis" in lived("estimates").stdout


def test_show_prints_nothing_raw(lived: Cli) -> None:
    """Rows of things are in the units of people: no None, no microseconds, no braces."""
    for name in ("/team/a#a/1", "b", "GPU-0", "n1", "t", "q"):
        text = lived("show", name).stdout
        head = text.partition("what happened")[0]
        assert head, name
        for raw in ("None", "_us", "{", "_milli"):
            assert raw not in head, (name, raw, head)
