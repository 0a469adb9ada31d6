"""``gpuledger evidence show``: one measurement, and what rests on it; what devices have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from ledger.log.port import Log, Record

__all__ = ["of_devices", "show"]


async def show(
    session: Session,
    evidence: Annotated[
        str, typer.Argument(metavar="ID", help="as 'evidence list' or 'record' has it")
    ],
) -> None:
    """Show one measurement: of what, how, until when it holds, and which leases rest on it.

    Exit 1 when no record has it.
    """
    async with session.open() as log:
        plain = await _of_a_link(session, log, evidence) or await _of_a_device(
            session, log, evidence
        )
    if plain is None:
        raise No(f"there is no record of evidence {evidence}; 'evidence list' has what there is")
    session.emit(plain, "\n".join(_lines(plain)))


async def _of_a_link(session: Session, log: Log, name: str) -> dict[str, Any] | None:
    """Return what the events say of a link's measurement, also of one that a newer one replaced.

    It has two names: its own, and that of the record by which it was put there.
    """
    from ledger.reading import read_events
    from schemas.topics import full_name

    plain: dict[str, Any] | None = None
    leases: list[str] = []
    for number in range(await log.partitions(full_name(session.prefix, "events"))):
        async for seen in read_events(log, session.prefix, number):
            if seen.verdict != "effective":
                continue
            for event in seen.data["events"]:
                if event["type"] == "link.measured" and name in (
                    event["evidence"], seen.data["input"]["id"],
                ):  # fmt: skip
                    name = event["evidence"]
                    told = {key: value for key, value in event.items() if key != "type"}
                    plain = {
                        **told, "kind": "link", "recorded_us": seen.data["time_us"],
                        "position": seen.position, "leases": leases,
                    }  # fmt: skip
                elif event["type"] == "lease.granted" and name in event.get("evidence", ()):
                    leases.append(event["lease"])
    return plain


async def _of_a_device(session: Session, log: Log, name: str) -> dict[str, Any] | None:
    """Return what was put on record of a device, with those that it is the baseline of."""
    plain: dict[str, Any] | None = None
    compared = []
    async for found, time_us, told in of_devices(session, log):
        if found == name:
            until_us = time_us + told["valid_s"] * 1_000_000
            plain = {
                "evidence": name, **told, "recorded_us": time_us, "valid_until_us": until_us,
            }  # fmt: skip
        elif told["baseline"] == name:
            compared.append(found)
    return None if plain is None else {**plain, "baseline_of": compared}


async def of_devices(session: Session, log: Log) -> AsyncIterator[tuple[str, int, dict[str, Any]]]:
    """Yield the evidence of devices that the log has: id, when it was written, what it says."""
    from ledger.log.port import UnknownTopic
    from schemas.topics import full_name

    topic = full_name(session.prefix, "usage")
    try:
        count = await log.partitions(topic)
    except UnknownTopic:
        return
    for number in range(count):
        position, end = await log.begin(topic, number), await log.end(topic, number)
        while position < end:
            records = await log.read(topic, number, position, 1000, 1.0)
            if not records:
                break
            for found in _evidence_in(records):
                yield found
            position = records[-1].offset + 1


def _evidence_in(records: list[Record]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    from pydantic import ValidationError

    from schemas.catalogue import adapter, wire_type

    wanted = wire_type("device.evidence").encode()
    for one in records:
        headers = dict(one.headers)
        if headers.get("ce_type") != wanted:
            continue
        try:
            fact = adapter("device.evidence", 1).validate_json(one.value or b"")
        except ValidationError:
            continue
        name = headers.get("ce_id", b"").decode(errors="replace")
        yield name, one.time_us, fact.model_dump(mode="json")


def _lines(plain: dict[str, Any]) -> list[str]:
    from ledger.amounts import per_cent, time_text
    from ledger.wording import listed

    if plain["kind"] == "link":
        about = f"the link from {plain['from_node']} to {plain['to_node']}"
        says = f"latency P99 {plain['p99_us']:,} us, bandwidth {plain['bandwidth_mbps']:,} Mb/s"
        rests = [f"leases that rest on it: {listed(plain['leases']) or 'none'}"]
        rests.append(f"on record at {plain['position']}")
    else:
        slice_ = f", slice {plain['mig_uuid']} {plain['profile']}" if plain["mig_uuid"] else ""
        about = f"device {plain['device']} on {plain['node']}{slice_}"
        says = f"{plain['workload']}: {plain['metric']} {plain['value']:,}"
        beside = listed(plain["neighbours"])
        rests = [f"beside: {beside}"] if beside else []
        if plain["of_baseline_permille"] is not None:
            left = per_cent(plain["of_baseline_permille"], 1000)
            rests.append(f"that is {left} of {plain['baseline']}")
        if plain["driver"]:
            rests.append(f"driver {plain['driver']}")
        if plain["baseline_of"]:
            rests.append(f"compared with it: {listed(plain['baseline_of'])}")
    when = [f"recorded {time_text(plain['recorded_us'])}"]
    if "measured_us" in plain:
        when.insert(0, f"measured {time_text(plain['measured_us'])}")
    when.append(f"holds until {time_text(plain['valid_until_us'])}")
    return [
        f"{plain['evidence']}: {plain['kind']}, of {about}",
        f"  {says}",
        f"  by {plain['tool']} {plain['version']}; {', '.join(when)}",
        *(f"  {one}" for one in rests),
    ]
