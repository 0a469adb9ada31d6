"""The capacity report: shapes that were asked for and not had, and what would have been enough."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ledger.amounts import duration_text
from ledger.operations.charts import Bars, Curves
from ledger.operations.demand import (
    LEAST_REQUESTS,
    LEAST_US,
    advise,
    demands,
    ground_of,
)
from ledger.operations.measure import Column, Metric, Part, Report, Section
from ledger.operations.ops import money_of
from ledger.percentile import percentile, time_percentile

if TYPE_CHECKING:
    from ledger.operations.demand import Demand
    from ledger.operations.gather import Gathered
    from ledger.operations.tasks import Shape, Wait

__all__ = ["capacity_report"]

_HUNDRED = 100
#: So many shapes, and pictures of so many kinds of hardware, are shown.
_MOST_SHAPES, _MOST_CURVES = 40, 6


def capacity_report(found: Gathered) -> Report:
    """Return the report of a window."""
    told, homeless = demands(found)
    sections = (
        _not_had(found),
        _shapes(found),
        _held_back(found),
        _advice(found, told, homeless),
        _wanted(told),
    )
    return Report("capacity", "Capacity report", found.reading, sections, money_of(found))


def _not_had(found: Gathered) -> Section:
    shapes = found.tasks.shapes.values()
    asked = sum(one.asked for one in shapes)
    names = (
        ("had", "had what they asked for", "a lease was granted"),
        ("refused", "refused", "request.rejected"),
        (
            "expired",
            "gave up: the longest wait passed",
            "request.ended with expired, never granted",
        ),
        ("withdrawn", "withdrawn while they waited", "request.ended otherwise, never granted"),
        ("waiting", "still waiting at the end", "never granted, not over"),
    )
    metrics = [Metric("asked", "requests asked in the window", "let in + refused", asked)]
    metrics += [
        Metric(name, title, formula, sum(getattr(one, name) for one in shapes), "count", asked,
               "asked")
        for name, title, formula in names
    ]  # fmt: skip
    metrics.append(
        Metric("waited", "GPU time waited for", "size of the request x time it waited",
               sum(one.waited_milli_us for one in shapes), "milli_us",
               found.time.total().parts["allocated"], "allocated")
    )  # fmt: skip
    return Section("not-had", "Asked for, and not had", "task", metrics=tuple(metrics))


def _row(one: Shape) -> dict[str, Any]:
    codes = sorted(one.codes.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "shape": one.shape,
        "asked": one.asked,
        "had": one.had,
        "not_had": one.not_had,
        "waited": one.waited_milli_us,
        "wait_p50": percentile(one.waits_us, 50),
        "wait_p95": percentile(one.waits_us, 95),
        "wait_max": percentile(one.waits_us, 100),
        "codes": [f"{name} {count}" for name, count in codes],
    }


def _shapes(found: Gathered) -> Section:
    """Return the shapes: first those that were not had, then those that were waited for longest."""
    ordered = sorted(
        (one for one in found.tasks.shapes.values() if one.asked or one.waited_milli_us),
        key=lambda one: (-one.not_had, -one.waited_milli_us, -one.asked, one.shape),
    )
    more = len(ordered) - _MOST_SHAPES
    words = (f"{more} more shapes are not shown",) if more > 0 else ()
    columns = (
        Column("shape", "shape"),
        Column("asked", "asked", "count", "let in + refused"),
        Column("had", "had", "count", "asked in the window and granted in it"),
        Column("not_had", "not had", "count", "refused + expired + withdrawn + still waiting"),
        Column("waited", "waited for", "milli_us", "size x time waited"),
        Column("wait_p50", "wait, half", "us", "nearest rank 50 % of waits until a first lease"),
        Column("wait_p95", "95 %", "us", "nearest rank 95 % of waits until a first lease"),
        Column("wait_max", "longest", "us", "longest wait until a first lease"),
        Column("codes", "held back or refused by", "text", "codes of request.queued and .rejected"),
    )
    waited = tuple((one.shape[:28], one.waited_milli_us) for one in ordered[:10]
                   if one.waited_milli_us)  # fmt: skip
    charts = (Bars("GPU time waited for, by shape", waited, "milli_us"),) if waited else ()
    rows = tuple(_row(one) for one in ordered[:_MOST_SHAPES])
    return Section("shapes", "Shapes", "task", words, columns=columns, rows=rows, charts=charts)


def _held_back(found: Gathered) -> Section:
    """Return why requests waited, and how much for each reason."""
    waited: Counter[str] = Counter()
    for wait in found.tasks.waits:
        waited[wait.code] += wait.charge_milli * (wait.end_us - wait.start_us)
    rows = tuple(
        {
            "code": code or "(not told)",
            "for": ground_of(code),
            "queued": found.tasks.held_back[code],
            "waited": amount,
        }
        for code, amount in sorted(waited.items(), key=lambda one: (-one[1], one[0]))
        if amount or found.tasks.held_back[code]
    )
    columns = (
        Column("code", "reason"),
        Column("for", "waited for"),
        Column("queued", "how often", "count", "request.queued with this code"),
        Column("waited", "GPU time waited", "milli_us", "size x time, by the last reason told"),
    )
    return Section("held-back", "What held requests back", "task", columns=columns, rows=rows)


def _advice(found: Gathered, told: list[Demand], homeless: list[Wait]) -> Section:
    """Return advice by hardware, each with its basis."""
    start_us, end_us = found.window
    rows = [
        {
            "pool": one.hardware[0],
            "model": one.hardware[1],
            "advice": one.advice,
            "devices": one.devices,
            "text": one.text,
            "basis": one.basis,
        }
        for each in told
        for one in advise(each, end_us - start_us)
    ]
    rests = (
        f"Advice rests on at least {duration_text(LEAST_US)} and {LEAST_REQUESTS} requests and"
        " waits; what waits for a quota, a licence or CPU is no demand for devices."
    )
    words = [rests]
    if homeless:
        words.append(
            f"{len(homeless)} waits were for hardware that the cell does not have: see the shapes."
        )
    columns = (
        Column("pool", "pool"),
        Column("model", "model"),
        Column("advice", "advice"),
        Column("devices", "devices", "count", "whole devices that the advice is about"),
        Column("text", "in words"),
        Column("basis", "basis"),
    )
    return Section(
        "advice", "Capacity advice", "resource", tuple(words), columns=columns, rows=tuple(rows),
        basis="read",
    )  # fmt: skip


def _wanted(told: list[Demand]) -> Section:
    """Return how much was wanted, there and missing, for how much of the time."""
    rows = []
    for one in told:
        row: dict[str, Any] = {"pool": one.hardware[0], "model": one.hardware[1]}
        for name in ("wanted", "there", "short"):
            times: Counter[int] = getattr(one, name)
            row |= {f"{name}_{per}": time_percentile(times, per) for per in (50, 95, 100)}
        rows.append(row)
    columns = [Column("pool", "pool"), Column("model", "model")]
    for name, what in (
        ("wanted", "leased + waited for because devices were missing"),
        ("there", "leased + idle"),
        ("short", "what was wanted beyond what was there"),
    ):
        columns += [
            Column(f"{name}_{per}", f"{name}, {'most' if per == _HUNDRED else f'{per} %'}", "milli",
                   f"{what}: not exceeded for {per} % of the time")
            for per in (50, 95, 100)
        ]  # fmt: skip
    charts = tuple(
        Curves(
            f"{one.hardware[1]} in {one.hardware[0]}: for how much of the time how many",
            tuple(
                Part(name, tuple(time_percentile(times, per) or 0 for per in range(101)))
                for name, times in (("there", one.there), ("wanted", one.wanted))
            ),
            "milli",
        )
        for one in sorted(told, key=lambda one: (-one.leased_milli_us, one.hardware))[:_MOST_CURVES]
        if one.wanted
    )
    return Section(
        "wanted", "Wanted and there", "resource", columns=tuple(columns), rows=tuple(rows),
        basis="read", charts=charts,
    )  # fmt: skip
