"""The digest: one for each state, the same by whatever way the state came about (S1, S2)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ledger.core.derived.index import rebuild
from ledger.core.digest import canonical, digest, load_fold, save_fold
from ledger.core.fold import Fold
from ledger.core.invariants import check
from ledger.testing import CoreDriver, device, mig_slice
from tests.test_partition import h100


@pytest.fixture(scope="module")
def cell() -> CoreDriver:
    """A cell with something in every table."""
    cell = CoreDriver(check=True)
    cell.pool(labels={"zone": "1", "arch": "hopper"})
    cell.queue()
    cell.quota()
    slices = [mig_slice("MIG-1", 1, 0), mig_slice("MIG-2", 2, 1)]
    cell.node("n1", [device("GPU-a"), device("GPU-b")], cpu_milli=8_000, memory_mib=1_000)
    cell.node("n2", [device("GPU-m", mig_enabled=True, compute_slices=7, slices=slices)])
    cell.submit("whole", max_run_s=60, beside={"cpu_milli": 500}, preemptible=True, project="p")
    cell.submit("share", {"mode": "share", "gpu_milli": 300, "memory_mib": 7})
    cell.submit("mig", {"mode": "mig", "profile": "1g.10gb", "labels": {"zone": "1"}})
    cell.submit("waits", {"mode": "whole", "nodes": 3, "models": ["H100"]}, max_wait_s=900)
    cell.release(cell.lease("mig").id)
    cell.node("n1", [device("GPU-a")], agent="/other")
    cell.reclaim(cell.lease("share").id)
    cell.silent("n2")
    asked = {"tenant": "t", "nominal_gpu_milli": 2_000_000, "author": "lead", "reason": "growth"}
    cell.feed("quota.ask", asked, source="/team")
    ask = {"mode": "whole", "count": 2}
    template = {"template": "eval", "task_type": "evaluation", "defaults": {"ask": ask}}
    cell.feed("template.apply", template | {"author": "lead", "reason": "test"}, source="/team")
    shape = {"count": 1, "gpu_milli": 500, "share_ppm": 1_000_000, "models": ["H100"]}
    workload = {"pool": "main", "shapes": [shape], "holes": [[0, 0], [500, 500]]}
    averages: dict[str, object] = {"cpu_milli_per_gpu": 1, "memory_mib_per_gpu": 1}
    averages |= {"cpu_load_milli": 1, "loads_milli": {"H100": 1}}
    about = {"author": "lead", "reason": "test"}
    window = {"reservation": "demo", "tenant": "t", "start_us": 10**15, "end_us": 10**15 + 1}
    cell.feed("reservation.apply", window | about, source="/team")
    cell.feed("placement.apply", workload | averages | about, source="/team")
    rule = {"model_version": "m1", "architectures": ["hopper"], "driver_min": "550"}
    cell.feed("compatibility.apply", rule | about, source="/team")
    cell.feed("licence.apply", {"licence": "lic", "count": 3} | about, source="/team")
    price = {"sku": "gpu", "unit": "GPU-Hours", "list_nanos": 1} | about
    heading = {"currency": "EUR", "issuer": "i", "provider": "p", "host": "h", "account": "a"}
    prices = [price | {"valid_from": "2026-01-01T00:00:00Z"}]
    cell.feed("prices.apply", {"book": "b", "prices": prices} | heading | about, source="/team")
    types = [{"type": "q", "most": 4, "memory_mib": 1}]
    facts = {"architecture": "hopper", "capability": "9.0", "encoder_sessions": 2}
    card = device("GPU-c", vgpu_types=types, iommu_group="1", pci_address="0000:01:00.0", **facts)
    cell.node("n3", [card], driver="550.54", labels={"rack": "r1"})
    cell.submit("terms", {"mode": "share", "gpu_milli": 100, "encoder_sessions": 1,
                          "spread": "label:rack"}, licences={"lic": 2},
                runtime={"model": "m1"})  # fmt: skip
    measured: dict[str, Any] = {
        "to_node": "n1",
        "p99_us": 9,
        "bandwidth_mbps": 1,
        "tool": "t",
        "version": "1",
    }
    cell.says("link.evidence", "n3", valid_s=60, **measured)
    assert "granted" == cell.state.requests[cell.key("terms")].state
    cell.node("n4", [h100("GPU-p")])
    cell.feed("device.partition", {"device": "GPU-p", "layout": ["7g.80gb"]} | about, source="/op")
    failed = next(one.id for one in cell.state.orders.values() if one.kind == "partition")
    cell.says("order.failed", "n4", order=failed, reason="hung")
    return cell


def test_every_table_is_filled(cell: CoreDriver) -> None:
    """The example leaves no table empty, so that the tests below see all of them."""
    plain = orjson.loads(canonical(cell.state))
    assert [] == [name for name, value in plain.items() if value in ({}, [], None)]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_chunking_does_not_matter(cell: CoreDriver, chunk: int) -> None:
    """Saved and loaded after every few records, the fold ends in the same digest."""
    fold = Fold()
    for at, value in enumerate(cell.records):
        if at % chunk == 0:
            fold = load_fold(save_fold(fold))
        fold.apply(at, value)
    assert cell.digest() == digest(fold.cells)
    assert save_fold(cell.fold) == save_fold(fold)


def test_a_loaded_fold_can_decide(cell: CoreDriver) -> None:
    """What was loaded breaks no invariant, its rebuilt index included."""
    loaded = load_fold(save_fold(cell.fold)).ready()
    assert [] == check(loaded.cells["c"])


def test_a_digest_is_of_the_content(cell: CoreDriver) -> None:
    """Any change of any table is another digest; the order of making is not."""
    seen = {cell.digest()}
    for name in ("pools", "queues", "quotas", "nodes", "devices", "requests", "leases", "orders"):
        state = load_fold(save_fold(cell.fold)).cells["c"]
        table = getattr(state, name)
        if len(table) > 1:
            turned = dict(reversed(table.items()))
            setattr(state, name, turned)
            assert cell.digest() == digest({"c": state})
        table = getattr(state, name)
        del table[next(iter(table))]
        seen.add(digest({"c": state}))
    assert 9 == len(seen)


def test_the_index_is_no_part_of_it(cell: CoreDriver) -> None:
    """The digest is the same whether the index was kept, rebuilt, or never made."""
    state = load_fold(save_fold(cell.fold)).cells["c"]
    before = digest({"c": state})
    rebuild(state)
    assert before == digest({"c": state}) == cell.digest()


def test_void_records_are_no_part_of_it(cell: CoreDriver) -> None:
    """A log with a copy after each record has another head and the same digest."""
    fold = Fold()
    for value in cell.records:
        fold.apply(fold.head.offset, value)
        fold.apply(fold.head.offset, value)
    assert cell.digest() == digest(fold.cells)
    assert fold.head.void == fold.head.decisions


@pytest.mark.parametrize("data", [b"", b"{", b"{}\n{}", b'{"offset":1,"odd":2}', b"null"])
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    """Half a snapshot, or something else, is refused and never an empty state."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        load_fold(data)


def test_half_a_snapshot_is_refused(cell: CoreDriver) -> None:
    """A snapshot that is cut off in a cell does not load."""
    data = save_fold(cell.fold)
    with pytest.raises((ValueError, KeyError, TypeError)):
        load_fold(data[:-10])
