"""A run for people, and the same as one JSON object."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.amounts import time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.simulation.tally import Interruption, PoolTally, Tally, TenantTally
    from ledger.verify import Report

__all__ = ["RunReport", "hours"]

_HOUR_US = 3_600_000_000
_WHOLE_MILLI = 1000
_S_US = 1_000_000
_NUMBER = re.compile(r"[0-9][0-9,.]*(?: %)?|-")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400

#: GPU-hours by tenant once more, asked of the ledger itself.
_QUERY = (
    "SELECT tenant, count(*) AS leases, sum(charge_milli * held_us) / 3.6e12 AS gpu_hours"
    " FROM leases GROUP BY tenant ORDER BY tenant"
)


def hours(milli_us: int) -> float:
    """Return GPU time in GPU-hours, for people: thousandths of a GPU times microseconds in."""
    return milli_us / (_WHOLE_MILLI * _HOUR_US)


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run has left behind.

    ``finals`` counts requests by how many final answers they were given: {1: all}
    when all is well. ``wall_us`` is how long the run took on a real clock,
    ``log_url`` where its ledger is, ``command`` how the reader calls gpuledger.
    """

    title: str
    tally: Tally
    verified: Report
    finals: dict[int, int]
    wall_us: int
    log_url: str
    command: str

    # -- for people --------------------------------------------------------------

    def text(self) -> str:
        """Return the report as text."""
        tally = self.tally
        days = (tally.last_us - tally.first_us) / (24 * _HOUR_US)
        span = f"{_time(tally.first_us)} to {_time(tally.last_us)}, {days:.1f} days"
        parts = [
            f"{self.title}\n{span} of virtual time",
            _section("Jobs", self._jobs()),
            _section("Waits, from request to first grant", self._waits()),
            _section("Utilisation, per pool", self._utilisation()),
            _section("GPU-hours by tenant, from lease events", self._gpu_hours()),
            _section("Interruptions, and what became of them", self._interruptions()),
            _section("Refused or expired", self._refusals()),
            _section("The ledger", self._ledger()),
            _section("Ask this ledger", self.commands()),
        ]
        return "\n\n".join(parts)

    def _tenants(self) -> list[TenantTally]:
        return [tenant for _, tenant in sorted(self.tally.tenants.items())]

    def _jobs(self) -> list[str]:
        names = ("requests", "granted", "completed", "failed", "cancelled", "refused")
        rows = [["tenant", *names, "other end", "waiting", "running"]]
        sums = [0] * 9
        for tenant in self._tenants():
            counts = list(_ends(tenant).values())
            sums = [one + more for one, more in zip(sums, counts, strict=True)]
            rows.append([tenant.name, *(f"{count:,}" for count in counts)])
        rows.append(["all", *(f"{count:,}" for count in sums)])
        several = sum(count for answers, count in self.finals.items() if answers != 1)
        said = (
            f"every one of {self.finals.get(1, 0):,} requests got exactly one final answer"
            if not several
            else f"{several:,} REQUESTS DID NOT GET EXACTLY ONE FINAL ANSWER"
        )
        return [*_table(rows), said]

    def _waits(self) -> list[str]:
        rows = [["tenant", "p50", "p99"]]
        for tenant in self._tenants():
            half, most = tenant.wait_us(50), tenant.wait_us(99)
            if half is not None and most is not None:
                rows.append([tenant.name, _duration(half), _duration(most)])
        return _table(rows)

    def _utilisation(self) -> list[str]:
        rows = [["pool", "GPUs", "GPU-hours held", "GPU-hours present online", "utilisation"]]
        rows += [_pool_row(pool) for _, pool in sorted(self.tally.pools.items())]
        note = "present online: devices healthy on nodes online, from the first record to the last"
        return [*_table(rows), note]

    def _gpu_hours(self) -> list[str]:
        rows = [["tenant", "GPU-hours held", "of it interrupted"]]
        rows += [
            [
                tenant.name,
                f"{hours(tenant.held_milli_us):,.3f}",
                f"{hours(tenant.interrupted_milli_us):,.3f}",
            ]
            for tenant in self._tenants()
        ]
        return _table(rows)

    def _interruptions(self) -> list[str]:
        if not self.tally.interruptions:
            return ["none"]
        rows = [["when", "lease", "why", "GPUs", "had held", "what became of the request"]]
        rows += [
            [
                _time(one.time_us),
                one.lease,
                one.reason,
                f"{one.charge_milli / _WHOLE_MILLI:g}",
                _duration(one.held_us),
                self._after(one),
            ]
            for one in self.tally.interruptions
        ]
        return _table(rows)

    def _after(self, one: Interruption) -> str:
        request = self.tally.requests[one.request]
        again = int(one.lease.rpartition("/")[2]) < request.leases
        if request.end is None:
            return "runs again" if again else "waits"
        return f"ran again, {request.end}" if again else f"ended: {request.end}"

    def _refusals(self) -> list[str]:
        rows = [
            [tenant.name, code, f"{count:,}"]
            for tenant in self._tenants()
            for code, count in sorted(_refusals(tenant).items())
        ]
        return _table([["tenant", "code", "requests"], *rows]) if rows else ["none"]

    def _ledger(self) -> list[str]:
        counts = self.verified.counts
        faults = [f"{one.position}: {one.kind}: {one.detail}" for one in self.verified.faults]
        kinds = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("decisions", "claims", "void"))
        return [
            f"where     {self.log_url}",
            f"records   {counts['records']:,} ({kinds})",
            f"verify    {'ok, no fault found' if self.verified.ok else 'DAMAGED'}",
            *faults,
            f"digest    {self.verified.digest}",
            f"took      {self.wall_us / 1e6:.1f} s on this machine",
        ]

    # -- what to do next ---------------------------------------------------------

    def commands(self) -> list[str]:
        """Return five commands to try, with ids that are in this ledger."""
        tally = self.tally
        waited = [one for one in tally.requests.values() if one.wait_us is not None]
        longest = max(waited, key=lambda one: (one.wait_us or 0, one.id), default=None)
        refused = [one for one in tally.requests.values() if one.end == "exceeds_quota"]
        asked = [one.id for one in (*refused[:1], longest) if one is not None]
        shown = [one.request for one in tally.interruptions[:1]]
        shown = shown or [f"{one.id}/1" for one in (longest,) if one is not None]
        middle_us = (tally.first_us + tally.last_us) // 2
        calls = [
            *(f"why '{name}'" for name in asked[:1]),
            *(f"show '{name}'" for name in shown),
            f"state --at {_time(middle_us)}",
            f'sql "{_QUERY}"',
            "verify",
        ]
        return [f"{self.command} {call} --log {self.log_url}" for call in calls]

    # -- for programs ------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        tally = self.tally
        return {
            "title": self.title,
            "log": self.log_url,
            "from_us": tally.first_us,
            "to_us": tally.last_us,
            "tenants": {tenant.name: _tenant_plain(tenant) for tenant in self._tenants()},
            "pools": {
                name: {
                    "gpus": pool.gpus,
                    "held_gpu_milli_us": pool.held_milli_us,
                    "present_gpu_us": pool.present_us,
                }
                for name, pool in sorted(tally.pools.items())
            },
            "interruptions": [
                {
                    "time_us": one.time_us,
                    "request": one.request,
                    "lease": one.lease,
                    "reason": one.reason,
                    "charge_milli": one.charge_milli,
                    "held_us": one.held_us,
                    "after": self._after(one),
                }
                for one in tally.interruptions
            ],
            "final_answers": {str(answers): count for answers, count in self.finals.items()},
            "records": self.verified.counts["records"],
            "verify": self.verified.plain(),
            "digest": self.verified.digest,
            "wall_us": self.wall_us,
            "commands": self.commands(),
        }


