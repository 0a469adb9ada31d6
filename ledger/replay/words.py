"""A difference, and the record that made one, as text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.replay.records import one_line
from ledger.replay.tables import CELL, KINDS
from ledger.wording import field_text, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ledger.replay.diff import Change

__all__ = ["GROUPS", "change_lines", "grouped", "legend_lines"]

#: What changes can be put together by.
GROUPS = ("table", "tenant", "node", "device", "lease")

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}

#: Changes that come with nearly every record; people are told how many there are.
_QUIET = (CELL, "seen")


def grouped(changes: Iterable[Change], by: str, *, quiet: bool = True) -> Iterator[str]:
    """Yield the lines of changes under headings: a table, or what they belong to.

    A change that belongs to several stands under each. With ``quiet`` what changes
    with nearly every record is only counted.
    """
    shown, left_out = [], 0
    for one in changes:
        if quiet and one.table in _QUIET:
            left_out += 1
        else:
            shown.append(one)
    groups: dict[str, list[Change]] = {}
    for one in shown:
        names = [one.table] if by == "table" else one.of.get(by) or [f"of no {by}"]
        for name in dict.fromkeys(names):
            groups.setdefault(name, []).append(one)
    for name in groups if by == "table" else sorted(groups):
        yield one_line(name if by == "table" or name.startswith("of no ") else f"{by} {name}")
        for one in groups[name]:
            yield from change_lines(one, by)
    if left_out:
        yield f"and {left_out} clocks, which --all shows beside answered ids"


def change_lines(change: Change, by: str = "table") -> Iterator[str]:
    """Yield a change: what it is and of whom, then field by field what it was and is."""
    kind = "" if by == "table" else f"{KINDS[change.table]} "
    head = f"  {_SIGNS[change.what]} {kind}{change.id}{_of(change, by)}{_when(change)}"
    yield one_line(head)
    if change.what == "changed":
        for name, (old, new) in change.fields.items():
            was, now = _value(name, old), _value(name, new)
            label = _name(name, old if new is None else new)
            if was == now:  # the difference is smaller than the unit that people use
                label, was, now = name.replace("_", " "), str(old), str(new)
            yield one_line(f"      {label}: {was} -> {now}")
        return
    at = 1 if change.what == "added" else 0
    brief = _BRIEF.get(change.table)
    told = [
        f"{_name(name, both[at])} {_value(name, both[at])}"
        for name, both in change.fields.items()
        if name != "id" and (brief is None or name.partition(".")[0] in brief)
    ]
    if told:
        yield one_line(f"      {listed(told, _MOST)}")


#: How many fields of a row that was added or removed are named; JSON has all.
_MOST = 12

#: Of these tables only what a person looks for first.
_BRIEF: dict[str, tuple[str, ...]] = {
    "requests": ("state", "code", "queue", "project", "task_type", "need", "priority", "attempt"),
    "leases": ("state", "reason", "charge_milli", "granted_us", "due_us"),
    "devices": ("state", "health", "quarantine", "model", "memory_mib"),
    "slices": ("state", "profile", "start", "mig_uuid"),
    "nodes": ("state", "mode", "pool", "incarnation"),
}


def _of(change: Change, by: str) -> str:
    told = [
        f"{kind} {listed(names, 4)}"
        for kind, names in change.of.items()
        if kind != by and names != [change.id]
    ]
    return f" ({'; '.join(told)})" if told else ""


def _when(change: Change) -> str:
    if change.first is None:
        return ""
    span = change.first if change.first == change.last else f"{change.first} .. {change.last}"
    return f"  {span}"


def _name(name: str, value: Any) -> str:  # noqa: ANN401 - of any field
    """Return a field's name; without its unit where `_value` tells the value with one."""
    outer, dot, inner = name.partition(".")
    if not dot:
        return _label(name, value)
    # What is within a field may be a name that somebody gave: only a unit is taken off it.
    whole = inner.replace("_", " ")
    label = _label(inner, value)
    return f"{outer.replace('_', ' ')} {inner if label == whole else label}"


def _label(name: str, value: Any) -> str:  # noqa: ANN401 - of any field
    return field_text(name, None if isinstance(value, bool) else value)[0]


def _value(name: str, value: Any) -> str:  # noqa: ANN401 - of any field
    if isinstance(value, dict):
        told = [f"{_label(key, one)} {_value(key, one)}" for key, one in value.items() if one]
        return listed(told) or "none"
    if isinstance(value, list):
        return listed([_value("", one) for one in value]) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return field_text(name, value)[1]


def legend_lines(codes: dict[str, str], width: int = 3) -> Sequence[str]:
    """Return the legend as lines of ``width`` entries."""
    told = [f"{code} {meaning}" for code, meaning in codes.items()]
    return ["; ".join(told[at : at + width]) for at in range(0, len(told), width)]
