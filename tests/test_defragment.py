"""A plan of moves for a blocked profile is complete, least, and can be carried out as ordered."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import orjson
from typer.testing import CliRunner

from ledger.cli import app
from ledger.core.mig.defragment import defragment
from ledger.log.sqlite import SqliteLog
from tests.ledgers import OPERATOR, Site
from tests.test_partition import ask, carry_out, cell_with, h100, piece, split

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.testing import CoreDriver


def _blocked(*, preemptible: bool) -> CoreDriver:
    """Two devices with one small slice in use each, in the half that 4g.40gb needs."""
    cell = cell_with(
        h100("GPU-a", piece("1g.10gb", 0)), h100("GPU-b", piece("2g.20gb", 2)), policy="never"
    )
    for name, profile in (("small", "1g.10gb"), ("large", "2g.20gb")):
        assert "granted" == ask(cell, name, profile, preemptible=preemptible)
    assert "queued" == ask(cell, "r1", "4g.40gb")
    return cell


def test_the_fewest_moves_make_the_place_and_nothing_is_done_by_itself() -> None:
    """One move is enough, and it is told as orders that an operator can give."""
    cell = _blocked(preemptible=True)
    records = len(cell.records)
    found = defragment(cell.state, "4g.40gb")
    assert found is not None
    assert 1 == len(found.moves.moves)
    assert records == len(cell.records)
    make, last = found.orders
    assert (1, 0) == (len(make.leases), len(last.leases))
    assert "4g.40gb@0" in last.layout


def test_the_orders_of_a_plan_can_be_given_one_after_the_other() -> None:
    """Create beside, let the work go over, then the layout with the place: the request runs."""
    cell = _blocked(preemptible=True)
    found = defragment(cell.state, "4g.40gb")
    assert found is not None
    make, last = found.orders
    assert "applied" == split(cell, make.device, list(make.layout))
    carry_out(cell)
    (moved,) = make.leases
    profile = cell.state.slices[cell.state.leases[moved].parts["n1"].units[0]].profile
    cell.release(moved)
    # Its old slice is being cleaned, so the same again gets the new one.
    assert "granted" == ask(cell, "again", profile)
    cell.answer_all_orders()
    assert "applied" == split(cell, last.device, list(last.layout))
    carry_out(cell)
    assert "granted" == cell.state.requests[cell.key("r1")].state


def test_work_that_nobody_may_move_stays() -> None:
    """Without preemptible work in the way there is no plan (C09)."""
    cell = _blocked(preemptible=False)
    assert defragment(cell.state, "4g.40gb") is None
    found = defragment(cell.state, "3g.40gb")
    assert found is not None
    assert () == found.moves.moves
    assert defragment(cell.state, "3g.40gb", "another-pool") is None
    assert defragment(cell.state, "9g.90gb") is None


#: What is not there of a profile and pool, and what is said of it.
NOT_THERE = {
    ("4g.40gb", "--pool", "x"): "there is no pool x; there are main",
    ("9g.90gb",): "no device takes the profile 9g.90gb; they take 1g.10gb, 1g.20gb, 2g.20gb,"
    " 3g.40gb, 4g.40gb, 7g.80gb",
    ("7g.80gb", "--pool", "main"): "no moves make a place for 7g.80gb in pool main",
}


def test_the_command_shows_a_device_and_a_plan(tmp_path: Path) -> None:
    """`node partition-plan`, on what the log says: exit 1 where there is nothing to show."""
    path = tmp_path / "log.db"

    async def fill() -> None:
        log = SqliteLog(path)
        site = Site(log)
        await site.start(gpus=1)
        await site.says(
            "node.inventory", "/nodes/n2", node="n2", incarnation="b1", epoch=1, pool="main",
            devices=[h100("GPU-m", piece("1g.10gb", 0))],
        )  # fmt: skip
        await site.says(
            "request.submit", "/team/a", "r1", tenant="t", queue="q", task={"id": "x"},
            ask={"mode": "mig", "profile": "1g.10gb"}, preemptible=True,
        )  # fmt: skip
        await site.says("pool.apply", pool="main", partition="never", **OPERATOR)
        await log.close()

    asyncio.run(fill())

    def command(*arguments: str) -> Any:
        words = ["--log", f"sqlite:{path}", "node", "partition-plan", *arguments]
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(CliRunner().invoke, app, words).result()

    shown = orjson.loads(command("GPU-m", "--json").stdout)
    assert [("1g.10gb", 0, "leased")] == [
        (one["profile"], one["start"], one["state"]) for one in shown["slices"]
    ]
    assert ([4], []) == (shown["fits"]["now"]["3g.40gb"], shown["fits"]["now"]["7g.80gb"])
    plan = orjson.loads(command("--profile", "4g.40gb", "--json").stdout)
    assert (1, "GPU-m", 0) == (plan["moves"], plan["device"], plan["start"])
    assert ["/team/a#r1/1"] == plan["orders"][0]["then_move"]
    assert "gpuledger node partition GPU-m" in command("--profile", "4g.40gb").stdout
    assert "1g.10gb" in command("GPU-m").stdout
    assert [1, 1, 2, 2] == [
        command(*one).exit_code
        for one in (["GPU-x"], ["--profile", "7g.80gb"], [], ["GPU-m", "--pool", "main"])
    ]
    for arguments, says in NOT_THERE.items():
        done = command("--profile", *arguments)
        assert (1, f"gpuledger: {says}\n") == (done.exit_code, done.stderr), arguments
