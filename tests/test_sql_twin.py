"""S2: what SQL says of a log is what its fold says, and what the metering counts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from ledger.audit import raw
from ledger.core.fold import Fold
from tests.audit_support import plain_events, room_of, room_with, time_text
from tests.metering_logs import metered, random_log, sums
from tests.replay_support import KINDS, drawn, log_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ledger.audit.auditor import Room
    from ledger.core.state import State

SEEDS = (3, 5)
STEPS = 120

Row = tuple[Any, ...]


def state_at(values: Sequence[bytes], time_us: int) -> State | None:
    """Return the state after all decisions that were made at or before a time."""
    fold = Fold()
    for offset, value in enumerate(values):
        if orjson.loads(value)["time_us"] > time_us:
            break
        fold.apply(offset, value)
    return fold.cells.get("c")


def rows_of_state(state: State | None) -> set[Row]:
    """Return a state as rows (kind, id, state, tenant, milli)."""
    if state is None:
        return set()
    rows: set[Row] = set()
    for node in state.nodes.values():
        rows.add(("node", node.name, node.state, None, None))
    for device in state.devices.values():
        rows.add(("device", device.uuid, device.health, None, None))
    for item in state.slices.values():
        # A slice that is being destroyed is there until it is gone.
        rows.add(("slice", item.id, "present" if item.mig_uuid else "ordered", None, None))
    for request in state.requests.values():
        rows.add(("request", request.id, request.state, request.tenant, None))
    for lease in state.leases.values():
        rows.add(("lease", lease.id, lease.state, lease.tenant, lease.charge_milli))
    for order in state.orders.values():
        rows.add(("order", order.id, "issued", None, None))
    for quota in state.quotas.values():
        tenant = quota.name.partition("/")[0]
        rows.add(("quota", quota.name, None, tenant, quota.limits["gpu"].nominal))
    return rows


def instants(values: Sequence[bytes], random: Random, count: int) -> list[int]:
    """Return times of records, and times in between, before the first and after the last."""
    times = sorted({orjson.loads(value)["time_us"] for value in values})
    middles = [(a + b) // 2 for a, b in pairwise(times)]
    return [times[0] - 1, times[-1] + 1, *random.sample(times + middles, count)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_s2_as_of_is_the_folded_state(seed: int) -> None:
    """At any instant the SQL has everything there was, as the state has it."""
    values = random_log(seed, STEPS)
    async with room_with(values) as room:
        for time_us in instants(values, Random(seed), 4):
            found = room.ask(
                "SELECT kind, id, state, tenant, milli FROM as_of($at)", {"at": time_text(time_us)}
            ).rows
            state = state_at(values, time_us)
            assert rows_of_state(state) == set(found), time_us
            assert len(found) == len(set(found))
            _check_held(room, state, time_us)


def _check_held(room: Room, state: State | None, time_us: int) -> None:
    """Hold who has what, and what is in quarantine, against the state."""
    at = {"at": time_text(time_us)}
    held = room.ask("SELECT unit, lease, quota IS NOT NULL FROM held_at($at)", at).rows
    leases = {} if state is None else state.leases
    assert sorted(held) == sorted(
        (unit, lease.id, True)
        for lease in leases.values()
        for part in lease.parts.values()
        for unit in part.units
    )
    kept = room.ask(
        "SELECT device, quarantine FROM devices WHERE quarantine IS NOT NULL AND since <= utc($at)"
        " AND (until IS NULL OR until > utc($at))",
        at,
    ).rows
    devices = {} if state is None else state.devices
    wanted = {(one.uuid, one.quarantine) for one in devices.values() if one.quarantine is not None}
    assert wanted == set(kept)


@pytest.mark.parametrize("seed", SEEDS)
async def test_s2_quotas_at_any_position(seed: int) -> None:
    """After each record the quotas in force, by place, are those of the state."""
    values = random_log(seed, STEPS)
    async with room_with(values) as room:
        quotas = room.ask('SELECT quota, nominal_milli, "offset", until_offset FROM quotas').rows
    fold = Fold()
    for offset, value in enumerate(values):
        fold.apply(offset, value)
        state = fold.cells.get("c")
        found = {
            name: nominal
            for name, nominal, since, until in quotas
            if since <= offset and (until is None or until > offset)
        }
        wanted = {} if state is None else state.quotas
        assert {name: one.limits["gpu"].nominal for name, one in wanted.items()} == found


def windows(random: Random, last_us: int) -> list[tuple[int | None, int | None]]:
    """Return the whole, and windows of any length."""
    spans = [sorted(random.sample(range(last_us), 2)) for _ in range(2)]
    return [(None, None), *((start, end) for start, end in spans)]


@pytest.mark.parametrize("seed", SEEDS)
async def test_s2_gpu_seconds_are_those_of_the_metering(seed: int) -> None:
    """M2, M3: to the microsecond, for each tenant and any window: what its leases count."""
    values = random_log(seed, STEPS)
    rows, meter = metered(values)
    async with room_with(values) as room:
        for start, end in windows(Random(seed), meter.known_us):
            wanted: Counter[str] = Counter()
            for row in rows:
                if row.state != "reserved" or row.holding is None or not row.holding.lease:
                    continue
                first, last = max(row.start_us, start or 0), min(row.end_us, end or meter.known_us)
                wanted[row.holding.tenant] += row.milli * max(last - first, 0)
            found = room.ask(
                "SELECT tenant, gpu_milli_us(tenant, $start, $finish),"
                " gpu_seconds(tenant, $start, $finish)"
                " FROM (SELECT DISTINCT tenant FROM requests)",
                {"start": time_text(start), "finish": time_text(end)},
            ).rows
            assert {name: amount for name, amount, _ in found if amount} == +wanted
            assert found
            for _, amount, seconds in found:
                assert seconds == f"{amount // 10**9}.{amount % 10**9:09d}"


@pytest.mark.parametrize("seed", SEEDS)
async def test_s2_held_time_is_what_the_metering_allocates(seed: int) -> None:
    """Of each unit held: the time is the metering's, and its share where no layout is rounded."""
    values = random_log(seed, STEPS)
    rows, _ = metered(values)
    metered_units: dict[tuple[str, str], set[int]] = {}
    amounts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        held = row.state == "allocated" or (row.state, row.cause) == ("absent", "held")
        if held and row.holding is not None:
            key = (row.holding.lease, row.unit)
            metered_units.setdefault(key, set()).add(row.milli)
            amounts[key] += row.milli_us
    async with room_with(values) as room:
        found = room.ask(
            "SELECT lease, unit, charge_milli, epoch_us(coalesce(ended, last_time))"
            " - epoch_us(granted) FROM holdings, log_end"
        ).rows
    compared = 0
    for lease, unit, milli, length in found:
        if length and metered_units.get((lease, unit)) == {milli}:
            compared += 1
            assert amounts[lease, unit] == milli * length
        elif length:
            # The last slice of a whole layout counts as what is left of its device.
            assert unit.startswith("c-s"), (lease, unit, metered_units.get((lease, unit)))
    assert compared > 5
    assert sums(rows)


