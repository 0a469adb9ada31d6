"""Whether a device may be used now, from what is seen of it and what it was before. Pure.

A device is out of use for the first of `_CAUSES` that holds. Well again, it is back at once,
unless it has fallen sick so often that it has to stay well for a while first: twice as long
each time more. All times are of a clock that never goes back, in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from collectors.health.xids import Ends, action_of, effect_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectors.nvml.readings import Signs

__all__ = ["Fault", "Limits", "Memory", "Seen", "Struck", "Verdict", "judge"]

_US = 1_000_000
_HOUR_US = 3_600 * _US

#: NVML's bits of clocks that are low because the board is too hot, by its own doing.
_HOT_REASONS = 0x40

Health = Literal["healthy", "unhealthy", "unknown", "gone"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a device is out of use, and for how long.

    ``hot_us`` is how long it is too hot before it is out of use, and ``cool_us`` how long it
    is ``cool_by_c`` below that before it is back. With ``falls`` within ``window_us`` it is
    held back for ``hold_us``, doubled with each more, ``longest_us`` at most.
    ``corrected`` ECC errors within an hour are noted.
    """

    hot_us: int = 30 * _US
    cool_us: int = 60 * _US
    cool_by_c: int = 5
    corrected: int = 1_000
    falls: int = 3
    window_us: int = _HOUR_US
    hold_us: int = 60 * _US
    longest_us: int = _HOUR_US


@dataclass(frozen=True, slots=True)
class Struck:
    """An XID of the device; ``source`` is ``nvml`` or ``kernel-log``."""

    xid: int
    gi: int | None = None
    ci: int | None = None
    source: str = "nvml"
    pid: int | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a device now.

    ``health`` and ``reason`` are of its whole reading (`nvml.report.health_of`); one that is
    gone is ``gone``. ``signs`` are None where it was not asked, or did not answer.
    """

    health: Health
    reason: str = ""
    signs: Signs | None = None
    struck: tuple[Struck, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of a device.

    ``need`` is why it needs a reset, where the driver gives no verdict of its own, with how
    many uncorrected errors there were then. ``bad`` is why it is out of use, since when;
    ``fell_us`` when it fell sick lately, and ``well_us`` since when it is well again, after
    how many falls (``falls``).
    """

    action: int = 0
    need: str = ""
    need_text: str = ""
    need_errors: int = 0
    uncorrected: int | None = None
    corrected: tuple[int, int] | None = None
    hot: bool = False
    hot_us: int | None = None
    cool_us: int | None = None
    bad: str = ""
    bad_us: int = 0
    fell_us: tuple[int, ...] = ()
    well_us: int | None = None
    falls: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that went wrong, in the words of `schemas.observations.FaultReport`."""

    code: str
    reason: str
    ends: Ends = "none"
    xid: int | None = None
    gi: int | None = None
    ci: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the device may be used, why, and what went wrong since the last time."""

    health: Health
    code: str = ""
    reason: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def judge(memory: Memory, seen: Seen, now_us: int, limits: Limits) -> tuple[Memory, Verdict]:
    """Judge a device; return what is to be remembered of it, and the verdict."""
    signs = seen.signs
    memory = _reset_seen(memory, seen)
    memory, faults = _strikes(memory, seen)
    if signs is not None:
        memory, more = _driver_says(memory, signs, struck=bool(faults))
        memory, counted = _count_errors(memory, signs, now_us, limits, struck=bool(seen.struck))
        memory = _feel(memory, signs, now_us, limits)
        faults += more + counted
    told = any(one.ends == "device" for one in faults)
    if seen.health == "gone" and memory.bad != "gone" and not told:
        faults.append(Fault("gpu-lost", seen.reason, "device"))
    causes = ((code, text) for code, is_so, text in _CAUSES if is_so(memory, seen))
    found = next(((code, text(memory, seen)) for code, text in causes), None)
    return _settle(memory, seen, found, tuple(faults), now_us, limits)


# -- what went wrong -----------------------------------------------------------------


