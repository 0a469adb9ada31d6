"""Inputs at the ends of what validation lets through, drawn from the schemas of their types.

Each number is the least or the most of its field or next to it, each text as long or as odd
as its pattern allows. What names something is of a few names, so that an input is about what
is there; half of all devices are those of a plain node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError

from ledger.testing import AGENT, TEAM, CoreDriver
from schemas.catalogue import TYPES, adapter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from ledger.core.decide import Decision

__all__ = ["LONGEST_ID", "LONGEST_NAME", "LONGEST_SOURCE", "Extremes", "live", "numbers_of"]

LONGEST_NAME = "N" + "x" * 62
LONGEST_SOURCE = "/" + "s" * 199
LONGEST_ID = "i" * 128
_OPERATOR = "/operator"
_YEARS_US = 1_000_000_000_000_000

_SMILE = "\N{GRINNING FACE}"
_TEXTS = (
    *("", "M", "H100", "x" * 600, _SMILE * 600, "\N{NEXT LINE}\N{LINE SEPARATOR}\ufeff\ufffe"),
    *("123", "1e999", 'quoted "\\/', "'; DROP TABLE x; --", "null"),
)
#: Names by the field that has them: what is there, and one that is not.
_NAMES: dict[str, tuple[str, ...]] = {
    "tenant": ("t", "t", "t", "org", LONGEST_NAME),
    "project": ("p", LONGEST_NAME),
    "parent": ("org", "t"),
    "queue": ("q", "q", "q", "q", LONGEST_NAME),
    "pool": ("main", "main", LONGEST_NAME),
    "node": ("n1", "n2", LONGEST_NAME),
    "from_node": ("n1",),
    "to_node": ("n2",),
    "incarnation": ("b1", "b1", "b2"),
    "book": ("bk",),
    "reservation": ("res",),
}
#: What else a text has to look like, told by its pattern -> what is of that form.
_FORMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("[gc]", ("1g.10gb", "7g.80gb", "9999g." + "z" * 40)),
    ("[0-9]{1,9}", ("0", "9.0", ".".join(["999999999"] * 8))),
    ("memory_mib|", ("memory_mib", "model:M", "profile:1g.10gb", "profile:" + "~" * 200)),
    ("node|label", ("node", "label:rack")),
    ("A-Z]{3}", ("EUR",)),
    (" ._-]", ("V1", "V" + "x" * 63)),
    ("a-z0-9_]", ("abc", "a" * 40)),
    ("[!-~]", ("GPU-n10", "GPU-n11", "~" * 96)),
    (r"\x00", _TEXTS),
)
_TIMES = ("1000-01-01T00:00:00Z", "9998-12-30T23:59:59+23:59", "2026-01-01T00:00:00Z")
_SMALL = (0, 1, 2, 7, 8, 60, 1000)


def numbers_of(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the integers and texts of a JSON Schema, each with its place."""
    if schema.get("type") in ("integer", "number", "string") and "const" not in schema:
        yield place, schema
    for name, value in schema.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                yield from numbers_of(one, f"{place}.{name}")