async def test_s2_from_every_kind_of_log_the_same(tmp_path: Path) -> None:
    """Memory, SQLite and archive, of two partitions, in any chunks: one answer."""
    parts = (drawn(3, 60), drawn(2, 60))
    answers = []
    for kind in KINDS:
        folder = tmp_path / kind
        folder.mkdir()
        async with await log_of(kind, folder, *parts) as log, room_of(log) as room:
            answers.append(
                [
                    room.ask(f"SELECT count(*), sum(hash(COLUMNS(*))) FROM {name}").rows
                    for name in ("records", "events", "leases", "waits", "holdings", "voids")
                ]
            )
    assert answers[0] == answers[1] == answers[2]
    assert sum(map(len, parts)) == answers[0][0][0][0]


async def test_l2_the_load_is_the_same_in_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1, L2: where a chunk ends changes nothing."""
    values = drawn(3, 60)
    answers = []
    for size in (13, 50_000):
        monkeypatch.setattr(raw, "_CHUNK", size)
        async with room_with(values) as room:
            answers.append(room.ask("FROM records ORDER BY ALL").rows)
    assert answers[0] == answers[1]


async def test_l5_a_timeline_is_in_the_order_of_the_log() -> None:
    """All events of a lease, its request and its orders, each once, in order."""
    values = random_log(3, STEPS)
    events = list(plain_events(values))
    lease = max(
        (one["lease"] for _, _, one in events if one["type"] == "lease.ended"),
        key=lambda name: sum(name == one.get("lease") for _, _, one in events),
    )
    request = lease.rpartition("/")[0]
    orders = {
        one["order"]
        for _, _, one in events
        if one["type"] == "order.issued" and one.get("lease") == lease
    }
    wanted = [
        (f"events/0@{offset}", time_text(record["time_us"]), one["type"],
         record["input"]["source"], record["input"]["type"])
        for offset, record, one in events
        if one.get("lease") == lease
        or (one.get("lease") is None and one.get("request") == request)
        or one.get("order") in orders
    ]  # fmt: skip
    async with room_with(values) as room:
        found = room.ask("FROM lease_timeline($lease)", {"lease": lease}).rows
    assert wanted == [row[:5] for row in found]
    assert len(wanted) > 3