def _strikes(memory: Memory, seen: Seen) -> tuple[Memory, list[Fault]]:
    """Say what each XID ends, and remember what the device needs by it."""
    action = None if seen.signs is None else seen.signs.recovery_action
    faults = []
    for one in seen.struck:
        effect = effect_of(one.xid, action)
        where = {"GPU instance": one.gi, "compute instance": one.ci}
        place = ", ".join(f"{name} {at}" for name, at in where.items() if at is not None)
        text = f"XID {one.xid}: {effect.text}" + (f" in {place}" if place else "")
        evidence: dict[str, Any] = {"source": one.source, "recovery_action": action}
        evidence |= {} if one.pid is None else {"pid": one.pid}
        evidence |= {} if one.times == 1 else {"times": one.times}
        # What was seen nowhere in particular has the whole device for its scope.
        faults.append(Fault(f"xid-{one.xid}", text, effect.ends, one.xid, one.gi, one.ci, evidence))
        if effect.need:
            errors = memory.uncorrected or 0
            memory = replace(memory, need=f"xid-{one.xid}", need_text=text, need_errors=errors)
    return memory, faults


def _driver_says(memory: Memory, signs: Signs, *, struck: bool) -> tuple[Memory, list[Fault]]:
    """Follow the driver's verdict: a new one is a fault, unless an XID has told its effect."""
    action = signs.recovery_action
    if action is None:
        return memory, []
    # A driver with a verdict of its own says itself what the device needs.
    before, memory = memory.action, replace(memory, action=action, need="", need_text="")
    if action in (0, before) or struck:
        return memory, []
    text, ends = _verdict_text(action), action_of(action).work
    fault = Fault(f"recovery-action-{action}", text, ends, evidence={"before": before})
    return memory, [fault]


def _verdict_text(action: int) -> str:
    return f"the driver asks to {action_of(action).text}"


def _reset_seen(memory: Memory, seen: Seen) -> Memory:
    """Forget what a device needed that was reset: its counters begin anew, or it was away."""
    errors = None if seen.signs is None else seen.signs.uncorrected
    anew = errors is not None and memory.need_errors > errors
    back = memory.bad == "gone" and seen.health not in ("gone", "unknown")
    return replace(memory, need="", need_text="", need_errors=0) if anew or back else memory


def _count_errors(
    memory: Memory, signs: Signs, now_us: int, limits: Limits, *, struck: bool
) -> tuple[Memory, list[Fault]]:
    """Note errors that no XID has told of; without the driver's verdict they need a reset."""
    faults = []
    was, now = memory.uncorrected, signs.uncorrected
    if now is not None:
        more = now - (was or 0)
        if more > 0 and not struck:
            text = f"{more} uncorrected ECC errors" + (
                " since the driver was loaded" if was is None else ""
            )
            faults.append(Fault("ecc-uncorrected", text, evidence={"was": was, "now": now}))
            if was is not None and signs.recovery_action is None:
                memory = replace(memory, need="ecc-uncorrected", need_text=text, need_errors=now)
        errors = max(memory.need_errors, now) if memory.need else 0
        memory = replace(memory, uncorrected=now, need_errors=errors)
    if signs.corrected is not None:
        count, since_us = memory.corrected or (signs.corrected, now_us)
        if now_us - since_us >= _HOUR_US or signs.corrected < count:
            count, since_us = signs.corrected, now_us
        more = signs.corrected - count
        if more >= limits.corrected:
            text = f"{more} corrected ECC errors within an hour"
            faults.append(Fault("ecc-corrected", text, evidence={"was": count}))
            count, since_us = signs.corrected, now_us
        memory = replace(memory, corrected=(count, since_us))
    return memory, faults


def _feel(memory: Memory, signs: Signs, now_us: int, limits: Limits) -> Memory:
    """Follow the heat: too hot for a while, and cool again for a while."""
    limit_c, now_c = signs.slowdown_c, signs.temperature_c
    slowed = bool((signs.clock_reasons or 0) & _HOT_REASONS)
    known = limit_c is not None and now_c is not None
    above = known and (now_c or 0) >= (limit_c or 0)
    below = not slowed and (not known or (now_c or 0) <= (limit_c or 0) - limits.cool_by_c)
    hot_us = (memory.hot_us if memory.hot_us is not None else now_us) if above or slowed else None
    cool_us = (memory.cool_us if memory.cool_us is not None else now_us) if below else None
    hot = memory.hot
    if hot_us is not None and now_us - hot_us >= limits.hot_us:
        hot = True
    elif cool_us is not None and now_us - cool_us >= limits.cool_us:
        hot = False
    return replace(memory, hot=hot, hot_us=hot_us, cool_us=cool_us)


