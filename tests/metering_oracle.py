"""Metering a second time, by other means: the whole timeline of every device, kept in lists.

Plain Python over the records' bytes, from what the events mean; it shares no code with the
ledger. It keeps everything it has seen, so it is slow, and it corrects the past where a fact
reaches back by writing the past anew.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Oracle"]

#: (what it is, cause, unit, thousandths, owner).
Piece = tuple[str, str, str, int, str]

#: What a node's state makes of what nobody holds on it, before and after the device's own.
FIRST = {
    "lost": ("unavailable", "node-lost"),
    "silent": ("unavailable", "node-silent"),
    "registering": ("unavailable", "registering"),
}
LAST = {"maintenance": ("unavailable", "maintenance"), "draining": ("unavailable", "draining")}


class Oracle:
    """Feed it the values of one partition's records, in order; then ask it.

    ``only``: the devices to follow, where all would take too long.
    """

    def __init__(self, values: Iterable[bytes | None], only: set[str] | None = None) -> None:
        self.only = only
        self.token, self.seq, self.newest = "", 0, dict[str, int]()
        self.pools: set[str] = set()
        self.nodes: dict[str, dict[str, Any]] = {}
        self.devices: dict[str, dict[str, Any]] = {}
        self.slices: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.orders: dict[str, dict[str, Any]] = {}
        self.now_us = 0
        #: Device -> its stretches, oldest first: [start, end, pieces].
        self.stretches: dict[str, list[list[Any]]] = {}
        #: Those of them that may not have ended yet: a month has too many to look at all.
        self.open: dict[str, list[list[Any]]] = {}
        #: (lease, unit) or (request, unit) -> what was held there.
        self.amounts: dict[tuple[str, str], dict[str, Any]] = {}
        #: (device, owner, unit, thousandths, start, end) that counted against quotas.
        self.booked: list[tuple[str, str, str, int, int, int]] = []
        self.ends: dict[str, str] = {}
        #: Lease on whole devices or shares -> its thousandths of all of them.
        self.held: dict[str, int] = {}
        #: Lease that has ended -> for how long it lasted.
        self.intervals: dict[str, int] = {}
        #: Device -> when it came and went, in turn.
        self.seen: dict[str, list[int]] = {}
        for value in values:
            record = json.loads(value or b"{}")
            if record["kind"] == "claim":
                self.token = record["token"]
            elif self._counts(record):
                self._record(record)
        for request in self.requests.values():
            self._unbook(request)

    def _counts(self, record: dict[str, Any]) -> bool:
        topic, offset = record["source"]
        good: bool = (
            record["token"] == self.token
            and record["seq"] == self.seq + 1
            and offset > self.newest.get(topic, -1)
        )
        if good:
            self.seq, self.newest[topic] = self.seq + 1, offset
        return good

    # -- one record ------------------------------------------------------------

    def _record(self, record: dict[str, Any]) -> None:
        now = self.now_us = record["time_us"]
        silent, idle = None, {}
        for event in record["events"]:
            name = event["type"].replace(".", "_").replace("-", "_")
            act = getattr(self, f"_on_{name}", None)
            if act is not None:
                act(event)
            if event["type"] == "node.changed" and record["input"]["type"] == "node.silent":
                silent = event["node"]
            if event["type"] == "lease.idle" and event.get("since_us") is not None:
                idle[event["lease"]] = event["since_us"]
        if silent is not None and self.nodes[silent]["state"] == "silent":
            last = min(record["input"]["data"]["last_heartbeat_us"], now)
            for uuid, device in self.devices.items():
                if device["node"] == silent:
                    self._unheard(uuid, last)
        for uuid in self.devices if self.only is None else self.only & self.devices.keys():
            self._look(uuid, idle)

    def _look(self, uuid: str, idle: dict[str, int]) -> None:
        """Compare what the device is now with its last stretch of each piece."""
        about = self._about(uuid)
        new = set(self._pieces(uuid))
        open_ = self._open(uuid)
        for stretch in open_:
            piece = stretch[2]
            if piece in new and stretch[3] == about:
                new.discard(piece)
                continue
            stretch[1] = self.now_us
            what, _, unit, milli, owner = piece
            later = ("allocated", "idle", unit, milli, owner)
            if what == "allocated" and owner in idle and later in new and stretch[3] == about:
                self._rewrite(uuid, stretch, later, idle[owner], open_end=True)
                new.discard(later)
        for piece in sorted(new):
            self._add(uuid, [self.now_us, None, piece, about])

    def _open(self, uuid: str) -> list[list[Any]]:
        found = [one for one in self.open.get(uuid, []) if one[1] is None]
        self.open[uuid] = found.copy()
        return found

    def _add(self, uuid: str, stretch: list[Any]) -> None:
        self.stretches.setdefault(uuid, []).append(stretch)
        self.open.setdefault(uuid, []).append(stretch)

    def _rewrite(
        self, uuid: str, old: list[Any], piece: Piece, since: int, *, open_end: bool
    ) -> None:
        """Let a stretch be another from a time on."""
        at = max(since, old[0])
        end = None if open_end else self.now_us
        self._add(uuid, [at, end, piece, old[3]])
        old[1] = at

    def _unheard(self, uuid: str, last: int) -> None:
        for one in self._open(uuid):
            what, cause, unit, milli, owner = one[2]
            if what == "idle":
                piece = ("unknown", "unheard", unit, milli, owner)
            elif what == "allocated" and cause in ("running", "idle", "starting", "over"):
                piece = (what, "node-silent", unit, milli, owner)
            else:
                continue
            self._rewrite(uuid, one, piece, last, open_end=True)

    def _about(self, uuid: str) -> tuple[str, str, str]:
        device = self.devices[uuid]
        return device["node"], self.nodes[device["node"]]["pool"], device["model"]

    # -- what a device is at one instant -----------------------------------------

    def _pieces(self, uuid: str) -> list[Piece]:
        device = self.devices[uuid]
        holds = device["holds"]
        if device["health"] == "gone":
            gone = [
                ("absent", "held", uuid, one["milli"], lease)
                for lease, one in holds.items()
                if not one["cleaning"]
            ]
            rest = 1000 - sum(one[3] for one in gone)
            return gone + ([("absent", "missing", uuid, rest, "")] if rest else [])
        out = self._out(device)
        found: list[Piece] = []
        for lease, one in holds.items():
            if one["cleaning"]:
                found.append((*(out or ("unavailable", "cleaning")), uuid, one["milli"], lease))
            else:
                cause = self._cause(device, lease, uuid)
                found.append(("allocated", cause, uuid, one["milli"], lease))
        on_it = [(name, one) for name, one in self.slices.items() if one["device"] == uuid]
        there = sorted((one["start"], name) for name, one in on_it if one["there"])
        to_be = sorted((one["start"], name) for name, one in on_it if not one["there"])
        for _, name in there + to_be:
            found.append(self._slice(device, name, out))
        return self._capped(device, found, out, parted=bool(on_it))

    def _capped(
        self, device: dict[str, Any], found: list[Piece], out: Any, *, parted: bool
    ) -> list[Piece]:
        left, kept = 1000, []
        for what, cause, unit, milli, owner in found:
            part = min(milli, left)
            left -= part
            if part:
                kept.append((what, cause, unit, part, owner))
        if left:
            owner = device["kept"] or ""
            free = "kept" if owner else "unpartitioned" if parted or device["mig"] else "free"
            kept.append((*(out or ("idle", free)), device["uuid"], left, owner))
        return kept

    def _slice(self, device: dict[str, Any], name: str, out: Any) -> Piece:
        one = self.slices[name]
        milli = min(1000, -(-1000 * one["compute"] // max(1, device["compute"])))
        if one["lease"] and not one["cleaning"]:
            cause = self._cause(device, one["lease"], name)
            return ("allocated", cause, name, milli, one["lease"])
        owner = one["lease"] or one["kept"] or ""
        if out is None:
            if one["quarantine"]:
                out = ("unavailable", "quarantined")
            elif one["lease"]:
                out = ("unavailable", "cleaning")
            elif one["order"]:
                out = ("unavailable", "repartition")
            else:
                out = ("idle", "kept" if one["kept"] else "free")
        return (*out, name, milli, owner)

    def _out(self, device: dict[str, Any]) -> tuple[str, str] | None:
        node = self.nodes[device["node"]]
        if node["state"] in FIRST:
            return FIRST[node["state"]]
        if device["quarantine"]:
            return "unavailable", "quarantined"
        if device["health"] == "unhealthy":
            return "unavailable", "unhealthy"
        if device["health"] == "unknown":
            return "unknown", "health-unknown"
        if node["unsettled"]:
            return "unavailable", "settling"
        return LAST.get(node["state"])

    def _cause(self, device: dict[str, Any], name: str, unit: str) -> str:
        node = self.nodes[device["node"]]["state"]
        if node in ("lost", "silent"):
            return f"node-{node}"
        if device["quarantine"] and node != "registering":
            return "quarantined"
        if device["health"] != "healthy" and node != "registering":
            return "unhealthy" if device["health"] == "unhealthy" else "health-unknown"
        lease = self.leases[name]
        if lease["idle"]:
            return "idle"
        part = next(one for one in lease["parts"].values() if unit in one["units"])
        return {"granted": "starting", "ended": "over", "running": "running"}[part["state"]]

    # -- events: supply ----------------------------------------------------------

    def _on_pool_applied(self, event: dict[str, Any]) -> None:
        self.pools.add(event["pool"])

    def _on_node_registered(self, event: dict[str, Any]) -> None:
        entry = "online" if event["pool"] in self.pools else "registering"
        node = self.nodes.setdefault(
            event["node"], {"state": "new", "mode": "online", "unsettled": False, "pool": ""}
        )
        if node["state"] == "new" or entry == "registering":
            node["state"] = entry
        elif node["state"] in ("silent", "lost", "registering"):
            node["state"] = node["mode"]
        node["pool"] = event["pool"]

    def _on_node_changed(self, event: dict[str, Any]) -> None:
        node = self.nodes[event["node"]]
        node["mode"] = event.get("mode", node["mode"])
        node["state"] = event["state"]

    def _on_node_unsettled(self, event: dict[str, Any]) -> None:
        self.nodes[event["node"]]["unsettled"] = True

    def _on_node_settled(self, event: dict[str, Any]) -> None:
        self.nodes[event["node"]]["unsettled"] = False

    def _on_device_discovered(self, event: dict[str, Any]) -> None:
        uuid = event["device"]
        device = self.devices.setdefault(
            uuid,
            {"uuid": uuid, "health": "healthy", "quarantine": False, "kept": None, "holds": {}},
        )
        if device["health"] == "gone":
            device["health"] = "unknown"
        turns = self.seen.setdefault(uuid, [])
        if len(turns) % 2 == 0:
            turns.append(self.now_us)
        device |= {
            "node": event["node"],
            "model": event["model"],
            "mib": event["memory_mib"],
            "compute": event["compute_slices"],
            "mig": event["mig_enabled"],
        }

    def _on_device_health(self, event: dict[str, Any]) -> None:
        self.devices[event["device"]]["health"] = event["health"]
        turns = self.seen[event["device"]]
        if event["health"] == "gone" and len(turns) % 2:
            turns.append(self.now_us)

    def _on_device_quarantined(self, event: dict[str, Any]) -> None:
        self.devices[event["unit"]]["quarantine"] = True

    def _on_slice_quarantined(self, event: dict[str, Any]) -> None:
        self.slices[event["unit"]]["quarantine"] = True

    def _on_device_cleared(self, event: dict[str, Any]) -> None:
        uuid = event["device"]
        self.devices[uuid]["quarantine"] = False
        for one in self.slices.values():
            if one["device"] == uuid:
                one["quarantine"] = False

    def _on_slice_ordered(self, event: dict[str, Any], *, there: bool = False) -> None:
        kept = self.slices.get(event["slice"], {}).get("kept")
        self.slices[event["slice"]] = {
            "device": event["device"],
            "start": event["start"],
            "compute": event["compute_slices"],
            "mib": event["memory_mib"],
            "profile": event["profile"],
            "there": there,
            "order": None if there else event["order"],
            "lease": None,
            "cleaning": False,
            "quarantine": False,
            "kept": kept,
        }

    def _on_slice_present(self, event: dict[str, Any]) -> None:
        self._on_slice_ordered(event, there=True)

    def _on_slice_gone(self, event: dict[str, Any]) -> None:
        del self.slices[event["slice"]]

    # -- events: demand ----------------------------------------------------------

    def _on_request_received(self, event: dict[str, Any]) -> None:
        self.requests[event["request"]] = {**event, "kept": [], "charge": None}

    def _on_request_reserved(self, event: dict[str, Any]) -> None:
        request = self.requests[event["request"]]
        request["kept"] = [unit for part in event["parts"] for unit in part["units"]]
        for unit in request["kept"]:
            (self.slices.get(unit) or self.devices[unit])["kept"] = event["request"]
        self._book(request, event["request"], request["kept"], event)

    def _on_request_unreserved(self, event: dict[str, Any]) -> None:
        request = self.requests[event["request"]]
        self._unkeep(request)
        self._unbook(request)

    def _on_request_ended(self, event: dict[str, Any]) -> None:
        request = self.requests.pop(event["request"])
        self._unkeep(request)
        self._unbook(request)

    def _unkeep(self, request: dict[str, Any]) -> None:
        for unit in request["kept"]:
            thing = self.slices.get(unit) or self.devices.get(unit)
            if thing is not None and thing["kept"] == request["request"]:
                thing["kept"] = None
        request["kept"] = []

    def _on_lease_granted(self, event: dict[str, Any]) -> None:
        request = self.requests[event["request"]]
        self._unkeep(request)
        self._unbook(request)
        need = request["need"]
        parts = {one["node"]: {"units": one["units"], "state": "granted"} for one in event["parts"]}
        name = event["lease"]
        self.leases[name] = {
            "parts": parts,
            "idle": False,
            "request": event["request"],
            "from": self.now_us,
        }
        units = [unit for part in event["parts"] for unit in part["units"]]
        self._book(request, name, units, event)
        most = need.get("terms", {}).get("vgpu_most", 0)
        part = 1000 // most if most else need.get("gpu_milli", 1000)
        for unit in units:
            if unit in self.slices:
                self.slices[unit]["lease"] = name
            else:
                milli = 1000 if need["mode"] == "whole" else part
                self.devices[unit]["holds"][name] = {"milli": milli, "cleaning": False}
                self.held[name] = self.held.get(name, 0) + milli

    def _on_lease_started(self, event: dict[str, Any]) -> None:
        self.leases[event["lease"]]["parts"][event["node"]]["state"] = "running"

    def _on_part_ended(self, event: dict[str, Any]) -> None:
        self.leases[event["lease"]]["parts"][event["node"]]["state"] = "ended"

    def _on_lease_idle(self, event: dict[str, Any]) -> None:
        self.leases[event["lease"]]["idle"] = event.get("since_us") is not None

    def _on_lease_ended(self, event: dict[str, Any]) -> None:
        name = event["lease"]
        lease = self.leases.pop(name)
        self.ends[name] = event["reason"]
        self.intervals[name] = self.now_us - lease["from"]
        self._unbook(self.requests[lease["request"]])
        for part in lease["parts"].values():
            for unit in part["units"]:
                if unit in self.slices:
                    self.slices[unit]["cleaning"] = True
                elif unit in self.devices:
                    self.devices[unit]["holds"][name]["cleaning"] = True

    def _on_order_issued(self, event: dict[str, Any]) -> None:
        self.orders[event["order"]] = event
        if event["kind"] != "partition":
            return
        goes = {one["start"] for one in event["steps"] if one["do"] == "destroy"}
        for one in self.slices.values():
            if one["device"] == event["units"][0] and one["there"] and one["start"] in goes:
                one["order"] = event["order"]

    def _on_order_done(self, event: dict[str, Any]) -> None:
        order = self.orders.pop(event["order"])
        if order["kind"] != "clean":
            return
        for unit in order["units"]:
            one = self.slices.get(unit)
            device = self.devices.get(unit if one is None else one["device"])
            if device is None or device["node"] != order["node"]:
                continue
            if one is None:
                device["holds"].pop(order["lease"], None)
            elif one["lease"] == order["lease"]:
                one["lease"], one["cleaning"] = None, False

    _on_order_failed = _on_order_done
    _on_order_timed_out = _on_order_done

    def _on_order_superseded(self, event: dict[str, Any]) -> None:
        del self.orders[event["order"]]

    # -- amounts -----------------------------------------------------------------

    def _book(
        self, request: dict[str, Any], owner: str, units: list[str], event: dict[str, Any]
    ) -> None:
        need = request["need"]
        request["charge"] = []
        for at, unit in enumerate(units):
            one = self.slices.get(unit)
            device = self.devices[unit if one is None else one["device"]]
            each = event["charge_milli"] // len(units)
            each += at < event["charge_milli"] % len(units)
            asked = None
            if one is not None:
                mib = one["mib"]
                if need.get("compute_slices"):
                    compute = 1000 * need["compute_slices"]
                    asked = min(1000, -(-compute // max(1, device["compute"])))
            elif need["mode"] == "whole":
                mib = device["mib"]
            else:
                mib, asked = need.get("memory_mib", 0), need.get("gpu_milli", 1000)
            shared = event.get("isolation", "hardware") == "none"
            self.amounts[owner, unit] = {
                "asked": asked,
                "asked_mib": min(need.get("memory_mib") or mib, mib),
                "mib": mib,
                "given_mib": 0 if shared else mib,
                "profile": "" if one is None else one["profile"],
                "request": request,
            }
            request["charge"].append((device["uuid"], owner, unit, each, self.now_us))

    def _unbook(self, request: dict[str, Any]) -> None:
        for device, owner, unit, milli, start in request["charge"] or ():
            self.booked.append((device, owner, unit, milli, start, self.now_us))
        request["charge"] = None

    # -- answers -----------------------------------------------------------------

    def sums(self, start: int, end: int) -> Counter[tuple[str, ...]]:
        """Thousandths x µs in a window by (device, unit, state, cause, owner)."""
        found: Counter[tuple[str, ...]] = Counter()
        for uuid, stretches in self.stretches.items():
            for begin, until, (what, cause, unit, milli, owner), _ in stretches:
                length = min(end, self.now_us if until is None else until) - max(start, begin)
                if length > 0:
                    found[uuid, unit, what, cause, owner] += milli * length
        for uuid, owner, unit, milli, begin, until in self.booked:
            length = min(end, until) - max(start, begin)
            if length > 0:
                found[uuid, unit, "reserved", "", owner] += milli * length
        return Counter({key: amount for key, amount in found.items() if amount})

    def present(self, start: int, end: int) -> dict[str, int]:
        """By device, for how long it was there in a window."""
        found = {}
        for uuid, turns in self.seen.items():
            ends = [*turns, self.now_us] if len(turns) % 2 else turns
            spans = zip(ends[::2], ends[1::2], strict=True)
            found[uuid] = sum(max(0, min(end, last) - max(start, first)) for first, last in spans)
        return found

    def asked(self, start: int, end: int) -> dict[str, tuple[int, int, int, int]]:
        """By tenant, of what was allocated: requested, then MiB requested, kept, delivered."""
        found: dict[str, tuple[int, int, int, int]] = {}
        for stretches in self.stretches.values():
            for begin, until, (what, _, unit, milli, owner), _ in stretches:
                length = min(end, self.now_us if until is None else until) - max(start, begin)
                if what != "allocated" or length <= 0:
                    continue
                one = self.amounts[owner, unit]
                much = milli if one["asked"] is None else min(one["asked"], milli)
                tenant = one["request"]["tenant"]
                had = found.get(tenant, (0, 0, 0, 0))
                more = (much, one["asked_mib"], one["mib"], one["given_mib"])
                found[tenant] = tuple(a + b * length for a, b in zip(had, more, strict=True))
        return found
