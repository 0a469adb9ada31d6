"""U1 to U4 over drawn logs: what a signature is of, and what an archive's file is of.

U5 is the table of attempts in `tests.sql_attempts`; every kind of tampering is in
`tests.test_proof_tamper`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ledger.archive.compact import compact
from ledger.archive.follow import Follower, Options
from ledger.log.port import Entry, Record
from ledger.proof.evidence import gather
from ledger.proof.history import history, prove_record
from ledger.proof.inclusion import check_proof
from ledger.proof.leaf import GENESIS, leaf_bytes, link, read_leaf, record_hash
from ledger.proof.note import BadNote
from tests.proofs import KEY, PREFIX, TOPIC, log_of, sign
from tests.property_support import few, histories

if TYPE_CHECKING:
    from collections.abc import Sequence

_DATA = st.binary(max_size=40)
_HEADERS = st.lists(st.tuples(st.text(max_size=8), _DATA), max_size=3).map(tuple)
_ENTRIES = st.builds(Entry, st.none() | _DATA, st.none() | _DATA, _HEADERS)
_LOGS = st.lists(_ENTRIES, min_size=1, max_size=40)


def record_of(entry: Entry, offset: int) -> Record:
    """Return what a log has of an entry."""
    return Record(TOPIC, 0, offset, 0, *entry)


def heads(entries: Sequence[Entry]) -> list[bytes]:
    """Return the head of the chain after each record."""
    found, head = [], GENESIS
    for offset, one in enumerate(entries):
        head = link(head, record_hash(record_of(one, offset)))
        found.append(head)
    return found


@few
@given(_LOGS, st.data())
def test_u1_the_chain_ends_elsewhere_after_any_change(
    entries: list[Entry], data: st.DataObject
) -> None:
    """From a changed record on no head is what it was; the leaf has all that the wire has."""
    at = data.draw(st.integers(0, len(entries) - 1))
    other = data.draw(_ENTRIES)
    assume(other != entries[at])
    before, after = heads(entries), heads([*entries[:at], other, *entries[at + 1 :]])
    assert before[:at] == after[:at]
    assert all(one != another for one, another in zip(before[at:], after[at:], strict=True))
    record = record_of(entries[at], at)
    assert record == read_leaf(leaf_bytes(record), TOPIC, 0)


@few
@given(_LOGS, st.data())
def test_u2_every_checkpoint_goes_on_from_the_one_before(
    entries: list[Entry], data: st.DataObject
) -> None:
    """Signed at drawn sizes: each is proved to begin the next, sizes and times never fall."""
    sizes = sorted(data.draw(st.sets(st.integers(0, len(entries)), max_size=5)))
    with TemporaryDirectory() as folder:
        asyncio.run(sign(entries, Path(folder), sizes))
        found = history(Path(folder), KEY.public)
        signed = [one.checkpoint for one in found if one.checkpoint is not None]
        assert sorted({*sizes, len(entries)}) == [one.size for one in signed]
        assert [one.time_us for one in signed] == sorted(one.time_us for one in signed)
        assert ["consistent"] * (len(found) - 1) + ["last"] == [one.verdict for one in found]
        assert heads(entries)[-1] == signed[-1].chain


@few
@given(_LOGS, st.data())
def test_u3_every_record_has_a_proof_under_each_later_checkpoint(
    entries: list[Entry], data: st.DataObject
) -> None:
    """It needs the proof and the public key alone, and with a byte of it changed there is none."""
    sizes = sorted(data.draw(st.sets(st.integers(1, len(entries)), max_size=3)))
    with TemporaryDirectory() as folder:
        asyncio.run(sign(entries, Path(folder), sizes))
        for evidence in gather([Path(folder)], KEY.public):
            offset = data.draw(st.integers(0, evidence.checkpoint.size - 1))
            proof = asyncio.run(prove_record(log_of(entries), PREFIX, evidence, offset))
            proved = check_proof(proof, KEY.public)
            assert (offset, entries[offset]) == (proved.record.offset, Entry(*proved.record[4:]))
            assert evidence.checkpoint == proved.checkpoint
            at = data.draw(st.integers(0, len(proof) - 1))
            with pytest.raises(BadNote):
                check_proof(proof[:at] + bytes([proof[at] ^ 1]) + proof[at + 1 :], KEY.public)


@settings(few, max_examples=4)
@given(histories, st.integers(20, 60), st.lists(st.integers(1, 60), max_size=2))
def test_u4_the_same_range_is_the_same_file(
    values: tuple[bytes, ...], every: int, steps: list[int]
) -> None:
    """However often a follower stopped on its way, and compacted or not, names and bytes agree."""
    entries = [Entry(b"c", value) for value in values]
    with TemporaryDirectory() as folder:
        once, often = Path(folder, "once"), Path(folder, "often")
        at = 0
        for step in [*steps, len(entries)]:
            at = min(at + step, len(entries))
            asyncio.run(_follow(entries[:at], often, every))
        asyncio.run(_follow(entries, once, every))
        for one in (once, often):
            compact(one, every)
        assert _files(once) == _files(often)


async def _follow(entries: Sequence[Entry], folder: Path, every: int) -> None:
    await Follower(log_of(entries), PREFIX, folder, Options(("events",), every)).once()


def _files(folder: Path) -> dict[str, bytes]:
    return {
        one.relative_to(folder).as_posix(): one.read_bytes()
        for one in sorted(folder.rglob("*.parquet"))
    }
