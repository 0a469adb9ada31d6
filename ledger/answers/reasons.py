"""The reason for a no, as one sentence with the numbers that were compared (C21, C23)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.amounts import mib_text, per_cent
from ledger.wording import numbers_text, quantity_text
from schemas.codes import CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["reason_text"]


def reason_text(code: str, numbers: Mapping[str, object]) -> str:
    """Return the sentence; for a code or numbers without one, its meaning and the numbers."""
    words = _SENTENCES.get(code)
    if words is not None:
        try:
            return words(numbers)
        except KeyError:
            # An older record, or an interruption: it compared other numbers.
            pass
    if code not in CODES:
        return code
    compared = f" ({numbers_text(numbers)})" if numbers else ""
    return f"{CODES[code].meaning}{compared}"


def _no_capacity(numbers: Mapping[str, object]) -> str:
    if "interrupted_by" in numbers:
        return f"its lease was ended ({numbers['interrupted_by']}); it waits for devices again"
    if "needs_slices" in numbers:
        return f"needs {numbers['needs_slices']} slices, only {numbers['free_slices']} are free"
    if "needs_gpu_milli" in numbers:
        needs, most = numbers["needs_gpu_milli"], numbers["most_free_gpu_milli"]
        if isinstance(needs, int) and isinstance(most, int) and most < needs:
            told = per_cent(most, 1000)
            return f"needs {per_cent(needs, 1000)} of a device, the most free on one is {told}"
        memory = numbers["needs_memory_mib"]
        if isinstance(memory, int):
            return f"no shared device has {mib_text(memory)} of memory left"
        raise KeyError
    needs, places, free = numbers["needs_places"], numbers["places"], numbers["free_gpus"]
    each = numbers["gpus_per_place"]
    if needs == 1:
        return f"needs {each} on one node, no node has so many free ({free} free GPUs in total)"
    return f"needs {needs} places of {each}, only {places} exist ({free} free GPUs in total)"


def _no_hardware(numbers: Mapping[str, object]) -> str:
    """``no 80 GB GPU``: what was asked for, and is nowhere in the cell."""
    what = ["no"]
    memory = numbers.get("memory_mib")
    if isinstance(memory, int):
        what.append(f"{memory // 1024} GB" if memory % 1024 == 0 else mib_text(memory))
    if "models" in numbers:
        what.append(str(numbers["models"]).replace("|", " or "))
    what.append("GPU" if "profile" not in numbers else f"slice of {numbers['profile']}")
    if "pool" in numbers:
        what.append(f"in pool {numbers['pool']}")
    return " ".join(what)


def _quota(numbers: Mapping[str, object]) -> str:
    if "resource" in numbers:
        resource = str(numbers["resource"])
        asked, left = numbers["asked"], numbers["available"]
        if isinstance(asked, int) and isinstance(left, int):
            quota = f"quota {numbers['quota']}" if "quota" in numbers else "its quota"
            return (
                f"asks {quantity_text(resource, asked)}, {quota} has"
                f" {quantity_text(resource, left)} left"
            )
    asked, held, nominal = (numbers[f"{one}_milli"] for one in ("asked", "held", "nominal"))
    left = numbers.get("available_milli")
    if isinstance(asked, int) and isinstance(held, int) and isinstance(nominal, int):
        rest = nominal - held if not isinstance(left, int) else left
        return (
            f"asks {quantity_text('gpu', asked)}, {quantity_text('gpu', max(0, rest))} are left"
            f" ({quantity_text('gpu', held)} held of {quantity_text('gpu', nominal)})"
        )
    raise KeyError


def _budget(numbers: Mapping[str, object]) -> str:
    if "asked_milli_us" not in numbers:
        return _quota(numbers)
    asked, left = numbers["asked_milli_us"], numbers["available_milli_us"]
    quota = numbers["quota"]
    return _quota({"resource": "gpu_time", "asked": asked, "available": left, "quota": quota})


def _exceeds_quota(numbers: Mapping[str, object]) -> str:
    asked, most = numbers["asked_milli"], numbers["nominal_milli"]
    if isinstance(asked, int) and isinstance(most, int):
        return (
            f"asks {quantity_text('gpu', asked)}, the quota is at most {quantity_text('gpu', most)}"
        )
    raise KeyError


def _queue_limit(numbers: Mapping[str, object]) -> str:
    asked = numbers["asked_milli"]
    if isinstance(asked, int):
        most = numbers["max_gpus"]
        return f"asks {quantity_text('gpu', asked)}, the queue takes at most {most} GPUs"
    raise KeyError


def _behind(numbers: Mapping[str, object]) -> str:
    ahead = numbers["ahead"]
    return f"{ahead} earlier in its strict queue wait for the same kind of device"


def _planned(numbers: Mapping[str, object]) -> str:
    return f"what is free is planned for {numbers['planned_for']}"


def _pending(numbers: Mapping[str, object]) -> str:
    """Say it as operators do (C09)."""
    return f"partition change pending reboot on {numbers['devices']} devices"


def _template_requires(numbers: Mapping[str, object]) -> str:
    fields = str(numbers["field"])
    fields += f", {numbers['also']}" if "also" in numbers else ""
    return f"template {numbers['template']} wants the request to say itself: {fields}"


_SENTENCES: dict[str, Callable[[Mapping[str, object]], str]] = {
    "no_capacity": _no_capacity,
    "no_such_hardware": _no_hardware,
    "partition_pending": _pending,
    "quota_in_use": _quota,
    "budget_spent": _budget,
    "exceeds_quota": _exceeds_quota,
    "exceeds_queue_limit": _queue_limit,
    "behind_in_queue": _behind,
    "planned_for_another": _planned,
    "template_requires": _template_requires,
}
