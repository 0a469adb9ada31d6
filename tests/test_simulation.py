"""Seeds of the simulation: those that ever failed, and some more (tests/simulation)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.run import run, shrink

FAILED = Path(__file__).parent / "simulation" / "failed_seeds.txt"
SOME = range(20)
STEPS = 300


def failed_seeds() -> list[tuple[int, int]]:
    """Return (seed, steps) of the seeds that once failed."""
    lines = [line.partition("#")[0].split() for line in FAILED.read_text("utf-8").splitlines()]
    return [(int(seed), int(steps)) for seed, steps in filter(None, lines)]


@pytest.mark.parametrize(("seed", "steps"), [*failed_seeds(), *((seed, STEPS) for seed in SOME)])
def test_nobody_is_wronged_and_nobody_is_left(seed: int, steps: int) -> None:
    """The clerk agrees with every step, and all is answered and clean when all is mended."""
    failure = run(seed, steps)
    assert failure is None, str(failure)


def test_a_failure_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that could not fail would prove nothing."""
    monkeypatch.setattr("ledger.core.decide.run_pass", lambda _turn: None)

    failures = [found for seed in range(3) if (found := run(seed, 100)) is not None]

    assert failures
    small = shrink(failures[0])
    assert len(small.acts) < len(failures[0].acts)
    assert "V1" in small.error
