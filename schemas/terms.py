"""What a request asks beside how much, and how far what it gets is its own."""

from __future__ import annotations

from typing import Literal

from schemas.base import Count, Model, Name, Text

__all__ = ["Isolation", "Terms"]

#: What keeps tasks apart: the device itself, its vendor's scheduler, or nothing.
Isolation = Literal["hardware", "scheduler", "none"]


class Terms(Model):
    """The terms of a need (`ledger.core.terms`); what stands at its default is left out."""

    architectures: tuple[Text, ...] = ()
    capability: Text = ""
    driver_min: Text = ""
    spread: Text = ""
    apart: Text = ""
    same_nvlink_domain: bool = False
    licences: tuple[tuple[Name, Count], ...] = ()
    encoder_sessions: Count = 0
    decoder_sessions: Count = 0
    delivery: Literal["", "passthrough", "vgpu", "remote"] = ""
    vgpu_type: Text = ""
    vgpu_most: Count = 0
    remote: tuple[Name, int, int] | tuple[()] = ()
    route: Text = ""
