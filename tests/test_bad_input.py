"""Whatever comes in: put aside or refused, answered where it can be, counted, and nothing stops.

Every kind goes the whole path, from the log through the shard to the dead
letters or the ledger, and to the reply.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.client import default_source, new_id
from ledger.dead_letters import read_all
from ledger.log.memory import MemoryLog
from ledger.log.port import MAX_RECORD_BYTES, Entry, TooLarge
from ledger.log.sqlite import SqliteLog
from ledger.verify import verify_log
from ledger.wire import input_entry
from schemas.cloudevents import to_headers
from schemas.messages import Order, Reply
from schemas.strict_json import MAX_BYTES
from schemas.topics import full_name
from tests.ledgers import OPERATOR, PREFIX, TEAM, Site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUBMIT = {"tenant": "t", "queue": "q", "task": {"id": "x"}, "ask": {"mode": "whole", "count": 1}}


def headers(**attributes: str | None) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a submission, some of them changed."""
    found = {"id": "x", "source": TEAM, "type": "io.gpuledger.request.submit.v1"}
    return to_headers(found | attributes)


def raw(value: bytes | None, **attributes: str | None) -> Entry:
    """Return a submission with any value."""
    return Entry(b"c", value, headers(**attributes))


def submission(**changes: Any) -> Entry:
    """Return a submission with some fields changed."""
    return raw(orjson.dumps(SUBMIT | changes))


def said(name: str, source: str, **data: Any) -> Entry:
    """Return any input."""
    return input_entry("c", name, source, "x", data)


def of_node(name: str, node: str = "n1", source: str = "/nodes/n1", **data: Any) -> Entry:
    """Return something that a node says."""
    return said(name, source, node=node, incarnation="b1", **data)


def with_header(name: str, value: bytes) -> Entry:
    """Return a submission with one header replaced by other bytes."""
    kept = tuple(one for one in headers() if one[0] != name)
    return Entry(b"c", orjson.dumps(SUBMIT), (*kept, (name, value)))


@dataclass(frozen=True)
class Case:
    """One bad input: what comes in, and the code it leads to.

    ``where``: ``dead`` is put aside; ``record`` is a decision of the ledger;
    ``none`` leaves no record. ``answer`` is the reply's, None where nobody can be answered.
    """

    entry: Entry
    code: str
    where: str = "dead"
    answer: str | None = "malformed"
    topic: str = "requests"


