"""The command ``gpuledger reservation``: made, listed, used and given up, as an operator would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from ledger.log.sqlite import SqliteLog
from tests.ledgers import Site
from tests.test_cli import Cli

if TYPE_CHECKING:
    from pathlib import Path

WHY = ("--reason", "demo day", "--author", "op")
WHEN = ("--tenant", "t", "--start", "2999-01-01T12:00:00Z", "--lasts-s", "3600")


@pytest.fixture
async def cli(tmp_path: Path) -> Cli:
    """Return the command on the log of one node with two devices."""
    async with SqliteLog(tmp_path / "log.sqlite") as log:
        await Site(log).start(gpus=2)
    return Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)


def test_a_reservation_from_beginning_to_end(cli: Cli) -> None:
    """Applied with its nodes, listed, waited for, and given up; each with its exit status."""
    made = cli.json("reservation", "apply", "demo", *WHEN, "--count", "2", *WHY)
    assert ("applied", "n1") == (made["code"], made["numbers"]["nodes"])
    (row,) = [orjson.loads(one) for one in cli("reservation", "list", "--json").stdout.splitlines()]
    assert ("demo", "to come", ["n1"], 2) == (
        row["reservation"], row["state"], row["nodes"], row["count"],
    )  # fmt: skip
    assert "2999-01-01T13:00:00.000Z" == row["end"]
    text = cli("reservation", "list").stdout
    assert "demo" in text
    assert "n1" in text
    asked = ("--tenant", "t", "--queue", "q", "--task", "x", "--no-wait")
    waits = cli("submit", *asked, "--reservation", "demo", "--json")
    assert "reservation_not_open" in waits.stdout
    assert "cancelled" == cli.json("reservation", "cancel", "demo", *WHY)["code"]
    assert "" == cli("reservation", "list", "--json").stdout


def test_a_no_and_a_wrong_use(cli: Cli) -> None:
    """More than there is: exit 1 and the numbers; half a time: exit 2."""
    done = cli("reservation", "apply", "demo", *WHEN, "--count", "3", *WHY, "--json")
    assert 1 == done.returncode
    found = orjson.loads(done.stdout)
    assert ("no_capacity", 0) == (found["code"], found["numbers"]["places"])
    assert 1 == cli("reservation", "cancel", "demo", *WHY).returncode
    assert 2 == cli("reservation", "apply", "demo", *WHEN[:4], *WHY).returncode
    backwards = ("--tenant", "t", "--start", "2999-01-01", "--end", "2998-01-01")
    assert 2 == cli("reservation", "apply", "demo", *backwards, *WHY).returncode
    later = ("--tenant", "t", "--start", "tomorrow", "--lasts-s", "60")
    assert 2 == cli("reservation", "apply", "demo", *later, *WHY).returncode