# -- what is wrong --------------------------------------------------------------------


def _sign(seen: Seen, name: str) -> Any:  # noqa: ANN401 - a field of the signs
    return None if seen.signs is None else getattr(seen.signs, name)


#: Code, whether it is so, and in words; the first that is so is why a device is out of use.
_CAUSES: tuple[tuple[str, Callable[[Memory, Seen], bool], Callable[[Memory, Seen], str]], ...] = (
    ("gone", lambda _, seen: seen.health == "gone", lambda _, seen: seen.reason),
    (
        "recovery-action",
        lambda _, seen: bool(_sign(seen, "recovery_action")),
        lambda memory, _: _verdict_text(memory.action),
    ),
    ("needs-reset", lambda memory, _: bool(memory.need), lambda memory, _: memory.need_text),
    (
        "row-failed",
        lambda _, seen: bool(_sign(seen, "rows_failed")),
        lambda _, __: "a row of memory could not be remapped",
    ),
    (
        "row-pending",
        lambda _, seen: bool(_sign(seen, "rows_pending")),
        lambda _, __: "a row of memory is remapped at the next reset",
    ),
    (
        "hot",
        lambda memory, _: memory.hot,
        lambda _, seen: f"too hot: {_sign(seen, 'temperature_c')} degrees Celsius",
    ),
    ("unhealthy", lambda _, seen: seen.health == "unhealthy", lambda _, seen: seen.reason),
    ("unreadable", lambda _, seen: seen.health == "unknown", lambda _, seen: seen.reason),
)

_HEALTH: dict[str, Health] = {"gone": "gone", "unreadable": "unknown"}


def _settle(
    memory: Memory,
    seen: Seen,
    found: tuple[str, str] | None,
    faults: tuple[Fault, ...],
    now_us: int,
    limits: Limits,
) -> tuple[Memory, Verdict]:
    """Follow the falls and recoveries, and hold back what falls too often."""
    fell = tuple(at for at in memory.fell_us if now_us - at < limits.window_us)
    if found is not None:
        code, reason = found
        fallen = memory.bad in ("", "unreadable") or memory.well_us is not None
        # What cannot be read is not sick for that: it may be the one who reads.
        fell += (now_us,) if fallen and code != "unreadable" else ()
        bad_us = memory.bad_us if memory.bad else now_us
        memory = replace(memory, bad=code, bad_us=bad_us, fell_us=fell, well_us=None)
        evidence = _evidence(memory, seen)
        return memory, Verdict(_HEALTH.get(code, "unhealthy"), code, reason, evidence, faults)
    if not memory.bad:
        return replace(memory, fell_us=fell), Verdict("healthy", faults=faults)
    if memory.well_us is None:
        # How long it is held back is settled now: falls that are forgotten make it no shorter.
        memory = replace(memory, well_us=now_us, falls=len(fell))
    memory = replace(memory, fell_us=fell)
    hold_us = _hold_us(memory.falls, limits)
    if now_us - (memory.well_us or 0) < hold_us:
        held = f"well again, held back for {hold_us // _US} s after {memory.falls} faults"
        return memory, Verdict("unhealthy", "held-back", held, {"was": memory.bad}, faults)
    evidence = {
        "was": memory.bad,
        "after_s": (now_us - memory.bad_us) // _US,
        "held_back_s": hold_us // _US,
        "faults": memory.falls,
    }
    memory = replace(memory, bad="", bad_us=0, well_us=None, falls=0)
    return memory, Verdict("healthy", "", "healthy again", evidence, faults)


def _hold_us(falls: int, limits: Limits) -> int:
    """Return how long a device that fell so often has to be well before it is used."""
    if falls < limits.falls:
        return 0
    # More doublings than bits of a day make no difference.
    return min(limits.hold_us << min(falls - limits.falls, 40), limits.longest_us)


def _evidence(memory: Memory, seen: Seen) -> dict[str, Any]:
    """Return the numbers that are known of a device out of use; what is unknown is left out."""
    names = ("recovery_action", "temperature_c", "slowdown_c", "corrected", "uncorrected")
    numbers = {name: _sign(seen, name) for name in names}
    known = {name: value for name, value in numbers.items() if value is not None}
    return known | ({"cause": memory.need} if memory.need else {})
