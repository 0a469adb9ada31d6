"""What was asked of the ledger itself: every query of an auditor is on record (U5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import MAX_INT, Model, Name, Text, TimeUs

__all__ = ["MAX_QUERY_CHARACTERS", "AuditQuery"]

#: How much of a query's text is kept; its hash is of all of it.
MAX_QUERY_CHARACTERS = 4_000

_Whole = Annotated[int, Field(ge=0, le=MAX_INT)]


class AuditQuery(Model):
    """Somebody asked something of the ledger, and this much was shown.

    The CloudEvents source says who. ``upto`` has, by partition of the events topic, the
    first offset that the query did not see. On the log before any row is shown: a query
    that was ``refused`` (wrong, or not one SELECT) or ``stopped`` (at a limit) showed none.
    """

    kind: Literal["sql", "report", "export"]
    name: Name | None = None
    text: Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS)]
    text_bytes: _Whole
    text_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    parameters: dict[Name, Text] = Field(default_factory=dict)
    upto: tuple[_Whole, ...]
    outcome: Literal["answered", "refused", "stopped"]
    detail: Text = ""
    rows: _Whole = 0
    cut: bool = False
    took_us: TimeUs
    client: Text
