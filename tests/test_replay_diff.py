"""A difference is all of it, and names the first and last record that touched each row."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.core.digest import canonical, digest
from ledger.core.state import State
from ledger.replay.diff import Change, diff
from ledger.replay.tables import CELL, KINDS
from ledger.replay.words import GROUPS, change_lines, grouped
from ledger.testing import CoreDriver, device
from tests.ledgers import PREFIX
from tests.replay_support import drawn, folds_of, log_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ledger.core.fold import Fold
    from ledger.replay.diff import Difference

Rows = dict[tuple[str, str], Any]


def rows(fold: Fold) -> Rows:
    """Return every row of the canonical bytes; what is no table is one row of the cell."""
    found: Rows = {}
    for cell in fold.cells.values():
        plain = orjson.loads(canonical(cell))
        found[CELL, cell.cell] = {
            name: value for name, value in plain.items() if name not in KINDS and name != "cell"
        }
        for table in KINDS:
            for name, row in plain.get(table, {}).items():
                found[table, name] = row
    return found


def naive(values: Sequence[bytes], old: int, new: int) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return what became of each row that differs, and who touched it, by comparing all rows."""
    fold = folds_of(values, old)
    before = last = rows(fold)
    touched: dict[tuple[str, str], list[str]] = {}
    for offset in range(old, new):
        fold.apply(offset, values[offset])
        now = rows(fold)
        for key in {*last, *now}:
            if last.get(key) != now.get(key):
                touched.setdefault(key, []).append(f"events/0@{offset}")
        last = now
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for key in {*before, *last}:
        if before.get(key) != last.get(key):
            what = "added" if key not in before else "removed" if key not in last else "changed"
            found[key] = (what, touched[key][0], touched[key][-1])
    return found


async def difference(values: Sequence[bytes], folder: Path, old: int, new: int) -> Difference:
    """Return the difference between two places of a log in memory."""
    async with await log_of("memory", folder, values) as log:
        return await diff(log, PREFIX, ({0: old}, {0: new}))


def test_every_part_of_the_state_is_in_a_table() -> None:
    """A new field of the state is a table here, or a counter of the cell: none is forgotten."""
    state = State("c", None)  # type: ignore[arg-type]
    named = {one.name for one in fields(State)} - {"cell", "index"}
    tables = {name for name in named if isinstance(getattr(state, name), dict)}
    assert tables == set(KINDS) - {CELL}


@pytest.mark.parametrize("seed", range(6))
async def test_it_is_what_comparing_all_rows_at_every_record_gives(
    seed: int, tmp_path: Path
) -> None:
    """Rows, what became of them, first and last record: over random histories of everything."""
    values = drawn(seed)
    end = len(values)
    for old, new in ((0, end), (end // 3, end // 2), (end // 2, end), (end - 1, end)):
        found = await difference(values, tmp_path, old, new)
        told = {(one.table, one.id): (one.what, one.first, one.last) for one in found.changes}
        assert told == naive(values, old, new)
        assert found.records == new - old
        assert found.digests is not None
        for place, stated in zip((old, new), found.digests, strict=True):
            assert stated == digest(folds_of(values, place).cells)
        for by in GROUPS:
            lines = list(grouped(found.changes, by, quiet=False))
            assert all(line.isprintable() for line in lines)
            assert len(lines) > len(found.changes)


async def test_between_a_place_and_itself_there_is_nothing(tmp_path: Path) -> None:
    """No change, no record, one digest."""
    found = await difference(drawn(), tmp_path, 50, 50)
    assert (found.changes, found.records) == ([], 0)
    assert found.digests is not None
    assert found.digests[0] == found.digests[1]


async def test_fields_have_old_and_new_and_whose_they_are(tmp_path: Path) -> None:
    """A grant: the device by its state and its hold, the quota by its use, the lease as added."""
    cell = CoreDriver()
    cell.pool(), cell.queue(), cell.quota(nominal_gpu_milli=4000)
    cell.node("n1", [device("GPU-a"), device("GPU-b")])
    old = len(cell.records)
    cell.submit("r1")
    found = await difference(cell.records, tmp_path, old, len(cell.records))
    lease = f"{cell.key('r1')}/1"
    changes = {(one.table, one.id): one for one in found.changes}
    card = changes["devices", "GPU-a"]
    assert card.fields["state"] == ("available", "leased")
    assert card.fields[f"holds.{lease}"][0] is None
    assert card.of == {"tenant": ["t"], "node": ["n1"], "device": ["GPU-a"], "lease": [lease]}
    assert changes["quotas", "t"].fields["used.gpu"] == (None, 1000)
    assert changes["leases", lease].what == "added"
    assert changes["leases", lease].fields["state"] == (None, "granted")
    assert found.counts["leases"] == {"added": 1, "removed": 0, "changed": 0}
    text = "\n".join(grouped(found.changes, "node"))
    assert "node n1\n" in text
    assert "      state: available -> leased\n" in text
    assert text.endswith("clocks, which --all shows beside answered ids")


async def test_a_unit_is_told_once_with_the_number_that_it_is_of(tmp_path: Path) -> None:
    """Where a number is told in the unit that people use, the name does not say another."""
    cell = CoreDriver()
    cell.pool(), cell.queue()
    old = len(cell.records)
    cell.quota(nominal_gpu_milli=4000), cell.queue(max_wait_s=60)
    found = await difference(cell.records, tmp_path, old, len(cell.records))
    text = "\n".join(grouped(found.changes, "table"))
    assert "half life 604,800 s" in text
    assert "      max wait: none -> 60 s\n" in text
    assert " us " not in text
    # What differs by less than that unit shows is told as it is, and its name has its unit.
    close = Change("c", "queues", "q", "changed", {"max_wait_us": (60_000_000, 60_000_001)})
    assert "      max wait us: 60000000 -> 60000001" in list(change_lines(close))
