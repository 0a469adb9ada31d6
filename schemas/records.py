"""The two kinds of record on ``gpuledger.events``: claims and decisions (DESIGN 2.1)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import MAX_INT, Count, EventId, Model, Name, Reference, Source, Text, TimeUs
from schemas.events import Event
from schemas.lease_events import CodeName, Numbers

__all__ = ["Claim", "Decision", "LedgerRecord"]

Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Claim(Model):
    """A worker takes the partition: from here on only its token counts."""

    v: Literal[1]
    kind: Literal["claim"]
    token: Token
    worker: Text
    host: Text
    generation: int
    time_us: TimeUs


class DecidedInput(Model):
    """The input a decision answers. ``time`` is the sender's claim; ``skew_us`` its error."""

    type: Reference
    version: Count
    source: Source
    id: EventId
    fp: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    data: dict[str, Any]
    skew_us: int | None = None


class Outcome(Model):
    """The code, the numbers that were compared, and the reason code of a wait."""

    code: CodeName
    numbers: Numbers = Field(default_factory=dict)


class Decision(Model):
    """One input, its outcome, and all events that follow, as one atomic record."""

    v: Literal[1]
    kind: Literal["decision"]
    token: Token
    seq: Annotated[int, Field(ge=1, le=MAX_INT)]
    cell: Name
    source: tuple[Literal["requests", "observations"], Annotated[int, Field(ge=0)]]
    time_us: TimeUs
    input: DecidedInput
    outcome: Outcome
    events: tuple[Event, ...]


LedgerRecord = Annotated[Claim | Decision, Field(discriminator="kind")]
