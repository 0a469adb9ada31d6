"""Dead letters: what was put aside is whole, and gets back unchanged."""

from __future__ import annotations

import orjson
import pytest

from ledger.dead_letters import CannotRedrive, DeadLetter, find, read_all, redrive
from ledger.log.memory import MemoryLog
from ledger.log.port import MAX_RECORD_BYTES, Entry
from ledger.wire import input_entry
from tests.ledgers import OPERATOR, PREFIX, Site

BAD = Entry(b"c", b"\xff{not json", (("ce_id", b"x"), ("trace", b"\x00\xff"), ("trace", b"2")))


async def new_site() -> Site:
    """Return a started site on a memory log."""
    site = Site(MemoryLog())
    await site.start()
    return site


async def letters(site: Site) -> list[DeadLetter]:
    """Return all dead letters."""
    return [letter async for letter in read_all(site.log, PREFIX)]


async def test_a_letter_is_the_record_and_the_reason() -> None:
    """Origin, code, original bytes and headers, the repeated one included."""
    site = await new_site()
    await site.put(BAD)
    (letter,) = await letters(site)
    assert letter.origin == "gpuledger.requests/0@3"
    assert letter.code == "bad_envelope"
    assert letter.detail
    assert letter.position == "0@0"
    whole = letter.whole()
    assert whole["headers"] == [["ce_id", "x"], ["trace", "hex:00ff"], ["trace", "2"]]
    assert whole["value"] == f"hex:{BAD.value.hex() if BAD.value else ''}"
    assert await find(site.log, PREFIX, "0@0") == letter


async def test_names_that_are_no_letters() -> None:
    """Nothing there is None; what is no name at all is said so."""
    site = await new_site()
    assert await find(site.log, PREFIX, "0@7") is None
    assert await find(site.log, PREFIX, "9@0") is None
    for name in ("7", "a@b", "0@-1", "@", ""):
        with pytest.raises(ValueError, match="names no dead letter"):
            await find(site.log, PREFIX, name)


async def test_redriven_records_are_byte_for_byte_the_same() -> None:
    """Key, value and headers are those of the first time, in their order."""
    site = await new_site()
    await site.put(BAD)
    (letter,) = await letters(site)
    assert await redrive(site.log, letter) == "gpuledger.requests/0@4"
    (again,) = await site.log.read("gpuledger.requests", 0, 4)
    assert Entry(again.key, again.value, again.headers) == BAD


async def test_a_redriven_record_is_decided_once_the_cause_is_mended() -> None:
    """A letter goes in as any other record once somebody has mended it; unmended it comes back."""
    site = await new_site()
    entry = input_entry("c", "queue.apply", "/ops", "q2", {"queue": "q2", **OPERATOR})
    value = entry.value or b""
    await site.put(
        Entry(entry.key, value.replace(b'"queue":"q2"', b'"queue":" q2"'), entry.headers)
    )
    (letter,) = await letters(site)
    assert letter.code == "bad_field"
    await site.put(Entry(letter.record.key, value, entry.headers))
    assert "q2" in site.state.queues
    await redrive(site.log, letter)
    await site.pump()
    assert len(await letters(site)) == 2, "still malformed: put aside again, nothing stops"


async def test_a_letter_that_was_cut_comes_whole_from_its_origin() -> None:
    """A record that leaves no room for the reason is cut in the letter, not in the redrive."""
    site = await new_site()
    value = b"x" * (MAX_RECORD_BYTES - 100)
    await site.put(Entry(b"c", value))
    (letter,) = await letters(site)
    assert letter.whole_bytes == len(value)
    await redrive(site.log, letter)
    assert (await site.log.read("gpuledger.requests", 0, 4))[0].value == value


async def test_a_cut_letter_without_its_origin_is_refused() -> None:
    """A part of a record is never sent as if it were the whole."""
    site = await new_site()
    await site.put(Entry(b"c", b"x" * (MAX_RECORD_BYTES - 100)))
    (letter,) = await letters(site)
    other = Site(MemoryLog())
    await other.start()
    with pytest.raises(CannotRedrive, match=f"of {MAX_RECORD_BYTES - 100}\\s+bytes"):
        await redrive(other.log, letter)


async def test_many_headers_come_back_from_the_origin() -> None:
    """A letter has room for fewer headers than the record had."""
    site = await new_site()
    headers = tuple((f"h{number}", b"v") for number in range(64))
    await site.put(Entry(b"c", b"{}", headers))
    (letter,) = await letters(site)
    await redrive(site.log, letter)
    assert (await site.log.read("gpuledger.requests", 0, 4))[0].headers == headers


async def test_a_record_cannot_forge_the_reason() -> None:
    """Headers that look like ours do not hide the true ones."""
    site = await new_site()
    forged = (("__gpuledger.errors.code", b"granted"), ("__gpuledger.errors.topic", b"x"))
    await site.put(Entry(b"c", orjson.dumps({}), forged))
    (letter,) = await letters(site)
    assert (letter.code, letter.topic) == ("bad_envelope", "gpuledger.requests")
