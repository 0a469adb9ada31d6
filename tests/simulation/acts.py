"""What may happen next: tables of acts with their weights, drawn by a seeded generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.asks import drawn_ask, drawn_terms
from tests.world import NODES, PARTED, QUEUES, QUOTAS, SLICES, TEAMS, UUIDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.world import World

__all__ = ["Act", "draw"]

#: A method of `World` and what it is given.
Act = tuple[str, tuple[Any, ...], dict[str, Any]]

_CHANGES: tuple[dict[str, Any], ...] = (
    {"model": "H200"},
    {"model": "H100", "index": 3},
    {"memory_mib": 40_000},
    {"memory_mib": 81_920},
    {"mig_enabled": True, "compute_slices": 7},
    {"mig_enabled": False},
    {"health": "unhealthy"},
    {"health": "healthy"},
    {"health": "healthy"},
    *({"slices": slices} for slices in SLICES),
    {"nvlink_domain": "l1"},
    {"iommu_group": "3"},
    {"encoder_sessions": 1},
    {"encoder_sessions": 0, "decoder_sessions": 0},
    {"vgpu_types": []},
    {"vgpu_types": [{"type": "thirds", "most": 3, "memory_mib": 20_000}]},
    {"architecture": "blackwell"},
)
_LIMITS: tuple[tuple[dict[str, Any], ...], ...] = (
    (),
    (),
    ({"resource": "model:H100", "nominal": 2_000},),
    ({"resource": "model:H100", "nominal": 1_000, "borrowing": 1_000, "lending": 0},),
    ({"resource": "profile:1g.10gb", "nominal": 2},),
    ({"resource": "memory_mib", "nominal": 170_000},),
    ({"resource": "memory_mib", "nominal": 82_000, "lending": 10_000},),
)


def _pick(random: Random) -> int:
    return random.randrange(41)


def _any(random: Random) -> int:
    return random.randrange(5_000)


_MORE: dict[str, tuple[float, tuple[Any, ...]]] = {
    "beside": (0.15, ({"cpu_milli": 4_000}, {"memory_mib": 600})),
    "priority": (0.6, (-5, 0, 5, 5, 9)),
    "preemptible": (0.6, (True,)),
    "retries": (0.3, (1, 2)),
    "max_wait_s": (0.3, (0, 60, 300)),
    "max_run_s": (0.4, (30, 600)),
    "replicas_min": (0.2, (0, 1, 2)),
    "recovery": (0.2, ("end", "requeue")),
}


def _some(random: Random, table: dict[str, tuple[float, tuple[Any, ...]]]) -> dict[str, Any]:
    return {
        name: random.choice(choices)
        for name, (chance, choices) in table.items()
        if random.random() < chance
    }


def _submit(random: Random) -> Act:
    who = (
        random.choice(TEAMS),
        *random.choice(
            (("t", None), ("t", "p"), ("t", "q"), ("t", "odd"), ("u", None), ("v", None))
        ),
        random.choice(QUEUES),
    )
    task = (
        random.choice(("task", "web", "web", f"job{random.randrange(9)}")),
        random.choice(("training", "online-inference", "evaluation")),
    )
    return "submit", (who, drawn_ask(random), _some(random, _MORE) | drawn_terms(random), task), {}


_QUEUE: dict[str, tuple[float, tuple[Any, ...]]] = {
    "max_wait_s": (0.1, (0, 300)),
    "max_gpus": (0.1, (1, 4)),
    "max_run_s": (0.3, (30, 600)),
    "tenants": (0.1, (["t"], ["u", "v"])),
    "fair_share": (0.3, (True,)),
    "preemption": (0.7, ("never", "same-tenant", "any-tenant", "any-tenant")),
    "reclaim": (0.7, ("never", "lower-priority", "any", "any")),
    "idle_remind_s": (0.2, (10, 30)),
    "idle_reclaim_s": (0.2, (20, 60)),
}


def _queue(random: Random) -> Act:
    ordering = random.choice(("strict", "best-effort", "backfill", "backfill"))
    return "queue", (random.choice(QUEUES), ordering, _some(random, _QUEUE)), {}


_QUOTA: dict[str, tuple[float, tuple[Any, ...]]] = {
    "borrowing_gpu_milli": (0.4, (0, 1_000, 3_000)),
    "lending_gpu_milli": (0.4, (0, 1_000)),
    "limits": (0.3, _LIMITS),
    "budget": (0.1, ({"gpu_hours": 1, "period_s": 600}, {"gpu_hours": 0, "period_s": 300})),
    "weight": (0.2, (1, 5)),
    "half_life_s": (0.2, (60, 600)),
    "parent": (0.1, (None, "org", "t", "v")),
    "evict": (0.3, (True,)),
}


def _quota(random: Random) -> Act:
    nominal = random.choice((0, 1_000, 1_000, 2_000, 3_000, 4_000, 8_000, 20_000))
    return "quota", (random.randrange(len(QUOTAS)), nominal, _some(random, _QUOTA)), {}


def _with(name: str, *choices: Any, **words: Any) -> Callable[[Random], Act]:
    """Make a drawer: each argument a tuple of choices, or a function of the generator."""

    def value(random: Random, one: Any) -> Any:
        return one(random) if callable(one) else random.choice(one)

    def drawn(random: Random) -> Act:
        return (
            name,
            tuple(value(random, one) for one in choices),
            {word: value(random, one) for word, one in words.items()},
        )

    return drawn


_ROUTES = tuple(
    [{"when": "latency-sensitive", "mode": one}, {"when": "elastic", "mode": other}]
    for one, other in (("mig", "share"), ("whole", "mig"), ("share", "whole"))
)
_POOL: dict[str, tuple[float, tuple[Any, ...]]] = {
    "partition": (0.8, ("create", "create", "relayout", "relayout", "never")),
    "memory_overcommit_permille": (0.4, (1000, 1500, 2000)),
    "slices_warning": (0.2, (0, 2)),
    "allowed_modes": (0.05, (["whole", "share", "mig"], ["vgpu", "passthrough", "whole"])),
    "allowed_tenants": (0.05, (["t", "u"], ["v", "t"])),
    "routing": (0.6, _ROUTES),
}


def _rules(random: Random) -> dict[str, Any]:
    return _some(random, _POOL)


_BOTH = (False, True)
_RARELY = (False, False, False, True)
_MOSTLY = (True, True, True, False)
_TASK = ("started", "completed", "completed", "failed", "stopped", "idle", "busy")
_HEALTH = ("healthy", "healthy", "unhealthy", "unknown", "gone")

_PLACES: tuple[dict[str, Any], ...] = (
    {"labels": {"rack": "r1"}},
    {"labels": {"rack": "r2"}},
    {"labels": {}},
    {"driver": "535.1"},
    {"driver": "550.100"},
    {"driver": None},
)
_RUNS = (
    {"architectures": ["hopper"]},
    {"architectures": ["ampere", "hopper"], "driver_min": "550.9"},
    {"driver_min": "550.60", "frameworks": ["jax"]},
)
_TYPES = ("training", "online-inference", "evaluation")
_TEMPLATES = (
    {"defaults": {"queue": "q", "ask": {"mode": "share", "gpu_milli": 300}, "preemptible": True}},
    {"default": True, "defaults": {"queue": "fill", "max_run_s": 200}, "limits": {"max_gpus": 2}},
    {"defaults": {"priority": 3}, "limits": {"max_run_s": 300, "max_priority": 5}},
    {"defaults": {"queue": "q"}, "required": ["max_run_s"], "limits": {"modes": ["whole", "mig"]}},
    {"default": True, "defaults": {"retries": 2, "queue": "fair"}, "limits": {"max_run_s": 500}},
)
_NAMES = ("x", "x", "y")
_MUCH = ((1, 1), (1, 1), (2, 1), (1, 2))
_WHEN = ((0, 300), (0, 2_000), (100, 600), (600, 600), (2_000, 1_000))
_OF: tuple[dict[str, Any], ...] = ({}, {}, {"models": ["H100"]}, {"pool": "side"})

#: Kind of act -> (weight, drawer, what of the world must not be empty).
_ACTS: dict[str, tuple[tuple[int, Callable[[Random], Act], str], ...]] = {
    "demand": (
        (32, _submit, ""),
        (1, _with("submit_again", _pick, other=_BOTH), "submitted"),
        (3, _with("cancel", _any, wrong=_RARELY), "submitted"),
        (1, _with("cancel_reserved", _pick), ""),
        (4, _with("release", _any, wrong=_RARELY), "leases"),
        (3, _with("extend", _pick, (5, 100, 1000), wrong=_RARELY), "leases"),
        (12, _with("task", _pick, _TASK), "leases"),
        (10, _with("answer", _pick, done=_MOSTLY, old=_RARELY), "orders"),
        (12, _with("answer_all"), "orders"),
        (
            3,
            _with(
                "link", ("n1", "n1", "n2", "n3"), NODES, (10, 50, 500), (100, 1_000), (20, 3_000)
            ),
            "",
        ),
        (10, _with("time", (-100, 0, 1, 10, 40, 150, 700)), ""),
    ),
    "faults": (
        (4, _with("inventory", NODES, boot=(False, False, True)), ""),
        (2, _with("move", (*UUIDS, *PARTED), (*NODES, ""), tell=_BOTH), ""),
        (2, _with("meddle", tuple(PARTED), _pick, tell=_BOTH), ""),
        (3, _with("change", UUIDS, _CHANGES), ""),
        (4, _with("hear", NODES, ("silent", "back", "back")), ""),
        (3, _with("health", _pick, _HEALTH), ""),
        (2, _with("health_reserved", _pick, _HEALTH), ""),
        (1, _with("repool", NODES, ("main", "main", "side", "new")), ""),
        (1, _with("odd", NODES, ("agent", "boot", "epoch", "cpu")), ""),
        (1, _with("reclaim", _pick), "leases"),
        (4, _with("clear", (*UUIDS, *PARTED)), ""),
        (4, _with("mode", NODES, ("online", "online", "draining", "maintenance")), ""),
        (1, _with("pool", ("main", "side", "new"), ("1", "2"), (0, 10, 200), _rules), ""),
        (1, _with("layout", tuple(PARTED), _pick, (0, 1, 2, 3, 7)), ""),
        (1, _with("repair"), ""),
        (1, _with("where", NODES, _PLACES), ""),
    ),
    "policy": (
        (4, _quota, ""),
        (1, _with("quota_ask", (0, 1, 2, 3, 4, 5), (1_000, 5_000, 30_000)), ""),
        (1, _with("quota_answer", _pick, ("op", "boss"), approve=_MOSTLY), "asks"),
        (3, _queue, ""),
        (2, _with("pool", ("main", "main", "side"), ("1",), (60, 200), _rules), ""),
        (1, _with("licence", ("one", "two"), (0, 1, 2, 5)), ""),
        (1, _with("compatibility", ("m1", "m2"), _RUNS), ""),
        (1, _with("template", ("small", "large"), _TYPES, _TEMPLATES), ""),
        (3, _with("reserve", _NAMES, ("t", "u", "v"), _MUCH, _WHEN, _OF), ""),
        (1, _with("unreserve", _NAMES), ""),
    ),
}
#: How often each kind comes: a busy cell, one whose rules change, one that falls apart.
_MOODS = ((90, 4, 2), (85, 5, 10), (70, 25, 5))


def draw(random: Random, world: World, seed: int) -> Act:
    """Return the next act, in the mood of the seed."""
    while True:
        (kind,) = random.choices(list(_ACTS), _MOODS[seed % len(_MOODS)])
        (one,) = random.choices(_ACTS[kind], [weight for weight, _, _ in _ACTS[kind]])
        if not one[2] or getattr(world, one[2]):
            return one[1](random)
