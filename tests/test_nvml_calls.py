"""Every call in one place: missing is missing, with its reason, and never 0."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pynvml
import pytest

from collectors.fake_nvml.faults import Fault
from collectors.fake_nvml.library import FUNCTIONS
from collectors.fake_nvml.node import FakeNode, make_node
from collectors.nvml import bindings, units
from collectors.nvml.calls import CALLS, Refused, act, read, watch
from collectors.nvml.codes import Code, code_of, word
from tests.nvml_support import put_slice, reading

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Calls of a device that need nothing but its handle.
OF_A_DEVICE = """
    name uuid memory pci minor architecture capability numa ecc_mode power temperature
    utilization encoder decoder energy sm_clock clock_reasons pcie_sent remapped_rows
    recovery_action compute_processes mig_mode pcie_width
""".split()  # noqa: SIM905 - a table of names


@pytest.fixture
def node() -> Iterator[FakeNode]:
    """Return a node with an H100 and a T4, opened."""
    made = make_node("n1", ["H100-80GB", "T4"])
    with reading(made):
        read("init")
        yield made


def device(index: int = 0) -> Any:
    """Return a device's handle."""
    return act("by_index", index)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_calls_are_functions_of_pynvml(name: str) -> None:
    """Each function of the table is one of pynvml, or has an adapter."""
    for function in CALLS[name].functions:
        assert function in bindings._ADAPTERS or hasattr(pynvml, function)


@pytest.mark.parametrize("name", OF_A_DEVICE)
@pytest.mark.parametrize(
    ("code", "absent", "denied", "gone"),
    [
        (Code.NOT_SUPPORTED, True, False, False),
        (Code.NO_PERMISSION, False, True, False),
        (Code.GPU_IS_LOST, False, False, True),
        (Code.UNKNOWN, False, False, False),
    ],
)
def test_a_reading_that_fails_is_missing_with_its_reason(
    node: FakeNode, name: str, code: Code, absent: bool, denied: bool, gone: bool
) -> None:
    """No error of NVML is ever a value."""
    assert not read(name, device()).why
    handle = device()
    node.faults = [Fault(symbol, code) for symbol in FUNCTIONS if symbol != "nvmlErrorString"]
    found = read(name, handle)

    assert found.value is None
    assert (word(code), absent, denied, gone) == (
        found.why,
        found.absent,
        found.denied,
        found.gone,
    )


@pytest.mark.parametrize("name", OF_A_DEVICE)
def test_a_symbol_that_the_driver_lacks_is_absent(node: FakeNode, name: str) -> None:
    """An old driver is no error, whichever way pynvml notices it."""
    handle = device()
    node.missing = frozenset(FUNCTIONS) - {"nvmlErrorString"}
    found = read(name, handle)

    assert (None, "function-not-found", True) == (found.value, found.why, found.absent)


def test_a_device_without_the_thing_has_none_of_it(node: FakeNode) -> None:
    """A T4 has no MIG and no remapped rows: missing, not zero."""
    values = [read(name, device(1)).value for name in ("mig_mode", "remapped_rows")]

    assert [None, None] == values


def test_zero_is_a_value(node: FakeNode) -> None:
    """An idle device uses 0 percent, which is not the same as not saying."""
    assert ((0, 0), "") == (read("utilization", device()).value, read("utilization", device()).why)


@pytest.mark.parametrize(
    ("missing", "name", "more", "part"),
    [
        ("nvmlDeviceGetMemoryInfo_v2", "memory", (), {"reserved_mib": None, "total_mib": 81_559}),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", "gi_profile", (0,), {"name": None, "id": 19}),
    ],
)
def test_an_older_function_stands_in(
    node: FakeNode, missing: str, name: str, more: tuple[int, ...], part: dict[str, Any]
) -> None:
    """Where a driver lacks the newer function the older one is asked, for what it knows."""
    node.missing = frozenset({missing})

    assert part.items() <= read(name, device(), *more).value.items()


def test_clock_reasons_have_had_two_names(node: FakeNode) -> None:
    """Drivers before the change of names have the old one only."""
    node.missing = frozenset({"nvmlDeviceGetCurrentClocksEventReasons"})

    assert 1 == read("clock_reasons", device()).value


@pytest.mark.parametrize(
    ("size", "down", "up"),
    [(0, 0, 0), (1, 0, 1), (1 << 20, 1, 1), ((1 << 20) + 1, 1, 2), (81559 << 20, 81559, 81559)],
)
def test_c15_what_is_there_rounds_down_and_what_is_used_rounds_up(
    size: int, down: int, up: int
) -> None:
    """A demand is never made smaller, and a capacity never larger."""
    assert (down, up) == (units.mib_down(size), units._mib_up(size))


def test_what_changes_something_raises_with_code_and_function(node: FakeNode) -> None:
    """An action that fails says which call, and what NVML said."""
    with pytest.raises(Refused) as caught:
        act("create_gi", device(1), 19, 0, 1)

    assert (Code.NOT_SUPPORTED, "nvmlDeviceCreateGpuInstanceWithPlacement") == (
        caught.value.code,
        caught.value.function,
    )


def test_the_activation_status_is_not_the_calls_code(node: FakeNode) -> None:
    """A change of mode may be answered with success and not have worked."""
    node.gpus[0].clients = 1

    assert Code.IN_USE == code_of(act("set_mig_mode", device(), 1))


def test_handles_of_instances_lead_to_what_is_there(node: FakeNode) -> None:
    """Created with a place, listed by profile, found by id."""
    node.gpus[0].set_mig(1)
    made = act("create_gi", device(), 14, 2, 2)
    compute = act("create_ci", made, 1, 0, 2)
    listed = act("gi_list", device(), 14, 3)

    assert [{"gi": 4, "profile": 14, "start": 2, "size": 2}] == [
        act("gi_info", one) for one in listed
    ]
    assert 0 == act("ci_info", compute)["ci"]
    assert [0] == [act("ci_info", one)["ci"] for one in act("ci_list", listed[0], 1, 2)]


def test_the_watch_file_names_the_call_that_is_being_made(node: FakeNode) -> None:
    """Whoever waits for a call that hangs can say which it was, and on which device."""
    handle = device()
    with tempfile.TemporaryFile() as file:
        watch(file.fileno())
        try:
            read("power", handle, about=node.gpus[0].uuid)
        finally:
            watch(None)
        named = os.pread(file.fileno(), 256, 0).decode().strip()

    assert f"nvmlDeviceGetPowerUsage {node.gpus[0].uuid}" == named


def test_counters_of_gpm_are_thousandths(node: FakeNode) -> None:
    """Two samples of a GPU instance give its use; a counter without a value is missing."""
    gpu = node.gpus[0]
    gpu.set_mig(1)
    put_slice(gpu, "1g.10gb", 0)
    gpu.gpm_of[7] = {2: 37.5}
    samples = [act("gpm_alloc") for _ in range(2)]
    for one in samples:
        act("gpm_mig_sample", device(), 7, one)

    assert [375, None] == act("gpm_metrics", *samples, [2, 3])
    assert [1, 0] == [act("gpm_support", device(at)) for at in (0, 1)]


@pytest.mark.parametrize("number", [0, 19, 999, 31, 12345])
def test_codes_of_newer_drivers_are_unknown(number: int) -> None:
    """A number that no code has is no crash."""
    known = {one.value for one in Code}

    assert (number if number in known else 999) == code_of(number)
