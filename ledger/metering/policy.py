"""Who pays for time that was nobody's work: a policy with a name, applied by reports only.

A policy is data: for each kind of time, whether its holder or the pool pays. What it does
not name the pool pays, so idle and unhealthy time never lands on a tenant by itself (M7).
Another policy over the same log is another report; the log and the rows stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledger.metering.rows import Row

__all__ = ["KINDS", "POLICIES", "BadPolicy", "MeteringPolicy", "policy_from_plain"]

#: What a policy may give to the holder: ``state cause`` of a row, and in words.
KINDS = {
    "allocated running": "the task was seen running",
    "allocated starting": "granted, the task not yet seen on the node",
    "allocated over": "the task has ended on this node, the rest of its gang has not",
    "allocated node-silent": "held on a node that was not heard: running, but unconfirmed",
    "allocated idle": "held and reported idle",
    "allocated unhealthy": "held on a device that was not healthy",
    "allocated health-unknown": "held on a device whose health was not known",
    "allocated quarantined": "held on a device that was put out of use",
    "allocated node-lost": "held on a node that was given up",
    "unavailable cleaning": "from the lease's end to the proof that it left nothing behind",
    "idle kept": "kept for a request whose other devices were not free yet",
    "absent held": "held, while the device was not there",
}

_WORK = frozenset(
    {"allocated running", "allocated starting", "allocated over", "allocated node-silent"}
)


class BadPolicy(ValueError):
    """A policy that names a kind of time which no holder can pay for, or has no name."""


@dataclass(frozen=True, slots=True)
class MeteringPolicy:
    """A named policy: the kinds of time (`KINDS`) that the holder pays; the pool pays the rest."""

    name: str
    holder_pays: frozenset[str] = field(default=_WORK)

    def holder_pays_for(self, row: Row) -> bool:
        """Say whether the row's holder pays for it."""
        return row.holding is not None and f"{row.state} {row.cause}" in self.holder_pays

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {"policy": self.name, "holder_pays": sorted(self.holder_pays)}


#: The policies that need no file. ``pool`` is what counts when none is named.
POLICIES = {
    one.name: one
    for one in (
        MeteringPolicy("pool"),
        MeteringPolicy("idle-held", _WORK | {"allocated idle"}),
        MeteringPolicy("occupancy", _WORK | {"allocated idle", "unavailable cleaning"}),
    )
}


def policy_from_plain(plain: object) -> MeteringPolicy:
    """Return a policy from ``{"policy": NAME, "holder_pays": [KIND, ...]}``.

    Raise `BadPolicy` for anything else: a kind that is not known would be paid by nobody.
    """
    if not isinstance(plain, dict):
        raise BadPolicy("a metering policy is a JSON object")
    name, kinds = plain.get("policy"), plain.get("holder_pays")
    if not isinstance(name, str) or not name or not isinstance(kinds, list):
        raise BadPolicy("a metering policy has a name under policy, and a list of holder_pays")
    unknown = sorted(str(one) for one in kinds if not isinstance(one, str) or one not in KINDS)
    if unknown:
        raise BadPolicy(f"no holder can pay for {', '.join(unknown)}; known: {', '.join(KINDS)}")
    return MeteringPolicy(name, frozenset(kinds))
