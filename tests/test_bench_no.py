"""The bench of the no: what it asks is refused, for the reasons that it names."""

from __future__ import annotations

from bench.no import run


def test_every_kind_is_refused_for_its_reason() -> None:
    """A small run gives the same codes as a large one, and counts what it did."""
    row = run(20, 8, 200, 2, 1)
    assert {
        "no_such_hardware": "no_such_hardware",
        "no_such_profile": "no_such_hardware",
        "over_quota": "exceeds_quota",
        "quota_in_use": "quota_in_use",
        "gang_too_large": "no_capacity",
        "no_node_has_so_many": "no_capacity",
        "behind_others": "behind_in_queue",
        "no_cpu_beside": "no_beside",
        "unknown_pool": "unknown_pool",
    } == row["kinds"]
    assert (160, 200, 18) == (row["gpus"], row["waiting"], row["refused"])
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
