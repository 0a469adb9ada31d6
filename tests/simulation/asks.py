"""What may be asked, in every delivery mode: drawn by a seeded generator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["drawn_ask", "drawn_terms"]

Ask = dict[str, Any]


def _share(random: Random) -> Ask:
    ask: Ask = {"mode": "share", "gpu_milli": random.choice((1, 300, 500, 1000))}
    if random.random() < 0.3:
        ask["memory_mib"] = random.choice((10_000, 50_000))
    return ask | _sessions(random, 0.15) | _remote(random)


def _sessions(random: Random, often: float) -> Ask:
    if random.random() >= often:
        return {}
    some = {"encoder_sessions": random.choice((1, 1, 2))}
    return random.choice((some, some, {"decoder_sessions": 2}, some | {"decoder_sessions": 1}))


def _mig(random: Random) -> Ask:
    profiles = ("1g.10gb", "1g.10gb", "3g.40gb", "2g.20gb", "7g.80gb", "1g.6gb", "2g.12gb")
    return {"mode": "mig", "profile": random.choice(profiles), "count": random.randint(1, 3)}


def _whole(random: Random) -> Ask:
    ask: Ask = {
        "mode": "whole",
        "count": random.choice((0, 1, 1, 1, 2, 2)),
        "nodes": random.choice((1, 1, 1, 2, 2, 3)),
    }
    if random.random() < 0.1:
        ask["memory_mib"] = 30_000
    if not ask["count"]:
        return ask
    if random.random() < 0.1:
        ask["same_nvlink_domain"] = True
    return ask | _sessions(random, 0.05) | _remote(random)


def _remote(random: Random) -> Ask:
    if random.random() >= 0.1:
        return {}
    link = {
        "p99_us_max": random.choice((20, 100, 100)),
        "bandwidth_mbps_min": random.choice((0, 500)),
    }
    return {"remote": {"from_node": random.choice(("n1", "n1", "n1", "n2", "n9")), **link}}


def _auto(random: Random) -> Ask:
    sizes = {"gpu_milli": random.choice((300, 1000)), "memory_mib": random.choice((5_000, 9_000))}
    return {"mode": "auto", "pool": random.choice(("main", "side")), "compute_slices": 1, **sizes}


def _sized(random: Random) -> Ask:
    size = random.choice(({"memory_mib": 5_000}, {"memory_mib": 30_000}, {"compute_slices": 2}))
    return {"mode": "mig", "count": random.choice((1, 1, 2)), **size}


def _passthrough(random: Random) -> Ask:
    return {"mode": "passthrough", "count": random.choice((1, 1, 2, 2, 3))}


def _vgpu(random: Random) -> Ask:
    types = ("thirds", "thirds", "halves", "quarters", "small", "none")
    return {"mode": "vgpu", "type": random.choice(types)}


_MODES: tuple[tuple[int, Callable[[Random], Ask]], ...] = (
    (16, _whole),
    (5, _share),
    (5, _mig),
    (2, _passthrough),
    (3, _vgpu),
    (1, _auto),
    (1, _sized),
)

_WHERE: tuple[Ask, ...] = (
    {"architectures": ["hopper"]},
    {"architectures": ["ampere", "blackwell"]},
    {"capability": "9.0"},
    {"capability": "8.0"},
    {"driver_min": "550.9"},
    {"driver_min": "550.60"},
    {"spread": "node"},
    {"spread": "label:rack"},
    {"spread": "label:rack"},
)


def drawn_ask(random: Random) -> Ask:
    """Return an ask of any mode."""
    (make,) = random.choices([one for _, one in _MODES], [weight for weight, _ in _MODES])
    ask = make(random)
    if random.random() < 0.2:
        ask["models"] = random.choice((["H100"], ["A10"], ["H100", "A10"]))
    if random.random() < 0.2 and ask.get("count", 1):
        ask |= random.choice(_WHERE)
    if random.random() < 0.1:
        ask["pool"] = random.choice(("main", "side"))
    if random.random() < 0.1:
        ask["labels"] = {"zone": "1"}
    return ask


_TERMS: tuple[tuple[float, str, tuple[Any, ...]], ...] = (
    (0.1, "licences", ({"one": 1}, {"one": 2}, {"two": 1}, {"one": 1, "two": 1})),
    (0.1, "runtime", ({"model": "m1"}, {"model": "m2", "framework": "jax"}, {"model": "m3"})),
    (0.1, "service_class", ("elastic", "latency-sensitive")),
    (0.08, "template", ("small", "large")),
    (0.07, "reservation", ("x", "x", "y")),
)


def drawn_terms(random: Random) -> Ask:
    """Return what a request says beside its ask, of licences, models, templates, reservations."""
    return {
        name: random.choice(choices) for often, name, choices in _TERMS if random.random() < often
    }
