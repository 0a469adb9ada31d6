"""What a simulated node is told of tasks, and how long things take on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from schemas.messages import Order

__all__ = ["Ending", "RunningTask", "Timing"]

_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Ending:
    """How a task ends by itself: after ``run_us``, with this ``how`` and exit code."""

    run_us: int
    how: Literal["completed", "failed", "cancelled"] = "completed"
    exit_code: int | None = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take on the node, in microseconds.

    ``default_run_us`` is the run time of a task whose request did not state one,
    ``step_us`` is for each step of a change of partitions.
    """

    start_us: int = 0
    stop_us: int = _US
    clean_us: int = 2 * _US
    step_us: int = 250_000
    inventory_every_us: int = 600 * _US
    default_run_us: int = 60 * _US

    def ending(self, order: Order) -> Ending:
        """Return the ending of a task that runs as long as expected and completes."""
        expected = order.expected_run_us
        return Ending(self.default_run_us if expected is None else expected)


@dataclass(slots=True, eq=False)
class RunningTask:
    """A task of a lease on this node. ``started_us`` None: it is being made ready."""

    lease: str
    task: str | None
    units: tuple[str, ...]
    ending: Ending
    started_us: int | None = None
