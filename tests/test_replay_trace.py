"""The trace: every event is one line with its code, and filters take what is about an id."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import orjson
import pytest

from ledger.core.digest import digest
from ledger.core.evolve import HANDLERS
from ledger.reading import cells_of
from ledger.replay.legend import ANSWER, CLAIM, LEGEND, VOID, code_of, legend
from ledger.replay.records import follow, one_line
from ledger.replay.states import fold_at
from ledger.replay.trace import Filters, trace
from tests.ledgers import PREFIX
from tests.metering_logs import with_void_records
from tests.replay_support import drawn, folds_of, log_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.replay.records import Line


async def traced(
    values: Sequence[bytes], folder: Path, filters: Filters | None = None, first: int = 0
) -> tuple[list[Line], str]:
    """Return the lines from a place to the end of a log, and the digest."""
    async with await log_of("memory", folder, values) as log:
        folds = await fold_at(log, PREFIX, {0: first})
        found = [
            line
            async for seen, names in follow(log, PREFIX, {0: len(values)}, folds)
            for line in trace(seen, names, filters or Filters())
        ]
        return found, digest(cells_of(folds))


def test_every_event_has_a_code_of_its_own() -> None:
    """The legend is complete, and no two things look alike."""
    assert set(LEGEND) == set(HANDLERS)
    codes = [code for code, _ in LEGEND.values()] + [ANSWER, CLAIM, VOID]
    assert len(codes) == len(set(codes))
    assert {len(code) for code in codes} == {2}
    assert code_of("of a later version") in legend()
    assert list(legend(["R-", "R+"])) == ["R+", "R-"]


def test_the_legend_is_in_the_document() -> None:
    """Every code stands in docs/replay.md, and no other does."""
    text = (Path(__file__).parent.parent / "docs" / "replay.md").read_text()
    table = text.partition("## The trace")[2].partition("## The first record")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert set(re.findall(r"`(..)` ", "".join(rows))) == set(legend())


@pytest.mark.parametrize("seed", range(3))
async def test_every_event_is_one_line_in_order(seed: int, tmp_path: Path) -> None:
    """From any place on, void records and claims too, and the digest is that of the log."""
    values = with_void_records(drawn(seed), Random(seed))
    for first in (0, len(values) // 2):
        lines, found = await traced(values, tmp_path, first=first)
        assert found == digest(folds_of(values, len(values)).cells)
        wanted, fold = [], folds_of(values, first)
        for offset in range(first, len(values)):
            verdict, data = fold.apply(offset, values[offset])
            where = f"events/0@{offset}"
            if verdict == "effective" and data["events"]:
                wanted += [(where, code_of(event["type"])) for event in data["events"]]
            else:
                codes = {"claim": CLAIM, "void": VOID, "effective": ANSWER}
                wanted.append((where, codes[verdict]))
        assert [(line.position, line.code) for line in lines] == wanted
        assert all(line.text.isprintable() for line in lines)


async def test_filters_take_what_is_about_an_id(tmp_path: Path) -> None:
    """By cell, node, tenant and unit: of each lease all steps, whatever the event itself names."""
    values = drawn(seed=5, steps=200)
    every, _ = await traced(values, tmp_path)
    events = [
        (f"events/0@{offset}", event)
        for offset, value in enumerate(values)
        for event in orjson.loads(value).get("events", ())
    ]
    tenants = {
        event["request"]: event["tenant"]
        for _, event in events
        if event["type"] == "request.received"
    }
    granted = [event for _, event in events if event["type"] == "lease.granted"]
    granted = [event for event in granted if event["parts"][0]["units"]]
    assert len(granted) > 5
    for event in granted:
        part, tenant = event["parts"][0], tenants[event["request"]]
        steps = {
            (where, code_of(one["type"]))
            for where, one in events
            if one.get("lease") == event["lease"]
        }
        for filters in (
            Filters(tenant=tenant),
            Filters(node=part["node"]),
            Filters(unit=part["units"][0]),
            Filters(cell="c", tenant=tenant, node=part["node"]),
        ):
            lines = [line for line in every if filters.lets(line)]
            assert steps <= {(line.position, line.code) for line in lines}
            assert len(lines) < len(every)
    assert (await traced(values, tmp_path, Filters(cell="another")))[0] == []
    assert (await traced(values, tmp_path, Filters(tenant="nobody")))[0] == []


def test_a_reason_of_many_lines_is_one_line() -> None:
    """What a stranger has written neither breaks the line nor moves the cursor."""
    assert one_line("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
