"""Everything that touched an id, in log order, with the time between and the ids beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.explain import Ambiguous
from ledger.replay.records import lines_of

if TYPE_CHECKING:
    from ledger.reading import Seen
    from ledger.replay.names import Named, Names
    from ledger.replay.records import Line

__all__ = ["Step", "Timeline"]


@dataclass(frozen=True, slots=True)
class Step:
    """One line about the id. ``since_us`` is the time since the step before (None: the first)."""

    line: Line
    since_us: int | None

    def plain(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {**self.line.plain(), "since_us": self.since_us}


@dataclass(slots=True)
class Timeline:
    """What is known of an id; records are given to `take`, all of them, in order.

    A request or lease may be named without its source. ``kinds`` are what the id is;
    ``links`` are the other ids that its steps are about, oldest first.
    """

    id: str
    kinds: dict[str, None] = field(default_factory=dict)
    links: Named = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    #: Whole ids of requests and leases that the name is short for.
    _whole: dict[str, None] = field(default_factory=dict)

    def take(self, seen: Seen, names: Names) -> None:
        """Add what a record says about the id."""
        for line in lines_of(seen, names):
            mine = self._mine(line.named)
            if not mine and line.cell != self.id:
                continue
            if line.cell == self.id:
                self.kinds["cell"] = None
            for kind, ids in line.named.items():
                for name in ids:
                    if (kind, name) in mine:
                        self.kinds[kind] = None
                    else:
                        self.links.setdefault(kind, {})[name] = None
            since = line.time_us - self.steps[-1].line.time_us if self.steps else None
            self.steps.append(Step(line, since))

    def finish(self) -> None:
        """Raise `Ambiguous` when the name is short for several things."""
        if len(self._whole) > 1:
            raise Ambiguous(self.id, self._whole)

    def plain(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "id": self.id,
            "kinds": list(self.kinds),
            "links": {kind: list(ids) for kind, ids in self.links.items()},
            "steps": [one.plain() for one in self.steps],
        }

    def _mine(self, named: Named) -> set[tuple[str, str]]:
        """Return which of the ids of a line are the one that is asked for."""
        found = {(kind, self.id) for kind, ids in named.items() if self.id in ids}
        if "#" in self.id:
            return found
        ending = f"#{self.id}"
        for kind in ("request", "lease"):
            for name in named.get(kind, ()):
                if name.endswith(ending):
                    found.add((kind, name))
                    self._whole[name] = None
        return found