LONG = "9" * 20
CASES = {
    "not JSON": Case(raw(b"{nope"), "not_json"),
    "JSON and something after it": Case(raw(b"{}{}"), "not_json"),
    "not UTF-8": Case(raw(b'{"tenant":"\xe9"}'), "not_utf8"),
    "UTF-16": Case(raw('{"a":1}'.encode("utf-16")), "not_utf8"),
    "an array": Case(raw(b"[1]"), "not_an_object"),
    "a tombstone": Case(raw(None), "empty_value"),
    "an empty value": Case(raw(b""), "empty_value"),
    "deep": Case(raw(b'{"a":' * 100 + b"1" + b"}" * 100), "too_deep"),
    "very deep": Case(raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "too_deep"),
    "larger than the limit": Case(raw(b'{"a":"' + b"x" * MAX_BYTES + b'"}'), "too_large"),
    "duplicate names": Case(raw(b'{"tenant":"t","tenant":"u"}'), "duplicate_key"),
    "a huge integer": Case(raw(f'{{"priority":{LONG}}}'.encode()), "number_out_of_range"),
    "a huge exponent": Case(raw(b'{"priority":1e999}'), "number_out_of_range"),
    "a count beyond its limit": Case(submission(ask={"mode": "whole", "count": 65}), "bad_field"),
    "a negative count": Case(submission(ask={"mode": "whole", "count": -1}), "bad_field"),
    "a negative wait": Case(submission(max_wait_s=-5), "bad_field"),
    "a fractional count": Case(submission(ask={"mode": "whole", "count": 1.5}), "bad_field"),
    "a whole fraction": Case(submission(ask={"mode": "whole", "count": 1.0}), "bad_field"),
    "a number as text": Case(submission(priority="5"), "bad_field"),
    "a truth as number": Case(submission(priority=True), "bad_field"),
    "null where a value must be": Case(submission(tenant=None), "bad_field"),
    "a text where an object must be": Case(submission(ask="8 GPUs"), "bad_field"),
    "a missing field": Case(raw(b'{"tenant":"t"}'), "bad_field"),
    "an unknown field": Case(submission(gpus=8), "bad_field"),
    "an unknown field with control characters": Case(submission(**{"a\n\x00b": 1}), "bad_field"),
    "an unknown mode": Case(submission(ask={"mode": "quantum"}), "bad_field"),
    "a name with control characters": Case(submission(tenant="t\n"), "bad_field"),
    "a name with letters that look alike": Case(submission(tenant="\u0442"), "bad_field"),
    "a name 100 kB long": Case(submission(tenant="t" * 100_000), "bad_field"),
    "an unknown type": Case(
        raw(b"{}", type="io.gpuledger.request.steal.v1"), "unknown_type"
    ),
    "a type of another topic": Case(raw(b"{}", type="io.gpuledger.tick.v1"), "unknown_type"),
    "a foreign type": Case(raw(b"{}", type="com.example.order"), "unknown_type"),
    "an unknown version": Case(
        raw(orjson.dumps(SUBMIT), type="io.gpuledger.request.submit.v2"), "unknown_version"
    ),
    "no headers": Case(Entry(b"c", orjson.dumps(SUBMIT)), "bad_envelope", answer=None),
    "an id with control characters": Case(
        with_header("ce_id", b"a\nb"), "bad_envelope", answer=None
    ),
    "an id 100 kB long": Case(with_header("ce_id", b"x" * 100_000), "bad_envelope", answer=None),
    "a source with a sign that divides": Case(
        with_header("ce_source", b"/team/a#b"), "bad_envelope", answer=None
    ),
    "an id that is not UTF-8": Case(with_header("ce_id", b"\xff"), "bad_envelope", answer=None),
    "an id twice": Case(
        Entry(b"c", orjson.dumps(SUBMIT), (*headers(), ("ce_id", b"y"))),
        "bad_envelope",
        answer=None,
    ),
    "a time that is none": Case(with_header("ce_time", b"yesterday"), "bad_envelope"),
    "an old CloudEvents version": Case(with_header("ce_specversion", b"0.3"), "bad_envelope"),
    "another content type": Case(with_header("content-type", b"text/xml"), "bad_envelope"),
    "no key": Case(Entry(None, orjson.dumps(SUBMIT), headers()), "bad_key"),
    "a key that is no cell": Case(Entry(b"a b", orjson.dumps(SUBMIT), headers()), "bad_key"),
    "a key of bytes": Case(Entry(b"\xff", orjson.dumps(SUBMIT), headers()), "bad_key"),
    "an unknown cell": Case(
        Entry(b"nowhere", orjson.dumps(SUBMIT), headers()), "unknown_cell", "none", "refused"
    ),
    "an unknown tenant": Case(
        submission(tenant="nobody"), "unknown_tenant", "record", "rejected"
    ),
    "an unknown queue": Case(submission(queue="none"), "unknown_queue", "record", "rejected"),
    "an unknown pool": Case(
        submission(ask={"mode": "whole", "pool": "none"}), "unknown_pool", "record", "rejected"
    ),
    "cancelling nothing": Case(
        said("request.cancel", TEAM, request="no#such"), "unknown_request", "record", "refused"
    ),
    "releasing nothing": Case(
        said("lease.release", TEAM, lease="no#such/1"), "unknown_lease", "record", "refused"
    ),
    "a release by another owner": Case(
        said("lease.release", "/team/b", lease=f"{TEAM}#held/1"), "not_owner", "record", "refused"
    ),
    "a cancel by another owner": Case(
        said("request.cancel", "/team/b", request=f"{TEAM}#held"),
        "not_owner",
        "record",
        "refused",
    ),
    "the same id with other content": Case(
        raw(orjson.dumps(SUBMIT | {"priority": 9}), id="held"), "id_conflict", "record", "refused"
    ),
    "clearing a device that is clean": Case(
        said("device.clear", "/ops", device="GPU-0", **OPERATOR),
        "not_quarantined",
        "record",
        "refused",
    ),
    "an order answered by the wrong node": Case(
        of_node("order.done", "n2", "/nodes/n2", order="c-o2"),
        "wrong_node",
        "record",
        None,
        "observations",
    ),
    "an order that was never given": Case(
        of_node("order.done", order="c-o999"), "unknown_order", "record", None, "observations"
    ),
    "an answer from a node nobody knows": Case(
        of_node("order.done", "n9", order="c-o2"), "unknown_node", "record", None, "observations"
    ),
    "health of a device elsewhere": Case(
        of_node("device.health", "n2", device="GPU-0", health="gone"),
        "wrong_node",
        "record",
        None,
        "observations",
    ),
    "a second agent for a node": Case(
        of_node("node.inventory", source="/nodes/evil", epoch=2, pool="main", devices=[]),
        "wrong_agent",
        "record",
        None,
        "observations",
    ),
    "a malformed observation": Case(
        of_node("order.done"), "bad_field", "dead", "malformed", "observations"
    ),
}  # fmt: skip


