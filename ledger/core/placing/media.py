"""Encoder and decoder sessions: counted for each device, apart from its compute (A13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.core.state import Device, Need

__all__ = ["sessions_fit", "sessions_lacking", "sessions_of"]


def sessions_of(need: Need) -> tuple[int, int]:
    """Return the encoder and decoder sessions that the need asks of each device."""
    terms = need.terms
    return (0, 0) if terms is None else (terms.encoder_sessions, terms.decoder_sessions)


def sessions_lacking(device: Device, more: tuple[int, int] = (0, 0)) -> dict[str, int]:
    """Return by how much what is held, and ``more``, exceeds what the device reports.

    What is being cleaned counts: its sessions may still be open.
    """
    if not device.holds and more == (0, 0):
        return {}
    facts, holds = device.facts, device.holds.values()
    encoders = 0 if facts is None else facts.encoder_sessions
    decoders = 0 if facts is None else facts.decoder_sessions
    return {
        "encoder": more[0] + sum(hold.encoder_sessions for hold in holds) - encoders,
        "decoder": more[1] + sum(hold.decoder_sessions for hold in holds) - decoders,
    }


def sessions_fit(device: Device, need: Need) -> bool:
    """Say whether the device has the sessions free that the need asks."""
    more = sessions_of(need)
    return more == (0, 0) or all(one <= 0 for one in sessions_lacking(device, more).values())
