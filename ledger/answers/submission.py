"""A submission as one that asks now: of a record, or one that nobody has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from pydantic import ValidationError

from ledger.answers.rules import Asking
from ledger.core.admitting.admission import admitted
from ledger.core.admitting.routing import routed
from ledger.core.admitting.templates import filled, missing, refused, template_for
from ledger.core.decisions.requests import asker_for, need_of
from ledger.core.placing.placement import charge_of
from schemas.requests import RequestSubmit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.state import State
    from ledger.reading import Seen

__all__ = ["asking_for", "still_refused", "submitted", "unsaid"]


def asking_for(state: State, asked: RequestSubmit, name: str) -> Asking | None:
    """Return the request as one that asks now; None when its tenant or queue is unknown."""
    whole, route, _ = routed(state, filled(state, asked))
    queue = state.queues.get(whole.queue)
    if whole.tenant not in state.quotas or queue is None:
        return None
    need, _ = admitted(state, whole, need_of(whole, name.partition("#")[0], route))
    asker = asker_for(state, whole, need, name, state.now_us)
    run_us = queue.max_run_us if whole.max_run_s is None else whole.max_run_s * 1_000_000
    return Asking(asker, whole.tenant, run_us)


def still_refused(state: State, asked: RequestSubmit, name: str) -> bool:
    """Say whether its template, or what it needs of the site, would refuse the request again."""
    whole, route, lost = routed(state, filled(state, asked))
    need, never = admitted(state, whole, need_of(whole, name.partition("#")[0], route))
    template = refused(state, asked, whole, charge_of(state, need))
    return (lost or never or template) is not None


def unsaid(state: State, asked: RequestSubmit) -> list[str]:
    """Return the fields that its template, as it is now, wants the request to say itself."""
    template = template_for(state, asked)
    return [] if template is None else missing(template, asked)


def submitted(history: Iterable[Seen], request: str) -> RequestSubmit | None:
    """Return the submission that made the request, from its record."""
    for seen in history:
        given = seen.data.get("input", {})
        if (
            seen.verdict == "effective"
            and given.get("type") == "request.submit"
            and f"{given['source']}#{given['id']}" == request
        ):
            try:
                return RequestSubmit.model_validate_json(orjson.dumps(given["data"]))
            except ValidationError:
                # Of a later version than this program: its record tells what there is.
                return None
    return None
