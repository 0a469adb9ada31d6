"""``gpuledger meter``: who had how much GPU time, and what became of the rest."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import EXIT_DAMAGED, AtOption, Session, Usage, command, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.metering.calendar import Period
    from ledger.metering.periods import BookedPeriod
    from ledger.metering.policy import MeteringPolicy
    from ledger.metering.report import Report, Totals

__all__ = ["GRACE_S", "GraceOption", "policy_named", "register"]

#: How long late facts are waited for unless told otherwise: three days.
GRACE_S = 259_200
GraceOption = Annotated[int, typer.Option(min=0, help="how long late facts are waited for")]


class By(StrEnum):
    """What the rows of the table are."""

    TENANT = "tenant"
    PROJECT = "project"
    QUEUE = "queue"
    DEVICE = "device"
    CAUSE = "cause"


#: Columns of the table by who holds, and by what is there: heading -> where the sum is.
_HELD = {
    "charged": "charged_milli_us",
    "allocated": "allocated_milli_us",
    "completed": "completed_milli_us",
    "interrupted": "interrupted_milli_us",
    "failed": "failed_milli_us",
    "stopped": "stopped_milli_us",
    "live": "live_milli_us",
    "requested": "requested_milli_us",
    "reserved": "reserved_milli_us",
    "fragmentation": "fragmentation_milli_us",
    "used": "used_milli_us",
}
_THERE = {
    "allocated": "allocated_milli_us",
    "idle": "idle_milli_us",
    "unavailable": "unavailable_milli_us",
    "unknown": "unknown_milli_us",
    "present": "present_milli_us",
    "absent": "absent_milli_us",
}
_NOBODY = "(nobody)"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "meter")(meter)


async def meter(
    session: Session,
    *,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="month, day or time [the first record]"),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="a month or day is included [the last record]"),
    ] = None,
    by: Annotated[By, typer.Option(help="what the rows of the table are")] = By.TENANT,
    zone: Annotated[str, typer.Option(help="time zone of months, days and times")] = "UTC",
    policy: Annotated[
        str, typer.Option(help="who pays for cleaning, idle and broken time; or a JSON file")
    ] = "pool",
    periods: Annotated[
        bool, typer.Option("--periods", help="the months, with their state and digest")
    ] = False,
    grace_s: GraceOption = GRACE_S,
    at: AtOption = None,
) -> None:
    """GPU time by the second, from the events alone: held, idle, out of use, unknown.

    The parts sum to what was there, exactly; the last lines say so.
    """
    from ledger.cli.questions import upto_of
    from ledger.metering.calendar import BadTime, span_of, zone_of
    from ledger.metering.periods import book_log
    from ledger.metering.report import Report
    from ledger.metering.stream import meter_log
    from ledger.metering.usage import read_usage

    try:
        place = zone_of(zone)
        start_us = None if from_ is None else span_of(from_, place).start_us
        end_us = None if to is None else span_of(to, place).end_us
    except BadTime as error:
        raise Usage(str(error)) from None
    if start_us is not None and end_us is not None and end_us < start_us:
        raise Usage("--to is before --from")
    chosen = policy_named(policy)
    async with session.open() as log:
        upto = await upto_of(log, session, at)
        if periods:
            booked = await book_log(log, session.prefix, place, grace_s * 1_000_000, upto)
            session.emit_rows(_periods(booked, chosen), _PERIODS)
            return
        usage = await read_usage(log, session.prefix)
        report = Report(by.value, start_us, end_us, chosen, usage)
        meters = await meter_log(
            log, session.prefix, report.take, upto=upto,
            progress=session.progress("metering"), usage=usage,
        )  # fmt: skip
    firsts = [one.first_us for one in meters if one.first_us is not None]
    first_us = min(firsts, default=0) if start_us is None else start_us
    last_us = max([one.known_us for one in meters], default=0) if end_us is None else end_us
    if firsts and last_us < first_us:
        after = f"--from {from_} is after the last record"
        raise Usage(after if to is None else f"--to {to} is before the first record")
    for one in meters:
        for row in one.beyond(last_us):
            report.take(row)
    report.finish()
    window = _window(first_us, last_us, zone)
    session.emit(_plain(report, window), _text(report, window))
    total = report.total()
    if total.parts_milli_us != total.capacity_milli_us:
        raise typer.Exit(EXIT_DAMAGED)


def policy_named(name: str) -> MeteringPolicy:
    """Return a policy by its name, or from a JSON file; raise `Usage` for another."""
    from pathlib import Path

    import orjson

    from ledger.metering.policy import POLICIES, BadPolicy, policy_from_plain

    if name in POLICIES:
        return POLICIES[name]
    if not Path(name).is_file():
        raise Usage(f"--policy is one of {', '.join(POLICIES)} or a JSON file, not {name!r}")
    try:
        return policy_from_plain(orjson.loads(Path(name).read_bytes()))
    except (orjson.JSONDecodeError, BadPolicy) as error:
        raise Usage(f"{name}: {error}") from None


def _window(first_us: int, last_us: int, zone: str) -> dict[str, Any]:
    from ledger.amounts import time_text

    return {
        "from": time_text(first_us),
        "to": time_text(last_us),
        "from_us": first_us,
        "to_us": last_us,
        "zone": zone,
    }


def _plain(report: Report, window: dict[str, Any]) -> dict[str, Any]:
    total = report.total()
    return {
        **window,
        **report.policy.plain(),
        "by": report.by,
        "devices": len(report.devices),
        "groups": [
            {report.by: name or None, **totals.plain()}
            for name, totals in sorted(report.groups.items())
        ],
        "total": total.plain(),
        "conservation": {
            "parts_milli_us": total.parts_milli_us,
            "capacity_milli_us": total.capacity_milli_us,
            "equal": total.parts_milli_us == total.capacity_milli_us,
        },
        "utilisation": {
            "denominators_milli_us": total.denominators(),
            "numerators_milli_us": total.numerators(),
        },
    }


def hours(milli_us: int | None) -> str:
    """Return capacity x time in GPU-hours; what is unknown as such. The JSON has it exactly."""
    from ledger.amounts import gpu_hours

    return "unknown" if milli_us is None else gpu_hours(milli_us, 3)


def _text(report: Report, window: dict[str, Any]) -> str:
    from ledger.amounts import duration_text

    total = report.total()
    span = duration_text(window["to_us"] - window["from_us"])
    title = (
        f"from {window['from']} to {window['to']}: {span},"
        f" {len(report.devices)} devices; GPU-hours by {report.by}, policy {report.policy.name}"
    )
    lines = [
        title,
        "",
        _groups(report, total),
        *_conservation(total),
        "",
        table(["of", *total.numerators(), "GPU-hours", "which is"], list(_shares(total))),
    ]
    if report.by != "cause":
        lines.append(table(["cause", "GPU-hours"], list(_causes(total))))
    return "\n".join(lines).rstrip("\n")


def _groups(report: Report, total: Totals) -> str:
    from ledger.amounts import per_cent

    columns = _THERE if report.by in ("device", "cause") else _HELD
    named = [(name or _NOBODY, one) for name, one in sorted(report.groups.items())]
    # Whatever is nobody's stands below, by cause; what only repeats time is no row of its own.
    hidden = {_NOBODY} if columns is _HELD else {"present", "reserved"}
    named = [pair for pair in named if pair[0] not in hidden]
    rows = [
        [name, *(hours(plain[column]) for column in columns.values())]
        for name, one in [*named, ("total", total)]
        for plain in (one.plain(),)
    ]
    if columns is _HELD:
        # Little that was used is not the same as little that was measured.
        for row, (_, one) in zip(rows, [*named, ("total", total)], strict=True):
            row.append(per_cent(one.measured_us, one.held_us))
        return table([report.by, *columns, "of it measured"], rows)
    return table([report.by, *columns], rows)


def _conservation(total: Totals) -> Iterator[str]:
    from ledger.amounts import decimal

    parts = " + ".join(
        f"{name} {hours(total.parts[name])}"
        for name in ("allocated", "idle", "unavailable", "unknown")
    )
    equal = "=" if total.parts_milli_us == total.capacity_milli_us else "IS NOT"
    yield f"{parts} {equal} present {hours(total.capacity_milli_us)} GPU-hours"
    missing = total.capacity_milli_us - total.parts_milli_us
    yield (
        f"  off by {decimal(missing, 10**9, 9)} GPU-seconds"
        if missing
        else "  exactly: to the thousandth of a device and the microsecond"
    )


def _shares(total: Totals) -> Iterator[list[str]]:
    from ledger.amounts import per_cent
    from ledger.metering.report import DENOMINATORS

    for name, capacity in total.denominators().items():
        shares = [per_cent(amount, capacity) for amount in total.numerators().values()]
        yield [name, *shares, hours(capacity), DENOMINATORS[name]]


def _causes(total: Totals) -> Iterator[list[str]]:
    for (state, cause), amount in sorted(total.causes.items()):
        if amount and state not in ("present", "reserved"):
            yield [f"{state} {cause}", hours(amount)]


_PERIODS = (
    "partition",
    "period",
    "hours",
    "state",
    "gpu_hours_allocated",
    "gpu_hours_charged",
    "lines",
    "corrections",
    "digest",
)


def _periods(
    booked: dict[int, list[BookedPeriod]], policy: MeteringPolicy
) -> Iterator[dict[str, Any]]:
    for partition, found in booked.items():
        for one in found:
            allocated = sum(line.milli_us for line in one.lines if line.state == "allocated")
            charged = sum(line.milli_us for line in one.lines if policy.holder_pays_for(line.row()))
            yield {
                "partition": partition,
                "period": one.period.name,
                "hours": _length(one.period),
                "state": one.state,
                "gpu_hours_allocated": hours(allocated),
                "gpu_hours_charged": hours(charged),
                "lines": len(one.lines),
                "corrections": sum(line.corrects is not None for line in one.lines),
                "digest": one.digest,
                "allocated_milli_us": allocated,
                "charged_milli_us": charged,
                "start_us": one.period.start_us,
                "end_us": one.period.end_us,
            }


def _length(period: Period) -> int:
    return (period.end_us - period.start_us) // 3_600_000_000
