"""Compatibility: what a version of a model needs becomes part of what the request asks.

The rule in force when a request comes is the one that counts for it, and is on record
with its need; a later one counts for later requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ledger.core.terms import Terms, version
from schemas.limits import MAX_LISTED_TEXT

if TYPE_CHECKING:
    from ledger.core.state import Need, State
    from schemas.requests import RequestSubmit

__all__ = ["Compatibility", "compatible"]

Numbers = dict[str, int | str | None]


@dataclass(slots=True)
class Compatibility:
    """What a version of a model needs (`schemas.compatibility.CompatibilityApply`)."""

    model_version: str
    architectures: list[str]
    driver_min: str
    frameworks: list[str]


def compatible(state: State, asked: RequestSubmit, need: Need) -> tuple[Need, Numbers | None]:
    """Return the need with what its model needs, and what was compared if that cannot be met.

    Where the cell has no device at all of what is asked, it may come: nothing is refused.
    """
    runtime = asked.runtime
    rule = state.compatibilities.get(runtime.model or "") if runtime is not None else None
    if runtime is None or rule is None:
        return need, None
    about: Numbers = {"model": rule.model_version}
    if rule.frameworks and runtime.framework not in rule.frameworks:
        runs = {"framework": runtime.framework, "runs_in": _listed(rule.frameworks)}
        return need, about | runs
    if not need.count:
        return need, None
    terms = need.terms or Terms()
    wanted = terms.architectures
    both = tuple(one for one in rule.architectures if not wanted or one in wanted)
    if rule.architectures and not both:
        return need, about | {"asked": _listed(wanted), "runs_on": _listed(rule.architectures)}
    driver_min = max(terms.driver_min, rule.driver_min, key=lambda one: version(one) or ())
    stricter = replace(terms, architectures=both or wanted, driver_min=driver_min)
    narrow = need if stricter == Terms() else replace(need, terms=stricter)
    if not state.index.matches(state, narrow):
        there = _there(state, need)
        if there:
            return narrow, about | _needed(rule) | there
    return narrow, None


def _needed(rule: Compatibility) -> Numbers:
    found: Numbers = {}
    if rule.architectures:
        found["runs_on"] = _listed(rule.architectures)
    if rule.driver_min:
        found["driver_min"] = rule.driver_min
    return found


def _there(state: State, need: Need) -> Numbers:
    """Return the architectures and drivers of what would have served the need otherwise."""
    kinds = {key[:3] for key in state.index.matches(state, need)}
    if not kinds:
        return {}
    architectures, drivers = set(), set()
    for device in state.devices.values():
        node = state.nodes[device.node]
        if (node.pool, device.model, device.memory_mib) in kinds:
            architectures.add(device.architecture or "unknown")
            drivers.add(node.driver or "unknown")
    return {"architectures": _listed(sorted(architectures)), "drivers": _listed(sorted(drivers))}


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return "|".join(names)[:MAX_LISTED_TEXT]