async def ready_site(log: MemoryLog | SqliteLog) -> Site:
    """Return a site with a second node, a lease (``held``) and an open order of ``n1``."""
    site = Site(log)
    await site.start()
    await site.says(
        "node.inventory", "/nodes/n2", node="n2", incarnation="b1", epoch=1, pool="main",
        devices=[],
    )  # fmt: skip
    await site.submit("held", 1)
    for number in range(2):
        name = await site.submit(f"done-{number}", 1)
        await site.says("lease.release", TEAM, lease=f"{name}/1")
    assert "c-o2" in site.state.orders
    return site


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_a_bad_input(case: Case) -> None:
    """It ends where it belongs, is counted and answered, and the next good one is decided."""
    site = await ready_site(MemoryLog())
    before = (await site.values("events"), await site.values("replies"))
    counts = site.shard.counts
    dead, unrecorded = counts.dead_letters, counts.unrecorded
    await site.put(case.entry, case.topic)
    letters = [letter async for letter in read_all(site.log, PREFIX)]
    added = (await site.values("events"))[len(before[0]) :]
    if case.where == "dead":
        assert [letter.code for letter in letters] == [case.code]
        assert counts.dead_letters == dead + 1
        kept = letters[0].record
        assert kept.key == case.entry.key
        assert kept.value == case.entry.value
        assert not added, "malformed input never enters the ledger"
    elif case.where == "record":
        assert [orjson.loads(value)["outcome"]["code"] for value in added] == [case.code]
        assert not letters
    else:
        assert counts.unrecorded == unrecorded + 1
        assert not added
        assert not letters
    source = dict(case.entry.headers).get("ce_source", b"")
    answers = [reply for reply in await replies(site) if reply.input == f"{source.decode()}#"
               + dict(case.entry.headers).get("ce_id", b"").decode(errors="replace")]  # fmt: skip
    if case.answer is None:
        assert not answers
    else:
        assert (answers[-1].answer, answers[-1].code) == (case.answer, case.code)
    await site.submit("good-after-it", 1)
    assert f"{TEAM}#good-after-it" in site.state.requests
    assert (await verify_log(site.log, PREFIX)).ok


async def replies(site: Site) -> list[Reply]:
    """Return every reply, held against its model: what goes out is always well formed."""
    found = []
    topic = full_name(PREFIX, "replies")
    for partition in range(await site.log.partitions(topic)):
        records = await site.log.read(topic, partition, 0, 1_000_000)
        found += [Reply.model_validate_json(record.value or b"") for record in records]
    return found


async def test_ten_mebibytes_do_not_get_into_any_log(tmp_path: Path) -> None:
    """The port refuses it whole and says how large it may be."""
    for log in (MemoryLog(), SqliteLog(tmp_path / "log.sqlite")):
        site = await ready_site(log)
        with pytest.raises(TooLarge, match=f"the limit is {MAX_RECORD_BYTES}"):
            await site.put(raw(b"x" * 10 * 1024 * 1024))
        await site.submit("good-after-it", 1)
        assert f"{TEAM}#good-after-it" in site.state.requests
        await log.close()