class Extremes:
    """Draws inputs for one cell; references are of what is there just then."""

    def __init__(self, random: Random, driver: CoreDriver) -> None:
        """Draw by ``random`` about the cell of ``driver``."""
        self.random = random
        self.driver = driver

    def draw(self, name: str) -> dict[str, Any] | None:
        """Return an input of this type, None where the model has more against it."""
        schema = adapter(name, 1).json_schema()
        plain: dict[str, Any] = self._value(schema, schema.get("$defs", {}), "")
        self._aim(name, plain)
        try:
            adapter(name, 1).validate_json(orjson.dumps(plain))
        except ValidationError:
            return None
        return plain

    def devices(self, node: str) -> list[dict[str, Any]]:
        """Return a node's devices, whole ones and such as are cut."""
        pick = self.random.choice
        return [
            {
                "uuid": f"GPU-{node}{at}",
                "model": pick(("M", "H100")),
                "memory_mib": pick((0, 1, 80_000, 10**12)),
                "encoder_sessions": pick((0, 10**6)),
                **(self._cut(f"{node}{at}") if self.random.random() < 0.3 else {}),
            }
            for at in range(pick((1, 4, 8)))
        ]

    def _cut(self, name: str) -> dict[str, Any]:
        pick = self.random.choice
        shape = {"profile": "1g.10gb", "size": 1, "compute_slices": 1}
        seven = {"profile": "7g.80gb", "size": 8, "compute_slices": 7, "memory_mib": 80_000}
        return {
            "mig_enabled": True,
            "compute_slices": pick((0, 7, 64)),
            "profiles": [
                {**shape, "memory_mib": pick((0, 10**12)), "starts": [0, 1, 2, 3]},
                {**seven, "starts": [0]},
            ],
            "slices": [
                {**shape, "mig_uuid": f"MIG-{name}-{at}", "gi": at, "ci": 0, "start": at,
                 "memory_mib": pick((0, 10**12))}
                for at in range(pick((0, 2, 4)))
            ],
        }  # fmt: skip

    def _aim(self, name: str, plain: dict[str, Any]) -> None:
        """Let the input be about what is there, or nearly all would be refused."""
        state, rare = self.driver.state, self.random.random() < 0.2
        if name == "node.inventory":
            plain |= {"pool": "main", "devices": self.devices(plain["node"])}
            plain["epoch"] = self.random.choice((1, 2, 2**53 - 1) if rare else (1,))
        if name == "request.submit" and not rare:
            for field in ("template", "reservation", "licences", "beside"):
                plain.pop(field, None)
            plain |= {"tenant": "t", "queue": "q"}
            ask = plain.get("ask", {})
            for field in ("labels", "models", "architectures", "capability", "driver_min"):
                ask.pop(field, None)
            ask.pop("remote", None)
            if ask.get("mode") == "whole":
                ask |= {"count": min(ask.get("count", 1), 2), "nodes": 1}
        if name == "quota.apply" and not rare:
            plain["nominal_gpu_milli"] = 10**9
        about = (
            getattr(state.orders.get(plain.get("order", "")), "node", None)
            or getattr(state.devices.get(plain.get("device", "")), "node", None)
            or next(iter(getattr(state.leases.get(plain.get("lease", "")), "parts", ())), None)
        )
        if "incarnation" in plain and name != "node.inventory" and about is not None:
            plain |= {"node": about, "incarnation": state.nodes[about].incarnation}

    def _value(self, schema: dict[str, Any], known: dict[str, Any], name: str) -> Any:
        pick = self.random.choice
        if "$ref" in schema:
            return self._value(known[schema["$ref"].rpartition("/")[2]], known, name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return pick(schema["enum"])
        for several in ("anyOf", "oneOf"):
            if several in schema and "properties" not in schema:
                return self._value(pick(schema[several]), known, name)
        kind = schema.get("type")
        if kind == "integer":
            low, high = schema["minimum"], schema["maximum"]
            near = [one for one in _SMALL if low <= one <= high]
            return pick((low, high, low, high, min(high, low + 1), max(low, high - 1), *near))
        if kind == "string":
            return self._text(schema, name)
        if kind == "array":
            return self._array(schema, known, name)
        if kind == "object":
            return self._object(schema, known)
        return pick((True, False)) if kind == "boolean" else None

    def _array(self, schema: dict[str, Any], known: dict[str, Any], name: str) -> list[Any]:
        if "prefixItems" in schema:
            return [self._value(one, known, name) for one in schema["prefixItems"]]
        least, most = schema.get("minItems", 0), schema.get("maxItems", 3)
        count = self.random.choice((least, max(least, 1), min(most, 3)))
        return [self._value(schema["items"], known, name) for _ in range(count)]

    def _object(self, schema: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
        if "properties" in schema:
            must = schema.get("required", ())
            return {
                name: self._value(one, known, name)
                for name, one in schema["properties"].items()
                if name in must or self.random.random() < 0.3
            }
        ((pattern, one),) = schema.get("patternProperties", {"": None}).items()
        one = one or schema.get("additionalProperties") or {}
        keys = _TEXTS if r"\x00" in pattern else ("a", "1", LONGEST_NAME)
        return {
            key: self._value(one, known, "")
            for key in self.random.sample(keys, self.random.randrange(3))
        }

    def _text(self, schema: dict[str, Any], name: str) -> str:
        pick, pattern = self.random.choice, schema.get("pattern", "")
        there = self._there(name) if "!-~" in pattern else []
        if there:
            return pick(there)
        if schema.get("format") == "date-time":
            return pick(_TIMES)
        if name in _NAMES:
            return pick(_NAMES[name])
        for sign, found in _FORMS:
            if sign in pattern:
                fits = [one for one in found if re.search(_python(pattern), one)]
                return pick(fits) if fits else "x"
        return pick(("a", "1", LONGEST_NAME))

    def _there(self, name: str) -> list[str]:
        """Return what there is just then of what a field of this name is about."""
        state = self.driver.state
        tables: dict[str, dict[str, Any]] = {
            "lease": {**state.leases}, "request": {**state.requests}, "order": {**state.orders},
            "device": {**state.devices}, "ask": {**state.quota_asks},
        }  # fmt: skip
        return list(tables.get(name, ()))


def _python(pattern: str) -> str:
    """Return the pattern for Python, whose ``$`` is before the end of a line too."""
    return pattern.removesuffix("$") + r"\Z"


#: Types by how often they are drawn; the others once.
_OFTEN = {
    "request.submit": 16, "node.inventory": 3, "lease.extend": 4, "quota.apply": 2,
    "order.done": 3, "task.use": 2, "reservation.apply": 2,
}  # fmt: skip
_DRAWN = tuple(
    name
    for (name, _), spec in TYPES.items()
    if spec.topic in ("requests", "observations")
    for _ in range(_OFTEN.get(name, 1))
)
_REQUESTERS = ("request", "lease", "task")


def _source(random: Random, name: str, plain: dict[str, Any]) -> str:
    """Return who says it: a node's agent, an operator, or whose request it is about."""
    if TYPES[name, 1].topic == "observations":
        return f"{AGENT}{plain.get('node', 'n1')}"
    if name.partition(".")[0] not in _REQUESTERS or name == "lease.reclaim":
        return _OPERATOR
    about = plain.get("request") or plain.get("lease") or ""
    return about.partition("#")[0] or random.choice((TEAM, LONGEST_SOURCE))


def live(random: Random, steps: int) -> Iterator[tuple[CoreDriver, Decision]]:
    """Let a cell live through so many inputs at the extremes; yield it after each."""
    driver = CoreDriver(
        cell=random.choice(("c", LONGEST_NAME)), check=True, now_us=1_780_000_000_000_000
    )
    drawn = Extremes(random, driver)
    driver.pool(
        partition=random.choice(("never", "create", "relayout")),
        placement=random.choice(("best-fit", "first-fit", "fgd", "least-waste")),
        memory_overcommit_permille=random.choice((1_000, 10_000)),
    )
    driver.queue(
        ordering=random.choice(("strict", "best-effort", "backfill")),
        preemption=random.choice(("never", "any-tenant")),
    )
    driver.quota(nominal_gpu_milli=10**9)
    for node in ("n1", "n2"):
        driver.node(node, drawn.devices(node))
    for _ in range(steps):
        name = random.choice(_DRAWN)
        plain = drawn.draw(name)
        if plain is None:
            continue
        source = _source(random, name, plain)
        # Three leaps of 31 years at most: what is due then stays a date for every reader.
        leaps = driver.now_us < 3 * _YEARS_US and random.random() < 0.05
        at_us = driver.now_us + random.choice((60_000_000, _YEARS_US)) if leaps else None
        yield driver, driver.feed(name, plain, source=source, at_us=at_us)
