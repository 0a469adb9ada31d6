"""Events in words: one sentence each, the same wherever a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.amounts import gpus, mib_text, seconds_text, short, time_text
from ledger.asked_words import need_text
from ledger.metering.rows import GPU_HOUR_MILLI_US

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "field_text",
    "listed",
    "numbers_text",
    "parts_text",
    "quantity_text",
    "sentence",
]


def numbers_text(numbers: Mapping[str, object]) -> str:
    """Return numbers by name, in the units that people use: ``needs 8, free 3``."""
    return ", ".join(_number_text(name, value) for name, value in numbers.items())


def _number_text(name: str, value: object) -> str:
    return " ".join(field_text(name, value))


def field_text(name: str, value: object) -> tuple[str, str]:
    """Return a field's name without its unit, and its value with it; None is ``none``."""
    for ending, words in _UNITS.items():
        if name.endswith(ending) and (value is None or isinstance(value, int)):
            short = name.removesuffix(ending if ending[0] == "_" else "_milli")
            return short.replace("_", " "), "none" if value is None else words(value)
    return name.replace("_", " "), "none" if value is None else str(value)


#: Later than any duration, in µs: what is larger is a time.
_FIRST_TIME = 500_000_000_000_000


def _us_text(value: int) -> str:
    return time_text(value) if value >= _FIRST_TIME else seconds_text(value)


_UNITS: dict[str, Callable[[int], str]] = {
    "_milli_us": lambda value: f"{short(value, GPU_HOUR_MILLI_US)} GPU-hours",
    "_us": _us_text,
    "cpu_milli": lambda value: f"{short(value, 1000)} cores",
    "_milli": lambda value: f"{gpus(value)} GPUs",
    "_mib": mib_text,
}


