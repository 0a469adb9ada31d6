"""A driver that is loaded anew, in another version: a change of inventory, and no id is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.replay.records import follow
from ledger.replay.states import fold_at
from ledger.replay.timeline import Timeline
from ledger.show import show
from tests.answers import history
from tests.ledgers import PREFIX
from tests.node_support import Rig
from tests.nvml_support import put_slice
from tests.replay_support import log_of

if TYPE_CHECKING:
    from pathlib import Path

MIG = {"mode": "mig", "profile": "3g.40gb"}


async def steps_of(rig: Rig, folder: Path, name: str) -> Timeline:
    """Return everything that touched an id."""
    found = Timeline(name)
    async with await log_of("memory", folder, rig.cell.records) as log:
        folds = await fold_at(log, PREFIX, {0: 0})
        async for seen, names in follow(log, PREFIX, {0: len(rig.cell.records)}, folds):
            found.take(seen, names)
    found.finish()
    return found


async def test_a_driver_upgrade_keeps_every_old_id_resolvable(tmp_path: Path) -> None:
    """MIG is off after it (Hopper): the slice and its lease have ended, and both are found."""
    rig = Rig(("H100-80GB", "H100-80GB"))
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.submit("r1", MIG)
    await rig.settle(2)
    before = rig.cell.state.nodes["n1"].driver
    assert "13.1" == rig.cell.state.nodes["n1"].cuda
    records = len(rig.cell.records)
    (old,) = rig.cell.state.leases
    (slice_id,) = (one for part in rig.cell.state.leases[old].parts.values() for one in part.units)
    mig_uuid = rig.cell.state.slices[slice_id].mig_uuid
    devices = set(rig.cell.state.devices)

    # The module cannot be taken out while the agent runs: it is stopped, and the tasks are.
    rig.node.reload_driver("600.10")
    rig.node.cuda = 13_020
    await rig.restart()
    await rig.settle(60)

    seen = [event for one in history(rig.cell)[records:] for event in one.data.get("events", ())]
    registered = next(event for event in seen if event["type"] == "node.registered")
    assert ("600.10", "13.2") == (registered["driver"], registered["cuda"])
    assert "13.2" == rig.last("node.inventory")["cuda"]
    assert before != "600.10" == rig.cell.state.nodes["n1"].driver
    assert "600.10" == rig.last("node.inventory")["driver"]
    assert devices == set(rig.cell.state.devices), "a card is its UUID"
    assert old not in rig.cell.state.leases
    assert slice_id not in rig.cell.state.slices
    for name, kind in (
        (old, "lease"),
        ("/team/a#r1", "request"),
        (slice_id, "slice"),
        (mig_uuid, "unit"),
        (rig.node.gpus[0].uuid, "device"),
        ("n1", "node"),
    ):
        found = await steps_of(rig, tmp_path, name)
        assert found.steps, name
        assert kind in found.kinds or kind == "unit", (name, found.kinds)
    ended = await steps_of(rig, tmp_path, old)
    assert slice_id in ended.links["slice"]


async def test_after_an_upgrade_every_old_id_is_shown() -> None:
    """`show` finds what was before it, by every name that it had: it is no more, and was there."""
    rig = Rig(("H100-80GB", "L40S"))
    put_slice(rig.node.gpus[0], "3g.40gb", 4)
    await rig.start()
    rig.submit("r1", MIG)
    rig.submit("r2", {"mode": "whole", "models": ["NVIDIA L40S"]})
    await rig.settle(2)
    leases = {name: one.parts["n1"].units for name, one in rig.cell.state.leases.items()}
    assert 2 == len(leases)
    slices = {one.id: one.mig_uuid for one in rig.cell.state.slices.values()}
    names = [*leases, *slices, *slices.values(), *rig.cell.state.devices, "/team/a#r1"]
    for version, cuda in (("600.10", 13_020), ("610.5", 14_000)):
        rig.node.reload_driver(version)
        rig.node.cuda = cuda
        await rig.restart()
        await rig.settle(60)
        for name in names:
            found = show({"c": rig.cell.state}, history(rig.cell), name)
            assert found.timeline, name
        for name, units in leases.items():
            found = show({"c": rig.cell.state}, history(rig.cell), name)
            assert set(units) <= set(found.touched["unit"]), name
    assert "14.0" == rig.cell.state.nodes["n1"].cuda
    told = [one.text for one in show({}, history(rig.cell), "n1").timeline]
    assert any("610.5" in one for one in told), told


async def test_another_cuda_alone_is_told_as_an_inventory() -> None:
    """The driver is the same, and serves another version of CUDA: on record by itself."""
    rig = Rig(("L40S",))
    await rig.start()
    rig.node.cuda = 13_020
    rig.node.reload_driver()
    await rig.settle(60)
    assert "13.2" == rig.cell.state.nodes["n1"].cuda


async def test_another_driver_alone_is_told_as_an_inventory() -> None:
    """Nothing else differs: whole cards stay who they are, with what they have."""
    rig = Rig(("L40S",))
    await rig.start()
    told = rig.types().count("node.inventory")
    rig.node.reload_driver("600.10")
    await rig.settle(60)
    assert told + 1 == rig.types().count("node.inventory")
    assert "600.10" == rig.cell.state.nodes["n1"].driver
