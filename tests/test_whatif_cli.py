"""`gpuledger whatif replay`: what it prints, from any log, and how it says no."""

from __future__ import annotations

import json
from asyncio import run
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger.cli import app
from tests.billing_support import book, price
from tests.replay_support import log_of
from tests.whatif_sites import Cell, pairs

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


BOOK = book(price("gpu", "GPU-Hours", 1_000_000_000))


def cell() -> list[bytes]:
    """Return the records of a cell in which one waits for another to end."""
    found = Cell()
    found.feed(
        "prices.apply", json.loads(BOOK) | {"author": "finance", "reason": "budget"},
        source="/operator",
    )  # fmt: skip
    found.submit("a", at_us=10_000_000)
    found.submit("b", at_us=20_000_000)
    found.runs(found.lease("a").id, 110)
    found.runs(found.lease("b").id, 210)
    return found.records


@pytest.fixture(scope="module", params=["sqlite", "archive"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the log as each kind that a command line names."""
    folder = tmp_path_factory.mktemp("whatif")

    async def make() -> None:
        log = await log_of(request.param, folder, cell())
        await log.close()

    run(make())
    where = "log.sqlite" if request.param == "sqlite" else "archive"
    return f"{request.param}:{folder / where}"


def call(url: str, *arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["--log", url, "whatif", "replay", *arguments])


def plain(url: str, *arguments: str) -> dict[str, Any]:
    """Run the command with ``--json``; return the object that it prints."""
    done = call(url, *arguments, "--json")
    assert 0 == done.exit_code, done.output
    found: dict[str, Any] = orjson.loads(done.stdout)
    return found


def test_nothing_changed(url: str, tmp_path: Path) -> None:
    """Every difference is zero, with its two numbers; the assumptions are there."""
    prices = tmp_path / "prices.json"
    prices.write_bytes(BOOK)
    found = plain(url, "--prices", str(prices))
    numbers = list(pairs(found))
    assert len(numbers) > 30
    for path, pair in numbers:
        assert pair["recorded"] == pair["whatif"], path
        assert pair["difference"] in (0, None), path
    assert found["first_difference"] is None
    assert found["assumptions"]
    assert [] == found["seeds"]
    assert "every decision is the recorded one" in call(url).stdout


def test_the_prices_on_record(url: str, tmp_path: Path) -> None:
    """The book on record says what its file would; without a word of cost there is none."""
    prices = tmp_path / "prices.json"
    prices.write_bytes(BOOK)
    wanted = plain(url, "--prices", str(prices))["cost"]["payers"]
    assert wanted["t"]["contracted_atto"]["recorded"] > 0
    assert wanted == plain(url, "--cost")["cost"]["payers"]
    assert wanted == plain(url, "--book", "prices")["cost"]["payers"]
    assert "cost" not in plain(url)


def test_one_device_more(url: str) -> None:
    """Who waited for another does not wait; text and JSON say so."""
    found = plain(url, "--add-nodes", "1@like-n1")
    everybody = found["requests"][0]
    assert 0 == everybody["wait_longest_us"]["whatif"]
    assert everybody["wait_longest_us"]["recorded"] > 90_000_000
    assert (1, 0) == (everybody["wait_shorter"], everybody["wait_longer"])
    assert ["1 more node like n1"] == found["changes"]
    text = call(url, "--add-nodes", "1@like-n1").stdout
    assert "otherwise: 1 more node like n1" in text
    assert "the first decision that is another: events/0@" in text
    assert "assumed: nodes that are added never fail" in text


def test_memory_is_told_with_overcommit_only(url: str) -> None:
    """Peaks are read from what nodes measured; a log without a measure has none."""
    assert plain(url)["memory"] is None
    memory = plain(url, "--overcommit", "1.25")["memory"]
    assert {"recorded": 0, "whatif": 0, "difference": 0} == memory["devices_over"]
    text = call(url, "--overcommit", "1.25").stdout
    assert "every pool has memory_overcommit_permille 1250" in text
    assert "devices whose memory peaks would have passed" in text


def test_a_policy_file(url: str, tmp_path: Path) -> None:
    """A quota of nothing: nothing is let in, and the first to be refused is named."""
    file = tmp_path / "site.yaml"
    file.write_text("quotas: [{tenant: t, nominal_gpu_milli: 0}]\n")
    found = plain(url, "--policy", str(file))
    everybody = found["requests"][0]
    assert {"recorded": 2, "whatif": 0, "difference": -2} == everybody["let_in"]
    assert {"recorded": 0, "whatif": 2, "difference": 2} == everybody["refused"]
    lines = call(url, "--policy", str(file)).stdout.splitlines()
    header = next(line for line in lines if line.startswith("tenant "))
    (row,) = (line for line in lines if line.startswith("all "))
    at = header.index("refused")
    assert row[at : at + 6] == "0 -> 2"
    assert found["first_difference"]["position"].startswith("events/0@")


NOES: dict[str, tuple[list[str], int, str]] = {
    "no factor": (["--overcommit", "lots"], 2, "is a factor"),
    "a factor below one": (["--overcommit", "0.5"], 2, "from 1 up"),
    "no count of nodes": (["--add-nodes", "n1"], 2, "N@like-NODE"),
    "added and removed": (
        ["--add-nodes", "1@like-n1", "--remove-node", "n1"], 2, "removed, or named twice",
    ),
    "an unknown placement": (["--placement", "worst-fit"], 2, "placement"),
    "like nobody": (["--add-nodes", "1@like-n9"], 2, "there is no node n9; there are n1"),
    "without nobody": (["--remove-node", "n9"], 2, "there is no node n9; there are n1"),
    "an unknown cell": (["--cell", "elsewhere"], 1, "no cell elsewhere"),
    "a book that is not on record": (["--book", "other"], 1, "price book other has to be on"),
    "two books": (["--book", "prices", "--prices", "x.yaml"], 2, "one of them"),
    "backwards": (["--from", "9", "--to", "3"], 2, "is after"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOES)
def test_how_it_says_no(name: str, url: str) -> None:
    """Wrong usage exits with 2, what is not there with 1; what to do is said."""
    arguments, status, says = NOES[name]
    done = call(url, *arguments)
    assert status == done.exit_code, done.output
    assert says in done.output
