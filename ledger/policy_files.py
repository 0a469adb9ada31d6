"""Records of policy from files that people write: pools, quotas, queues and the like.

A file is YAML or JSON: one record, a list, several documents, or a *site*, a mapping
of the sections of `KINDS` (``pools``, ``quotas`` and so on) to lists. A record has the
fields of its model (`schemas.catalogue`), or is ``type`` and ``data`` as ``gpuledger
convert`` prints it. What a word means is said by its field
and not by its looks: a tenant may be called ``no``. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ledger.formats.documents import Node, NotTheFormat, plain_of, read_documents, shown
from schemas.catalogue import TYPES
from schemas.faults import first_fault, misspelt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from schemas.base import Model

__all__ = ["KINDS", "Kind", "PolicyRecord", "policy_record", "read_policy", "read_site"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of policy: its record type, its place in a site, and the state's table of it."""

    type: str
    section: str


#: Kinds by name, in the order in which a site is applied: a template may name a queue.
KINDS = {
    "pool": Kind("pool.apply", "pools"),
    "quota": Kind("quota.apply", "quotas"),
    "queue": Kind("queue.apply", "queues"),
    "template": Kind("template.apply", "templates"),
    "compatibility": Kind("compatibility.apply", "compatibilities"),
    "licence": Kind("licence.apply", "licences"),
    "prices": Kind("prices.apply", "price_books"),
}

_BY_SECTION = {kind.section: name for name, kind in KINDS.items()}
_BY_TYPE = {kind.type: name for name, kind in KINDS.items()}

#: Kinds whose records are named by a field of another name.
_NAMED_BY = {"quota": "tenant", "compatibility": "model_version", "prices": "book"}

#: Who and why: of every record of a file that does not say it itself.
_ABOUT = ("author", "reason")


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """One record of policy; ``line`` is where a file has it, 0 where there is none."""

    kind: str
    name: str
    data: Model
    line: int = 0

    @property
    def type(self) -> str:
        """Return the record type, as ``quota.apply``."""
        return KINDS[self.kind].type


def policy_record(kind: str, data: Model, line: int = 0) -> PolicyRecord:
    """Return the record with the name that the state knows it by."""
    plain: Any = data
    name = getattr(plain, _NAMED_BY.get(kind, kind))
    project = plain.project if kind == "quota" else None
    return PolicyRecord(kind, name if project is None else f"{name}/{project}", data, line)


def read_policy(text: str, kind: str, about: Mapping[str, str]) -> list[PolicyRecord]:
    """Return the records of one kind that a file holds.

    ``about`` may have ``author`` and ``reason`` for records that say none. Raise
    `NotTheFormat`, with the line, for what is no such record.
    """
    found = list(_records(text, kind, about))
    for record in found:
        if record.kind != kind:
            what = f"a {record.kind} is none of the {KINDS[kind].section}"
            raise NotTheFormat(f"{what}; gpuledger apply takes all kinds", line=record.line)
    return _distinct(found)


def read_site(text: str, about: Mapping[str, str]) -> list[PolicyRecord]:
    """Return all records of a file in the order of `KINDS`; see `read_policy`."""
    order = list(KINDS)
    found = sorted(_records(text, None, about), key=lambda one: order.index(one.kind))
    return _distinct(found)


def _distinct(found: list[PolicyRecord]) -> list[PolicyRecord]:
    seen: dict[tuple[str, str], int] = {}
    for record in found:
        first = seen.setdefault((record.kind, record.name), record.line)
        if first != record.line:
            message = f"{record.kind} {record.name} stands at line {first} already; keep one"
            raise NotTheFormat(message, line=record.line)
    return found


def _records(text: str, kind: str | None, about: Mapping[str, str]) -> Iterator[PolicyRecord]:
    for document in _documents(text):
        for node in _items(document):
            yield from _read(node, kind, about)


def _documents(text: str) -> Iterable[Node]:
    """Return the documents; JSON objects may also stand one a line (`gpuledger convert`)."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or not all(line.startswith("{") for line in lines):  # noqa: PLR2004 - one
        return read_documents(text)
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found += [_at(one, number) for one in read_documents(line)]
        except NotTheFormat as fault:
            raise NotTheFormat(fault.message, fault.path, number) from None
    return found


def _at(node: Node, line: int) -> Node:
    """Return the node with everything in it at ``line``."""
    value = node.value
    if isinstance(value, dict):
        return Node({name: _at(each, line) for name, each in value.items()}, line)
    return Node([_at(each, line) for each in value] if isinstance(value, list) else value, line)


def _items(node: Node) -> list[Node]:
    return node.value if isinstance(node.value, list) else [node]


def _read(node: Node, kind: str | None, about: Mapping[str, str]) -> Iterator[PolicyRecord]:
    """Yield the records of one item: a record with its type, a site, or a plain record."""
    fields = node.value
    if not isinstance(fields, dict):
        raise NotTheFormat("a record is a mapping of fields", line=node.line)
    if fields.keys() == {"type", "data"}:
        given = fields["type"].value
        if not isinstance(given, str) or given not in _BY_TYPE:
            raise NotTheFormat(f"{given!r} is no policy: {', '.join(_BY_TYPE)}", line=node.line)
        yield _record(fields["data"], _BY_TYPE[given], about)
    elif fields.keys() & _BY_SECTION.keys():
        yield from _site(fields, about)
    elif kind is None:
        raise NotTheFormat(f"a site has {', '.join(_BY_SECTION)}", line=node.line)
    else:
        yield _record(node, kind, about)


def _site(fields: Mapping[str, Node], about: Mapping[str, str]) -> Iterator[PolicyRecord]:
    own = {name: str(fields[name].value) for name in _ABOUT if name in fields}
    for section, node in fields.items():
        if section in _ABOUT:
            continue
        if section not in _BY_SECTION:
            known = ", ".join((*_BY_SECTION, *_ABOUT))
            raise NotTheFormat(f"{shown(section)} is no part of a site: {known}", line=node.line)
        for item in _items(node) if node.value is not None else ():
            yield _record(item, _BY_SECTION[section], {**about, **own})


def _record(node: Node, kind: str, about: Mapping[str, str]) -> PolicyRecord:
    if not isinstance(node.value, dict):
        raise NotTheFormat(f"a {kind} is a mapping of fields", line=node.line)
    plain = {**about, **plain_of(node)}
    if "reason" not in plain:
        raise NotTheFormat("why? Say it with --reason, or reason in the file", line=node.line)
    try:
        # Not strict: the text of a file becomes what the field is.
        data = TYPES[KINDS[kind].type, 1].model.model_validate(plain, strict=False)
    except ValidationError as error:
        place, text = first_fault(error)
        message = text.removeprefix("Value error, ") + misspelt(error)
        path = f"{kind} {'.'.join(map(str, place))}".rstrip()
        raise NotTheFormat(message, path, _line(node, place)) from None
    return policy_record(kind, data, node.line)


def _line(node: Node, place: Iterable[int | str]) -> int:
    """Return the line of the field at ``place``, as deep as the file has it."""
    for step in place:
        value = node.value
        if isinstance(value, dict) and step in value:
            node = value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            node = value[step]
    return node.line
