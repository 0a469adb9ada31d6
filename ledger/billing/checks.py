"""Checks of an exported bill, made from the rule list; every rule has an id and can fail.

Most rules come from the table of columns: ``Name-Present``, ``Name-NotNull``, ``Name-Format``
and ``Name-Values``. The others stand in `ledger.billing.relations`. They read files only, so
they judge a bill without the log, and one that another wrote. They are the rules that
apply to what we export, in our own words and not the whole specification.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from ledger.billing.focus import COLUMNS, Column
from ledger.billing.relations import ROW_RELATIONS, TABLE_RELATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ledger.billing.export import Export

__all__ = ["RULES", "Finding", "Rule", "check_export"]


class Rule(NamedTuple):
    """One rule: its id, what it is about, how binding it is, and in words what must hold.

    ``kind`` is presence, nullability, format, values, relation or metadata. ``find`` yields
    where it is broken.
    """

    id: str
    column: str
    level: str
    kind: str
    text: str
    find: Callable[[Export], Iterator[str]]


class Finding(NamedTuple):
    """A rule that is broken: how often, and where first."""

    rule: str
    text: str
    times: int
    first: str


def check_export(export: Export) -> list[Finding]:
    """Return the rules that a bill breaks, in the order of `RULES`; none is a good bill."""
    found = []
    for rule in RULES:
        try:
            broken = list(rule.find(export))
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
            # Another's file may hold anything: what cannot be judged is not good.
            broken = [f"it cannot be judged: {type(error).__name__}: {error}"]
        if broken:
            found.append(Finding(rule.id, rule.text, len(broken), broken[0]))
    return found


# -- formats -------------------------------------------------------------------

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)(\.(\d+))?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _is_time(text: str, _column: Column) -> bool:
    if not _TIME.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _is_decimal(text: str, column: Column) -> bool:
    match = _DECIMAL.fullmatch(text)
    return match is not None and len(match[3] or "") <= column.scale


def _is_json(text: str, _column: Column) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _is_string(text: str, _column: Column) -> bool:
    return text == text.strip() != "" and not _CONTROL.search(text)


#: Type of a column -> (what it must be, the test).
_FORMATS: dict[str, tuple[str, Callable[[str, Column], bool]]] = {
    "time": ("a UTC time of whole seconds, YYYY-MM-DDTHH:mm:ssZ", _is_time),
    "decimal": ("a plain decimal within its scale", _is_decimal),
    "integer": ("a whole number", _is_decimal),
    "json": ("a JSON object", _is_json),
    "string": ("text without spaces around it and without control characters", _is_string),
    "currency": (
        "an ISO 4217 code", lambda text, _: re.fullmatch("[A-Z]{3}", text) is not None,
    ),
    "sha256": (
        "a SHA-256 in hex", lambda text, _: re.fullmatch("[0-9a-f]{64}", text) is not None,
    ),
}  # fmt: skip


# -- rules of columns ----------------------------------------------------------


def _present(column: Column) -> Callable[[Export], Iterator[str]]:
    def find(export: Export) -> Iterator[str]:
        if column.name not in export.columns:
            yield "the header"

    return find


def _each(column: Column, good: Callable[[str | None], bool]) -> Callable[[Export], Iterator[str]]:
    def find(export: Export) -> Iterator[str]:
        if column.name not in export.columns:
            return
        for number, row in enumerate(export.rows, 1):
            value = row[column.name]
            if not good(value):
                yield f"row {number}: {value!r}"

    return find


def _column_rules(column: Column) -> Iterator[Rule]:
    name, level = column.name, column.level
    yield Rule(f"{name}-Present", name, level, "presence", f"{name} is a column", _present(column))
    if not column.null:
        text = f"{name} is never null"
        good = _each(column, lambda value: value is not None)
        yield Rule(f"{name}-NotNull", name, level, "nullability", text, good)
    if column.values:
        text = f"{name} is {' or '.join(column.values)}"
        good = _each(column, lambda value: value is None or value in column.values)
        yield Rule(f"{name}-Values", name, level, "values", text, good)
    else:
        what, test = _FORMATS[column.type]
        good = _each(column, lambda value: value is None or test(value, column))
        yield Rule(f"{name}-Format", name, level, "format", f"{name} is {what}", good)


# -- rules of relations --------------------------------------------------------


def _relation_rules() -> Iterator[Rule]:
    for name, level, text, holds in ROW_RELATIONS:

        def find(export: Export, holds: Callable[..., bool] = holds) -> Iterator[str]:
            known = {column.name for column in COLUMNS}
            absent = dict.fromkeys(known - set(export.columns))
            for number, row in enumerate(export.rows, 1):
                if not holds({**row, **absent} if absent else row):
                    yield f"row {number}"

        yield Rule(name, name.partition("-")[0], level, "relation", text, find)
    for name, level, text, broken in TABLE_RELATIONS:
        kind = "metadata" if name.startswith(("Schema", "Recency")) else "relation"
        yield Rule(name, name.partition("-")[0], level, kind, text, broken)


#: All rules; ids are unique.
RULES = (*(rule for column in COLUMNS for rule in _column_rules(column)), *_relation_rules())
assert len({rule.id for rule in RULES}) == len(RULES)
