"""What was measured of a device, beside what it was used for: on ``gpuledger.usage``.

Evidence is a record with its tool, that tool's version, its time and how long it is to be
believed; reports name it by its id. Of links there is `observations.LinkEvidence`, on which
admission rests.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import MAX_INT, Count, Model, Name, Seconds, Text, TimeUs
from schemas.observations import Uuid

__all__ = ["DeviceEvidence"]


class DeviceEvidence(Model):
    """How fast a device or slice of it is, alone or beside others, by this tool.

    ``metric`` has the unit in its name (``tokens_per_s``, ``latency_us``), ``value`` is in it.
    ``co-running``: the same beside ``neighbours``; ``baseline`` is the id of the evidence
    without them, and ``of_baseline_permille`` what is left of it.
    """

    kind: Literal["whole-card", "slice", "co-running"]
    node: Name
    device: Uuid
    mig_uuid: Uuid | None = None
    profile: Text = ""
    workload: Text
    metric: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
    value: Annotated[int, Field(ge=0, le=MAX_INT)]
    neighbours: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    baseline: Text = ""
    of_baseline_permille: Count | None = None
    driver: Text = ""
    tool: Text
    version: Text
    measured_us: TimeUs
    valid_s: Seconds
