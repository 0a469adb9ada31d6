"""YAML and JSON text as a tree of nodes that know their line.

Only the events of the YAML parser are used: no tag makes an object, an alias is
refused (a few lines of them stand for gigabytes), and size, depth and number of
nodes have limits. A scalar stays the text that was written. What it means is said
by the field that holds it and not by its looks, so ``0.1`` is never a binary
fraction, ``010`` is ten and the namespace ``no`` is a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "MAX_CHARS",
    "MAX_DEPTH",
    "MAX_NODES",
    "Node",
    "NotTheFormat",
    "plain_of",
    "read_documents",
    "shown",
    "written",
]

#: The longest text that is read, in characters.
MAX_CHARS = 1_000_000

#: How deep mappings and sequences may nest. A pod in a list needs about 12.
MAX_DEPTH = 40

#: How many values and keys a text may have.
MAX_NODES = 100_000

#: How much of somebody else's text is repeated in a message, in characters.
_MAX_SHOWN = 60

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TAG = "tag:yaml.org,2002:"
_KINDS = ("str", "int", "bool", "float", "null", "map", "seq")
_TAGS = frozenset({None, "!", *(_TAG + kind for kind in _KINDS)})

Value: TypeAlias = "dict[str, Node] | list[Node] | str | None"


@dataclass(frozen=True, slots=True)
class Node:
    """A value and the line on which it begins, from 1.

    ``value`` is a mapping, a list, the text of a scalar, or None for null.
    """

    value: Value
    line: int


class NotTheFormat(Exception):
    """The text is not of the format that it was given as.

    ``message`` says what is wrong and what to do, ``path`` and ``line`` say where;
    ``line`` is 0 where no line can be told.
    """

    def __init__(self, message: str, path: str = "", line: int = 0) -> None:
        super().__init__(": ".join(part for part in (path, message) if part))
        self.message = message
        self.path = path
        self.line = line


def shown(text: str) -> str:
    """Return the text as a message may repeat it: quoted, on one line, not too long."""
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return ascii(short)


def plain_of(node: Node) -> Any:  # noqa: ANN401 - what a document holds
    """Return what a node holds without lines: mappings, lists, and scalars as their text."""
    value = node.value
    if isinstance(value, dict):
        return {name: plain_of(each) for name, each in value.items()}
    return [plain_of(each) for each in value] if isinstance(value, list) else value


def read_documents(text: str) -> list[Node]:
    """Return the documents of a YAML stream, or the one value of a JSON text.

    Empty documents are left out. Raises `NotTheFormat` for what is not YAML, for an
    alias, a name twice in a mapping, and what is beyond the limits.
    """
    if len(text) > MAX_CHARS:
        raise NotTheFormat(f"the text has {len(text)} characters, more than {MAX_CHARS}; split it")
    if text.lstrip()[:1] in ("{", "["):
        # JSON may be indented with tabs, which YAML forbids. A tab in a string is escaped there.
        text = text.replace("\t", " ")
    try:
        return _documents(_counted(yaml.parse(text, Loader=yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        raise NotTheFormat(f"not YAML: {error.problem or error.context}", line=line) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        # An escape beyond Unicode is a ValueError of the parser's own conversions.
        reason = str(error).partition("\n")[0]
        raise NotTheFormat(f"not YAML: {shown(reason)}") from None


def _counted(events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    for number, event in enumerate(events):
        if number > MAX_NODES:
            message = f"the text has more than {MAX_NODES} values; split it"
            raise NotTheFormat(message, line=_line(event))
        yield event


def _documents(events: Iterator[yaml.Event]) -> list[Node]:
    found = []
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            node = _node(next(events), events, 1)
            if node.value is not None:
                found.append(node)
    return found


def _node(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Node:
    line = _line(event)
    if isinstance(event, yaml.AliasEvent):
        raise NotTheFormat("aliases (*name) are not read; write the value out", line=line)
    tag = getattr(event, "tag", None)
    if tag not in _TAGS:
        raise NotTheFormat(f"the tag {shown(str(tag))} is not read; leave it out", line=line)
    if isinstance(event, yaml.ScalarEvent):
        return Node(_scalar(event), line)
    if depth > MAX_DEPTH:
        raise NotTheFormat(f"nested more than {MAX_DEPTH} levels deep", line=line)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_node(event, events, depth + 1))
        return Node(items, line)
    return Node(_mapping(events, depth), line)


def _mapping(events: Iterator[yaml.Event], depth: int) -> dict[str, Node]:
    found: dict[str, Node] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        if not isinstance(event, yaml.ScalarEvent):
            raise NotTheFormat("the name of a field must be text", line=_line(event))
        name = _whole_text(event)
        if name in found:
            raise NotTheFormat(
                f"{shown(name)} stands twice in one mapping; keep one of them", line=_line(event)
            )
        found[name] = _node(next(events), events, depth + 1)
    return found


def _scalar(event: yaml.ScalarEvent) -> str | None:
    plain = event.style is None and event.tag is None
    if event.tag == _TAG + "null" or (plain and event.value in _NULLS):
        return None
    return _whole_text(event)


def _whole_text(event: yaml.ScalarEvent) -> str:
    r"""Return the text with surrogate pairs joined; JSON writes an emoji as ``\ud83d\ude00``."""
    text: str = event.value
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise NotTheFormat("half a surrogate pair is no text", line=_line(event)) from None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


class _WholeDumper(yaml.SafeDumper):
    """Writes every value out, however often it stands there: no aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as PyYAML calls it
        return True


def written(values: Iterable[object]) -> str:
    """Return plain values as a YAML stream that `read_documents` reads."""
    text: str = yaml.dump_all(values, Dumper=_WholeDumper, sort_keys=False, explicit_start=True)
    return text
