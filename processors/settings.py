"""How a worker is set up: from ``GPULEDGER_*`` in the environment, or from the command line."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ledger.shard import MAX_BATCH

__all__ = ["Settings"]

#: A group member that misses two heartbeats is slow; one that misses three is gone.
_BEATS_PER_SESSION = 3

_SQLITE = "sqlite:"


def _worker_name() -> str:
    """Return a name that tells which process of which host wrote a claim."""
    return f"{socket.gethostname()}-{os.getpid()}"


class Settings(BaseSettings):
    """Every setting of a worker, checked. Raises pydantic's ``ValidationError``.

    Durations are in seconds. What each must exceed stands beside it.
    """

    model_config = SettingsConfigDict(env_prefix="GPULEDGER_", frozen=True, extra="ignore")

    #: Which log to serve: ``sqlite:PATH``, ``kafka://HOST:PORT[,...]``.
    log: str = "sqlite:gpuledger.sqlite"

    #: What every topic's name begins with; on Kafka also the name of the consumer group.
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")] = "gpuledger"

    #: Who writes the claims: for people, no decision depends on it.
    worker: Annotated[str, Field(pattern=r"^[!-~]{1,200}$")] = Field(default_factory=_worker_name)

    #: Where snapshots are kept. None: see `snapshot_folder`.
    snapshots: Path | None = None

    #: Records of the ledger between two snapshots of a partition; 0 makes none, at a stop neither.
    snapshot_every: Annotated[int, Field(ge=0)] = 50_000

    #: The most inputs decided and appended together. Larger is faster and answers later.
    batch: Annotated[int, Field(ge=1, le=MAX_BATCH)] = MAX_BATCH

    #: How often to look for what is due, at the latest: a look is also at the moment when a
    #: deadline or a node's silence falls due. A deadline made since the last look fires up to
    #: this much late; must exceed the time that a look takes (milliseconds).
    tick_s: Annotated[float, Field(ge=0.01, le=60)] = 1.0

    #: A node not heard for this long is silent. Must exceed a few of the nodes' heartbeat
    #: intervals, `tick_s`, and how far this host's clock may be off the broker's.
    heartbeat_limit_s: Annotated[float, Field(gt=0, le=86_400)] = 15.0

    #: How long the group waits for a worker that says nothing before others take over.
    #: Must be at least three of `group_heartbeat_s`, and exceed the longest pause of a
    #: process (garbage collection, a virtual machine being moved) that is to go unnoticed.
    session_timeout_s: Annotated[float, Field(ge=1, le=300)] = 10.0

    #: How often a worker tells the group that it is there; well below `session_timeout_s`.
    group_heartbeat_s: Annotated[float, Field(gt=0, le=100)] = 3.0

    #: How long a rebalance waits for workers to finish their batch and join. Must be at
    #: least `session_timeout_s`.
    rebalance_timeout_s: Annotated[float, Field(ge=1, le=3600)] = 30.0

    #: Prometheus metrics are served at this port of the loopback; None serves none.
    metrics_port: Annotated[int, Field(ge=1, le=65_535)] | None = None

    #: The least level that is logged.
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    #: ``auto``: lines for people on a terminal, JSON objects elsewhere.
    log_format: Literal["auto", "json", "console"] = "auto"

    @model_validator(mode="after")
    def _durations_fit(self) -> Self:
        if self.session_timeout_s < _BEATS_PER_SESSION * self.group_heartbeat_s:
            raise ValueError(
                f"session_timeout_s is {self.session_timeout_s}; with group_heartbeat_s"
                f" {self.group_heartbeat_s} it must be at least"
                f" {_BEATS_PER_SESSION * self.group_heartbeat_s}"
            )
        if self.rebalance_timeout_s < self.session_timeout_s:
            raise ValueError(
                f"rebalance_timeout_s is {self.rebalance_timeout_s}; it must be at least"
                f" session_timeout_s, {self.session_timeout_s}"
            )
        if self.heartbeat_limit_s <= self.tick_s:
            raise ValueError(
                f"heartbeat_limit_s is {self.heartbeat_limit_s}; it must exceed tick_s,"
                f" {self.tick_s}"
            )
        return self

    @property
    def snapshot_folder(self) -> Path:
        """``snapshots``, or a folder beside the SQLite file, or one of the broker's own."""
        if self.snapshots is not None:
            return self.snapshots
        if self.log.startswith(_SQLITE):
            file = Path(self.log.removeprefix(_SQLITE))
            return file.with_name(f"{file.name}-snapshots")
        broker = re.sub(r"[^A-Za-z0-9.]+", "-", self.log.partition("//")[2])
        return Path(".gpuledger") / "snapshots" / (broker or "log")
