"""The meter: one pass over the records of a cell, rows of time as they become certain.

It follows the fold: after each effective record it looks again at the devices that the
record's events touch, and where a piece has changed, the time of the old one is a row. So
there is one meaning of a record, and void records, duplicates and the size of the chunks
change nothing (M3). What it keeps is bounded by what there is now: devices, slices, open
orders, live leases and requests with a place; never by the length of the log.

Two facts reach back. A node's silence is recorded some time after its last heartbeat, and a
task is reported idle some time after it became so. Both reach as far as the last change of
the piece that they are about: a later record about it is later knowledge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.core.derived.places import part_milli
from ledger.core.state import WHOLE_MILLI
from ledger.metering.rows import OUTCOMES, Ended, Holding, Row
from ledger.metering.split import Piece, split
from ledger.metering.touched import Touched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.core.state import Device, Request, State

__all__ = ["Meter"]

Event = dict[str, Any]


class _Open:
    """A piece whose time still runs: since when it is so, and from when no row tells of it."""

    __slots__ = ("holding", "origin_us", "piece", "since_us")

    def __init__(self, piece: Piece, holding: Holding | None, origin_us: int) -> None:
        """Begin at ``origin_us``."""
        self.piece = piece
        self.holding = holding
        self.origin_us = origin_us
        self.since_us = origin_us


class _Where(NamedTuple):
    """Where a device is and what it is: of the rows of one stretch it is the same."""

    node: str
    pool: str
    model: str


class _Booked(NamedTuple):
    """What counts against a quota for one request: by its lease, or by the place kept for it."""

    lease: str
    milli: int
    units: tuple[str, ...]


class _Track:
    """One device: where it is, its pieces, and since when it is present (None: it is not)."""

    __slots__ = ("open", "present_us", "where")

    def __init__(self, where: _Where) -> None:
        """Start without pieces."""
        self.where = where
        self.present_us: int | None = None
        self.open: dict[Piece, _Open] = {}


class Meter:
    """Meters one cell. Each effective record is given to `take`, after the fold has taken it in.

    `drain` returns the rows and ends that have become certain since the last call.
    """

    def __init__(self, cell: str) -> None:
        """Begin before the first record of the cell."""
        self.cell = cell
        self._out: list[Row | Ended] = []
        self._touched = Touched()
        self._tracks: dict[str, _Track] = {}
        #: Device -> (lease, unit) -> what the lease holds there, until that is proved clean.
        self._holders: dict[str, dict[tuple[str, str], Holding]] = {}
        self._booked: dict[str, tuple[_Booked, list[_Open], list[tuple[str, _Where]]]] = {}

    def drain(self) -> list[Row | Ended]:
        """Return the rows and ends since the last call, in order of the record they are from."""
        out, self._out = self._out, []
        return out

    def take(self, state: State, record: dict[str, Any]) -> None:
        """Follow one effective record; ``state`` is the cell's after it."""
        now_us = record["time_us"]
        touched = self._touched
        ends = []
        for event in record["events"]:
            touched.add(state, event)
            if event["type"] == "lease.granted":
                self._granted(state, event)
            elif event["type"] == "lease.ended":
                reason = event["reason"]
                ends.append(Ended(event["lease"], reason, OUTCOMES[reason], now_us))
        if not touched:
            return
        for name in touched.requests:
            self._book(state, name, now_us)
        given = record["input"]
        if touched.silent is not None and given["type"] == "node.silent":
            last_us = min(given["data"]["last_heartbeat_us"], now_us)
            self._unheard(state.nodes[touched.silent].devices, last_us)
        for uuid in touched.devices:
            device = state.devices.get(uuid)
            if device is not None:
                self._follow(state, device, now_us, touched.idle)
        touched.clear()
        # After the last of its time.
        self._out += ends

    def cut(self, at_us: int) -> None:
        """Let every row end at ``at_us`` (not before any record taken) and another begin.

        A cut changes no sum (M2).
        """
        for uuid, track in self._tracks.items():
            if track.present_us is not None and track.present_us < at_us:
                self._present(uuid, track, at_us)
                track.present_us = at_us
            for one in track.open.values():
                self._emit(uuid, track.where, one, at_us)
                one.since_us = at_us
        for _, opens, places in self._booked.values():
            for one, (uuid, where) in zip(opens, places, strict=True):
                self._emit(uuid, where, one, at_us)
                one.since_us = at_us

    def beyond(self, known_us: int, until_us: int) -> Iterator[Row]:
        """Yield what is to be said of the time after the last record, of devices that are present.

        Nothing is known of it: it is nobody's, idle or not, until a record tells. `cut` at
        ``known_us`` first.
        """
        for uuid, track in self._tracks.items():
            if track.present_us is not None and known_us < until_us:
                about = (self.cell, *track.where, uuid, uuid)
                span = (known_us, until_us, WHOLE_MILLI)
                yield Row(*about, "unknown", "not-yet", *span)
                yield Row(*about, "present", "", *span)

    # -- rows ------------------------------------------------------------------

    def _emit(
        self, uuid: str, where: _Where, one: _Open, end_us: int, start_us: int | None = None
    ) -> None:
        start_us = one.since_us if start_us is None else start_us
        if start_us < end_us:
            piece = one.piece
            self._out.append(
                Row(
                    self.cell, *where, uuid, piece.unit, piece.state, piece.cause,
                    start_us, end_us, piece.milli, one.holding,
                )
            )  # fmt: skip

    def _take_back(self, uuid: str, where: _Where, one: _Open, start_us: int) -> None:
        """Take back what an earlier row said of the time from ``start_us`` on."""
        piece = one.piece
        less = _Open(piece._replace(milli=-piece.milli), one.holding, start_us)
        self._emit(uuid, where, less, one.since_us)

    def _present(self, uuid: str, track: _Track, end_us: int) -> None:
        assert track.present_us is not None
        piece = Piece(uuid, "present", "", WHOLE_MILLI)
        self._emit(uuid, track.where, _Open(piece, None, track.present_us), end_us)

    # -- devices ---------------------------------------------------------------

    def _follow(self, state: State, device: Device, now_us: int, idle: dict[str, int]) -> None:
        uuid = device.uuid
        pool = state.nodes[device.node].pool
        where = _Where(device.node, pool, device.model)
        track = self._tracks.get(uuid)
        if track is None:
            track = self._tracks[uuid] = _Track(where)
        moved = track.where != where
        present = device.health != "gone"
        if track.present_us is not None and (moved or not present):
            self._present(uuid, track, now_us)
            track.present_us = None
        new = dict.fromkeys(split(state, device))
        over = [one for piece, one in track.open.items() if moved or piece not in new]
        for one in over:
            since_us = idle.get(one.piece.owner)
            if since_us is None or moved or not self._idled(uuid, track, one, since_us, new):
                self._emit(uuid, track.where, one, now_us)
            del track.open[one.piece]
        track.where = where
        if present and track.present_us is None:
            track.present_us = now_us
        for piece in new:
            if piece not in track.open:
                holding = self._holding(state, piece) if piece.owner else None
                track.open[piece] = _Open(piece, holding, now_us)
        self._let_go(state, device)

    def _let_go(self, state: State, device: Device) -> None:
        """Forget who held what of the device is free again."""
        holders = self._holders.get(device.uuid)
        if not holders or (not device.slices and len(holders) == len(device.holds)):
            return
        held = {(lease, device.uuid) for lease in device.holds}
        held.update((state.slices[name].lease or "", name) for name in device.slices)
        for key in holders.keys() - held:
            del holders[key]

    def _idled(
        self, uuid: str, track: _Track, old: _Open, since_us: int, new: dict[Piece, None]
    ) -> bool:
        """Let a task's time be idle from when it became so; False where it is not idle now."""
        piece = old.piece._replace(cause="idle")
        if old.piece.state != "allocated" or piece not in new or piece in track.open:
            return False
        track.open[piece] = self._changed(uuid, track, old, piece, since_us)
        return True

    def _changed(self, uuid: str, track: _Track, old: _Open, piece: Piece, since_us: int) -> _Open:
        """End a piece at a time in the past, and return the one that has run since then."""
        at_us = max(since_us, old.origin_us)
        one = _Open(piece, old.holding, at_us)
        if at_us >= old.since_us:
            self._emit(uuid, track.where, old, at_us)
            return one
        self._take_back(uuid, track.where, old, at_us)
        self._emit(uuid, track.where, one, old.since_us)
        one.since_us = old.since_us
        return one

    def _unheard(self, devices: list[str], last_us: int) -> None:
        """Let what was idle since a node's last heartbeat be unknown, and what is held unheard."""
        for uuid in devices:
            track = self._tracks[uuid]
            for old in list(track.open.values()):
                if old.piece.state == "idle":
                    piece = old.piece._replace(state="unknown", cause="unheard")
                elif old.piece.state == "allocated" and old.piece.cause in _UNTROUBLED:
                    piece = old.piece._replace(cause="node-silent")
                else:
                    continue
                del track.open[old.piece]
                one = self._changed(uuid, track, old, piece, last_us)
                track.open[piece] = one

    # -- who holds -------------------------------------------------------------

    def _granted(self, state: State, event: Event) -> None:
        lease = state.leases.get(event["lease"])
        if lease is None:
            # Granted and ended by one record: it has no time.
            return
        request = state.requests[lease.request]
        own = event.get("isolation", "hardware") != "none"
        units = [unit for part in event["parts"] for unit in part["units"]]
        for unit, holding in _holdings(state, request, lease.id, units, own=own).items():
            uuid = self._touched.device_of(unit)
            self._holders.setdefault(uuid, {})[lease.id, unit] = holding

    def _holding(self, state: State, piece: Piece) -> Holding | None:
        """Return who holds the piece; of a place that is kept, for whom."""
        holders = self._holders.get(self._touched.device_of(piece.unit), {})
        known = holders.get((piece.owner, piece.unit))
        if known is not None:
            return known
        request = state.requests.get(piece.owner)
        if request is None:
            return None
        return _holdings(state, request, "", [piece.unit], own=True).get(piece.unit)

    def _book(self, state: State, name: str, now_us: int) -> None:
        """Follow what counts against a quota for a request."""
        want = _booked(state, state.requests.get(name))
        had = self._booked.get(name)
        if had is not None:
            if had[0] == want:
                return
            for one, (uuid, where) in zip(had[1], had[2], strict=True):
                self._emit(uuid, where, one, now_us)
            del self._booked[name]
        if want is None:
            return
        found = _holdings(state, state.requests[name], want.lease, list(want.units), own=True)
        opens, places = [], []
        for unit, made in found.items():
            device = state.devices[self._touched.device_of(unit)]
            holding = self._holders.get(device.uuid, {}).get((want.lease, unit), made)
            where = _Where(device.node, state.nodes[device.node].pool, device.model)
            piece = Piece(unit, "reserved", "", holding.reserved_milli, want.lease or name)
            opens.append(_Open(piece, holding, now_us))
            places.append((device.uuid, where))
        self._booked[name] = (want, opens, places)


