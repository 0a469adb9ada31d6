"""Words for people: units as people use them, long lists shortened, nothing raw."""

from __future__ import annotations

import pytest

from ledger.answers.reasons import reason_text
from ledger.wording import field_text, listed, numbers_text, parts_text, quantity_text

NUMBERS: dict[str, tuple[dict[str, object], str]] = {
    "thousandths of a device": (
        {"asked_milli": 2500, "held_milli": 0},
        "asked 2.5 GPUs, held 0 GPUs",
    ),
    "thousandths of a core": ({"cpu_milli": 64_000}, "cpu 64 cores"),
    "a duration": ({"waited_us": 1_500_000}, "waited 1.5 s"),
    "a time": ({"start_us": 1_767_225_600_000_000}, "start 2026-01-01T00:00:00.000Z"),
    "no limit": ({"max_gpus": None, "max_run_us": None}, "max gpus none, max run none"),
    "memory": ({"needs_memory_mib": 512}, "needs memory 512 MiB"),
    "GPU time": ({"asked_milli_us": 5_400_000_000_000}, "asked 1.5 GPU-hours"),
    "plain": ({"needs_places": 12, "pool": "main"}, "needs places 12, pool main"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_in_units_of_people(kind: str) -> None:
    """The unit at the end of a name is said with its value; None is the absence of a limit."""
    numbers, text = NUMBERS[kind]
    assert text == numbers_text(numbers)


def test_fields_by_name() -> None:
    """A field of a thing is named without its unit."""
    assert ("priority", "5") == field_text("priority", 5)
    assert ("max wait", "60 s") == field_text("max_wait_us", 60_000_000)


def test_long_lists_are_shortened_with_a_count() -> None:
    """A gang of a thousand devices takes one line, and says how many were left out."""
    units = [f"GPU-{at}" for at in range(10)]
    assert "GPU-0, GPU-1 and 8 more" == listed(units, 2)
    assert "GPU-0, GPU-1" == listed(units[:2], 2)
    parts = [{"node": f"n{at}", "units": units[:1]} for at in range(6)]
    text = parts_text(parts)
    assert text.startswith("GPU-0 on n0; ")
    assert text.endswith("and 2 more nodes")
    assert "no device on n1" == parts_text([{"node": "n1", "units": []}])


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("gpu", 1250, "1.25 GPUs"),
        ("model:H100", 2000, "2 H100"),
        ("profile:1g.10gb", 3, "3 slices of 1g.10gb"),
        ("memory_mib", 80, "80 MiB"),
        ("gpu_time", 3_600_000_000_000, "1 GPU-hours"),
    ],
)
def test_amounts_of_a_quota(resource: str, amount: int, text: str) -> None:
    """Each resource has its unit."""
    assert text == quantity_text(resource, amount)


REASONS: dict[str, tuple[str, dict[str, object], str]] = {
    "C21 (b)": (
        "no_capacity",
        {"needs_places": 12, "gpus_per_place": 4, "places": 10, "free_gpus": 60},
        "needs 12 places of 4, only 10 exist (60 free GPUs in total)",
    ),
    "C23 (a)": ("no_such_hardware", {"mode": "whole", "memory_mib": 81_920}, "no 80 GB GPU"),
    "a model of a pool": (
        "no_such_hardware",
        {"mode": "whole", "models": "H100|H200", "pool": "main"},
        "no H100 or H200 GPU in pool main",
    ),
    "slices": (
        "no_capacity", {"needs_slices": 4, "free_slices": 1}, "needs 4 slices, only 1 are free",
    ),
    "quota": (
        "quota_in_use",
        {"asked_milli": 2000, "held_milli": 2000, "nominal_milli": 3000},
        "asks 2 GPUs, 1 GPUs are left (2 GPUs held of 3 GPUs)",
    ),
    "another resource": (
        "quota_in_use",
        {"asked_milli": 1000, "held_milli": 0, "nominal_milli": 9000, "resource": "model:H100",
         "asked": 1000, "available": 0, "quota": "org"},
        "asks 1 H100, quota org has 0 H100 left",
    ),
    "interrupted": (
        "no_capacity", {"interrupted_by": "node-lost"},
        "its lease was ended (node-lost); it waits for devices again",
    ),
    "without a sentence": (
        "not_admitted", {"tenant": "t", "queue": "q"},
        "the queue takes no requests of the tenant (tenant t, queue q)",
    ),
    "numbers of another kind": (
        "behind_in_queue", {}, "an earlier request of the strict queue waits for the same kind",
    ),
    "of a later version": ("never_heard_of", {}, "never_heard_of"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REASONS)
def test_reasons_in_words(kind: str) -> None:
    """A no is one sentence with what was compared."""
    code, numbers, text = REASONS[kind]
    assert text == reason_text(code, numbers)
