"""Advance reservations: what operators may put on ``gpuledger.requests``, and the events of it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.asks import Models
from schemas.base import Count, Model, Name, Text, TimeUs, WholeMib
from schemas.requests import Policy

__all__ = [
    "ReservationApplied",
    "ReservationApply",
    "ReservationCancel",
    "ReservationCancelled",
    "ReservationEnded",
    "ReservationMoved",
    "ReservationOpened",
]


class ReservationApply(Policy):
    """Reserve ``count`` whole devices on each of ``nodes`` nodes for a tenant, for a time.

    ``start_us`` and ``end_us`` are UTC, half-open. Requests of the tenant that name the
    reservation run there and then; nobody else has a lease that would overlap it on what
    is reserved. The nodes are chosen at once and are on record; a reservation of the same
    name and tenant is replaced.
    """

    reservation: Name
    tenant: Name
    pool: Name | None = None
    models: Models = ()
    count: Annotated[int, Field(ge=1, le=16)] = 1
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    start_us: TimeUs
    end_us: TimeUs

    @model_validator(mode="after")
    def _forwards(self) -> Self:
        if self.end_us <= self.start_us:
            raise ValueError("end_us must be after start_us")
        return self


class ReservationCancel(Policy):
    """Give a reservation up; what runs within it goes on, who waits within it is answered."""

    reservation: Name


class ReservationApplied(Model):
    """A reservation was made or replaced: on the ``chosen`` nodes, devices of this class."""

    type: Literal["reservation.applied"]
    reservation: Name
    tenant: Name
    pool: Name | None = None
    models: tuple[Text, ...] = ()
    count: Count
    nodes: Count
    start_us: TimeUs
    end_us: TimeUs
    chosen: tuple[Name, ...]
    model: Text
    device_mib: WholeMib
    author: Name
    reason: Text


class ReservationMoved(Model):
    """A reservation has other nodes from now on, or its nodes can serve it again."""

    type: Literal["reservation.moved"]
    reservation: Name
    chosen: tuple[Name, ...]
    model: Text
    device_mib: WholeMib
    reason: Text


class ReservationOpened(Model):
    """The reservation's time has begun."""

    type: Literal["reservation.opened"]
    reservation: Name


class ReservationCancelled(Model):
    """An operator gave the reservation up."""

    type: Literal["reservation.cancelled"]
    reservation: Name
    author: Name
    reason: Text


class ReservationEnded(Model):
    """The reservation is no more: its time is over, or it was cancelled."""

    type: Literal["reservation.ended"]
    reservation: Name
    how: Literal["over", "cancelled"]
