"""Rounds over a node's devices: what differs at once, the rest in turn, at few calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.nvml.codes import Code
from collectors.nvml.reader import NvmlReader
from collectors.nvml.rounds import Rounds
from tests.nvml_support import make_node, put_slice

if TYPE_CHECKING:
    from collectors.fake_nvml.node import FakeNode
    from collectors.nvml.rounds import Look


class Going:
    """Rounds over a fake node, a second apart."""

    def __init__(self, node: FakeNode, pass_s: float = 30.0) -> None:
        self.node = node
        self.now_s = 0.0
        self.asker = FakeAsker(node)
        self.reader = NvmlReader(self.asker, clock=lambda: self.now_s)
        self.rounds = Rounds(self.reader, lambda: self.now_s, pass_s)

    async def next(self, seconds: float = 1.0) -> Look:
        """Let time pass and go round."""
        self.now_s += seconds
        with fake_library():
            return await self.rounds.next()

    async def ask(self, op: str, **more: Any) -> None:
        """Change something through the same session."""
        with fake_library():
            await self.asker.ask(op, **more)


def mig_node() -> FakeNode:
    """Eight H100 with seven slices each."""
    node = make_node("n1", ("H100-80GB",) * 8, mig=True)
    for gpu in node.gpus:
        for at in range(7):
            put_slice(gpu, "1g.10gb", at)
    return node


async def test_a_round_without_news_is_cheap_and_each_device_has_its_turn() -> None:
    """What never changes is not asked again: a tenth of the calls, and in a pass all are read."""
    going = Going(mig_node())
    first = await going.next()
    assert (8, True) == (len(first.read), first.news)
    whole = going.node.calls
    looks = [await going.next() for _ in range(30)]
    assert not any(one.news for one in looks)
    assert sorted(gpu.uuid for gpu in going.node.gpus) == sorted(
        device.uuid for one in looks for device in one.read
    )
    assert 10 * (going.node.calls - whole) < 30 * whole


async def test_what_differs_in_health_or_mode_is_read_at_once() -> None:
    """The driver's verdict, a mode that was changed by somebody else, a device that is lost."""
    going = Going(make_node("n1", ("H100-80GB",) * 3))
    await going.next()
    gpu = going.node.gpus[1]
    gpu.recovery_action = 2
    look = await going.next(0.1)
    assert ([gpu.uuid], True) == ([one.uuid for one in look.read], look.news)
    assert 2 == look.inventory.devices[1].recovery_action
    assert ((), False) == ((again := await going.next(0.1)).read, again.news)
    gpu.set_mig(1)
    (device,) = (await going.next(0.1)).read
    assert device.mig
    assert 19 in {one.id for one in device.profiles}
    going.node.lose(gpu)
    look = await going.next(0.1)
    assert "gpu-is-lost" == look.inventory.devices[1].why
    assert look.news


async def test_what_this_session_has_changed_is_read_though_others_have_read_it_since() -> None:
    """A change of partitions looks at its device itself; the next round reads it all the same."""
    going = Going(make_node("n1", ("H100-80GB",) * 2, mig=True))
    await going.next()
    uuid = going.node.gpus[0].uuid
    await going.ask("create_gi", uuid=uuid, profile=9, start=0, size=4)
    await going.ask("device", uuid=uuid)
    look = await going.next(0.1)
    assert ([uuid], True) == ([one.uuid for one in look.read], look.news)
    assert 1 == len(look.inventory.devices[0].instances)


async def test_another_listing_or_driver_is_read_whole() -> None:
    """A card that is gone, and a driver that was loaded anew: nothing kept is believed."""
    going = Going(make_node("n1", ("L40S",) * 3))
    await going.next()
    going.node.gpus[0].listed = False
    look = await going.next(0.1)
    assert 2 == len(look.inventory.devices)
    going.node.reload_driver("999.1")
    look = await going.next(0.1)
    assert "999.1" == look.inventory.host.driver
    assert 2 == len(look.read)


async def test_a_device_that_hangs_in_a_round_rests_and_the_others_are_seen() -> None:
    """The round costs it its sight; when its rest is over it is read again."""
    going = Going(make_node("n1", ("L40S",) * 2))
    await going.next()
    sick, well = going.node.gpus
    going.node.faults = [Fault("nvmlDeviceGetFieldValues", "hang", gpu=sick.uuid)]
    look = await going.next(0.1)
    assert look.inventory.devices[0].why.startswith("hung: ")
    assert "" == look.inventory.devices[1].why
    well.recovery_action = 1
    assert [well.uuid] == [one.uuid for one in (await going.next(0.1)).read if not one.why]
    going.node.faults = []
    assert "" == (await going.next(31)).inventory.devices[0].why


async def test_a_device_that_fails_otherwise_is_still_known_by_the_rest() -> None:
    """A code in the pulse is a difference: the device is read, and says what it lacks."""
    going = Going(make_node("n1", ("L40S",)))
    await going.next()
    going.node.faults = [Fault("nvmlDeviceGetFieldValues", Code.UNKNOWN)]
    look = await going.next(0.1)
    assert "unknown" == look.inventory.devices[0].missing["recovery_action"]
    assert not look.inventory.devices[0].why
