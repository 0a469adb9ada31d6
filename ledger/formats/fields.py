"""Taking a document apart field by field, so that what nobody took is reported."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.formats.documents import Node, NotTheFormat, shown
from ledger.formats.quantities import kubernetes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

__all__ = ["MAX_AMOUNT", "Fields", "Note", "joined"]

#: No amount in a document may be larger; in bytes it is an exbibyte.
MAX_AMOUNT = 1 << 60

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
#: At most as many characters as a label has in Kubernetes.
_LABEL = re.compile(r"[ -~]{0,63}")
_FLAGS = {
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}


@dataclass(frozen=True, slots=True)
class Note:
    """What was met and not mapped, or mapped onto something else: where, and why.

    ``line`` is 0 where there is none (the ledger's own records have no lines).
    """

    path: str
    reason: str
    line: int = 0

    def __str__(self) -> str:
        """Return it as one line for people."""
        return (f"line {self.line}: " if self.line else "") + f"{self.path}: {self.reason}"


def joined(path: str, name: str) -> str:
    """Return the path of a field; a path that ends with a colon is an object's own name."""
    plain = name if name.isprintable() else ascii(name)
    return f"{path}{plain}" if not path or path.endswith(":") else f"{path}.{plain}"


class Fields:
    """The fields of one mapping. Each is taken by its type; `rest` reports the others.

    ``path`` and ``line`` say where the mapping stands; ``notes`` is the list that
    all readers of one text share. What has the wrong type raises `NotTheFormat`.
    A field that is null counts as absent.
    """

    def __init__(self, node: Node, path: str, notes: list[Note]) -> None:
        if not isinstance(node.value, dict):
            raise NotTheFormat("must be a mapping of fields", path, node.line)
        self.path = path
        self.line = node.line
        self.notes = notes
        self._left = dict(node.value)
        self._lines = {name: each.line for name, each in node.value.items()}

    def at(self, name: str) -> str:
        """Return the path of one of the fields."""
        return joined(self.path, name)

    def take(self, name: str) -> Node | None:
        """Return the field as it is, and count it as read; None when absent or null."""
        node = self._left.pop(name, None)
        return None if node is None or node.value is None else node

    def has(self, name: str) -> bool:
        """Say whether the field is there and not taken yet, null or not."""
        return name in self._left

    def note(self, name: str, reason: str) -> None:
        """Report a field, which may have been taken."""
        self.notes.append(Note(self.at(name), reason, self._lines.get(name, self.line)))

    def wrong(self, name: str, message: str) -> NotTheFormat:
        """Return the error that a field is not what it must be."""
        return NotTheFormat(message, self.at(name), self._lines.get(name, self.line))

    def text(self, name: str) -> str | None:
        """Return a text; None when absent."""
        node = self.take(name)
        if node is not None and not isinstance(node.value, str):
            raise self.wrong(name, "must be text")
        return None if node is None else str(node.value)

    def needed(self, name: str) -> str:
        """Return a text that must be there and not be empty."""
        text = self.text(name)
        if not text:
            raise self.wrong(name, "is missing; this format needs it")
        return text

    def whole(self, name: str, least: int = 0) -> int | None:
        """Return an integer not less than ``least``; None when absent."""
        node = self.take(name)
        if node is None:
            return None
        text = node.value
        if not isinstance(text, str) or not _WHOLE.fullmatch(text) or int(text) < least:
            raise self.wrong(name, f"must be a whole number, at least {least}")
        return int(text)

    def flag(self, name: str) -> bool | None:
        """Return true or false; None when absent."""
        node = self.take(name)
        if node is None:
            return None
        found = _FLAGS.get(node.value) if isinstance(node.value, str) else None
        if found is None:
            raise self.wrong(name, "must be true or false")
        return found

    def quantity(self, name: str) -> Fraction | None:
        """Return a Kubernetes quantity, not negative; None when absent."""
        node = self.take(name)
        if node is None:
            return None
        amount = kubernetes(node.value) if isinstance(node.value, str) else None
        if amount is None or amount < 0:
            raise self.wrong(name, 'must be a quantity such as 2, 500m or "4Gi"')
        if amount > MAX_AMOUNT:
            raise self.wrong(name, "is larger than any machine")
        return amount

    def quantities(self) -> dict[str, Fraction]:
        """Take all fields that are left, each a quantity."""
        found = {name: self.quantity(name) for name in list(self._left)}
        return {name: amount for name, amount in found.items() if amount is not None}

    def fields(self, name: str) -> Fields | None:
        """Return a mapping; None when absent."""
        node = self.take(name)
        return None if node is None else Fields(node, self.at(name), self.notes)

    def empty(self, name: str) -> Fields:
        """Return what `fields` would for an empty mapping: all its fields are absent."""
        return Fields(Node({}, self.line), self.at(name), self.notes)

    def each(self, name: str) -> list[Fields]:
        """Return a list of mappings; none when absent."""
        return [Fields(node, path, self.notes) for node, path in self._items(name)]

    def texts(self, name: str) -> list[str]:
        """Return a list of texts; none when absent."""
        found = []
        for node, path in self._items(name):
            if not isinstance(node.value, str):
                raise NotTheFormat("must be text", path, node.line)
            found.append(node.value)
        return found

    def _items(self, name: str) -> list[tuple[Node, str]]:
        node = self.take(name)
        if node is None:
            return []
        if not isinstance(node.value, list):
            raise self.wrong(name, "must be a list")
        return [(item, f"{self.at(name)}[{at}]") for at, item in enumerate(node.value)]

    def pairs(self, name: str) -> dict[str, str]:
        """Return a mapping of labels, whose values are short and plain; empty when absent."""
        inner = self.fields(name)
        if inner is None:
            return {}
        found = {each: inner.text(each) or "" for each in list(inner._left)}  # noqa: SLF001
        for each, value in found.items():
            if not _LABEL.fullmatch(value):
                raise inner.wrong(each, f"{shown(value)} is no value of a label")
        return found

    def rest(self, otherwise: str, reasons: Mapping[str, str] | None = None) -> None:
        """Report every field that is left: by its own reason, or together by the other one."""
        known = reasons or {}
        together = []
        for name, node in self._left.items():
            if name in known:
                self.notes.append(Note(self.at(name), known[name], node.line))
            else:
                together.append(name)
        if together:
            names = ", ".join(name if name.isprintable() else shown(name) for name in together)
            line = self._left[together[0]].line
            path = self.path.removesuffix(":") or "the document"
            self.notes.append(Note(path, f"{names}: {otherwise}", line))
        self._left.clear()
