"""A replay as a trace: one line a change, as much of it as is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.replay.records import lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.reading import Seen
    from ledger.replay.names import Names
    from ledger.replay.records import Line

__all__ = ["Filters", "trace"]


@dataclass(frozen=True, slots=True)
class Filters:
    """What a line must be about; what is None is not asked. ``unit``: a device, slice, MIG UUID."""

    cell: str | None = None
    tenant: str | None = None
    node: str | None = None
    unit: str | None = None

    def lets(self, line: Line) -> bool:
        """Say whether a line is about everything that is asked for."""
        if self.cell not in (None, line.cell):
            return False
        wanted = ((self.tenant, ("tenant",)), (self.node, ("node",)), (self.unit, _UNITS))
        return all(
            name is None or any(name in line.named.get(kind, ()) for kind in kinds)
            for name, kinds in wanted
        )


_UNITS = ("device", "slice", "mig_uuid")


def trace(seen: Seen, names: Names, filters: Filters) -> Iterator[Line]:
    """Yield the lines of a record that the filters let through; each record must be given."""
    # Also of a record that is filtered out the names are learnt.
    return (line for line in list(lines_of(seen, names)) if filters.lets(line))