#: Causes of time that is held and of which nothing is wrong.
_UNTROUBLED = frozenset({"running", "idle", "starting", "over"})


def _booked(state: State, request: Request | None) -> _Booked | None:
    if request is None or request.charge is None:
        return None
    if request.lease is not None and request.lease in state.leases:
        parts = state.leases[request.lease].parts
        units = tuple(unit for part in parts.values() for unit in part.units)
        return _Booked(request.lease, request.charge.milli, units)
    units = tuple(unit for kept in request.kept.values() for unit in kept)
    return _Booked("", request.charge.milli, units)


def _holdings(
    state: State, request: Request, lease: str, units: list[str], *, own: bool
) -> dict[str, Holding]:
    """Return what is held of each unit; ``own``: its memory is kept apart from others'."""
    need, charge = request.need, request.charge
    each, more = divmod(charge.milli, len(units)) if charge and units else (0, 0)
    found: dict[str, Holding] = {}
    known: dict[tuple[int, int, int | None], Holding] = {}
    for at, unit in enumerate(units):
        item = state.slices.get(unit)
        device = state.devices.get(unit if item is None else item.device)
        if device is None:
            # A slice that was made and went again within one record.
            continue
        reserved = each + (at < more)
        if item is not None:
            mib, asked = item.memory_mib, _compute_milli(device, need.compute_slices)
        elif need.mode == "whole":
            mib, asked = device.memory_mib, None
        else:
            mib, asked = need.memory_mib, need.gpu_milli
        key = (reserved, mib, asked)
        if key not in known:
            known[key] = Holding(
                lease, request.id, request.tenant, request.project, request.queue, request.task,
                request.task_type, need.delivery, "" if item is None else item.profile, asked,
                need.memory_mib or None, reserved, mib, mib if own else None, request.reservation,
            )  # fmt: skip
        found[unit] = known[key]
    return found


def _compute_milli(device: Device, compute_slices: int) -> int | None:
    return part_milli(device.compute_slices, compute_slices) if compute_slices else None
