"""Field types and the model base that every record crossing a topic shares.

All quantities are integers with the unit in the field's name (DESIGN 1.9); all
models are frozen and refuse unknown fields, so that what was read is exactly
what was written.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from schemas.limits import MAX_TEXT

__all__ = [
    "MAX_INT",
    "Count",
    "Counter",
    "EventId",
    "Exact",
    "Milli",
    "Model",
    "Name",
    "Reference",
    "Seconds",
    "Source",
    "Text",
    "TimeUs",
    "Version",
    "WholeMib",
]

#: The largest integer that every JSON reader keeps exact (2^53 - 1).
MAX_INT = 9_007_199_254_740_991

#: A cell, pool, node, tenant, project, queue or task name.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]

#: The CloudEvents ``id``: unique for its source. Neither ``#`` nor ``/``, so
#: that ``source#id`` and ``source#id/attempt`` can be taken apart again.
EventId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,127}$")]

#: The CloudEvents ``source``: who speaks. Printable ASCII without ``#``.
Source = Annotated[str, Field(pattern=r"^[!\"$-~]{1,200}$")]

#: The ledger's own id of a request, lease, order or slice, or a device's UUID.
Reference = Annotated[str, Field(pattern=r"^[!-~]{1,600}$")]

#: One line of human text (a reason, a model name).
Text = Annotated[str, Field(pattern=rf"^[^\x00-\x1f\x7f]{{0,{MAX_TEXT}}}$")]

#: Numbers and dots, compared part by part as numbers.
Version = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9}){0,7}$")]

Count = Annotated[int, Field(ge=0, le=1_000_000)]
#: What goes up by one for as long as something runs, with no end that anybody could name: a
#: heartbeat every two seconds is more than a million after three weeks.
Counter = Annotated[int, Field(ge=0, le=MAX_INT)]
#: Any integer that every JSON reader keeps exact.
Exact = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]
Milli = Annotated[int, Field(ge=0, le=1_000_000_000)]
WholeMib = Annotated[int, Field(ge=0, le=1_000_000_000_000)]
#: Up to 31 years, so that a time and a limit in microseconds stay exact together.
Seconds = Annotated[int, Field(ge=0, le=1_000_000_000)]
TimeUs = Annotated[int, Field(ge=0, le=MAX_INT)]


class Model(BaseModel):
    """A frozen record: strict types, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
