"""Fake nodes for the tests of what reads NVML."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from collectors.fake_nvml.gpu import CI_PROFILES
from collectors.fake_nvml.node import make_node, on
from collectors.fake_nvml.reader import fake_library
from collectors.nvml.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectors.fake_nvml.gpu import ComputeInstance, FakeGpu, GpuInstance
    from collectors.fake_nvml.node import FakeNode

__all__ = ["make_node", "put_slice", "reading"]


@contextmanager
def reading(node: FakeNode) -> Iterator[Session]:
    """Let the calls of this process go to the node, in a session of its own."""
    with fake_library(), on(node):
        yield Session()


def put_slice(
    gpu: FakeGpu, profile: str, start: int, *, bare: bool = False
) -> tuple[GpuInstance, ComputeInstance | None]:
    """Put a MIG instance on a GPU; a bare one has no compute instance."""
    shape = gpu.board.shape(profile)
    code, made = gpu.create_gi(shape.id, start)
    assert made is not None, f"{profile}@{start}: {code.name}"
    if bare:
        return made, None
    number = next(number for number, size in CI_PROFILES.items() if size == shape.slices)
    _, compute = gpu.create_ci(made, number, 0)
    return made, compute