async def test_the_largest_record_of_all_is_put_aside() -> None:
    """A record with no room left for a reason does not stop the partition."""
    site = await ready_site(MemoryLog())
    used = sum(len(name) + len(value) for name, value in headers()) + 1
    await site.put(raw(b"x" * (MAX_RECORD_BYTES - used)))
    (letter,) = [letter async for letter in read_all(site.log, PREFIX)]
    assert letter.code == "too_large"
    assert letter.whole_bytes == MAX_RECORD_BYTES - used


async def test_a_clock_an_hour_ahead_is_flagged_and_not_believed() -> None:
    """C45: the sender's stamp is a claim; the ledger's time is the log's."""
    site = await ready_site(MemoryLog())
    now_us = site.state.now_us
    await site.put(raw(orjson.dumps(SUBMIT), time="2999-01-01T00:00:00Z"))
    record = orjson.loads((await site.values("events"))[-1])
    assert record["input"]["skew_us"] > 3600 * 1_000_000
    assert record["time_us"] - now_us < 3600 * 1_000_000
    await site.put(raw(orjson.dumps(SUBMIT), id="y", time="1970-01-01T00:00:00Z"))
    assert orjson.loads((await site.values("events"))[-1])["input"]["skew_us"] < 0
    await site.put(raw(orjson.dumps(SUBMIT), id="z", time="2026-02-30T00:00:00Z"))
    assert "skew_us" not in orjson.loads((await site.values("events"))[-1])["input"]
    assert (await verify_log(site.log, PREFIX)).ok


def test_ids_and_sources_of_the_client_are_good() -> None:
    """What the client makes by itself is never put aside."""
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(one[14] == "7" for one in ids)
    to_headers({"id": ids[0], "source": default_source(), "type": "io.gpuledger.tick.v1"})


# -- anything at all --------------------------------------------------------------


def _flip(value: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(value))
    return bytes([*value[:at], chance.randrange(256), *value[at + 1 :]])


def _cut(value: bytes, chance: random.Random) -> bytes:
    return value[: chance.randrange(len(value))]


def _double(value: bytes, chance: random.Random) -> bytes:
    at, end = sorted(chance.randrange(len(value)) for _ in range(2))
    return value[:end] + value[at:end] + value[end:]


def _swap_numbers(value: bytes, chance: random.Random) -> bytes:
    digit = str(chance.randrange(10)).encode()
    other = chance.choice([b"-1", b"1e9", b"99999999999999999999", b"0.5", b"null", b'"1"', b"7"])
    return value.replace(digit, other, 1)


_PALETTE: list[Any] = [
    None,
    True,
    0,
    -1,
    2**53,
    1.5,
    "",
    "t",
    "c-o1",
    f"{TEAM}#r1",
    "\x00",
    [],
    {},
    "x" * 600,
]


def _swap_values(value: bytes, chance: random.Random) -> bytes:
    data = orjson.loads(value)
    for _ in range(chance.randrange(1, 3)):
        data[chance.choice([*data, "extra"])] = chance.choice(_PALETTE)
    return orjson.dumps(data)


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [
    _flip,
    _cut,
    _double,
    _swap_numbers,
    _swap_values,
]


