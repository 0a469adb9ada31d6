"""The command ``gpuledger reservation``: made, listed, used and given up, as an operator would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from tests.test_cli import Cli

if TYPE_CHECKING:
    from pathlib import Path

WHY = ("--reason", "demo day", "--author", "op")
WHEN = ("--tenant", "demo", "--start", "2200-01-01T12:00:00Z", "--lasts-s", "3600")


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return the command on an SQLite log that does not exist yet."""
    return Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)


def test_a_reservation_from_beginning_to_end(cli: Cli) -> None:
    """Applied with its nodes, listed, waited for, and given up; a no has its numbers and exit 1."""
    with cli.running("up", "--json"):
        made = cli.json("reservation", "apply", "expo", *WHEN, "--count", "4", *WHY)
        assert "applied" == made["code"]
        node = made["numbers"]["nodes"]
        (row,) = map(orjson.loads, cli("reservation", "list", "--json").stdout.splitlines())
        found = (row["reservation"], row["state"], row["nodes"], row["count"], row["end"])
        assert ("expo", "to come", [node], 4, "2200-01-01T13:00:00.000Z") == found
        assert node in cli("reservation", "list").stdout
        asked = ("--tenant", "demo", "--queue", "default")
        waits = cli.json("submit", *asked, "--reservation", "expo")
        assert ("queued", "reservation_not_open") == (waits["answer"], waits["code"])
        many = cli.json("reservation", "apply", "all", *WHEN, "--nodes", "1000", *WHY, status=1)
        assert "no_capacity" == many["code"]
        assert many["numbers"]["places"] < 1000
        assert "cancelled" == cli.json("reservation", "cancel", "expo", *WHY)["code"]
        again = cli.json("reservation", "cancel", "expo", *WHY, status=1)
        assert "unknown_reservation" == again["code"]
        assert "" == cli("reservation", "list", "--json").stdout
        assert 1 == cli("reservation", "list", "--cell", "elsewhere").returncode


def test_wrong_use(cli: Cli) -> None:
    """Half a time, one that goes backwards, and one that is none: exit 2."""
    for when in (
        WHEN[:4],
        ("--tenant", "t", "--start", "2200-01-01", "--end", "2199-01-01"),
        ("--tenant", "t", "--start", "tomorrow", "--lasts-s", "60"),
    ):
        assert 2 == cli("reservation", "apply", "expo", *when, *WHY).returncode
