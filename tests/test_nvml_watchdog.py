"""NVML in a process of its own: what hangs or dies costs one answer, not the agent."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.node import FakeNode, make_node
from collectors.fake_nvml.reader import FakeAsker, fake_library
from collectors.nvml.calls import Refused
from collectors.nvml.child import answer
from collectors.nvml.codes import Code
from collectors.nvml.reader import NvmlReader, Wanted
from collectors.nvml.session import Session
from collectors.nvml.watchdog import ChildFailed, Hung, NvmlChild
from tests.nvml_support import put_slice, reading

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

DESCRIBED = """
[[gpu]]
board = "T4"
count = 3

[[fault]]
function = "nvmlDeviceGetSerial"
does = "hang"
gpu = 1
"""

#: Long enough for any answer of a fake on a loaded machine, short enough for a test.
ANSWER_S = 2.0


@asynccontextmanager
async def child(folder: Path, described: str = DESCRIBED) -> AsyncIterator[NvmlChild]:
    """Run the process on a described node."""
    path = folder / "node.toml"
    path.write_text(described)
    made = NvmlChild(fake=path, answer_s=ANSWER_S)
    try:
        yield made
    finally:
        await made.close()


def gone(pid: int) -> bool:
    """Say whether a process is no more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_call_that_hangs_costs_that_device_only(tmp_path: Path) -> None:
    """The other devices are read, the process is another, and the call is named."""
    async with child(tmp_path) as made:
        reader = NvmlReader(made, clock=lambda: 0.0)
        found = (await reader.inventory()).devices
        pid = made.pid
        again = (await reader.inventory()).devices

        assert ["Tesla T4", None, "Tesla T4"] == [one.model for one in found]
        assert f"hung: nvmlDeviceGetSerial {found[1].uuid} has not returned for 2 s" == found[1].why
        # While it rests it is not asked again, so the process lives on.
        assert found[1].why == again[1].why
        assert (2, pid) == (made.starts, made.pid)


@pytest.mark.parametrize("does", ['"hang"', '"slow"\ntakes_ms = 60_000'])
async def test_a_call_that_hangs_in_a_round_costs_that_device_only(
    tmp_path: Path, does: str
) -> None:
    """What is asked at once says which device it was, and the others' answers come all the same."""
    described = DESCRIBED.replace("nvmlDeviceGetSerial", "nvmlDeviceGetUtilizationRates")
    described = described.replace('"hang"', does)
    async with child(tmp_path, described) as made:
        reader = NvmlReader(made, clock=lambda: 0.0)
        uuids = [one.uuid for one in (await reader.inventory()).devices]
        uses: dict[str, Any] = {"uuids": uuids, "wide": False, "counted": False}
        async with reader.at_once(Wanted(uses, (uuids, []), uuids, uuids)):
            found = await reader.uses(**uses)
            changed = await reader.pulse(uuids, [])
            happened = await reader.events(uuids)
        pid = made.pid
        async with reader.at_once(Wanted(uses, (uuids, []), uuids, uuids)):
            again = await reader.uses(**uses)

        why = f"hung: nvmlDeviceGetUtilizationRates {uuids[1]} has not returned for 2 s"
        assert ["", why, ""] == [one.why for one in found] == [one.why for one in again]
        assert None not in [found[at].gpu_percent for at in (0, 2)]
        assert found[1].gpu_percent is None
        assert changed is None, "another process has read nothing yet"
        assert ("", ()) == (happened.why, happened.events)
        assert (2, pid) == (made.starts, made.pid)


async def test_a_round_of_slow_calls_costs_nobody_anything(tmp_path: Path) -> None:
    """It takes longer than one call may, and goes on from one to the next: none of them hangs."""
    described = DESCRIBED.replace("nvmlDeviceGetSerial", "nvmlDeviceGetUtilizationRates")
    described = described.replace('"hang"\ngpu = 1', '"slow"\ntakes_ms = 1_000')
    async with child(tmp_path, described) as made:
        reader = NvmlReader(made, clock=lambda: 0.0)
        uuids = [one.uuid for one in (await reader.inventory()).devices]
        uses: dict[str, Any] = {"uuids": uuids, "wide": False, "counted": False}
        async with reader.at_once(Wanted(uses, (uuids, []), uuids, uuids)):
            found = await reader.uses(**uses)
            changed = await reader.pulse(uuids, [])

        assert [""] * 3 == [one.why for one in found]
        assert None not in [one.gpu_percent for one in found]
        assert (set(), []) == changed
        assert 1 == made.starts


@pytest.mark.parametrize(("same", "looks"), [(True, 4), (False, 24)])
async def test_a_question_is_given_up_when_it_stands_still_and_some_time_anyhow(
    monkeypatch: pytest.MonkeyPatch, *, same: bool, looks: int
) -> None:
    """The same call at four looks in one limit's time; else six times the limit is enough."""
    made, seen = NvmlChild(), list[str]()

    def where() -> str:
        seen.append("a call" if same else f"call {len(seen)}")
        return seen[-1]

    monkeypatch.setattr(made, "_where", where)
    with pytest.raises(TimeoutError):
        async with made._as_long_as_it_goes_on(0.04):
            await asyncio.Event().wait()
    assert looks == len(seen)
    await made.close()


