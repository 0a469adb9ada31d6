"""A Nomad job as requests: one for each task group that asks for devices.

The job as JSON (``nomad job run -output``, or from the API) is the main way; of HCL the
plain part is read (`ledger.formats.hcl`), and a bare ``device`` block too. All tasks of a
group run on one node together, so their devices are added up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ledger.formats.asks import Beside, Devices, Options, Said, ask_of, request_of
from ledger.formats.documents import Node, NotTheFormat, read_documents, shown
from ledger.formats.fields import Fields, Note
from ledger.formats.hcl import Block, read_hcl
from ledger.formats.names import is_name
from ledger.formats.quantities import MIB, nomad_bytes, up

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_nomad"]

_MILLI = 1000
_VENDOR = "nvidia"
#: How the device plugin calls a slice: the model, and the profile behind it.
_SLICE = re.compile(r"(.+) MIG ([1-9]g\.[0-9]{1,4}gb)(?:[.+](me|me\.all|gfx))?")
_MODEL = re.compile(r"[ -~]{1,200}")
_EQUAL = frozenset({None, "", "=", "==", "is"})

_HOW = "how and where it runs is not the ledger's"
_REASONS = {
    "Affinities": "a preference; a request states what must be",
    "Constraints": "not read: what Nomad knows of a node is not known here",
    "MaxRunDuration": "not read; give the longest run time",
    "Spreads": "a preference; spread of an ask keeps replicas of a task apart",
}
_RESOURCE_REASONS = {
    "CPU": "is in MHz, which is no number of cores; use cores",
    "MemoryMaxMB": "memory beyond what is reserved is not asked for",
    "NUMA": "NUMA nodes are not asked for",
}


@dataclass(slots=True)
class _Group:
    """What the tasks of one group ask for together."""

    devices: Devices
    cores: int = 0
    memory_mib: int = 0
    kinds: set[tuple[str, ...]] = field(default_factory=set)


def read_nomad(
    text: str, options: Options | None = None
) -> tuple[list[dict[str, Any]], list[Note]]:
    """Return a request for each group that asks for devices, and what did not map.

    Raises `NotTheFormat` for what is neither a job in JSON nor HCL that is read here.
    """
    options = options or Options()
    notes: list[Note] = []
    job = _job(text, notes)
    fields = job.fields("Job") if job.has("Job") else job
    if fields is None or not fields.has("TaskGroups"):
        raise NotTheFormat("has no task group; give a job, in JSON or HCL", job.path, job.line)
    name = fields.text("ID") or fields.text("Name")
    fields.take("Name")
    said = Said(tenant=fields.text("Namespace"), priority=fields.whole("Priority"))
    pool = _pool(fields)
    groups = fields.each("TaskGroups")
    requests = []
    for group in groups:
        said.task = name if len(groups) == 1 or name is None else f"{name}.{group.text('Name')}"
        request = _request(group, said, pool, options)
        requests += [] if request is None else [request]
    fields.rest(_HOW, _REASONS)
    return requests, notes


def _job(text: str, notes: list[Note]) -> Fields:
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        documents = read_documents(text)
        return Fields(documents[0] if documents else Node({}, 1), "", notes)
    return Fields(_from_hcl(read_hcl(text)), "", notes)


def _pool(fields: Fields) -> str | None:
    """Return the pool to ask for; Nomad's ``default`` and ``all`` are none of the site's."""
    pool = fields.text("NodePool")
    if pool is None or pool in ("", "default", "all"):
        return None
    if not is_name(pool):
        fields.note("NodePool", f"{shown(pool)} left out: it is no name here")
        return None
    return pool


def _request(
    group: Fields, said: Said, pool: str | None, options: Options
) -> dict[str, Any] | None:
    group.take("Name")
    found = _Group(Devices(pool=pool, shares_of=options.shares))
    path = group.path
    asked = [each for task in group.each("Tasks") for each in [_task(found, task)] if each]
    if (group.whole("Count") or 1) > 1:
        group.note("Count", "the request is for one allocation; send as many")
    group.rest(_HOW, _REASONS)
    if not asked:
        group.notes.append(Note(path, "asks for no device", group.line))
        return None
    if len(found.kinds) > 1:
        reason = "no request: its tasks ask for devices of different kinds; make it several"
        group.notes.append(Note(path, reason, group.line))
        return None
    ask = ask_of(found.devices, path, group.notes)
    if ask is None:
        return None
    beside = Beside(found.cores * _MILLI, found.memory_mib)
    return request_of(ask, beside, said, options, path, group.notes)


def _task(found: _Group, task: Fields) -> bool:
    """Add what a task needs; say whether it asks for devices."""
    task.take("Name")
    resources = task.fields("Resources")
    asked = False
    if resources is not None:
        found.cores += resources.whole("Cores") or 0
        found.memory_mib += resources.whole("MemoryMB") or 0
        for device in resources.each("Devices"):
            asked = _device(found, device) or asked
        resources.rest("is not asked for in a request", _RESOURCE_REASONS)
    task.rest(_HOW, _REASONS)
    return asked


def _device(found: _Group, fields: Fields) -> bool:
    """Add one device block; say whether it asks for devices that are counted here."""
    name = fields.needed("Name")
    parts = name.split("/", 2)
    vendor, kind = (parts[0], parts[1]) if len(parts) > 1 else ("", parts[0])
    model = parts[2] if len(parts) > 2 else None  # noqa: PLR2004 - vendor/type/model
    count = fields.whole("Count")
    count = 1 if count is None else count
    memory = 0
    for each in fields.each("Constraints"):
        target = each.text("LTarget") or ""
        operand, value = each.text("Operand"), each.text("RTarget") or ""
        each.rest("no field of a constraint")
        same = operand in _EQUAL
        if target == "${device.vendor}" and same:
            vendor = vendor or value
        elif target == "${device.type}" and same:
            kind = value
        elif target == "${device.model}" and same:
            model = value
        elif target == "${device.attr.memory}" and _least_mib(operand, value) is not None:
            memory = max(memory, _least_mib(operand, value) or 0)
        else:
            what = f"{shown(target)} {shown(operand or '=')} {shown(value)}"
            fields.note("Constraints", f"not read: {what}; give models or labels that it allows")
    fields.rest("no field of a device", _REASONS)
    if model is not None and not _MODEL.fullmatch(model):
        raise fields.wrong("Name", f"{shown(model)} is no name of a model")
    if kind != "gpu" or vendor not in ("", _VENDOR):
        fields.note("Name", f"{shown(name)} is no device that is counted here")
        return False
    _count(found, count, model)
    devices = found.devices
    devices.memory_mib = max(devices.memory_mib, memory)
    found.kinds.add((model or "", str(memory)))
    return count > 0


def _count(found: _Group, count: int, model: str | None) -> None:
    match = _SLICE.fullmatch(model or "")
    if match is not None:
        model = match[1]
        profile = match[2] + (f"+{match[3]}" if match[3] else "")
        slices = found.devices.slices
        slices[profile] = slices.get(profile, 0) + count
    else:
        found.devices.whole += count
    if model:
        found.devices.models = (model,)


def _least_mib(operand: str | None, value: str) -> int | None:
    """Return the least memory in MiB that a constraint allows; None when it says no least."""
    amount = nomad_bytes(value)
    if amount is None or operand not in (">=", ">"):
        return None
    least = up(amount / MIB)
    return least + 1 if operand == ">" and least * MIB == amount else least


# -- HCL as the JSON that Nomad makes of it -------------------------------------------------

#: For each kind of block: what its label is called in JSON, its attributes, its blocks.
_TABLE: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "job": (
        "ID",
        {"namespace": "Namespace", "node_pool": "NodePool", "priority": "Priority"},
        {"group": "TaskGroups", "constraint": "Constraints", "affinity": "Affinities"},
    ),
    "group": (
        "Name",
        {"count": "Count"},
        {"task": "Tasks", "constraint": "Constraints", "affinity": "Affinities"},
    ),
    "task": (
        "Name",
        {},
        {"resources": "Resources", "constraint": "Constraints", "affinity": "Affinities"},
    ),
    "resources": (
        "",
        {"cpu": "CPU", "cores": "Cores", "memory": "MemoryMB", "memory_max": "MemoryMaxMB"},
        {"device": "Devices", "numa": "NUMA"},
    ),
    "device": (
        "Name",
        {"count": "Count"},
        {"constraint": "Constraints", "affinity": "Affinities"},
    ),
    "constraint": ("", {"attribute": "LTarget", "operator": "Operand", "value": "RTarget"}, {}),
}
#: What a bare block of one kind stands in.
_AROUND = {"device": "resources", "resources": "task", "task": "group", "group": "job"}


def _from_hcl(root: Block) -> Node:
    jobs = [block for block in root.blocks if block.kind == "job"]
    if len(jobs) > 1:
        raise NotTheFormat("has more than one job; give one", line=jobs[1].line)
    if jobs:
        return _json(jobs[0])
    known = [block for block in root.blocks if block.kind in _AROUND]
    if not known or len({block.kind for block in known}) > 1:
        raise NotTheFormat("has no job, group, task, resources or device block", line=root.line)
    kind = known[0].kind
    while kind != "job":
        kind = _AROUND[kind]
        known = [Block(kind, [], known[0].line, blocks=known)]
    return _json(known[0])


def _json(block: Block) -> Node:
    label, attributes, blocks = _TABLE.get(block.kind, ("", {}, {}))
    for name, line in block.skipped.items():
        if name in attributes:
            message = "has to be worked out; nomad job run -output prints the job as JSON"
            raise NotTheFormat(message, f"{block.kind}.{name}", line)
    found: dict[str, Node] = dict(_labelled(block, label))
    for name, value in block.attributes.items():
        found[attributes.get(name, name)] = value
    found |= {name: Node("...", line) for name, line in block.skipped.items()}
    several: dict[str, list[Node]] = {}
    for inner in block.blocks:
        several.setdefault(blocks.get(inner.kind, inner.kind), []).append(_json(inner))
    for name, nodes in several.items():
        if name in ("Resources", "NUMA"):
            if len(nodes) > 1:
                raise NotTheFormat(f"{name} stands twice", line=nodes[1].line)
            found[name] = nodes[0]
        else:
            found[name] = Node(list(nodes), nodes[0].line)
    return Node(found, block.line)


def _labelled(block: Block, label: str) -> Iterator[tuple[str, Node]]:
    if label and block.labels:
        yield label, Node(block.labels[0], block.line)
