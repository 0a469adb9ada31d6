"""Making a request of what another system asks for: one mode, whole numbers, known names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.formats.documents import NotTheFormat
from ledger.formats.fields import Note
from ledger.formats.names import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Beside", "Devices", "Options", "Said", "ask_of", "request_of"]

_WHOLE_MILLI = 1000
_MAX_COUNT = 16
_MAX_NODES = 1024
_MAX_SLICES = 64
_MAX_SECONDS = 1_000_000_000
_MAX_PRIORITY = 1_000_000
_MAX_MILLI = 1_000_000_000
_MAX_MIB = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """What the text cannot say and the user may.

    ``tenant``, ``project``, ``queue``, ``task`` (its id) and ``task_type`` go before
    what the text says.
    ``shares``: into how many shares the other system splits one device, without
    which a share has no size. ``priorities``: what its priority classes are worth.
    ``models``: names of device models to know, beside the usual ones.
    """

    tenant: str | None = None
    project: str | None = None
    queue: str | None = None
    task: str | None = None
    task_type: str | None = None
    shares: int | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)
    models: tuple[str, ...] = ()


@dataclass(slots=True)
class Devices:
    """What is asked for on each of ``nodes`` nodes, before it has a mode.

    ``whole`` devices, ``slices`` by profile, and ``shares`` of one device of which
    each is one of ``shares_of``. ``models`` are exact names; ``memory_mib`` is the
    least device memory.
    """

    whole: int = 0
    slices: dict[str, int] = field(default_factory=dict)
    shares: int = 0
    shares_of: int | None = None
    nodes: int = 1
    models: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    pool: str | None = None
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Beside:
    """What is asked for beside the devices, on each node."""

    cpu_milli: int = 0
    memory_mib: int = 0


def ask_of(devices: Devices, path: str, notes: list[Note]) -> dict[str, Any] | None:
    """Return the ask, or None after a note that says why one request cannot be it."""
    mode = _mode(devices)
    if isinstance(mode, str):
        notes.append(Note(path, f"no request: {mode}"))
        return None
    pool = {"pool": devices.pool} if devices.pool else {}
    return mode | pool | {"models": list(devices.models), "labels": devices.labels}


def _mode(devices: Devices) -> dict[str, Any] | str:
    """Return the fields of the mode, or why there is none."""
    slices = {name: number for name, number in devices.slices.items() if number}
    kinds = [*slices, *(["whole devices"] if devices.whole else [])]
    kinds += ["shares"] if devices.shares else []
    if len(kinds) > 1:
        return f"asks for {' and '.join(kinds)}; a request has one kind, so make it several"
    if devices.nodes > 1 and (slices or devices.shares):
        return f"asks for {kinds[0]} on {devices.nodes} nodes; make it a request for each node"
    if slices:
        ((profile, number),) = slices.items()
        if number > _MAX_SLICES:
            return f"asks for {number} slices; a request has at most {_MAX_SLICES}"
        return {"mode": "mig", "profile": profile, "count": number}
    if devices.shares:
        return _share(devices)
    if devices.whole > _MAX_COUNT or devices.nodes > _MAX_NODES:
        asked = f"asks for {devices.whole} devices on each of {devices.nodes} nodes"
        return f"{asked}; a request has at most {_MAX_COUNT} on each of {_MAX_NODES}"
    counts = {"count": devices.whole, "nodes": devices.nodes}
    return {"mode": "whole", **counts, "memory_mib": devices.memory_mib}


def _share(devices: Devices) -> dict[str, Any] | str:
    if devices.shares_of is None:
        return "how large a share is stands elsewhere; say how many shares a device has"
    milli = -(-_WHOLE_MILLI * devices.shares // devices.shares_of)
    if milli > _WHOLE_MILLI:
        asked = f"asks for {devices.shares} shares of {devices.shares_of}"
        return f"{asked}, which is more than one device; ask for whole devices"
    return {"mode": "share", "gpu_milli": milli, "memory_mib": devices.memory_mib}


@dataclass(slots=True)
class Said:
    """What the text says beside the devices; None where it does not."""

    tenant: str | None = None
    queue: str | None = None
    task: str | None = None
    priority: int | None = None
    max_run_s: int | None = None


def request_of(
    ask: dict[str, Any], beside: Beside, said: Said, options: Options, path: str, notes: list[Note]
) -> dict[str, Any]:
    """Return the request; a note names each field that it still needs."""
    if beside.cpu_milli > _MAX_MILLI or beside.memory_mib > _MAX_MIB:
        raise NotTheFormat("asks for more CPU or memory than any machine has", path)
    request: dict[str, Any] = {}
    for name, own, theirs in (
        ("tenant", options.tenant, said.tenant),
        ("project", options.project, None),
        ("queue", options.queue, said.queue),
    ):
        text = own or theirs
        if text and is_name(text):
            request[name] = text
        elif text:
            notes.append(
                Note(path, f"{name} left out: {text!r} is no name of the ledger; give one")
            )
        elif name != "project":
            notes.append(Note(path, f"names no {name}; give one"))
    task = options.task or said.task
    if task and is_name(task):
        request["task"] = {"id": task}
    else:
        notes.append(Note(path, "names nothing that can be a task's id; give one"))
    if options.task_type:
        request.setdefault("task", {})["type"] = options.task_type
    request["ask"] = ask
    request["beside"] = {"cpu_milli": beside.cpu_milli, "memory_mib": beside.memory_mib}
    if said.priority is not None:
        request["priority"] = _priority(said.priority, path, notes)
    if said.max_run_s is not None:
        request["max_run_s"] = _seconds(said.max_run_s, path, notes)
    return request


def _priority(priority: int, path: str, notes: list[Note]) -> int:
    inside = max(-_MAX_PRIORITY, min(priority, _MAX_PRIORITY))
    if inside != priority:
        notes.append(Note(path, f"the priority {priority} becomes {inside}, the last there is"))
    return inside


def _seconds(seconds: int, path: str, notes: list[Note]) -> int:
    inside = max(1, min(seconds, _MAX_SECONDS))
    if inside != seconds:
        notes.append(Note(path, f"a run of {seconds} s becomes {inside} s"))
    return inside
