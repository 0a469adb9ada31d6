"""``bench no``: how long a no takes, with its complete reason, in a large and crowded cell.

A thousand nodes of which no request in line can have enough; requests of several
kinds that cannot run are then put one after the other. Timed is what the one who
asks waits for: reading and checking the input's JSON, `decide`, every rule asked
again with its numbers, the quota's levels, and the reason in words. The whole
explanation (who holds it, evictions tried, changes tried, estimated start) is
timed beside it, for those and for a request in the middle of the line.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson

from bench.workload import CELL, Cell, inventory, peak_rss_mib
from ledger.answers.levels import levels_of
from ledger.answers.reasons import reason_text
from ledger.answers.rules import Asking, live_rules
from ledger.collector import relax
from ledger.core.decisions.requests import asker_for, need_of
from ledger.explain import held_back, why

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.core.state import State

__all__ = ["run"]

_WHO = {"author": "bench", "reason": "a benchmark"}
_TENANTS = 20

#: What is asked in vain, by what stands in the way; of tenant ``t0`` unless it says otherwise.
_ASKS: dict[str, dict[str, Any]] = {
    "no_such_hardware": {"ask": {"mode": "whole", "models": ["B200"]}},
    "no_such_profile": {"ask": {"mode": "mig", "profile": "1g.10gb"}},
    "over_quota": {"tenant": "full", "ask": {"mode": "whole", "count": 8, "nodes": 1000}},
    "quota_in_use": {"tenant": "full", "ask": {"mode": "whole", "count": 1}},
    "gang_too_large": {"ask": {"mode": "whole", "count": 4, "nodes": 12}},
    "no_node_has_so_many": {"ask": {"mode": "whole", "count": 8}},
    "behind_others": {"queue": "strict", "ask": {"mode": "whole", "count": 2}},
    "no_cpu_beside": {"ask": {"mode": "whole"}, "beside": {"cpu_milli": 1_000_000}},
    "unknown_pool": {"ask": {"mode": "whole", "pool": "elsewhere"}},
}


def run(nodes: int, gpus_per_node: int, waiting: int, tries: int, seed: int) -> dict[str, Any]:
    """Return the times of ``tries`` requests refused of each kind, in milliseconds."""
    relax()
    cell = Cell(seed)
    cell.claim()
    _build(cell, nodes, gpus_per_node)
    middle = _fill_line(cell, waiting)
    # Only now: a decision for each that waits would look for victims as well.
    _say(cell, "queue.apply", "evicting", {"queue": "train", "preemption": "same-tenant", **_WHO})
    state = cell.fold.cells[CELL]
    whole, explained, kinds = [], [], {}
    for kind, more in _ASKS.items():
        mine = []
        for number in range(tries):
            seconds, code = _refuse(cell, f"{kind}-{number}", more)
            mine.append(seconds)
            kinds[kind] = code
        whole += mine
        explained.append(_explain(cell, more))
    began = time.perf_counter()
    found = why(state, (), middle)
    why_s = time.perf_counter() - began
    assert found is not None
    assert found.line is not None
    return {
        "bench": "no",
        "workload": "requests that cannot run, refused at once with every rule and its numbers",
        "waiting": len(state.index.waiting),
        "shapes": len(state.index.waiting.shapes),
        "gpus": nodes * gpus_per_node,
        "leases": len(state.leases),
        "refused": len(whole),
        "kinds": kinds,
        "milliseconds": _ms(_quantile(whole, 99)),
        "p50_ms": _ms(_quantile(whole, 50)),
        "p99_ms": _ms(_quantile(whole, 99)),
        "max_ms": _ms(max(whole)),
        "explained_max_ms": _ms(max(explained)),
        "why_waiting_ms": _ms(why_s),
        "why_place": found.line.place,
        "seed": seed,
        "peak_rss_mib": peak_rss_mib(),
    }


def _build(cell: Cell, nodes: int, gpus: int) -> None:
    """Make the cell: a tree of quotas, two queues, and two thirds of every node held."""
    quotas: list[tuple[str, str | None, int]] = [("org", None, nodes * gpus * 1000)]
    quotas += [(f"t{number}", "org", nodes * gpus * 40) for number in range(_TENANTS)]
    quotas += [("full", None, nodes * (gpus - 2) * 1000)]
    _say(cell, "pool.apply", "pool", {"pool": "main", **_WHO})
    for queue, ordering in (("train", "best-effort"), ("strict", "strict")):
        _say(cell, "queue.apply", f"queue-{queue}", {"queue": queue, "ordering": ordering, **_WHO})
    for name, parent, milli in quotas:
        data = {"tenant": name, "parent": parent, "nominal_gpu_milli": milli, **_WHO}
        _say(cell, "quota.apply", f"quota-{name}", data)
    for number in range(nodes):
        node = f"n{number:05d}"
        report = inventory(node, gpus) | {"cpu_milli": 128_000, "memory_mib": 1_000_000}
        cell.feed("observations", "node.inventory", f"/nodes/{node}", "boot", orjson.dumps(report))
    held = gpus - 2
    for number in range(nodes):
        for part in range(2):
            count = held // 2 + (held % 2 if part else 0)
            _ask(cell, f"held-{number}-{part}", {
                "tenant": "full", "ask": {"mode": "whole", "count": count},
                "max_run_s": 3600 + number, "preemptible": bool(number % 2),
            })  # fmt: skip


def _fill_line(cell: Cell, waiting: int) -> str:
    """Let requests wait that no node can serve, of many tenants and sizes; return one of them."""
    for number in range(waiting):
        strict = number % 10 == 0
        _ask(cell, f"waits-{number}", {
            "tenant": f"t{number % _TENANTS}",
            "queue": "strict" if strict else "train",
            "ask": {"mode": "whole", "count": 3 + number % 6, "nodes": 1 + number % 7},
            "priority": number % 3,
        })  # fmt: skip
    return f"/bench#waits-{waiting // 2}"


def _say(cell: Cell, name: str, event_id: str, data: dict[str, Any]) -> None:
    cell.feed("requests", name, "/bench/operator", event_id, orjson.dumps(data))


def _data(name: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"tenant": "t0", "queue": "train", "task": {"id": name}} | more


def _ask(cell: Cell, name: str, more: dict[str, Any]) -> str:
    data = orjson.dumps(_data(name, more))
    return cell.feed("requests", "request.submit", "/bench", name, data).code


def _refuse(cell: Cell, name: str, more: dict[str, Any]) -> tuple[float, str]:
    """Return the seconds from the input's bytes to the reason, and the reason's code."""
    data = orjson.dumps(_data(name, more | {"max_wait_s": 0}))
    began = time.perf_counter()
    decision = cell.feed("requests", "request.submit", "/bench", name, data)
    state = cell.fold.cells[CELL]
    asking = _asking(state, decision.input.data)
    rules = tuple(live_rules(state, asking))
    levels = tuple(levels_of(state, asking))
    reason = reason_text(decision.code, decision.numbers)
    seconds = time.perf_counter() - began
    if not (rules and levels and reason) or decision.events[-1]["type"] != "request.rejected":
        raise RuntimeError(f"request {name} was not refused with a reason: {decision.code}")
    return seconds, decision.code


def _asking(state: State, asked: Any) -> Asking:  # noqa: ANN401 - the model of a submission
    asker = asker_for(state, asked, need_of(asked), "/bench#explained", state.now_us)
    return Asking(asker, asked.tenant, None)


def _explain(cell: Cell, more: dict[str, Any]) -> float:
    """Return the seconds that the whole explanation of such a request takes."""
    data = orjson.dumps(_data("explained", more))
    given = cell.read("requests", "request.submit", "/bench", "explained", data)
    state = cell.fold.cells[CELL]
    began = time.perf_counter()
    found = held_back(state, _asking(state, given.data), "no_capacity")
    seconds = time.perf_counter() - began
    assert found.rules
    return seconds


def _quantile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
