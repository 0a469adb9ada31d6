"""The bill a second time, by other means: every second that is torn looked at by itself.

Plain Python and fractions over what `tests.metering_oracle` found in the events; it shares
no code with the ledger. Prices are dictionaries, money is in 1e-18 of the currency.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.metering_oracle import Oracle, Piece

__all__ = ["oracle_bill"]

SECOND = 1_000_000
#: GPU-seconds of one unit.
SIZES = {"GPU-Seconds": 1, "GPU-Hours": 3600}

#: (piece, (node, pool, model)).
Part = tuple["Piece", tuple[str, str, str]]
#: (from a second, until before another, what the device was).
Span = tuple[int, int, frozenset[Part]]


def oracle_bill(
    oracle: Oracle, start_s: int, end_s: int, prices: list[dict[str, Any]], pays: set[str]
) -> list[dict[str, Any]]:
    """Return the charges of a period: ``pays`` are the kinds of time that holders pay."""
    found: list[dict[str, Any]] = []
    cuts = {one["from_s"] for one in prices}
    for uuid in oracle.stretches:
        mine: list[dict[str, Any]] = []
        for first, last, layout in _joined(_winners(oracle, uuid), start_s, end_s, cuts):
            mine += _charges(oracle, uuid, first, last, layout, prices, pays)
        _round(mine)
        found += mine
    return found


def _joined(spans: list[Span], start_s: int, end_s: int, cuts: set[int]) -> list[Span]:
    """Cut spans at the period's bounds and where prices change, and join what is the same."""
    found: list[Span] = []
    for first, last, layout in sorted(spans, key=lambda one: one[0]):
        points = sorted({first, last, *(at for at in {start_s, end_s, *cuts} if first < at < last)})
        for a, b in pairwise(points):
            if not start_s <= a < end_s:
                continue
            if found and found[-1][1] == a and found[-1][2] == layout and a not in cuts:
                a = found.pop()[0]  # noqa: PLW2901 - the span begins where the last one did
            found.append((a, b, layout))
    return found


def _winners(oracle: Oracle, uuid: str) -> list[Span]:
    """Say whose each second is: who had most of it, the earlier of equals."""
    spans = [
        (begin, oracle.now_us if until is None else until, (piece, about))
        for begin, until, piece, about in oracle.stretches[uuid]
    ]
    points = sorted({at for begin, until, _ in spans if begin < until for at in (begin, until)})
    torn: dict[int, dict[frozenset[Part], int]] = defaultdict(dict)
    found: list[Span] = []
    for a, b in pairwise(points):
        layout = frozenset(part for begin, until, part in spans if begin <= a and b <= until)
        if not layout:
            continue
        for at in sorted({a // SECOND, (b - 1) // SECOND}):
            length = min(b, (at + 1) * SECOND) - max(a, at * SECOND)
            torn[at][layout] = torn[at].get(layout, 0) + length
        if a // SECOND + 1 < (b - 1) // SECOND:
            found.append((a // SECOND + 1, (b - 1) // SECOND, layout))
    for at, parts in torn.items():
        most = max(parts.values())
        if most >= SECOND - sum(parts.values()):
            found.append((at, at + 1, next(one for one in parts if parts[one] == most)))
    return found


def _charges(
    oracle: Oracle, uuid: str, first: int, last: int, layout: frozenset[Part],
    prices: list[dict[str, Any]], pays: set[str],
) -> list[dict[str, Any]]:  # fmt: skip
    found = []
    order = sorted(layout, key=lambda part: (part[0][2], part[0][4], part[0][0], part[0][1]))
    for (what, cause, unit, milli, owner), (_, _, model) in order:
        about = oracle.amounts.get((owner, unit))
        need = about["request"]["need"] if about else {}
        names = {
            "model": model,
            "profile": about["profile"] if about else "",
            "delivery": need.get("terms", {}).get("delivery") or need.get("mode", ""),
        }
        price = max(
            (
                one for one in prices
                if one["from_s"] <= first
                and all(one.get(name) in (None, value) for name, value in names.items())
            ),
            key=lambda one: (
                one.get("profile") is not None, one.get("delivery") is not None,
                one.get("model") is not None, one["from_s"],
            ),
        )  # fmt: skip
        holder = bool(about) and f"{what} {cause}" in pays
        found.append(
            {
                "device": uuid, "unit": unit, "owner": owner, "state": what, "cause": cause,
                "start": first, "end": last, "milli": milli, "price": price,
                "payer": about["request"]["tenant"] if holder and about else "",
                "seconds": Fraction(milli * (last - first), 1000),
            }
        )  # fmt: skip
    absent = all(one["state"] == "absent" and not one["payer"] for one in found)
    return [] if absent else found


def _round(charges: list[dict[str, Any]]) -> None:
    """Give each its quantity: 1e-9 of a unit, so that the sum at one price is not changed."""
    groups = defaultdict(list)
    for one in charges:
        groups[one["price"]["id"]].append(one)
    for group in groups.values():
        size = SIZES[group[0]["price"]["unit"]]
        exact = [one["seconds"] / size * 10**9 for one in group]
        wanted = int(sum(exact) + Fraction(1, 2))
        down = [int(amount) for amount in exact]
        rest = sorted(range(len(group)), key=lambda at: (down[at] - exact[at], at))
        lucky = set(rest[: wanted - sum(down)])
        for at, one in enumerate(group):
            one["nano"] = down[at] + (at in lucky)
            one["list"] = one["nano"] * one["price"]["list"]
            one["contracted"] = one["nano"] * one["price"]["contracted"]
