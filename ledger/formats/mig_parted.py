"""The ``mig-configs`` of NVIDIA's MIG partition editor (mig-parted), version v1.

A named layout is a list of entries; each says for some devices of a node whether MIG
is on and how many slices of which profile they have::

    {"all-1g": [{"devices": "all", "mig_enabled": True, "mig_devices": {"1g.10gb": 7}}]}

``devices`` is ``"all"`` or indices on the node. ``device_filter`` narrows an entry to
PCI device ids (``0x20B010DE``). An index is where a device was seen, no identity.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ledger.formats.documents import Node, NotTheFormat, read_documents, shown, written
from ledger.formats.fields import Fields, Note
from ledger.formats.names import is_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Layouts", "read_mig_parted", "write_mig_parted"]

#: The layouts by name.
Layouts = dict[str, list[dict[str, Any]]]

_VERSION = "v1"
#: A device id and vendor id, and maybe those of the subsystem, as mig-parted reads them.
_DEVICE_ID = re.compile(r"0[xX][0-9A-Fa-f]{1,8}(:0[xX][0-9A-Fa-f]{1,8})?")
_INDEX = re.compile("[0-9]{1,3}")
#: More slices than any device has.
_MAX_SLICES = 64
#: More devices than any node has.
_MAX_INDEX = 255


def read_mig_parted(text: str) -> tuple[Layouts, list[Note]]:
    """Return the layouts and what did not map.

    A layout with a profile that the ledger cannot name is left out whole, with a
    note: half a layout would be another one. Raises `NotTheFormat` for whatever
    mig-parted itself refuses.
    """
    notes: list[Note] = []
    documents = read_documents(text)
    if len(documents) != 1:
        raise NotTheFormat(f"must be one document, not {len(documents)}")
    fields = Fields(documents[0], "", notes)
    if fields.text("kind") == "ConfigMap":
        raise NotTheFormat("is a ConfigMap around the file; give the text under data alone")
    version = fields.text("version")
    if version != _VERSION:
        raise fields.wrong("version", f"must be {_VERSION}, not {shown(version or '')}")
    configs = fields.take("mig-configs")
    if configs is None or not isinstance(configs.value, dict) or not configs.value:
        raise fields.wrong("mig-configs", "must be a mapping of at least one layout")
    fields.rest("no field of mig-parted")
    layouts: Layouts = {}
    for name, node in configs.value.items():
        entries = _entries(name, node, notes)
        if entries is not None:
            layouts[name] = entries
    return layouts, notes


def _entries(name: str, node: Node, notes: list[Note]) -> list[dict[str, Any]] | None:
    path = f"mig-configs.{name if name.isprintable() else ascii(name)}"
    if not isinstance(node.value, list) or not node.value:
        raise NotTheFormat("must be a list of at least one entry", path, node.line)
    found = []
    for at, item in enumerate(node.value):
        fields = Fields(item, f"{path}[{at}]", notes)
        entry: dict[str, Any] = {"devices": _devices(fields)}
        if (ids := _device_filter(fields)) is not None:
            entry["device_filter"] = ids
        enabled = fields.flag("mig-enabled")
        if enabled is None:
            raise fields.wrong("mig-enabled", "is missing")
        slices = _slices(fields, enabled=enabled)
        fields.rest("no field of mig-parted, which refuses it")
        entry |= {"mig_enabled": enabled, "mig_devices": slices}
        found.append(entry)
    unknown = [each for entry in found for each in entry["mig_devices"] if not is_profile(each)]
    if unknown:
        reason = (
            f"left out: {', '.join(map(shown, unknown))} is no profile that the ledger can name"
        )
        notes.append(Note(path, reason, node.line))
        return None
    return found


def _devices(fields: Fields) -> str | list[int]:
    node = fields.take("devices")
    if node is not None and node.value == "all":
        return "all"
    if node is None or not isinstance(node.value, list):
        raise fields.wrong("devices", "must be all, or a list of indices")
    found = []
    for item in node.value:
        text = item.value
        if not isinstance(text, str) or not _INDEX.fullmatch(text) or int(text) > _MAX_INDEX:
            raise fields.wrong("devices", f"an index is from 0 to {_MAX_INDEX}")
        found.append(int(text))
    return found


def _device_filter(fields: Fields) -> list[str] | None:
    node = fields.take("device-filter")
    if node is None:
        return None
    items = node.value if isinstance(node.value, list) else [node]
    found = [item.value for item in items if isinstance(item.value, str)]
    if len(found) < len(items):
        raise fields.wrong("device-filter", "must be text, or a list of texts")
    for text in found:
        if not _DEVICE_ID.fullmatch(text):
            fields.note("device-filter", f"{shown(text)} is no PCI device id, so it fits no device")
    return found


def _slices(fields: Fields, *, enabled: bool) -> dict[str, int]:
    inner = fields.fields("mig-devices")
    if inner is None:
        if enabled:
            raise fields.wrong("mig-devices", "is missing, and mig-enabled is true")
        return {}
    amounts = inner.quantities()
    found = {name: int(amount) for name, amount in amounts.items()}
    if found != amounts:
        raise fields.wrong("mig-devices", "must be whole numbers")
    if any(number > _MAX_SLICES for number in found.values()):
        raise fields.wrong("mig-devices", f"no device has more than {_MAX_SLICES} slices")
    if found and not enabled:
        raise fields.wrong("mig-devices", "must be empty where mig-enabled is false")
    if found and not any(found.values()):
        raise fields.wrong("mig-devices", "must have at least one slice, or be empty")
    return found


def write_mig_parted(layouts: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return the layouts as a file of mig-parted; everything of a layout maps."""
    configs = {
        name: [
            {_FIELDS[key]: value for key, value in entry.items() if key in _FIELDS}
            for entry in entries
        ]
        for name, entries in layouts.items()
    }
    return written([{"version": _VERSION, "mig-configs": configs}])


_FIELDS = {
    "device_filter": "device-filter",
    "devices": "devices",
    "mig_enabled": "mig-enabled",
    "mig_devices": "mig-devices",
}
