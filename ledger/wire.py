"""Records as they go on the wire: topic names, keys, CloudEvents headers, JSON bytes."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from ledger.log.port import Entry
from schemas.catalogue import wire_type
from schemas.cloudevents import to_headers

if TYPE_CHECKING:
    from ledger.core.outbox import Message

__all__ = [
    "INPUTS",
    "claim_entry",
    "decision_entry",
    "input_entry",
    "message_entry",
]

#: The input topics, without prefix.
INPUTS = ("requests", "observations")

_SOURCE = "/gpuledger"


@lru_cache(maxsize=64)
def _fixed(name: str) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that all records of a type share; the id is put in front."""
    shared = to_headers({"id": "x", "source": _SOURCE, "type": wire_type(name)})
    return tuple(one for one in shared if one[0] != "ce_id")


def _headers(name: str, event_id: str) -> tuple[tuple[str, bytes], ...]:
    return (("ce_id", event_id.encode()), *_fixed(name))


def claim_entry(token: str, worker: str, host: str, generation: int) -> Entry:
    """Return the record that claims a partition."""
    claim = {
        "v": 1,
        "kind": "claim",
        "token": token,
        "worker": worker,
        "host": host,
        "generation": generation,
        "time_us": time.time_ns() // 1000,
    }
    return Entry(None, orjson.dumps(claim), _headers("ledger.claim", token))


def decision_entry(cell: str, record: dict[str, Any]) -> Entry:
    """Return a decision's record; its CloudEvents id is token and seq, so a void twin differs."""
    event_id = f"{record['token'][:16]}-{record['seq']}"
    return Entry(cell.encode(), orjson.dumps(record), _headers("ledger.decision", event_id))


def message_entry(message: Message) -> Entry:
    """Return an order or a reply. Its id is made of what it says, so a copy has the same."""
    _topic, key, name, payload = message
    if name == "order":
        event_id = payload["order"]
    else:
        event_id = f"{payload['input']}:{payload['answer']}:{payload.get('attempt', 0)}"
    return Entry(key.encode(), orjson.dumps(payload), _headers(name, event_id))


def input_entry(
    cell: str, name: str, source: str, event_id: str, data: dict[str, Any], *, version: int = 1
) -> Entry:
    """Return a request or observation as a client puts it on its topic."""
    headers = to_headers({"id": event_id, "source": source, "type": wire_type(name, version)})
    return Entry(cell.encode(), orjson.dumps(data), headers)
