"""What keeps devices from being used: what happened, since when, and what brings them back.

The state has only that a device is out of use; the records have why. They are gone over one
by one, and of each device and node only what still holds is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ledger.amounts import time_text
from ledger.wording import numbers_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.reading import Seen

__all__ = ["Outage", "Outages", "outages_of"]

Event = dict[str, Any]

_RESET = "it was reset (its counters begin anew, or the driver asks for nothing) or its node boots"
_CLEARED = "it is proved clean and an operator says so: gpuledger device clear"


@dataclass(frozen=True, slots=True)
class Outage:
    """Why a device, a slice or a node is out of use.

    ``kind`` is ``health``, ``quarantine``, ``partition`` (no slice is made there) or ``node``;
    ``code`` names the fault where there was one (``xid-79``). ``position`` is the record that
    took it out of use, at ``since_us``; ``until`` says what brings it back. ``state_us`` is
    when it came to be in this state, where it was out of use before.
    """

    about: str
    kind: str
    state: str
    code: str
    reason: str
    since_us: int
    position: str
    until: str
    evidence: dict[str, Any]
    state_us: int | None = None

    @property
    def text(self) -> str:
        """The outage in words, without the name of what it is about."""
        told = f"{self.state} since {time_text(self.state_us or self.since_us)}"
        if self.state_us is not None:
            told += f" (out of use since {time_text(self.since_us)})"
        what = f"{self.code}: {self.reason}" if self.code and self.reason else self.reason
        told += f": {what or self.code}" if what or self.code else ""
        numbers = numbers_text(self.evidence)
        return f"{told}{f' ({numbers})' if numbers else ''}; back when {self.until}"


class Outages:
    """Collects outages while records go by; each of them is given to `take`."""

    def __init__(self) -> None:
        """Start with none."""
        self._found: dict[tuple[str, str, str], Outage] = {}

    def take(self, seen: Seen) -> None:
        """Follow one record, in the order of the log."""
        if seen.verdict != "effective":
            return
        for event in seen.data["events"]:
            rule = _RULES.get(event["type"])
            if rule is not None:
                rule(self, seen, event)

    def of(self, cell: str, kind: str, about: str) -> Outage | None:
        """Return what keeps a thing of the cell from being used in that way, if it is on record."""
        return self._found.get((cell, kind, about))

    def _begin(self, seen: Seen, event: Event, *words: str, until: str) -> None:
        """Keep an outage; one that goes on keeps its beginning. A quarantine never goes on."""
        about, kind, state, code = words
        key = (seen.data["cell"], kind, about)
        known = self._found.get(key)
        said: dict[str, Any] = event.get("evidence") or {}
        evidence = {name: value for name, value in said.items() if value is not None}
        found = Outage(
            about, kind, state, code, str(event.get("reason", "")), seen.data["time_us"],
            seen.position, until, evidence,
        )  # fmt: skip
        if known is not None and kind != "quarantine":
            same = known.state == found.state
            found = replace(
                found, since_us=known.since_us, position=known.position,
                state_us=known.state_us if same else found.since_us,
            )  # fmt: skip
        self._found[key] = found

    def _over(self, seen: Seen, about: str, *kinds: str) -> None:
        for kind in kinds:
            self._found.pop((seen.data["cell"], kind, about), None)

    def health(self, seen: Seen, event: Event) -> None:
        """A device is in another health than before."""
        about, state = event["device"], event["health"]
        if state == "healthy":
            self._over(seen, about, "health")
            return
        # What went wrong stands before its effect, in the same record.
        same = (one for one in seen.data["events"] if one["type"] == "device.fault")
        code = next((str(one["code"]) for one in same if one["device"] == about), "")
        self._begin(seen, event, about, "health", state, code, until=_until(event, code))

    def quarantined(self, seen: Seen, event: Event) -> None:
        """A device or slice was not proved clean."""
        self._begin(seen, event, event["unit"], "quarantine", "in quarantine", "", until=_CLEARED)

    def alarm(self, seen: Seen, event: Event) -> None:
        """An alarm: of a change of partitions that failed, the device is not partitioned."""
        if event["code"] != "partition_failed":
            return
        reason = str(event["numbers"].get("reason", "its node did not report what was ordered"))
        order = str(event["numbers"].get("order", ""))
        self._begin(
            seen, {"reason": f"{order} failed: {reason}"}, event["about"], "partition",
            "not partitioned", "partition_failed",
            until="its node reports it whole and well again, or gpuledger device clear",
        )  # fmt: skip

    def again(self, seen: Seen, event: Event) -> None:
        """The device may be partitioned again."""
        self._over(seen, event["device"], "partition")

    def cleared(self, seen: Seen, event: Event) -> None:
        """An operator gave a word for the device."""
        self._over(seen, event["device"], "quarantine", "partition")

    def slice_gone(self, seen: Seen, event: Event) -> None:
        """A slice is no more, and what was wrong with it neither."""
        self._over(seen, event["slice"], "quarantine")

    def node(self, seen: Seen, event: Event) -> None:
        """A node is in another state."""
        if event["state"] == "online":
            self._over(seen, event["node"], "node")
            return
        until = _NODE_UNTIL.get(event["state"], "it is online again")
        self._begin(seen, event, event["node"], "node", event["state"], "", until=until)

    def registered(self, seen: Seen, event: Event) -> None:
        """A node has told what it is, and is heard so."""
        known = self.of(seen.data["cell"], "node", event["node"])
        if known is not None and known.state in ("silent", "lost"):
            self._over(seen, event["node"], "node")


_RULES: dict[str, Callable[[Outages, Seen, Event], None]] = {
    "device.health": Outages.health,
    "device.quarantined": Outages.quarantined,
    "slice.quarantined": Outages.quarantined,
    "slice.gone": Outages.slice_gone,
    "device.cleared": Outages.cleared,
    "device.discovered": Outages.again,
    "device.reopened": Outages.again,
    "alarm.raised": Outages.alarm,
    "node.changed": Outages.node,
    "node.registered": Outages.registered,
}

_NODE_UNTIL = {
    "registering": "an operator applies its pool",
    "silent": "it is heard again",
    "lost": "it is heard again and tells what it has",
    "draining": "an operator puts it online: gpuledger node set",
    "maintenance": "an operator puts it online: gpuledger node set",
}

#: What a verdict says -> what brings the device back; the words are those of the node's agent
#: (`collectors.health.rules`), and the first that is there counts.
_BY_REASON = (
    ("too hot", "it has been 5 degrees below its slowdown temperature for a minute"),
    ("well again, held back", "it stays well for as long as it is held back"),
    ("a row of memory is remapped", _RESET),
    ("a row of memory could not", "it is replaced: a reset does not mend a row that failed"),
)


def _until(event: Event, code: str) -> str:
    """Say what has to happen before the device is used again; ``code`` is of its fault."""
    evidence = event.get("evidence", {})
    action = evidence.get("recovery_action") or code.partition("recovery-action-")[2]
    for words, until in _BY_REASON:
        if str(event.get("reason", "")).startswith(words):
            return until
    if event["health"] == "gone":
        return "its node lists it again"
    if event["health"] == "unknown":
        return "it can be read again"
    if "order" in evidence:
        return "what is left of the change is gone: its node tries again by itself"
    if action:
        return f"the driver's recovery action {action} is carried out and it asks for nothing"
    if code or "cause" in evidence:
        return _RESET
    return "its node reports it healthy"


def outages_of(history: Iterable[Seen]) -> Outages:
    """Return what is out of use after these records."""
    found = Outages()
    for seen in history:
        found.take(seen)
    return found
