"""A fake node from a file: TOML or JSON, for trying commands without a GPU, and for tests.

::

    driver = "590.48.01"

    [[gpu]]
    board = "H100-80GB"  # one of `boards.BOARDS`
    count = 2
    mig = true
    layout = ["3g.40gb@4", "1g.10gb@0"]
    bare = ["1g.10gb@1"]  # GPU instances without a compute instance

    [[fault]]
    function = "nvmlDeviceGetTemperature"
    does = "hang"  # "slow", with takes_ms; or a code: "unknown", "gpu-is-lost"
    gpu = 1  # which of the GPUs, from 0 on; left out: all
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from collectors.fake_nvml.boards import BOARDS
from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.gpu import CI_PROFILES, FakeGpu, Process, gpu_uuid
from collectors.fake_nvml.library import FakeLibrary
from collectors.fake_nvml.node import ALL_RIGHTS, NODE, FakeNode
from collectors.files import BadFile, read_model
from collectors.nvml import calls
from collectors.nvml.codes import Code, word
from schemas.base import Count, Model, Text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Described", "install", "node_of"]

_DOES: dict[str, Code | Literal["hang", "slow"]] = {
    "hang": "hang",
    "slow": "slow",
    **{word(one): one for one in Code},
}
_Placed = Annotated[str, Field(pattern=r"^[0-9]+g\.[0-9a-z.+-]{1,40}@[0-9]{1,2}$")]
_Layout = Annotated[tuple[_Placed, ...], Field(max_length=16)]


class DescribedProcess(Model):
    """A process on the described GPUs; ``kind`` is the list that shows it."""

    pid: Annotated[int, Field(ge=1)]
    memory_mib: Count | None = None
    kind: Literal["compute", "graphics", "mps"] = "compute"
    gi: Count | None = None
    ci: Count | None = None


class DescribedGpu(Model):
    """``count`` GPUs that are alike, with their MIG instances as PROFILE@START."""

    board: Text
    count: Annotated[int, Field(ge=1, le=16)] = 1
    mig: bool = False
    layout: _Layout = ()
    bare: _Layout = ()
    processes: tuple[DescribedProcess, ...] = ()
    recovery_action: Count = 0
    lost: bool = False

    @field_validator("board")
    @classmethod
    def _is_known(cls, board: str) -> str:
        if board not in BOARDS:
            raise ValueError(f"no board {board!r}; there are {', '.join(BOARDS)}")
        return board


class DescribedFault(Model):
    """See `faults.Fault`; ``gpu`` is a number from 0 on."""

    function: Text
    does: Text
    gpu: Count | None = None
    when: Literal["before", "after"] = "before"
    times: Count | None = None
    skip: Count = 0
    takes_ms: Count = 0

    @field_validator("does")
    @classmethod
    def _is_known(cls, does: str) -> str:
        if does not in _DOES:
            raise ValueError(f"{does!r} is none of 'hang', 'slow', and codes as 'gpu-is-lost'")
        return does


class Described(Model):
    """A node. ``rights`` are those of `node.ALL_RIGHTS`, ``missing`` symbols it lacks."""

    name: Text = "fake"
    driver: Text = "590.48.01"
    gpu: Annotated[tuple[DescribedGpu, ...], Field(max_length=16)] = ()
    fault: tuple[DescribedFault, ...] = ()
    rights: frozenset[Text] = ALL_RIGHTS
    missing: frozenset[Text] = frozenset()


def node_of(described: Described) -> FakeNode:
    """Return the node; raise `BadFile` for a layout that its board does not take."""
    gpus: list[FakeGpu] = []
    for kind in described.gpu:
        gpus += [_gpu(kind, described.name, len(gpus) + at) for at in range(kind.count)]
    faults = []
    for one in described.fault:
        if one.gpu is not None and one.gpu >= len(gpus):
            raise BadFile(f"a fault names GPU {one.gpu}, and there are {len(gpus)}")
        uuid = None if one.gpu is None else gpus[one.gpu].uuid
        more = (one.when, uuid, one.times, one.skip, one.takes_ms)
        faults.append(Fault(one.function, _DOES[one.does], *more))
    return FakeNode(
        gpus,
        driver=described.driver,
        library=described.driver,
        rights=described.rights,
        missing=described.missing,
        faults=faults,
    )


def _gpu(kind: DescribedGpu, node: str, index: int) -> FakeGpu:
    gpu = FakeGpu(BOARDS[kind.board], gpu_uuid(node, index), minor=index, bus=index + 1)
    gpu.lost, gpu.recovery_action = kind.lost, kind.recovery_action
    if kind.mig or kind.layout or kind.bare:
        if not gpu.board.shapes:
            raise BadFile(f"{kind.board} has no MIG")
        gpu.mig = gpu.mig_pending = 1
    for placed, whole in [(one, True) for one in kind.layout] + [(one, False) for one in kind.bare]:
        _place(gpu, placed, whole=whole)
    gpu.processes = [Process(**one.model_dump()) for one in kind.processes]
    return gpu


def _place(gpu: FakeGpu, placed: str, *, whole: bool) -> None:
    name, _, start = placed.partition("@")
    shape = next((one for one in gpu.board.shapes if one.name == name), None)
    if shape is None:
        raise BadFile(f"{gpu.board.name} has no profile {name}")
    code, made = gpu.create_gi(shape.id, int(start))
    if made is None:
        raise BadFile(f"{gpu.board.name} takes no {placed} beside the others: {word(code)}")
    if whole:
        profile = next(number for number, size in CI_PROFILES.items() if size == shape.slices)
        gpu.create_ci(made, profile, 0)


def install(path: Path) -> FakeNode:
    """Let all calls of this process go to the node of a file; raise `BadFile`.

    The process is that one node: a call that hangs, hangs.
    """
    node = node_of(read_model(path, Described))
    node.alone = True
    calls.use_library(FakeLibrary())
    NODE.set(node)
    return node
