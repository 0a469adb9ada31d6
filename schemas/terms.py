"""What a request asks beside how much, as events carry it (`ledger.core.terms`)."""

from __future__ import annotations

from schemas.base import Count, Model, Name, Text

__all__ = ["Terms"]


class Terms(Model):
    """The terms of a need; what stands at its default is left out."""

    architectures: tuple[Text, ...] = ()
    capability: Text = ""
    driver_min: Text = ""
    spread: Text = ""
    apart: Text = ""
    same_nvlink_domain: bool = False
    licences: tuple[tuple[Name, Count], ...] = ()
