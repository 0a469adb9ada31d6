"""SQL that is kept as files: views, macros and reports, each with its description as a header.

A file begins with comment lines, which are its description; the rest is one SELECT::

    -- view: claims
    -- one row a claim: who wrote the partition from then on
    -- column offset BIGINT: its place in the partition
    -- parameter at: the instant, UTC
    -- parameter tenant = : only this one's; it may be left out
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import takewhile

__all__ = ["REPORTS", "TEXTS", "VIEWS", "Column", "Parameter", "Text", "parse"]

_KINDS = ("view", "macro", "report")
_HEAD = re.compile(rf"-- ({'|'.join(_KINDS)}): ([a-z_-]+)(?:\(([a-z_, ]*)\))?")
_COLUMN = re.compile(r"-- column (\S+) ([A-Z_]+(?:\([0-9, ]+\))?(?:\[\])?): (\S.*)")
_PARAMETER = re.compile(r"-- parameter ([a-z_]+)( = )?: (\S.*)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the result: its name, its type in the database, and what it means."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a report is asked with; one that is not ``required`` and not given means any."""

    name: str
    required: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Text:
    """One SELECT with its description. ``arguments`` are those of a macro, in order."""

    kind: str
    name: str
    arguments: tuple[str, ...]
    meaning: str
    columns: tuple[Column, ...]
    parameters: tuple[Parameter, ...]
    query: str

    @property
    def scalar(self) -> bool:
        """Say whether a macro stands for a value, and not for a table."""
        return not self.columns

    @property
    def create(self) -> str:
        """Return the statement that makes the view or the macro."""
        if self.kind == "view":
            return f"CREATE VIEW {self.name} AS {self.query}"
        arguments = ", ".join(f'"{one}"' for one in self.arguments)
        body = f"({self.query})" if self.scalar else f"TABLE {self.query}"
        return f"CREATE MACRO {self.name}({arguments}) AS {body}"


def parse(text: str) -> list[Text]:
    """Return what a file holds; raise ValueError for one without a proper header."""
    parts = re.split(rf"(?m)^(?=-- (?:{'|'.join(_KINDS)}): )", text)
    if parts[0].strip():
        raise ValueError(f"no header before {parts[0].strip().splitlines()[0]!r}")
    return [_parse_one(part) for part in parts[1:]]


def _parse_one(text: str) -> Text:
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0])
    if head is None:
        raise ValueError(f"a header is not {lines[0]!r}")
    comments = list(takewhile(lambda line: line.startswith("--"), lines[1:]))
    meaning, columns, parameters = [], [], []
    for line in comments:
        if match := _COLUMN.fullmatch(line):
            columns.append(Column(*match.groups()))
        elif match := _PARAMETER.fullmatch(line):
            parameters.append(Parameter(match[1], match[2] is None, match[3]))
        else:
            meaning.append(line.removeprefix("--").strip())
    query = "\n".join(lines[1 + len(comments) :]).strip()
    if not meaning or not query:
        raise ValueError(f"{head[2]} has no description or no query")
    arguments = tuple(one.strip() for one in (head[3] or "").split(",") if one.strip())
    return Text(
        head[1], head[2], arguments, " ".join(meaning), tuple(columns), tuple(parameters), query
    )


@cache
def _all(folder: str) -> tuple[Text, ...]:
    place = resources.files("ledger.audit") / folder
    files = sorted(one.name for one in place.iterdir() if one.name.endswith(".sql"))
    return tuple(one for name in files for one in parse((place / name).read_text("utf-8")))


#: Views and macros of an audit, each after those that it is made of.
TEXTS = _all("views")
VIEWS = tuple(one for one in TEXTS if one.kind == "view")
#: Reports by name.
REPORTS = {one.name: one for one in _all("reports")}
