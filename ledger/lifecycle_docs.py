"""Write ``docs/lifecycles.md`` from the tables: ``python -m ledger.lifecycle_docs``.

The diagrams are Mermaid, which GitHub and most viewers draw. With ``--check``
nothing is written and the exit status is 1 if the file differs from the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ledger.core.lifecycles import LIFECYCLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["PATH", "main", "render"]

#: Where the file is kept.
PATH = Path(__file__).parent.parent / "docs" / "lifecycles.md"

_INTRODUCTION = """\
# Lifecycles

<!-- Written by `python -m ledger.lifecycle_docs` from ledger/core/lifecycles.py. Do not edit. -->

What may follow what. A transition that is not drawn here is refused: the fold stops at a
record that asks for one (invariant A4), and the decider never writes one.
"""

_ABOUT = {
    "node": (
        "`mode` (online, draining, maintenance) is what an operator wants and outlives silence. "
        "A node whose pool nobody has described is *registering*. A lost node comes back only by "
        "telling its inventory again."
    ),
    "device": (
        "Derived from health, quarantine and what leases hold. There is no edge from *leased* to "
        "*available*: between them stands the proof of clean (A11). Whatever the device was when "
        "it fell sick or away is what it is when it is back."
    ),
    "slice": (
        "One lifetime of a MIG slice. MIG UUIDs come back, so each lifetime has an id of its own; "
        "a restart of the node ends it."
    ),
    "request": (
        "*rejected* and *ended* are final. A granted request is queued again when its lease was "
        "interrupted and it has a retry left."
    ),
    "lease": (
        "*stopping*: its reason is set and its nodes were told; the reason wins over any exit "
        "code (C25). It ends when the last of its nodes has answered, or was given up."
    ),
    "order": "Told to a node, sent again until it is answered or its time is up.",
}


def render() -> str:
    """Return the text of the file."""
    parts = [_INTRODUCTION]
    for name, table in LIFECYCLES.items():
        parts.append(f"## {name.capitalize()}\n\n{_ABOUT[name]}\n")
        parts.append("\n".join(["```mermaid", "stateDiagram-v2", *_diagram(table), "```", ""]))
    return "\n".join(parts)


def _diagram(table: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Yield the lines of a diagram; a state that nothing leads to is where it begins."""
    reached = frozenset().union(*table.values())
    for state in table:
        if "-" in state:
            yield f'    state "{state}" as {_id(state)}'
    for state, after in table.items():
        if state not in reached:
            yield f"    [*] --> {_id(state)}"
        for one in sorted(after, key=list(table).index):
            yield f"    {_id(state)} --> {_id(one)}"
        if not after:
            yield f"    {_id(state)} --> [*]"


def _id(state: str) -> str:
    """Return the state as Mermaid can name it, without a hyphen."""
    return state.replace("-", "_")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or compare it; return the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--check" in given:
        return int(not PATH.exists() or PATH.read_text(encoding="utf-8") != render())
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
