"""What operators set of compatibility and licences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.core.decisions.turn import Answer, Input, Turn

__all__ = ["COMPATIBILITIES"]


def _apply(turn: Turn, given: Input) -> Answer:
    """Put the rule on record as it was given."""
    name = given.type.removesuffix("apply")
    said = given.data.model_dump(mode="json", exclude_defaults=True)
    turn.emit({"type": f"{name}applied", **said})
    return "applied", {}


COMPATIBILITIES: dict[str, Callable[[Turn, Input], Answer]] = {
    "compatibility.apply": _apply,
    "licence.apply": _apply,
}
