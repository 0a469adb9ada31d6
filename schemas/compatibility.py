"""What runs on which devices, and how many copies of what is licensed may run at once."""

from __future__ import annotations

from schemas.asks import Models
from schemas.base import Count, Name, Text, Version
from schemas.requests import Policy

__all__ = ["CompatibilityApply", "LicenceApply"]


class CompatibilityApply(Policy):
    """What a version of a model needs; empty: any. In force for requests from here on.

    A request names the version as its ``runtime.model``. One of these ``frameworks``,
    with its version as the request names it, has to run it.
    """

    model_version: Text
    architectures: Models = ()
    driver_min: Version | None = None
    frameworks: Models = ()


class LicenceApply(Policy):
    """How many of a licence may be in use at once, whoever uses them.

    A lower count takes nothing away; nothing new is granted until enough has ended.
    """

    licence: Name
    count: Count
