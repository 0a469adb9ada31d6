"""The shape of a request that was refused: of others the ``request.received`` event has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from ledger.asked_words import need_text
from ledger.core.admitting.routing import routed
from ledger.core.admitting.templates import filled
from ledger.core.decisions.requests import need_of
from ledger.core.need import need_to_plain
from schemas.requests import RequestSubmit

if TYPE_CHECKING:
    from ledger.core.state import State

__all__ = ["UNREADABLE", "refused_shape"]

#: The shape of a submission of a later version than this program.
UNREADABLE = "(a request that this program cannot read)"


def refused_shape(state: State, record: dict[str, Any]) -> str:
    """Return in words what the record's submission asked for; ``state`` is the cell after it."""
    given = record["input"]
    try:
        asked = RequestSubmit.model_validate_json(orjson.dumps(given["data"]))
    except ValidationError:
        return UNREADABLE
    whole, route, _ = routed(state, filled(state, asked))
    return need_text(need_to_plain(need_of(whole, given["source"], route)))
