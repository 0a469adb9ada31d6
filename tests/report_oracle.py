"""The answers to the ready questions, worked out in plain Python from the records alone.

No SQL and no code of the ledger: what a lease, a wait or a quota is follows here from the
events by dictionaries and loops.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

from ledger.metering.rows import OUTCOMES
from schemas.codes import CODES
from tests.audit_support import effective, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Oracle"]

Row = tuple[Any, ...]
Key = tuple[str, str]
FOREVER = 10**17


@dataclass
class Event:
    """One event with its place."""

    partition: int
    offset: int
    time_us: int
    cell: str
    record: dict[str, Any]
    data: dict[str, Any]

    @property
    def type(self) -> str:
        """Type of the event."""
        return str(self.data["type"])

    @property
    def place(self) -> str:
        """Where its record stands."""
        return f"events/{self.partition}@{self.offset}"


@dataclass
class Lease:
    """One lease, as its events tell."""

    grant: Event
    ends: Event | None = None
    stops: list[Event] = field(default_factory=list)
    dues: list[int] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.grant.data["lease"])

    @property
    def start(self) -> int:
        """From when."""
        return self.grant.time_us

    def end(self, last_us: int = FOREVER) -> int:
        """Until before when; ``last_us`` if it lasts."""
        return last_us if self.ends is None else self.ends.time_us

    @property
    def ended(self) -> str | None:
        """When it ended, as text."""
        return None if self.ends is None else time_text(self.ends.time_us)

    @property
    def due(self) -> int | None:
        """When it ends at the latest."""
        return self.dues[-1] if self.dues else self.grant.data.get("due_us")

    @property
    def charge(self) -> int:
        """Thousandths of a GPU."""
        return int(self.grant.data["charge_milli"])

    def lasts(self, at_us: int) -> bool:
        """Say whether it lasts at an instant."""
        return self.start <= at_us < self.end()


def overlap(start: int, end: int, first: int | None, last: int | None) -> int:
    """Return how much of a span lies in a window."""
    return max(min(end, FOREVER if last is None else last) - max(start, first or 0), 0)


def gpu_seconds(milli_us: int) -> str:
    """Return it as an answer has it."""
    return f"{milli_us // 10**9}.{milli_us % 10**9:09d}"


def within(time_us: int, first: int | None, last: int | None) -> bool:
    """Say whether an instant is in a half-open window."""
    return (first is None or time_us >= first) and (last is None or time_us < last)


class Oracle:
    """The facts of a ledger of some partitions."""

    def __init__(self, *partitions: Sequence[bytes]) -> None:
        self.partitions = partitions
        self.decisions: list[Event] = []
        self.events: list[Event] = []
        self.last: dict[int, int] = {}
        for number, values in enumerate(partitions):
            for offset, record in effective(values):
                place = (number, offset, record["time_us"], record["cell"], record)
                self.decisions.append(Event(*place, {}))
                self.events += [Event(*place, one) for one in record["events"]]
                self.last[number] = max(self.last.get(number, 0), record["time_us"])
        self.requests: dict[Key, Event] = {}
        self.leases: dict[Key, Lease] = {}
        self.slices: dict[Key, str] = {}
        self.quotas: dict[Key, list[dict[str, Any]]] = defaultdict(list)
        self._gather()

    def _gather(self) -> None:
        asks = {}
        for one in self.events:
            data, cell = one.data, one.cell
            lease = self.leases.get((cell, str(data.get("lease"))))
            match one.type:
                case "request.received":
                    self.requests[cell, data["request"]] = one
                case "lease.granted":
                    self.leases[cell, data["lease"]] = Lease(one)
                case "lease.ended" if lease is not None:
                    lease.ends = one
                case "lease.stopping" if lease is not None:
                    lease.stops.append(one)
                case "lease.extended" if lease is not None:
                    lease.dues.append(data["due_us"])
                case "slice.ordered" | "slice.present":
                    self.slices[cell, data["slice"]] = data["device"]
                case "quota.asked":
                    asks[cell, data["ask"]] = data
                case "quota.applied":
                    self._quota(one, data, data, None)
                case "quota.answered" if data["approve"]:
                    self._quota(one, asks[cell, data["ask"]], None, data["author"])

    def _quota(
        self, one: Event, data: dict[str, Any], base: dict[str, Any] | None, approver: str | None
    ) -> None:
        name = "/".join(filter(None, (data["tenant"], data.get("project"))))
        known = self.quotas[one.cell, name]
        known.append({
            "event": one, "name": name, "nominal": data["nominal_gpu_milli"],
            "base": known[-1]["base"] if base is None else base,
            "author": data["author"], "reason": data["reason"], "approver": approver,
        })  # fmt: skip

    # -- small facts -----------------------------------------------------------

    def request_of(self, lease: Lease) -> dict[str, Any]:
        """Return what the lease's request said."""
        return self.requests[lease.grant.cell, lease.grant.data["request"]].data

    def who(self, request: str) -> str:
        """Return the source of a request."""
        return request.partition("#")[0]

    def quota_name(self, lease: Lease) -> str:
        """Return the quota that the lease counts against."""
        asked = self.request_of(lease)
        name = f"{asked['tenant']}/{asked.get('project')}"
        versions = self.quotas.get((lease.grant.cell, name), [])
        found = any(one["event"].time_us <= lease.start for one in versions)
        return name if asked.get("project") and found else str(asked["tenant"])

    def quota_at(self, cell: str, name: str, at_us: int) -> dict[str, Any] | None:
        """Return the version in force at an instant."""
        versions = self.quotas.get((cell, name), [])
        return next((one for one in reversed(versions) if one["event"].time_us <= at_us), None)

    def units(self, lease: Lease) -> Iterator[tuple[str, str, str, int]]:
        """Yield (unit, device, node, thousandths) of a lease."""
        parts = lease.grant.data["parts"]
        count = sum(len(part["units"]) for part in parts)
        each, more = divmod(lease.charge, count) if count else (0, 0)
        at = 0
        for part in parts:
            for unit in part["units"]:
                device = self.slices.get((lease.grant.cell, unit), unit)
                yield unit, device, part["node"], each + (at < more)
                at += 1

    def cleaned(self, lease: Lease, unit: str) -> int | None:
        """Return when the unit was proved clean after the lease."""
        orders = {
            one.data["order"]
            for one in self.events
            if one.type == "order.issued" and one.data["kind"] == "clean"
            and one.cell == lease.grant.cell and one.data.get("lease") == lease.id
            and unit in one.data["units"]
        }  # fmt: skip
        done = [
            one.time_us
            for one in self.events
            if one.type == "order.done" and one.cell == lease.grant.cell
            and one.data["order"] in orders
        ]  # fmt: skip
        return min(done, default=None)

    def mode(self, lease: Lease) -> str:
        """Return how the devices are given."""
        return str(self.request_of(lease)["need"]["mode"])

    def steps(self, *types: str) -> dict[Key, list[Event]]:
        """Return events of these types by request, in order."""
        found: dict[Key, list[Event]] = defaultdict(list)
        for one in self.events:
            if one.type in types:
                found[one.cell, one.data["request"]].append(one)
        return found

    # -- holding ---------------------------------------------------------------

    def who_held(self, at: int) -> list[Row]:
        """Who held what at an instant."""
        rows = []
        for (cell, name), lease in self.leases.items():
            if not lease.lasts(at):
                continue
            asked, quota = self.request_of(lease), self.quota_name(lease)
            version = self.quota_at(cell, quota, at)
            about = (None, None) if version is None else (version["nominal"], version["author"])
            rows += [
                (unit, device, node, asked["tenant"], name, self.who(name), quota, *about,
                 time_text(lease.start), lease.grant.place)
                for unit, device, node, _ in self.units(lease)
            ]  # fmt: skip
        return rows

    def device_history(self, device: str) -> list[Row]:
        """All leases of a device."""
        return [
            (unit, name, self.request_of(lease)["tenant"], self.who(name), milli,
             time_text(lease.start), lease.ended,
             None if lease.ends is None else lease.ends.data["reason"],
             time_text(self.cleaned(lease, unit)))
            for (_, name), lease in self.leases.items()
            for unit, of, _, milli in self.units(lease)
            if device in (unit, of)
        ]  # fmt: skip

    def lease_life(self, lease: str) -> list[Row]:
        """All events of a lease, its request and its orders."""
        request = lease.rpartition("/")[0]
        orders = {
            (one.cell, one.data["order"])
            for one in self.events
            if one.type == "order.issued" and one.data.get("lease") == lease
        }
        return [
            (one.place, time_text(one.time_us), one.type, one.record["input"]["source"],
             one.record["input"]["type"], orjson.dumps(one.data).decode())
            for one in self.events
            if one.data.get("lease") == lease
            or (one.data.get("lease") is None and one.data.get("request") == request)
            or (one.cell, one.data.get("order")) in orders
        ]  # fmt: skip

    def neighbours(self, lease: str) -> list[Row]:
        """Other leases on the same cards."""
        (cell, mine), *_ = [(key[0], one) for key, one in self.leases.items() if key[1] == lease]
        last = self.last[mine.grant.partition]
        rows = []
        for (other_cell, name), other in self.leases.items():
            cards = {of for _, of, _, _ in self.units(mine)} & {
                of for _, of, _, _ in self.units(other)
            }
            if other_cell != cell or name == lease:
                continue
            if other.start < mine.end() and mine.start < other.end():
                together = overlap(other.start, other.end(last), mine.start, mine.end(last))
                asked = self.request_of(other)
                rows += [(card, name, asked["tenant"], self.who(name), self.mode(other), together)
                         for card in cards]  # fmt: skip
        return rows

    def held_and_idle(self, first: int | None, last: int | None) -> list[Row]:
        """Stretches in which a lease's task used nothing."""
        told: dict[Key, list[Event]] = defaultdict(list)
        for one in self.events:
            if one.type in ("lease.idle", "lease.ended"):
                told[one.cell, one.data["lease"]].append(one)
        rows = []
        for key, steps in told.items():
            lease = self.leases[key]
            asked = self.request_of(lease)
            for one, after in [*pairwise(steps), (steps[-1], None)]:
                since = one.data.get("since_us")
                if one.type != "lease.idle" or since is None:
                    continue
                until = self.last[one.partition] if after is None else after.time_us
                length = overlap(since, until, first, last)
                then = None
                if after is not None:
                    then = "busy" if after.type == "lease.idle" else after.data["reason"]
                if length:
                    rows.append((asked["tenant"], lease.id, asked["queue"], time_text(since),
                                 None if after is None else time_text(until), then, length,
                                 gpu_seconds(length * lease.charge)))  # fmt: skip
        return rows

    def overdue(self) -> list[Row]:
        """Leases that lasted longer than they were given."""
        rows = []
        for lease in self.leases.values():
            end = lease.end(self.last[lease.grant.partition])
            if lease.due is not None and end > lease.due:
                rows.append((
                    self.request_of(lease)["tenant"], lease.id, time_text(lease.due),
                    time_text(lease.stops[0].time_us) if lease.stops else None, lease.ended,
                    end - lease.due, None if lease.ends is None else lease.ends.data["reason"],
                ))  # fmt: skip
        return rows

    def held_twice(self) -> list[Row]:
        """Units of which more was held than there is."""
        held: dict[Key, list[tuple[Lease, int]]] = defaultdict(list)
        for (cell, _), lease in self.leases.items():
            for unit, device, _, milli in self.units(lease):
                held[cell, unit].append((lease, milli if unit == device else 1000))
        rows = []
        for (_, unit), pairs in held.items():
            ends = {one.ends.time_us for one, _ in pairs if one.ends is not None}
            moments = sorted({one.start for one, _ in pairs} | ends)
            for since, until in [*pairwise(moments), (moments[-1], None)]:
                now = [(one, milli) for one, milli in pairs if one.lasts(since)]
                if sum(milli for _, milli in now) > 1000:
                    rows.append((unit, time_text(since), time_text(until),
                                 sum(milli for _, milli in now),
                                 sorted({one.id for one, _ in now})))  # fmt: skip
        return rows

    def not_clean(self) -> list[Row]:
        """Units that were leased again before they were proved clean."""
        held: dict[Key, list[tuple[Lease, str]]] = defaultdict(list)
        for (cell, _), lease in self.leases.items():
            for unit, device, _, _ in self.units(lease):
                held[cell, unit].append((lease, device))
        words = [one for one in self.events if one.type == "device.cleared"]
        rows = []
        for (cell, unit), pairs in held.items():
            for before, device in pairs:
                if before.ends is None:
                    continue
                clean = self.cleaned(before, unit)
                for after, _ in pairs:
                    if after is before or after.start < before.end():
                        continue
                    if clean is not None and clean <= after.start:
                        continue
                    word = any(
                        one.cell == cell and one.data["device"] == device
                        and before.end() <= one.time_us <= after.start
                        for one in words
                    )  # fmt: skip
                    if word or {self.mode(before), self.mode(after)} == {"share"}:
                        continue
                    rows.append((unit, before.id, before.ended, time_text(clean), after.id,
                                 time_text(after.start), after.grant.place))  # fmt: skip
        return rows

    # -- quota -----------------------------------------------------------------

    def over_quota(self, first: int | None, last: int | None) -> list[Row]:
        """Stretches in which more was held than is nominally its own."""
        under: dict[Key, list[Lease]] = defaultdict(list)
        for (cell, _), lease in self.leases.items():
            tenant = self.request_of(lease)["tenant"]
            for name in {tenant, self.quota_name(lease)}:
                under[cell, name].append(lease)
        rows = []
        for (cell, name), leases in under.items():
            moments = {one.start for one in leases}
            moments |= {one.ends.time_us for one in leases if one.ends is not None}
            moments |= {one["event"].time_us for one in self.quotas.get((cell, name), [])}
            ordered = sorted(moments)
            for since, until in [*pairwise(ordered), (ordered[-1], None)]:
                held = sum(one.charge for one in leases if one.lasts(since))
                version = self.quota_at(cell, name, since)
                nominal = None if version is None else version["nominal"]
                over = held - (nominal or 0)
                in_time = (first is None or until is None or until > first) and (
                    last is None or since < last
                )
                if over > 0 and in_time:
                    rows.append((name, time_text(since), time_text(until), held, nominal, over))
        return rows

    def quota_history(self) -> list[Row]:
        """Every version of every quota."""
        rows = []
        for (_, name), versions in self.quotas.items():
            for one, after in [*pairwise(versions), (versions[-1], None)]:
                base = one["base"]
                parent = base.get("parent")
                if base.get("project") is not None:
                    parent = base["tenant"]
                rows.append((
                    name, time_text(one["event"].time_us),
                    None if after is None else time_text(after["event"].time_us), one["nominal"],
                    base.get("borrowing_gpu_milli"), base.get("lending_gpu_milli"), parent,
                    one["author"], one["approver"], one["reason"], one["event"].place,
                ))  # fmt: skip
        return rows

    def quota_raises(self) -> list[Row]:
        """Quotas that are larger than before."""
        rows = []
        for (_, name), versions in self.quotas.items():
            for before, one in pairwise([None, *versions]):
                assert one is not None
                old = None if before is None else before["nominal"]
                if old is None or one["nominal"] > old:
                    second = one["approver"] is not None and one["approver"] != one["author"]
                    rows.append((time_text(one["event"].time_us), name, old, one["nominal"],
                                 one["author"], one["approver"], second, one["reason"],
                                 one["event"].place))  # fmt: skip
        return rows

    def gpu_time(self, first: int | None, last: int | None) -> list[Row]:
        """GPU time by tenant and project."""
        amounts: Counter[tuple[str, str | None]] = Counter()
        counts: Counter[tuple[str, str | None]] = Counter()
        for lease in self.leases.values():
            asked = self.request_of(lease)
            known = self.last[lease.grant.partition]
            amount = lease.charge * overlap(lease.start, lease.end(known), first, last)
            if amount:
                amounts[asked["tenant"], asked.get("project")] += amount
                counts[asked["tenant"], asked.get("project")] += 1
        return [(*key, counts[key], gpu_seconds(amount)) for key, amount in amounts.items()]

    def ordered_by(self) -> list[Row]:
        """What each source has asked for and had."""
        found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for one in self.events:
            if one.type not in ("request.received", "request.rejected"):
                continue
            line = found[self.who(one.data["request"]), one.data["tenant"]]
            line[0] += 1
            line[1] += one.type == "request.rejected"
        for lease in self.leases.values():
            line = found[self.who(lease.id), self.request_of(lease)["tenant"]]
            line[2] += 1
            line[3] += lease.charge * (lease.end(self.last[lease.grant.partition]) - lease.start)
        return [(*key, *line[:3], gpu_seconds(line[3])) for key, line in found.items()]

    # -- endings ---------------------------------------------------------------

    def preemptions(self) -> list[Row]:
        """Who was told to stop for whom."""
        rows = []
        for one in self.events:
            if one.type != "lease.stopping" or one.data["reason"] != "preempted":
                continue
            lease = self.leases[one.cell, one.data["lease"]]
            by = one.data.get("by")
            other = self.requests[one.cell, by].data if by else {"tenant": None, "priority": None}
            rows.append((time_text(one.time_us), other["tenant"], by, other.get("priority", 0),
                         self.request_of(lease)["tenant"], lease.id,
                         self.request_of(lease).get("priority", 0), one.data.get("rule"),
                         lease.ended, one.place))  # fmt: skip
        return rows

    def failures(self) -> list[tuple[Event, str, str, str | None, str | None]]:
        """Return (event, kind, about, node, why) of what broke."""
        found = []
        boots: dict[Key, str] = {}
        for one in self.events:
            data = one.data
            match one.type:
                case "node.changed" if data["state"] in ("silent", "lost"):
                    found.append((one, f"node {data['state']}", data["node"], data["node"],
                                  data["reason"]))  # fmt: skip
                case "node.registered":
                    node, new = data["node"], data["incarnation"]
                    old = boots.get((one.cell, node), new)
                    if old != new:
                        found.append((one, "node restarted", node, node,
                                      f"incarnation {new} after {old}"))  # fmt: skip
                    boots[one.cell, node] = new
                case "device.health" if data["health"] in ("unhealthy", "gone"):
                    found.append((one, f"device {data['health']}", data["device"],
                                  self._where(one, data["device"]), data["reason"]))  # fmt: skip
                case "device.fault":
                    found.append((one, "device fault", data["device"],
                                  self._where(one, data["device"]),
                                  f"{data['code']}: {data['reason']}"))  # fmt: skip
                case "slice.gone":
                    found.append((one, "slice gone", data["slice"],
                                  self._where(one, data["slice"]), data["reason"]))  # fmt: skip
                case "device.quarantined" | "slice.quarantined":
                    found.append((one, one.type.replace(".", " "), data["unit"],
                                  self._where(one, data["unit"]), data["reason"]))  # fmt: skip
        return found

    def _where(self, at: Event, unit: str) -> str | None:
        device = self.slices.get((at.cell, unit), unit)
        nodes = [
            one.data["node"]
            for one in self.events
            if one.type == "device.discovered" and one.cell == at.cell
            and one.data["device"] == device and one.time_us <= at.time_us
        ]  # fmt: skip
        return nodes[-1] if nodes else None

    def interrupted(self) -> list[Row]:
        """What each failure interrupted."""
        failures = self.failures()
        caused: dict[int, list[Lease]] = defaultdict(list)
        for (cell, _), lease in self.leases.items():
            ends = lease.ends
            if ends is None or OUTCOMES[ends.data["reason"]] != "interrupted":
                continue
            kind = ends.data["reason"].replace("-", " ")
            about = {each for unit, of, node, _ in self.units(lease) for each in (unit, of, node)}
            mine = [
                (one[0].offset, one[2], at)
                for at, one in enumerate(failures)
                if one[0].cell == cell and one[1] == kind and one[2] in about
                and one[0].offset <= ends.offset
            ]  # fmt: skip
            if mine:
                caused[max(mine)[2]].append(lease)
        rows: list[Row] = []
        for at, (one, kind, about_it, node, why) in enumerate(failures):
            head = (time_text(one.time_us), kind, about_it, node, why, one.place)
            if not caused[at]:
                rows.append((*head, None, None, None, None))
            for lease in caused[at]:
                attempt = lease.grant.data["attempt"] + 1
                again = self.leases.get((one.cell, f"{lease.grant.data['request']}/{attempt}"))
                rows.append((*head, lease.id, self.request_of(lease)["tenant"],
                             lease.end() - lease.start,
                             None if again is None else time_text(again.start)))  # fmt: skip
        return rows

    def taken_back(self) -> list[Row]:
        """What operators ended."""
        rows = []
        for one in self.decisions:
            given = one.record["input"]
            lease = self.leases.get((one.cell, str(given["data"].get("lease"))))
            code = CODES[one.record["outcome"]["code"]]
            if given["type"] == "lease.reclaim" and code.kind == "yes" and lease is not None:
                rows.append((time_text(one.time_us), given["data"]["author"],
                             given["data"]["reason"], lease.id, self.request_of(lease)["tenant"],
                             lease.ended, one.place))  # fmt: skip
        return rows

    def layout_changes(self) -> list[Row]:
        """Orders that cut a card anew."""
        ends = {
            (one.cell, one.data["order"]): one
            for one in self.events
            if one.type in ("order.done", "order.failed", "order.timed-out", "order.superseded")
        }
        rows = []
        for one in self.events:
            if one.type != "order.issued" or one.data["kind"] != "partition":
                continue
            end = ends.get((one.cell, one.data["order"]))
            rows.append((
                time_text(one.time_us), one.data["node"], one.data["units"][0],
                one.data.get("request"), one.record["input"]["source"],
                orjson.dumps(one.data["steps"]).decode(),
                None if end is None else end.type.removeprefix("order."),
                None if end is None else end.data.get("reason") or None,
                None if end is None else end.time_us - one.time_us, one.place,
            ))  # fmt: skip
        return rows

    # -- requests --------------------------------------------------------------

    def denials(self) -> list[Row]:
        """Every no, by tenant, input and code."""
        found: dict[tuple[str | None, str, str], list[tuple[int, int, int, str]]]
        found = defaultdict(list)
        for one in self.decisions:
            code, given = one.record["outcome"]["code"], one.record["input"]
            if one.record["source"][0] != "requests" or CODES[code].kind == "yes":
                continue
            key = (given["data"].get("tenant"), given["type"], code)
            found[key].append((one.time_us, one.partition, one.offset, one.place))
        for one in self.events:
            code = {"expired": "wait_expired", "reservation-over": "reservation_over"}.get(
                str(one.data.get("how"))
            )
            if one.type == "request.ended" and code is not None:
                tenant = self.requests[one.cell, one.data["request"]].data["tenant"]
                key = (tenant, "request.submit", code)
                found[key].append((one.time_us, one.partition, one.offset, one.place))
        return [
            (*key, str(CODES[key[2]].kind), CODES[key[2]].meaning, len(times),
             time_text(min(times)[0]), time_text(max(times)[0]), max(times)[3])
            for key, times in found.items()
        ]  # fmt: skip

    def waits(self) -> Iterator[tuple[Key, Event, Event | None, str, int]]:
        """Yield (request, from, until, why, how long) of every stretch of waiting."""
        steps = self.steps("request.queued", "request.reserved", "request.unreserved",
                           "request.ended", "lease.granted")  # fmt: skip
        for key, told in steps.items():
            for one, after in [*pairwise(told), (told[-1], None)]:
                code = {
                    "request.queued": one.data.get("code"),
                    "request.reserved": "reserved",
                    "request.unreserved": "place_lost",
                }.get(one.type)
                if code is not None:
                    end = self.last[one.partition] if after is None else after.time_us
                    yield key, one, after, str(code), end - one.time_us

    def waits_of(self, request: str) -> list[Row]:
        """What one request waited for."""
        rows = []
        for (_, name), one, after, code, length in self.waits():
            if name == request:
                numbers = one.data.get("numbers", one.data.get("why"))
                rows.append((time_text(one.time_us),
                             None if after is None else time_text(after.time_us), length, code,
                             None if numbers is None else orjson.dumps(numbers).decode(),
                             None if after is None else after.type, one.place))  # fmt: skip
        return rows

    def states(self) -> dict[Key, tuple[str, str | None]]:
        """Return what became of each request, and why it last had to wait."""
        found: dict[Key, tuple[str, str | None]] = dict.fromkeys(self.requests, ("queued", None))
        for one in self.events:
            key = (one.cell, str(one.data.get("request")))
            if key not in found:
                continue
            _, no = found[key]
            match one.type:
                case "request.queued":
                    found[key] = ("queued", one.data["code"])
                case "request.unreserved":
                    found[key] = ("queued", no)
                case "request.reserved":
                    found[key] = ("reserved", no)
                case "lease.granted":
                    found[key] = ("granted", no)
                case "request.ended":
                    found[key] = (one.data["how"], no)
        return found

    def longest_waits(self) -> list[Row]:
        """How long each request waited in all, and mostly for what."""
        waited: dict[Key, Counter[str]] = defaultdict(Counter)
        for key, _, _, code, length in self.waits():
            waited[key][code] += length
        states = self.states()
        return [
            (key[1], self.requests[key].data["tenant"], self.requests[key].data["queue"],
             states[key][0], sum(codes.values()),
             max((length, code) for code, length in codes.items())[1])
            for key, codes in waited.items()
            if sum(codes.values())
        ]  # fmt: skip

    def unanswered(self) -> list[Row]:
        """Requests that still wait."""
        return [
            (key[1], one.data["tenant"], one.data["queue"], state, time_text(one.time_us),
             self.last[one.partition] - one.time_us, no)
            for key, (state, no) in self.states().items()
            for one in (self.requests[key],)
            if state in ("queued", "reserved")
        ]  # fmt: skip

    def conflicts(self) -> list[Row]:
        """Ids that were used twice."""
        first: dict[tuple[int, str, str], str] = {}
        rows = []
        for one in self.decisions:
            given = one.record["input"]
            key = (one.partition, given["source"], given["id"])
            if one.record["outcome"]["code"] == "id_conflict":
                rows.append((time_text(one.time_us), given["source"], given["id"], given["type"],
                             orjson.dumps(given["data"]).decode(), one.place,
                             first.get(key)))  # fmt: skip
            else:
                first.setdefault(key, one.place)
        return rows

    # -- the record itself -----------------------------------------------------

    def _about(self, one: Event) -> str:
        data = one.data
        if one.type == "quota.applied":
            return "/".join(filter(None, (data["tenant"], data.get("project"))))
        names = ("reservation", "pool", "queue", "template", "ask", "model_version", "licence",
                 "book", "lease", "node", "device")  # fmt: skip
        return next((str(data[name]) for name in names if data.get(name) is not None), "")

    def operator_acts(self) -> list[Row]:
        """All events that have an author."""
        return [
            (time_text(one.time_us), one.data["author"], one.record["input"]["source"], one.type,
             self._about(one), one.data.get("reason"), one.place)
            for one in self.events
            if one.data.get("author") is not None
        ]  # fmt: skip

    def policy_diff(self, first: int, last: int) -> list[Row]:
        """Fields that differ between two instants."""
        sides: list[dict[tuple[str, str, str], tuple[dict[str, Any], Row]]] = []
        for at in (first, last):
            side: dict[tuple[str, str, str], tuple[dict[str, Any], Row]] = {}
            for one in self.events:
                known = one.data.get("author") is not None and not one.type.startswith("quota.")
                if known and one.time_us <= at:
                    about = (one.data["author"], one.data.get("reason"), one.place)
                    side[one.cell, one.type, self._about(one)] = (one.data, about)
            for (cell, name), versions in self.quotas.items():
                for version in versions:
                    if version["event"].time_us <= at:
                        base = version["base"]
                        project = base.get("project") is not None
                        data = {
                            "nominal_gpu_milli": version["nominal"],
                            "borrowing_gpu_milli": base.get("borrowing_gpu_milli"),
                            "lending_gpu_milli": base.get("lending_gpu_milli"),
                            "parent": base["tenant"] if project else base.get("parent"),
                            "budget_milli_us": base.get("budget_milli_us"),
                            "period_us": base.get("period_us"),
                            "limits": base.get("limits"),
                        }
                        author = version["approver"] or version["author"]
                        about = (author, version["reason"], version["event"].place)
                        side[cell, "quota.applied", name] = (data, about)
            sides.append(side)
        rows = []
        for key, (after, about) in sides[1].items():
            before = sides[0].get(key, ({}, ()))[0]
            for name in sorted(before.keys() | after.keys()):
                old, new = before.get(name), after.get(name)
                if name not in ("type", "author", "reason") and old != new:
                    rows.append((*key, name, _json(old), _json(new), *about))
        return rows

    def writers(self) -> list[Row]:
        """Claims, and what was written under each."""
        rows = []
        for number, values in enumerate(self.partitions):
            counted = {offset for offset, _ in effective(values)}
            current = ""
            written: dict[str, list[tuple[str, bool]]] = defaultdict(list)
            claims = []
            for offset, value in enumerate(values):
                record = orjson.loads(value)
                if record["kind"] == "claim":
                    current = record["token"]
                    claims.append((offset, record))
                else:
                    kind = "effective" if offset in counted else "void"
                    written[record["token"]].append((kind, record["token"] != current))
            for offset, record in claims:
                mine = written[record["token"]]
                void = [late for kind, late in mine if kind == "void"]
                rows.append((number, f"events/{number}@{offset}", time_text(record["time_us"]),
                             record["worker"], record["host"], len(mine) - len(void), len(void),
                             sum(void)))  # fmt: skip
        return rows


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