async def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    """The answer that was asked for is an error; the next question has another process."""
    async with child(tmp_path) as made:
        host = await made.ask("host")
        assert made.pid is not None
        os.kill(made.pid, signal.SIGKILL)
        with pytest.raises(ChildFailed):
            await made.ask("host")

        assert host == await made.ask("host")
        assert 2 == made.starts


async def test_the_process_ends_with_the_questions(tmp_path: Path) -> None:
    """Nothing is left behind when the agent closes it, hanging or not."""
    async with child(tmp_path) as made:
        await made.ask("host")
        pid = made.pid
        assert pid is not None
    assert gone(pid)


async def test_a_question_that_is_given_up_does_not_answer_the_next(tmp_path: Path) -> None:
    """After a cancelled question the next gets its own answer."""
    async with child(tmp_path) as made:
        host = await made.ask("host")
        uuid = host["listed"][1]["uuid"]
        task = asyncio.create_task(made.ask("device", uuid=uuid))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert host == await made.ask("host")


async def test_what_nvml_refuses_crosses_as_a_code(tmp_path: Path) -> None:
    """A step that fails is refused with NVML's code, and no other failure looks like it."""
    async with child(tmp_path) as made:
        uuid = (await made.ask("host"))["listed"][0]["uuid"]
        with pytest.raises(Refused) as caught:
            await made.ask("create_gi", uuid=uuid, profile=19, start=0, size=1)
        with pytest.raises(ChildFailed):
            await made.ask("nonsense")

        assert Code.NOT_SUPPORTED == caught.value.code
        assert 1 == made.starts


# -- the same questions to a fake node in this process --------------------------------


def three() -> FakeNode:
    """Return a node of which the second device hangs."""
    node = make_node("n1", ["T4"] * 3)
    node.faults = [Fault("nvmlDeviceGetSerial", "hang", gpu=node.gpus[1].uuid)]
    return node


async def test_a_fake_node_answers_as_the_process_does(tmp_path: Path) -> None:
    """In this process and in another one: the same devices, and the same reasons."""
    described = DESCRIBED.replace('does = "hang"', 'does = "unknown"')
    node = make_node("fake", ["T4"] * 3)
    node.faults = [Fault("nvmlDeviceGetSerial", Code.UNKNOWN, gpu=node.gpus[1].uuid)]
    async with child(tmp_path, described) as made:
        far = await NvmlReader(made).inventory()
    with fake_library():
        near = await NvmlReader(FakeAsker(node)).inventory()

    assert near == far


async def test_a_thousand_nodes_do_not_wait_for_one_that_hangs() -> None:
    """Simulated, a call that hangs is known at once; the rest is as with a process."""
    with fake_library():
        found = await NvmlReader(FakeAsker(three()), clock=lambda: 0.0).inventory()

    assert [False, True, False] == [one.why.startswith("hung: ") for one in found.devices]


async def test_a_device_that_hung_is_asked_again_after_a_rest() -> None:
    """30 s, then twice as long each time; an answer ends it."""
    node, now = three(), 0.0
    asked: list[float] = []

    class Counting(FakeAsker):
        """Notes when the second device is asked about."""

        async def ask(self, op: str, *, timeout_s: float | None = None, **more: Any) -> Any:
            """Ask, and note it."""
            if op == "device":
                asked.append(now)
            return await super().ask(op, timeout_s=timeout_s, **more)

    with fake_library():
        reader = NvmlReader(Counting(node), clock=lambda: now)
        for second in range(0, 300, 10):
            now = float(second)
            await reader.device(node.gpus[1].uuid)
        node.faults.clear()
        now = 1000.0
        healed = await reader.device(node.gpus[1].uuid)
        at_once = await reader.device(node.gpus[1].uuid)

    assert [0.0, 30.0, 90.0, 210.0, 1000.0, 1000.0] == asked
    assert "" == healed.why == at_once.why


async def test_a_host_that_hangs_as_a_whole_says_so() -> None:
    """No listing is not an empty listing."""
    node = make_node("n1", ["T4"])
    node.faults = [Fault("nvmlDeviceGetCount_v2", "hang")]
    with fake_library():
        host = await NvmlReader(FakeAsker(node)).host()

    assert host.why.startswith("hung: nvmlDeviceGetCount")
    with fake_library(), pytest.raises(Hung):
        await FakeAsker(node).ask("host")


def test_a_mistake_in_one_question_ends_nothing() -> None:
    """Wrong arguments, an unknown question, a refusal: an answer each."""
    node = make_node("n1", ["H100-80GB"], mig=True)
    put_slice(node.gpus[0], "1g.10gb", 0, bare=True)
    uuid = node.gpus[0].uuid
    node.gpus[0].instances[7].stuck = 1
    with reading(node):
        session = Session()
        answers = [
            answer(session, one)
            for one in (
                {"id": 1, "op": "device"},
                {"id": 2, "op": "devices"},
                {"id": 3, "op": "destroy_gi", "with": {"uuid": uuid, "gi": 7}},
                {"id": 4, "op": "destroy_gi", "with": {"uuid": uuid, "gi": 7}},
            )
        ]

    assert ["error", "error", "refused", "value"] == [list(one)[1] for one in answers]
    assert ("in-use", True) == (answers[2]["refused"], answers[3]["value"])
