"""Records of ``gpuledger.usage`` as typed columns: null in the records of other topics.

Each is a list of structures, so that ``unnest`` makes rows of them: one for each device and
each slice of it, one for each lease's unit, one for each process. A field that is missing
there is null: nobody measured it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from ledger.archive.event_columns import text, whole

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["USAGE_COLUMNS", "USAGE_REPEATED", "usage_arrays"]

_MEASURED = ("measured_us", "busy_permille", "sm_permille", "dram_permille")
_MEMORY = ("memory_used_mib", "memory_total_mib")
_TEXTS: dict[str, tuple[str, ...]] = {
    "use_units": ("device", "mig_uuid"),
    "use_leases": ("lease", "unit"),
    "use_processes": ("device", "lease"),
}
_WHOLES: dict[str, tuple[str, ...]] = {
    "use_units": (
        *("gi", "samples", *_MEASURED, "encoder_permille", "decoder_permille", *_MEMORY),
        *("power_mw", "energy_mj", "temperature_c", "memory_temperature_c", "sm_mhz"),
        *("memory_mhz", "video_mhz", "clock_reasons", "pcie_sent_bytes", "pcie_received_bytes"),
        "pcie_replays",
    ),
    "use_leases": ("busy_permille", "measured_us"),
    "use_processes": (
        *("pid", "gi", "memory_mib", "sm_permille", "encoder_permille", "decoder_permille"),
    ),
}


def _rows_of(name: str) -> Any:  # noqa: ANN401 - pyarrow has no types
    fields = [pa.field(one, pa.string()) for one in _TEXTS[name]]
    fields += [pa.field(one, pa.int64()) for one in _WHOLES[name]]
    return pa.list_(pa.field("element", pa.struct(fields)))


#: Column -> (its type, what it is).
USAGE_COLUMNS: dict[str, tuple[Any, str]] = {
    "use_node": (pa.string(), "of usage: the node"),
    "use_window_us": (pa.int64(), "how long before this was written it begins"),
    "use_units": (
        _rows_of("use_units"),
        "each device, and with gi each GPU instance of it (mig_uuid: the one that is alone in it)",
    ),
    "use_leases": (_rows_of("use_leases"), "each unit of a lease: how busy it was for it"),
    "use_processes": (_rows_of("use_processes"), "who had a device open at the end"),
}

#: What repeats itself in a file, by its path there.
USAGE_REPEATED = (
    "use_node",
    *(f"{name}.list.element.{field}" for name, fields in _TEXTS.items() for field in fields),
)


def usage_arrays(values: Iterable[bytes | None]) -> list[Any]:
    """Return `USAGE_COLUMNS` of records, by their values; None is a record of another topic."""
    columns = zip(*[_NOTHING if one is None else _columns(one) for one in values], strict=True)
    kinds = [kind for kind, _ in USAGE_COLUMNS.values()]
    return [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]


_NOTHING = (None,) * len(USAGE_COLUMNS)


def _columns(value: bytes) -> tuple[Any, ...]:
    plain = _object(value)
    if plain is None:
        return _NOTHING
    devices = _dicts(plain.get("devices"))
    units, processes = [], []
    for device in devices:
        about = {"device": device.get("uuid")}
        units.append(device | about)
        units += [_slice(one) | about for one in _dicts(device.get("slices"))]
        processes += [one | about for one in _dicts(device.get("processes"))]
    return (
        text(plain.get("node")),
        whole(plain.get("window_us")),
        _rows("use_units", units),
        _rows("use_leases", _dicts(plain.get("leases"))),
        _rows("use_processes", processes),
    )


def _slice(one: dict[str, Any]) -> dict[str, Any]:
    inside = one.get("mig_uuids")
    alone = inside[0] if isinstance(inside, list) and len(inside) == 1 else None
    return one | {"mig_uuid": alone}


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        plain = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    return plain if isinstance(plain, dict) else None


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _rows(name: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {field: text(one.get(field)) for field in _TEXTS[name]}
        | {field: whole(one.get(field)) for field in _WHOLES[name]}
        for one in found
    ]