def _ends(tenant: TenantTally) -> dict[str, int]:
    """Return a tenant's counts in the order of the table; they do not overlap but for `granted`."""
    known = {how: tenant.ends[how] for how in ("completed", "failed", "cancelled")}
    return {
        "requests": tenant.requests,
        "granted": tenant.granted,
        **known,
        "refused": tenant.refused.total(),
        "other": tenant.ends.total() - sum(known.values()),
        "waiting": tenant.waiting,
        "running": tenant.running,
    }


def _refusals(tenant: TenantTally) -> dict[str, int]:
    expired = {"wait_expired": tenant.ends["expired"]} if tenant.ends["expired"] else {}
    return {**tenant.refused, **expired}


def _tenant_plain(tenant: TenantTally) -> dict[str, Any]:
    return {
        **_ends(tenant),
        "refusals": _refusals(tenant),
        "wait_p50_us": tenant.wait_us(50),
        "wait_p99_us": tenant.wait_us(99),
        "held_gpu_milli_us": tenant.held_milli_us,
        "interrupted_gpu_milli_us": tenant.interrupted_milli_us,
    }


def _pool_row(pool: PoolTally) -> list[str]:
    present_milli_us = pool.present_us * _WHOLE_MILLI
    share = f"{100 * pool.held_milli_us / present_milli_us:.1f} %" if present_milli_us else "-"
    return [
        pool.name,
        f"{pool.gpus:,}",
        f"{hours(pool.held_milli_us):,.1f}",
        f"{hours(present_milli_us):,.1f}",
        share,
    ]


def _time(time_us: int) -> str:
    """Return a time to the second."""
    return time_text(time_us)[:19] + "Z"


def _duration(duration_us: int) -> str:
    """Return a duration in its two largest units."""
    seconds = duration_us // _S_US
    if seconds < _MINUTE_S:
        return f"{seconds} s"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S} min {seconds % _MINUTE_S} s"
    if seconds < _DAY_S:
        return f"{seconds // _HOUR_S} h {seconds % _HOUR_S // _MINUTE_S} min"
    return f"{seconds // _DAY_S} d {seconds % _DAY_S // _HOUR_S} h"


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines: numbers to the right, all else to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [
        all(_is_number(row[at]) for row in rows[1:]) and len(rows) > 1 for at in range(len(widths))
    ]
    return [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None