def quantity_text(resource: str, amount: int) -> str:
    """Return an amount of a quota's resource in the unit that people use."""
    if resource == "gpu_time":
        return _UNITS["_milli_us"](amount)
    if resource == "gpu":
        return _UNITS["_milli"](amount)
    kind, _, name = resource.partition(":")
    if kind == "model":
        return f"{short(amount, 1000)} {name}"
    return f"{amount} slices of {name}" if kind == "profile" else mib_text(amount)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Return names with commas between; of many only the first, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def parts_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return what was given on which node, shortened where it is much."""
    told = [
        f"{listed(one['units']) or 'no device'} on {one['node']}" for one in parts[:_MOST_PARTS]
    ]
    if len(parts) > _MOST_PARTS:
        told.append(f"and {len(parts) - _MOST_PARTS} more nodes")
    return "; ".join(told)


#: How many nodes of a gang are named.
_MOST_PARTS = 4


def sentence(event: Mapping[str, Any]) -> str:
    """Return the event as one sentence; a type this program does not know, as its name."""
    words = _WORDS.get(event["type"])
    return str(event["type"]) if words is None else words(event)


def _because(event: Mapping[str, Any]) -> str:
    return f": {event['reason']}" if event.get("reason") else ""


def _by(event: Mapping[str, Any]) -> str:
    return f" by {event['author']}" if event.get("author") else ""


def _received(event: Mapping[str, Any]) -> str:
    who = f"tenant {event['tenant']}, queue {event['queue']}"
    who += f", template {event['template']}" if event.get("template") else ""
    return f"request {event['request']} was let in: {need_text(event['need'])} ({who})"


def _rejected(event: Mapping[str, Any]) -> str:
    detail = numbers_text(event["numbers"])
    return f"request {event['request']} was refused: {event['code']} ({detail})"


def _queued(event: Mapping[str, Any]) -> str:
    again = " again" if event["again"] else ""
    start_us = event.get("estimate_us")
    start = "" if start_us is None else f", should start at {time_text(start_us)}"
    return (
        f"request {event['request']} waits{again}: {event['code']}"
        f" ({numbers_text(event['numbers'])}){start}"
    )


def _granted(event: Mapping[str, Any]) -> str:
    parts = parts_text(event["parts"])
    charge = quantity_text("gpu", event["charge_milli"])
    return f"lease {event['lease']} was granted: {parts} (charged {charge})"


def _stopping(event: Mapping[str, Any]) -> str:
    made_for = f" for {event['by']}" if event.get("by") else ""
    rule = f" (rule: {event['rule']})" if event.get("rule") else ""
    return f"lease {event['lease']} is to end: {event['reason']}{made_for}{_by(event)}{rule}"


def _reserved(event: Mapping[str, Any]) -> str:
    parts = parts_text(event["parts"])
    evicted = event.get("evicted", ())
    ends = f", for which {listed(evicted)} end" if evicted else ""
    return f"a place is kept for request {event['request']}: {parts}{ends}"


def _planned(event: Mapping[str, Any]) -> str:
    if not event["nodes"]:
        return f"request {event['request']} has no plan any more"
    start = event["start_us"]
    when = "as soon as they are free" if start is None else f"from {time_text(start)} at the latest"
    return f"request {event['request']} is planned on {', '.join(event['nodes'])} {when}"


def _reservation(event: Mapping[str, Any]) -> str:
    when = f"from {time_text(event['start_us'])} to {time_text(event['end_us'])}"
    what = f"{event['count']} {event['model']} on each of {listed(event['chosen'])}"
    return (
        f"reservation {event['reservation']} of {event['tenant']}: {what} {when}"
        f"{_by(event)}{_because(event)}"
    )


def _idle(event: Mapping[str, Any]) -> str:
    since = event.get("since_us")
    text = "is used again" if since is None else f"has been idle since {time_text(since)}"
    return f"lease {event['lease']} {text}"


def _reminded(event: Mapping[str, Any]) -> str:
    ends = event.get("reclaim_us")
    then = "" if ends is None else f"; it is reclaimed at {time_text(ends)} if it stays idle"
    return f"lease {event['lease']} has been idle for {seconds_text(event['idle_us'])}{then}"


def _quota_asked(event: Mapping[str, Any]) -> str:
    name = "/".join(one for one in (event["tenant"], event.get("project")) if one)
    asked = f"{quantity_text('gpu', event['nominal_gpu_milli'])} for {name}"
    return f"quota {event['ask']} was asked for: {asked}{_by(event)}{_because(event)}"


def _quota_answered(event: Mapping[str, Any]) -> str:
    word = "approved" if event["approve"] else "refused"
    return f"quota {event['ask']} was {word}{_by(event)}{_because(event)}"


def _part_ended(event: Mapping[str, Any]) -> str:
    code = event.get("exit_code")
    exited = "" if code is None else f", exit code {code}"
    return f"lease {event['lease']} ended on {event['node']}: {event['how']}{exited}"


def _lease_ended(event: Mapping[str, Any]) -> str:
    held = seconds_text(event["held_us"])
    return f"lease {event['lease']} is over: {event['reason']}, held for {held}"


def _issued(event: Mapping[str, Any]) -> str:
    units = listed(event["units"])
    if event["kind"] == "partition":
        made_for = f" for {event['request']}" if event.get("request") else ""
        steps = ", ".join(
            f"{one['do']} {one['profile']} at {one['start']}" for one in event["steps"]
        )
        return f"{event['node']} was ordered to {steps} of {units}{made_for} ({event['order']})"
    if event["kind"] == "mode":
        turn = "on" if event["enabled"] else "off"
        return f"{event['node']} was ordered to turn MIG {turn} on {units} ({event['order']})"
    about = f"{units} after lease {event['lease']}"
    if event["kind"] == "stop":
        about = f"lease {event['lease']} ({units})"
    return f"{event['node']} was ordered to {event['kind']} {about} ({event['order']})"


def _closed(event: Mapping[str, Any]) -> str:
    outcome = event["type"].removeprefix("order.").replace("-", " ")
    return f"order {event['order']}: {outcome}{_because(event)}"


def _registered(event: Mapping[str, Any]) -> str:
    boot = f"incarnation {event['incarnation']}, agent {event['agent']}"
    boot += "".join(f", {one} {event[one]}" for one in ("driver", "cuda") if event.get(one))
    return f"node {event['node']} registered in pool {event['pool']} ({boot})"


def _node(event: Mapping[str, Any]) -> str:
    return f"node {event['node']} is {event['state']}{_by(event)}{_because(event)}"


def _discovered(event: Mapping[str, Any]) -> str:
    mig = ", MIG mode" if event["mig_enabled"] else ""
    what = f"{event['model']}, {event['memory_mib']} MiB{mig}"
    return f"device {event['device']} was seen on {event['node']}: {what}"


def _quarantined(event: Mapping[str, Any]) -> str:
    kind = event["type"].partition(".")[0]
    return f"{kind} {event['unit']} was put in quarantine{_because(event)}"


def _slice_ordered(event: Mapping[str, Any]) -> str:
    what = f"{event['profile']} at {event['start']} of {event['device']}"
    return f"slice {event['slice']} is to be created: {what} ({event['order']})"


def _present(event: Mapping[str, Any]) -> str:
    what = f"{event['profile']} at {event['start']} of {event['device']}"
    return f"slice {event['slice']} is present: {what} ({event['mig_uuid']})"


def _reopened(event: Mapping[str, Any]) -> str:
    what = f"after {event['failures']} failed changes ({numbers_text(event['evidence'])})"
    return f"device {event['device']} may be partitioned again {what}"


def _alarm(event: Mapping[str, Any]) -> str:
    return f"alarm {event['code']} about {event['about']} ({numbers_text(event['numbers'])})"


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "pool.applied": lambda event: f"pool {event['pool']} was set{_by(event)}{_because(event)}",
    "placement.applied": lambda event: (
        f"pool {event['pool']} is told of {len(event['shapes'])} shapes of requests"
        f"{_by(event)}{_because(event)}"
    ),
    "queue.applied": lambda event: (
        f"queue {event['queue']} was set to {event['ordering']}{_by(event)}{_because(event)}"
    ),
    "quota.applied": lambda event: (
        f"tenant {event['tenant']} may hold {quantity_text('gpu', event['nominal_gpu_milli'])}"
        f"{_by(event)}{_because(event)}"
    ),
    "compatibility.applied": lambda event: (
        f"what {event['model_version']} runs on was set{_by(event)}{_because(event)}"
    ),
    "link.measured": lambda event: (
        f"the link from {event['from_node']} to {event['to_node']} was measured:"
        f" P99 {event['p99_us']} us, {event['bandwidth_mbps']} Mbit/s"
    ),
    "licence.applied": lambda event: (
        f"licence {event['licence']} may be used {event['count']} times at once"
        f"{_by(event)}{_because(event)}"
    ),
    "prices.applied": lambda event: (
        f"price book {event['book']} has {len(event['prices'])} prices{_by(event)}{_because(event)}"
    ),
    "template.applied": lambda event: (
        f"template {event['template']} of {event['task_type']} was set{_by(event)}{_because(event)}"
    ),
    "node.registered": _registered,
    "node.changed": _node,
    "node.unsettled": lambda event: (
        f"node {event['node']} has more to end than one record takes: the next goes on"
        f" ({event['reason']})"
    ),
    "node.settled": lambda event: f"node {event['node']} has nothing left of what was there before",
    "device.discovered": _discovered,
    "device.health": lambda event: (
        f"device {event['device']} is {event['health']}{_because(event)}"
    ),
    "device.fault": lambda event: (
        f"device {event['device']}: {event['code']}{_because(event)} (ends: {event['ends']})"
    ),
    "device.quarantined": _quarantined,
    "slice.quarantined": _quarantined,
    "device.reopened": _reopened,
    "device.cleared": lambda event: (
        f"device {event['device']} was cleared{_by(event)}{_because(event)}"
    ),
    "slice.ordered": _slice_ordered,
    "slice.present": _present,
    "slice.gone": lambda event: f"slice {event['slice']} is gone{_because(event)}",
    "request.received": _received,
    "request.rejected": _rejected,
    "request.queued": _queued,
    "request.ended": lambda event: f"request {event['request']} has ended: {event['how']}",
    "lease.granted": _granted,
    "lease.started": lambda event: f"lease {event['lease']} runs on {event['node']}",
    "request.reserved": _reserved,
    "request.unreserved": lambda event: (
        f"the place of request {event['request']} cannot be kept{_because(event)}"
    ),
    "request.rested": lambda event: f"request {event['request']} may have others evicted again",
    "request.planned": _planned,
    "request.repairing": lambda event: (
        f"the place of request {event['request']} is kept through repair until"
        f" {time_text(event['until_us'])}: {parts_text(event['parts'])}"
    ),
    "request.repair-over": lambda event: (
        f"the place of request {event['request']} is no longer kept through repair"
    ),
    "reservation.applied": _reservation,
    "reservation.moved": lambda event: (
        f"reservation {event['reservation']} is on {listed(event['chosen'])}{_because(event)}"
    ),
    "reservation.opened": lambda event: f"reservation {event['reservation']} has begun",
    "reservation.cancelled": lambda event: (
        f"reservation {event['reservation']} was given up{_by(event)}{_because(event)}"
    ),
    "reservation.ended": lambda event: f"reservation {event['reservation']}: {event['how']}",
    "quota.asked": _quota_asked,
    "quota.answered": _quota_answered,
    "quota.renewed": lambda event: f"quota {event['quota']} has a new period's GPU-hours",
    "task.begun": lambda event: (
        f"the command of lease {event['lease']} was started on {event['node']},"
        f" {seconds_text(event['after_us'])} after its grant was heard"
        f" (its own clock: {time_text(event['said_us'])})"
    ),
    "lease.extended": lambda event: (
        f"lease {event['lease']} may run until {time_text(event['due_us'])}"
    ),
    "lease.idle": _idle,
    "lease.reminded": _reminded,
    "lease.stopping": _stopping,
    "part.ended": _part_ended,
    "lease.ended": _lease_ended,
    "order.issued": _issued,
    "order.done": _closed,
    "order.failed": _closed,
    "order.timed-out": _closed,
    "order.superseded": _closed,
    "pass.cut": lambda _event: "more was given than one record holds; the next goes on",
    "pass.done": lambda _event: "everything that waits has been looked at",
    "alarm.raised": _alarm,
}
