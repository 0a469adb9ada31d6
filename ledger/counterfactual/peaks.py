"""The most device memory that each request's task was measured to have, from ``usage``.

A record of use says what each process had at the end of its window, and whose it is. What
came and went between two of them was not seen; what no record speaks of is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from ledger.log.port import UnknownTopic
from schemas import cloudevents
from schemas.topics import full_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.log.port import Log

__all__ = ["read_peaks"]

_CHUNK = 1000


async def read_peaks(log: Log, prefix: str) -> dict[str, int]:
    """Return the most MiB on one device at one time, by request; empty where nobody measured."""
    topic = full_name(prefix, "usage")
    found: dict[str, int] = {}
    try:
        count = await log.partitions(topic)
    except UnknownTopic:
        return found
    for partition in range(count):
        offset, end = await log.begin(topic, partition), await log.end(topic, partition)
        while offset < end:
            records = await log.read(topic, partition, offset, min(_CHUNK, end - offset))
            if not records:
                break
            for record in records:
                for request, mib in _measured(record.value, record.headers):
                    found[request] = max(found.get(request, 0), mib)
            offset = records[-1].offset + 1
    return found


def _measured(
    value: bytes | None, headers: tuple[tuple[str, bytes], ...]
) -> Iterator[tuple[str, int]]:
    """Yield (request, MiB on one device) of a record of use; nothing where it is none."""
    try:
        data: Any = orjson.loads(cloudevents.read(value, headers).data_bytes)
    except (cloudevents.Malformed, orjson.JSONDecodeError):
        return
    for device in _objects(data, "devices"):
        sums: dict[str, int] = {}
        for one in _objects(device, "processes"):
            lease, mib = one.get("lease"), one.get("memory_mib")
            if isinstance(lease, str) and isinstance(mib, int):
                request = lease.rpartition("/")[0]
                sums[request] = sums.get(request, 0) + mib
        yield from sums.items()


def _objects(of: Any, name: str) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - of any record
    """Yield the objects of a list that a record has, or does not have."""
    found = of.get(name) if isinstance(of, dict) else None
    yield from (one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()
