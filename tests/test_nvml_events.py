"""Events of devices, asked for through the real `pynvml` over the fake library."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.node import Event, FakeNode, make_node
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.nvml.codes import Code
from collectors.nvml.events import MOST_EVENTS, XID
from collectors.nvml.reader import NvmlReader
from collectors.nvml.readings import Happening
from collectors.nvml.watchdog import NvmlChild

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLOCK = 0x10
MIG_CHANGED = 0x100


class Watched:
    """A node of three devices, one of them in MIG mode, and who asks for its events."""

    def __init__(self) -> None:
        self.node: FakeNode = make_node("n1", ("H100-80GB", "L40S", "L40S"), mig=True)
        self.now_s = 0.0
        self.asker = FakeAsker(self.node)
        self.reader = NvmlReader(self.asker, clock=lambda: self.now_s)
        self.uuids = [one.uuid for one in self.node.gpus]

    async def ask(self) -> list[Happening]:
        """Return the events since the last question."""
        found = await self.reader.events(self.uuids)
        assert "" == found.why
        return list(found.events)


@pytest.fixture
def watched() -> Iterator[Watched]:
    """The node, with the fake library for this process."""
    with fake_library():
        yield Watched()


async def test_an_event_is_told_once_with_its_scope(watched: Watched) -> None:
    """Device, GPU instance, compute instance; what nobody asked for is not delivered."""
    first, second, _ = watched.node.gpus
    watched.node.happen(Event(first, XID, 13))
    assert [] == await watched.ask(), "what was before the registration is not in the set"
    watched.node.happen(Event(second, XID, 79))
    watched.node.happen(Event(first, XID, 94, 3))
    watched.node.happen(Event(first, XID, 94, 3, 0))
    watched.node.happen(Event(first, MIG_CHANGED, 1))
    watched.node.happen(Event(first, CLOCK, 1))
    assert [
        Happening(second.uuid, XID, 79),
        Happening(first.uuid, XID, 94, 3),
        Happening(first.uuid, XID, 94, 3, 0),
        Happening(first.uuid, MIG_CHANGED),
    ] == await watched.ask()
    assert [] == await watched.ask()


async def test_one_answer_is_bounded(watched: Watched) -> None:
    """A storm of events is told in several answers, in order, and none is lost."""
    await watched.ask()
    for number in range(MOST_EVENTS + 5):
        watched.node.happen(Event(watched.node.gpus[1], XID, number))
    told = await watched.ask() + await watched.ask()
    assert list(range(MOST_EVENTS + 5)) == [one.xid for one in told]


async def test_a_lost_gpu_is_said_without_its_name(watched: Watched) -> None:
    """NVML says that one is gone, and the events of the others go on."""
    await watched.ask()
    watched.node.lose(watched.node.gpus[2])
    found = await watched.reader.events(watched.uuids)
    assert (True, "", ()) == (found.lost, found.why, found.events)
    watched.node.happen(Event(watched.node.gpus[1], XID, 31))
    assert [31] == [one.xid for one in await watched.ask()]


async def test_a_device_that_takes_no_events_costs_the_others_nothing(watched: Watched) -> None:
    """It is named with the reason, and tried again after a while, not at every question."""
    uuid = watched.uuids[1]
    fault = Fault("nvmlDeviceRegisterEvents", Code.NO_PERMISSION, gpu=uuid)
    watched.node.faults = [fault]
    found = await watched.reader.events(watched.uuids)
    assert {uuid: "no-permission"} == found.missing
    watched.node.happen(Event(watched.node.gpus[2], XID, 43))
    assert [43] == [one.xid for one in await watched.ask()]
    watched.node.faults = []
    for _ in range(60):
        await watched.ask()
    assert {} == (await watched.reader.events(watched.uuids)).missing


async def test_a_set_that_is_gone_is_made_anew(watched: Watched) -> None:
    """A reload of the driver ends the set: that is said once, and then it is watched again."""
    await watched.ask()
    watched.node.reload_driver()
    assert "" != (await watched.reader.events(watched.uuids)).why
    await watched.reader.host()
    await watched.ask()
    watched.node.happen(Event(watched.node.gpus[1], XID, 31))
    assert [31] == [one.xid for one in await watched.ask()]


@pytest.mark.parametrize("enabled", [False, True])
async def test_another_mig_mode_costs_nobody_an_event(watched: Watched, *, enabled: bool) -> None:
    """The set stays: what happened to the others is told, and the device is watched anew."""
    first, second, _ = watched.node.gpus
    first.mig = first.mig_pending = int(not enabled)
    await watched.ask()
    watched.node.happen(Event(second, XID, 79))
    await watched.asker.ask("set_mig_mode", uuid=first.uuid, enabled=enabled)
    assert [Happening(second.uuid, XID, 79)] == await watched.ask()
    watched.node.happen(Event(first, XID, 13))
    assert [Happening(first.uuid, XID, 13)] == await watched.ask()


async def test_a_call_that_hangs_is_the_matter_of_its_device(watched: Watched) -> None:
    """The one in which it hung is left alone for a while; the others are watched at once."""
    uuid = watched.uuids[0]
    watched.node.faults = [Fault("nvmlDeviceGetSupportedEventTypes", "hang", gpu=uuid)]
    found = await watched.reader.events(watched.uuids)
    assert found.why.startswith(f"hung: nvmlDeviceGetSupportedEventTypes {uuid}")
    await watched.ask()
    watched.node.happen(Event(watched.node.gpus[1], XID, 31))
    assert [31] == [one.xid for one in await watched.ask()], "the others are watched"
    watched.node.faults = []
    watched.now_s += 31
    await watched.ask()
    watched.node.happen(Event(watched.node.gpus[0], XID, 13))
    assert [13] == [one.xid for one in await watched.ask()]


DESCRIBED = """
[[gpu]]
board = "L40S"
count = 2

[[fault]]
function = "nvmlDeviceGetSupportedEventTypes"
does = "hang"
gpu = 0
"""


async def test_in_a_process_of_its_own_a_hang_costs_that_device_its_events(tmp_path: Path) -> None:
    """The child is killed and the device rests; the other is watched by the next child."""
    path = tmp_path / "node.toml"
    path.write_text(DESCRIBED)
    child = NvmlChild(fake=path, answer_s=2.0)
    try:
        reader = NvmlReader(child, clock=lambda: 0.0)
        uuids = [one.uuid or "" for one in (await reader.host()).listed]
        assert "hung: nvmlDeviceGetSupportedEventTypes" in (await reader.events(uuids)).why
        found = await reader.events(uuids, wait_ms=10)
        assert ("", (), {}) == (found.why, found.events, found.missing)
        assert 2 == child.starts
    finally:
        await child.close()
