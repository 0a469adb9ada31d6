"""Snapshots are derived data: one that the log does not bear out is set aside."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ledger.core.digest import digest
from ledger.snapshots import SnapshotStore
from ledger.testing import CoreDriver

if TYPE_CHECKING:
    from pathlib import Path

    from ledger.core.fold import Fold

TOPIC = "gpuledger.events"


def _driver() -> CoreDriver:
    driver = CoreDriver()
    driver.pool()
    driver.queue()
    driver.quota()
    return driver


async def _load(store: SnapshotStore, driver: CoreDriver, *, end: int | None = None) -> Fold | None:
    async def value_at(offset: int) -> bytes | None:
        return driver.records[offset]

    return await store.load(0, len(driver.records) if end is None else end, value_at)


async def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    """A snapshot gives the state it was made from."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)
    store.save(0, driver.fold, driver.records[-1])

    found = await _load(store, driver)

    assert found is not None
    assert driver.digest() == digest(found.cells)
    assert not store.set_aside


async def test_the_newest_that_holds_is_taken(tmp_path: Path) -> None:
    """A damaged snapshot is set aside, renamed and named; the one before it is used."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)
    older = store.save(0, driver.fold, driver.records[-1])
    at = driver.fold.head.offset
    driver.quota(tenant="other")
    newer = store.save(0, driver.fold, driver.records[-1])
    data = bytearray(newer.read_bytes())
    data[-2] ^= 1
    newer.write_bytes(data)

    found = await _load(store, driver)

    assert found is not None
    assert at == found.head.offset
    assert [newer] == [one.path for one in store.set_aside]
    assert "digest" in store.set_aside[0].reason
    assert not newer.exists()
    assert newer.with_suffix(".set-aside").exists()
    assert older.exists()


async def test_one_that_is_newer_than_the_log_is_set_aside(tmp_path: Path) -> None:
    """S4: a log that was cut short is not extended by what a snapshot remembers."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)
    store.save(0, driver.fold, driver.records[-1])

    found = await _load(store, driver, end=len(driver.records) - 1)

    assert found is None
    assert "newer than the log" in store.set_aside[0].reason


async def test_one_of_another_log_is_set_aside(tmp_path: Path) -> None:
    """S4: a topic made anew begins its offsets again; its records are others."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)
    store.save(0, driver.fold, driver.records[-1])
    driver.records[-1] = driver.records[-1].replace(b'"v":1', b'"v": 1')

    found = await _load(store, driver)

    assert found is None
    assert "another record" in store.set_aside[0].reason


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"not json\n{}", b'{"v":99}\n', b'{"v":1,"topic":"x","partition":0}\n{}'],
)
async def test_what_is_no_snapshot_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """Half a file, another format, another partition: none of them is read."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)
    (tmp_path / f"{TOPIC}-0-{5:020d}.snapshot").write_bytes(content)

    found = await _load(store, driver)

    assert found is None
    assert 1 == len(store.set_aside)


def test_old_ones_are_removed(tmp_path: Path) -> None:
    """Two snapshots of a partition are kept: the newest and one to fall back on."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)
    for number in range(4):
        driver.quota(tenant=f"t{number}")
        store.save(0, driver.fold, driver.records[-1])

    assert 2 == len(list(tmp_path.iterdir()))


def test_half_a_snapshot_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a full disk nothing stays; what a killed process has left goes with the next one."""
    driver, store = _driver(), SnapshotStore(tmp_path, TOPIC)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ledger.snapshots.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.save(0, driver.fold, driver.records[-1])
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    left = tmp_path / f"{TOPIC}-0-{1:020d}.partial-999999999"
    others = tmp_path / f"{TOPIC}-0-{1:020d}.partial-{os.getppid()}"
    left.write_bytes(b"half")
    others.write_bytes(b"half")

    path = store.save(0, driver.fold, driver.records[-1])

    assert {path, others} == set(tmp_path.iterdir())
