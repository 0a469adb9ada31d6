"""What a pool's placement policy is told of its workload, estimated from requests received.

This runs outside `decide`: what it finds becomes a record (`PlacementApply`) and
only that record is gone by. Equal requests give equal weights.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import orjson

from ledger.bin_packing import best_fill, prices
from ledger.core.decisions.requests import need_of
from ledger.core.state import WHOLE_MILLI
from schemas.catalogue import adapter
from schemas.placement import PlacementApply, TypicalShape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.core.state import Need

__all__ = ["hole_prices", "learn", "received"]

#: Typical shapes are the commonest that make up so much of the requests (FGD has the same).
_COVER_PERCENT = 95
#: Never more than these, however many different requests there are.
_MOST_SHAPES = 256
#: A shape's worth grows with its share and its devices, each to a power below 1: rare and
#: large shapes count for more than their part. Tuned on openb.
_SHARE_POWER, _DEVICE_POWER = Decimal("0.83"), Decimal("0.8")
_PPM = 1_000_000
#: More sizes of shares than these are rounded up to such steps before they are priced.
_MOST_SIZES, _ROUND_MILLI = 40, 25

#: (devices, thousandths of each, CPU, memory, models)
_Shape = tuple[int, int, int, int, tuple[str, ...]]


def received(
    records: Iterable[Mapping[str, Any]], cell: str, pool: str, labels: Mapping[str, str]
) -> Counter[Need]:
    """Return how often each need that the pool could serve was asked for.

    ``records`` are effective records of the ledger as they are decoded, ``labels``
    the pool's. Whether a request was granted, queued or refused is all the same:
    what is asked for is what counts.
    """
    submit = adapter("request.submit", 1)
    found: Counter[Need] = Counter()
    for record in records:
        if record["kind"] == "decision" and record["cell"] == cell:
            given = record["input"]
            if given["type"] == "request.submit" and record["outcome"]["code"] != "id_conflict":
                asked = submit.validate_json(orjson.dumps(given["data"]))
                if asked.ask.mode == "auto":
                    # What came of it is in the pool's rule of that time.
                    continue
                need = need_of(asked)
                if need.pool in (None, pool) and set(need.labels) <= labels.items():
                    found[need] += 1
    return found


def learn(
    pool: str,
    received: Iterable[tuple[Need, int]],
    devices: Mapping[str, int],
    cpu_milli: int,
    *,
    author: str,
    reason: str,
) -> PlacementApply:
    """Return the record for the pool, of how often each need was asked for.

    ``devices`` is how many of each model the pool has, ``cpu_milli`` the CPU of its
    nodes, 0 when it is not known. A gang counts as a request for each of its nodes,
    MIG slices do not count. Raise ValueError when nothing is left.
    """
    asked: Counter[_Shape] = Counter()
    for need, many in received:
        if need.mode != "mig":
            milli = need.gpu_milli if need.mode == "share" else WHOLE_MILLI
            count = 1 if need.mode == "share" else need.count
            beside = (need.cpu_milli, need.host_memory_mib)
            asked[count, milli, *beside, tuple(sorted(need.models))] += many * need.nodes
    if not asked:
        raise ValueError(f"no request for whole devices or shares of pool {pool} was received")
    gpu_milli = sum(shape[0] * shape[1] * many for shape, many in asked.items())
    with_gpu = {shape: many for shape, many in asked.items() if shape[0]}
    shares: Counter[int] = Counter()
    for (_, milli, *_), many in with_gpu.items():
        if milli < WHOLE_MILLI:
            shares[milli] += many
    asked_milli = _beside(asked, 2, gpu_milli) * sum(devices.values())
    return PlacementApply(
        pool=pool,
        shapes=tuple(_typical(asked)),
        holes=tuple(hole_prices(shares)),
        cpu_milli_per_gpu=_beside(with_gpu, 2, gpu_milli),
        memory_mib_per_gpu=_beside(with_gpu, 3, gpu_milli),
        # Per device, times the devices: what is asked when all of them are.
        cpu_load_milli=asked_milli * WHOLE_MILLI // cpu_milli if cpu_milli else 0,
        loads_milli=_loads(with_gpu, devices, gpu_milli),
        author=author,
        reason=reason,
    )


def hole_prices(shares: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return what a hole is worth, as steps (from this size on, thousandths of a device).

    ``shares`` is how many requests asked for each size. A whole device is always
    worth 1000; nothing is returned when there are no shares.
    """
    if not shares:
        return []
    if len(shares) > _MOST_SIZES:
        # The program grows with the sizes; a size rounded up fits wherever it counts.
        rounded: Counter[int] = Counter()
        for milli, many in shares.items():
            rounded[-(-milli // _ROUND_MILLI) * _ROUND_MILLI] += many
        shares = rounded
    worth = best_fill(prices(shares, WHOLE_MILLI), WHOLE_MILLI)
    worth[WHOLE_MILLI] = Fraction(1)
    steps = [(0, 0)]
    for room, price in enumerate(worth):
        milli = round(price * WHOLE_MILLI)
        if milli != steps[-1][1]:
            steps.append((room, milli))
    return steps


def _typical(asked: Mapping[_Shape, int]) -> list[TypicalShape]:
    """Return the commonest shapes, most frequent first, with their shares and worths."""
    total = sum(asked.values())
    kept: list[tuple[_Shape, int]] = []
    covered = 0
    for shape, many in sorted(asked.items(), key=lambda one: (-one[1], one[0])):
        if covered * 100 >= _COVER_PERCENT * total or len(kept) == _MOST_SHAPES:
            break
        kept.append((shape, many))
        covered += many
    with localcontext(prec=28):
        powers = [(Decimal(many) / covered) ** _SHARE_POWER for _, many in kept]
        whole = sum(powers)
        found = []
        for (shape, many), power in zip(kept, powers, strict=True):
            count, milli, cpu, memory, models = shape
            devices = Decimal(count * milli) / WHOLE_MILLI
            worth = power * devices**_DEVICE_POWER / whole if count else Decimal(0)
            found.append(
                TypicalShape(
                    count=count,
                    gpu_milli=milli,
                    cpu_milli=cpu,
                    host_memory_mib=memory,
                    models=models,
                    share_ppm=many * _PPM // covered,
                    worth_ppm=round(worth * _PPM),
                )
            )
    return found


def _beside(asked: Mapping[_Shape, int], at: Literal[2, 3], gpu_milli: int) -> int:
    """Return how much of a thing beside is asked for each device, on average."""
    total = sum(shape[at] * many for shape, many in asked.items())
    return total * WHOLE_MILLI // gpu_milli if gpu_milli else 0


def _loads(
    with_gpu: Mapping[_Shape, int], devices: Mapping[str, int], gpu_milli: int
) -> dict[str, int]:
    """Return for each model what requests that name models ask of it, in thousandths.

    As if all requests together asked for all devices. One that names several models
    is spread over them by how many there are.
    """
    loads: Counter[str] = Counter()
    everything = sum(devices.values())
    for (count, milli, _, _, models), many in with_gpu.items():
        named = {model: devices[model] for model in models if devices.get(model)}
        for model in named:
            # What of the request is this model's, over how many there are, is the same for all.
            loads[model] += many * count * milli * everything * WHOLE_MILLI // sum(named.values())
    return {model: load // gpu_milli for model, load in sorted(loads.items())}
