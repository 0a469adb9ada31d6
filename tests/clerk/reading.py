"""How the clerk reads a submission: its template, its pool's routes, its model's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.clerk.asked import Asked, Terms, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.clerk.books import Books

__all__ = ["agrees", "read"]

_US = 1_000_000
_QUICK = ("online-inference", "interactive")
#: What an ask of no stated mode keeps of its sizes, by the mode that it gets.
_SIZES = {
    "whole": ("memory_mib",),
    "mig": ("memory_mib", "compute_slices"),
    "share": ("memory_mib", "gpu_milli"),
}


def read(
    books: Books, name: str, given: Mapping[str, Any], now_us: int, arrival: int
) -> tuple[Asked, dict[str, Any]]:
    """Return what is asked, and the submission as its template completes it."""
    said = _filled(books, given)
    ask = {"mode": "whole", **said.get("ask", {})}
    kind = said["task"].get("type", "training")
    if ask["mode"] == "auto":
        service = said.get("service_class")
        service = service or ("latency-sensitive" if kind in _QUICK else "elastic")
        routes = {one["when"]: one["mode"] for one in books.pools[ask["pool"]]["routing"]}
        ask = _routed(ask, routes[service])
    terms = _terms(books, ask, said)
    beside = said.get("beside", {})
    queue = books.queues[said["queue"]]
    run_s = said.get("max_run_s")
    run_us = queue.get("max_run_us") if run_s is None else run_s * _US
    priority = said.get("priority", 0)
    replicas = said.get("replicas_min")
    asked = Asked(
        name, said["tenant"], said.get("project"), said["queue"], said["task"]["id"],
        _counted(ask, terms), terms, beside.get("cpu_milli", 0), beside.get("memory_mib", 0),
        priority, said.get("preemptible", False),
        int(kind == "online-inference") if replicas is None else replicas,
        run_us, (-priority, now_us, arrival), said.get("reservation"),
    )  # fmt: skip
    return asked, said


def _filled(books: Books, given: Mapping[str, Any]) -> dict[str, Any]:
    said = dict(given)
    kind = said["task"].get("type", "training")
    mine = said.get("template")
    if mine is None:
        mine = next(
            (
                name
                for name, one in books.templates.items()
                if one.get("default") and one["task_type"] == kind
            ),
            None,
        )
    if mine is None:
        return said
    template = books.templates[mine]
    said = dict(template.get("defaults", {})) | said
    said["task"] = {"type": template["task_type"], **said["task"]}
    limit = template.get("limits", {}).get("max_run_s")
    if said.get("max_run_s") is None and limit is not None:
        queue_us = books.queues[said["queue"]].get("max_run_us")
        said["max_run_s"] = limit if queue_us is None else min(limit, queue_us // _US)
    said["template"] = mine
    return said


def _routed(ask: dict[str, Any], mode: str) -> dict[str, Any]:
    sizes = {"gpu_milli": 1000, "compute_slices": 0} | ask
    rest = {name: value for name, value in ask.items() if name not in _SIZES["mig"]}
    rest.pop("gpu_milli", None)
    return rest | {name: sizes[name] for name in _SIZES[mode]} | {"mode": mode}


def _terms(books: Books, ask: Mapping[str, Any], said: Mapping[str, Any]) -> Terms:
    mode = ask["mode"]
    terms = Terms(
        mode,
        tuple(ask.get("architectures", ())),
        ask.get("capability", ""),
        ask.get("driver_min", ""),
        ask.get("spread", ""),
        ask.get("same_nvlink_domain", False),
        dict(said.get("licences", {})),
        ask.get("encoder_sessions", 0),
        ask.get("decoder_sessions", 0),
    )
    if mode == "vgpu":
        terms.vgpu = books.at.offer(ask["type"])
        assert terms.vgpu is not None, "nobody offers the type"
    remote = ask.get("remote")
    if remote is not None:
        terms.delivery = "remote"
        least = remote.get("bandwidth_mbps_min", 0)
        terms.remote = (remote["from_node"], remote["p99_us_max"], least)
    runtime = said.get("runtime") or {}
    rule = books.rules.get(runtime.get("model", ""))
    if rule is not None:
        frameworks = rule.get("frameworks", ())
        assert not frameworks or runtime.get("framework") in frameworks, "does not run in it"
        if ask.get("count", 1):
            _narrow(terms, rule)
    return terms


def _narrow(terms: Terms, rule: Mapping[str, Any]) -> None:
    wanted, runs = terms.architectures, tuple(rule.get("architectures", ()))
    if runs:
        terms.architectures = tuple(one for one in runs if not wanted or one in wanted)
        assert terms.architectures, "runs on none of these"
    least = rule.get("driver_min", "")
    if numbers(least) > numbers(terms.driver):
        terms.driver = least


def _counted(ask: dict[str, Any], terms: Terms) -> dict[str, Any]:
    """A passed-through card counts as a whole one, an instance as a share, rounded up."""
    if ask["mode"] == "passthrough":
        return ask | {"mode": "whole", "nodes": 1}
    if terms.vgpu is not None:
        milli = -(-1000 // terms.vgpu.most)
        return ask | {"mode": "share", "gpu_milli": milli, "memory_mib": terms.vgpu.mib}
    return ask


def agrees(asked: Asked, need: Mapping[str, Any]) -> None:
    """Hold what is on record as asked against what was asked."""
    ask, terms, written = asked.ask, asked.terms, need.get("terms", {})
    assert need["mode"] == ask["mode"], f"{asked.id}: {need}"
    for name, default in (
        ("pool", None), ("models", ()), ("labels", {}), ("count", 1), ("nodes", 1),
        ("memory_mib", 0), ("profile", ""), ("compute_slices", 0),
    ):  # fmt: skip
        mine: Any = ask.get(name, default)
        mine = default if mine is None else mine
        found = need.get(name, default)
        listed = list(found) == list(mine) if name == "models" else found == mine
        assert listed, f"{asked.id}: {name} is {found}, and {mine} was asked"
    if ask["mode"] == "share":
        assert need.get("gpu_milli", 1000) == ask["gpu_milli"]
    assert tuple(written.get("architectures", ())) == terms.architectures
    assert numbers(written.get("driver_min", "")) == numbers(terms.driver)
    assert dict(written.get("licences", ())) == terms.licences
    assert written.get("vgpu_most", 0) == (terms.vgpu.most if terms.vgpu else 0)
    for name, mine in (("encoder_sessions", terms.encoders), ("decoder_sessions", terms.decoders)):
        assert written.get(name, 0) == mine