def _valid(chance: random.Random, number: int) -> tuple[str, str, str, dict[str, Any]]:
    """Return topic, type, source and data of an input that may well be in order."""
    request = f"{TEAM}#r{chance.randrange(max(1, number))}"
    node = chance.choice(["n1", "n1", "n2"])
    at_node = {"node": node, "incarnation": chance.choice(["b1", "b1", "b1", "b2"])}
    order = f"c-o{chance.randrange(60)}"
    ask: dict[str, Any] = chance.choice(
        [
            {"mode": "whole", "count": chance.randrange(5)},
            {"mode": "share", "gpu_milli": chance.randrange(1, 1001), "memory_mib": 10_000},
            {"mode": "mig", "profile": "1g.10gb"},
        ]
    )
    submit: dict[str, Any] = SUBMIT | {
        "ask": ask,
        "priority": chance.randrange(3),
        "max_wait_s": chance.choice([None, 0, 1]),
        "retries": chance.randrange(2),
    }
    source = chance.choice([TEAM, TEAM, "/team/b"])
    devices = [
        {"uuid": f"GPU-{at}", "model": "H100", "memory_mib": 81_920}
        for at in range(chance.randrange(2, 5))
    ]
    kinds: list[tuple[str, str, str, dict[str, Any]]] = (
        [
            ("requests", "request.submit", source, submit),
            ("requests", "request.submit", source, submit),
            ("requests", "request.cancel", source, {"request": request}),
            ("requests", "lease.release", source, {"lease": f"{request}/1"}),
            ("requests", "lease.reclaim", "/ops", {"lease": f"{request}/1", **OPERATOR}),
            ("requests", "node.set", "/ops", {"node": node, "mode": "online", **OPERATOR}),
            ("requests", "device.clear", "/ops", {"device": "GPU-1", **OPERATOR}),
            ("observations", "order.done", f"/nodes/{node}", {**at_node, "order": order}),
            ("observations", "order.failed", f"/nodes/{node}",
             {**at_node, "order": order, "reason": "no"}),
            ("observations", "task.started", f"/nodes/{node}",
             {**at_node, "lease": f"{request}/1"}),
            ("observations", "task.ended", f"/nodes/{node}",
             {**at_node, "lease": f"{request}/1", "how": "completed"}),
            ("observations", "node.inventory", f"/nodes/{node}",
             {**at_node, "epoch": 1, "pool": "main", "devices": devices if node == "n1" else []}),
            ("observations", "node.silent", "/gpuledger", {**at_node, "last_heartbeat_us": 1}),
            ("observations", "node.back", "/gpuledger", at_node),
            ("observations", "tick", "/gpuledger", {}),
        ]
    )  # fmt: skip
    return chance.choice(kinds)


def _anything(chance: random.Random, number: int) -> tuple[str, Entry]:
    """Return noise, a mutated input, or one that is in order."""
    kind = chance.random()
    if kind < 0.15:
        return chance.choice(["requests", "observations"]), Entry(
            chance.choice([None, b"c", chance.randbytes(4)]),
            chance.choice([None, chance.randbytes(chance.randrange(200))]),
            tuple(
                (chance.choice(["ce_id", "ce_type", "x"]), chance.randbytes(8))
                for _ in range(chance.randrange(4))
            ),
        )
    topic, name, source, data = _valid(chance, number)
    entry = input_entry("c", name, source, f"r{number}", data)
    if kind < 0.65 and entry.value:
        value = chance.choice(MUTATIONS)(entry.value, chance)
        entry = Entry(entry.key, value, entry.headers)
    elif kind < 0.75:
        at = chance.randrange(len(entry.headers))
        changed = list(entry.headers)
        changed[at] = (changed[at][0], _flip(changed[at][1], chance))
        entry = Entry(entry.key, entry.value, tuple(changed))
    return topic, entry


TOTAL = 100_000
BATCH = 500


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_of_anything() -> None:
    """Nothing stops; all are counted; what goes out is well formed; the ledger verifies."""
    chance = random.Random(20_260_131)
    site = await ready_site(MemoryLog())
    shard, log = site.shard, site.log
    start = Counter(shard.position)
    for first in range(0, TOTAL, BATCH):
        groups: dict[str, list[Entry]] = {"requests": [], "observations": []}
        for number in range(first, first + BATCH):
            topic, entry = _anything(chance, number)
            groups[topic].append(entry)
        for topic, entries in groups.items():
            await log.append(full_name(PREFIX, topic), 0, entries)
        await site.pump()
    counts = shard.counts
    taken = sum(shard.position.values())
    assert taken - start.total() == TOTAL
    handled = counts.decided + counts.unrecorded + counts.dead_letters + counts.answered_again
    assert handled == taken, "applied + rejected + put aside = read (S5)"
    letters = [letter async for letter in read_all(log, PREFIX)]
    assert len(letters) == counts.dead_letters > TOTAL // 5
    assert counts.decided > TOTAL // 10
    report = await verify_log(log, PREFIX)
    assert report.ok, report.faults
    assert report.counts["decisions"] == counts.decided
    await replies(site)
    topic = full_name(PREFIX, "orders")
    for partition in range(await log.partitions(topic)):
        for record in await log.read(topic, partition, 0, 1_000_000):
            Order.model_validate_json(record.value or b"")
