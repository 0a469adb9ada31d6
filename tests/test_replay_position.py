"""Positions: one notion of a place, whatever names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest

from ledger.replay.position import BadPosition, NoSuchRecord, find, parse, place_names
from tests.ledgers import PREFIX
from tests.replay_support import KINDS, drawn, log_of

if TYPE_CHECKING:
    from pathlib import Path

NOON_US = 1_769_860_800_000_000

RECORDS = {
    "events/2@17": (2, 17),
    "gpuledger.events/2@17": (2, 17),
    "a.b-c.events/0@0": (0, 0),
    "2@17": (2, 17),
    "17": (0, 17),
    "20260131": (0, 20_260_131),
}
TIMES = {
    "2026-01-31T12:00:00Z": NOON_US,
    "2026-01-31T12:00:00": NOON_US,
    "2026-01-31 13:00:00+01:00": NOON_US,
    "2026-01-31T12:00:00.000001Z": NOON_US + 1,
    "2026-01-31": NOON_US - 43_200_000_000,
}


@pytest.mark.parametrize("text", RECORDS)
def test_a_record_is_named_by_topic_partition_and_offset(text: str) -> None:
    """What is left out is events, and partition 0; digits alone are never a date."""
    found = parse(text)
    assert (found.partition, found.offset, found.time_us) == (*RECORDS[text], None)


@pytest.mark.parametrize("text", TIMES)
def test_a_time_is_exact_and_utc(text: str) -> None:
    """To the microsecond, in UTC when no zone is said."""
    found = parse(text)
    assert (found.partition, found.offset, found.time_us) == (None, None, TIMES[text])


@pytest.mark.parametrize("text", ["", "yesterday", "events/0", "requests/0@3", "0@-1", "1@2@3"])
def test_others_are_refused(text: str) -> None:
    """What is no position is said so, with the forms that are."""
    with pytest.raises(BadPosition, match=r"position|topic"):
        parse(text)


@pytest.mark.parametrize("kind", KINDS)
async def test_times_are_found_as_by_reading_everything(kind: str, tmp_path: Path) -> None:
    """Before, at and after the time of every record the place is the one that a scan finds."""
    values = drawn(steps=60)
    times = [orjson.loads(value)["time_us"] for value in values]
    async with await log_of(kind, tmp_path, values, values[:1]) as log:
        for time_us in sorted({one + by for one in times for by in (-1, 0, 1)}):
            stamp = f"1970-01-01T00:{time_us // 60_000_000:02d}"
            stamp += f":{time_us // 1_000_000 % 60:02d}.{time_us % 1_000_000:06d}Z"
            if time_us >= 3_600_000_000:
                break
            (place,) = await find(log, PREFIX, parse(stamp))
            assert place == {
                0: sum(one <= time_us for one in times),
                1: sum(one <= time_us for one in times[:1]),
            }


async def test_records_begin_and_end(tmp_path: Path) -> None:
    """A record speaks of its partition, begin and end of those that the other speaks of."""
    async with await log_of("memory", tmp_path, drawn(), drawn()[:5], ()) as log:
        assert await find(log, PREFIX, parse("begin")) == [{0: 0, 1: 0, 2: 0}]
        end = len(drawn())
        assert await find(log, PREFIX, parse("end")) == [{0: end, 1: 5, 2: 0}]
        assert await find(log, PREFIX, parse("begin"), parse("1@4")) == [{1: 0}, {1: 5}]
        assert place_names({0: 7, 1: 0, 2: 1}) == ["events/0@6", "events/2@0"]
        for beyond in ("1@5", "2@0", "3@0"):
            with pytest.raises(NoSuchRecord, match=r"there is no"):
                await find(log, PREFIX, parse(beyond))
        with pytest.raises(BadPosition, match="no common order"):
            await find(log, PREFIX, parse("0@1"), parse("1@1"))
