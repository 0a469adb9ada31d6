"""A node agent's own memory: what it was told, what it has begun, what it has still to say.

Everything is written before and after it is done. What was acknowledged to nobody is still
to be said, what was begun is known to have begun, and a copy of an order is answered as the
order was. Every transaction is on the disk when it returns (WAL, ``synchronous=FULL``). One
agent at a time: the file stays locked while it is open. Every row has both stamps, the wall
clock's for people and the steady one for durations (C43); the steady one counts from the
boot, so it is compared within one incarnation only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from collectors.agent.journal_file import Clock, JournalBusy, JournalFile, Stamp
from collectors.agent.journal_file import to_text as _text
from collectors.mig.saga import Mark
from collectors.said import Said

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Bound", "Clock", "Hold", "Journal", "JournalBusy", "OrderRow", "Stamp"]

#: Closed orders that are kept, to answer copies of them again.
_REMEMBERED = 10_000
_FORGOTTEN = "FROM orders WHERE rowid <= (SELECT max(rowid) FROM orders) - ? AND state != 'open'"


@dataclass(frozen=True, slots=True)
class OrderRow:
    """An order as it was heard, and what has become of it.

    ``plan`` are the steps that were worked out at the beginning; ``reason`` is why it is
    being undone, empty while it is not.
    """

    id: str
    kind: str
    plain: dict[str, Any]
    state: str
    plan: dict[str, Any] | None
    reason: str
    answer: Said | None
    heard: Stamp


@dataclass(frozen=True, slots=True)
class Bound:
    """A lease that holds a unit of this node, of which lifetime, and whether alone."""

    lease: str
    unit: str
    generation: int
    exclusive: bool
    state: str
    since: Stamp


@dataclass(frozen=True, slots=True)
class Hold:
    """A device on which something was left that must go first: where, and the evidence."""

    device: str
    places: tuple[int, ...]
    reason: str
    evidence: dict[str, Any]


class Journal(JournalFile):
    """Rows in, rows out; nothing is decided here."""

    #: Called when something is to be sent, so that nobody has to look for it time and again.
    on_said: Callable[[], None] = staticmethod(lambda: None)

    def begin(self, incarnation: str) -> int:
        """Begin a start of the agent; return its epoch.

        A boot that is over has taken with it what ran, what was begun, and every slice. What
        it had still to say is kept.
        """
        with self.transaction():
            if self.fact("incarnation") != incarnation:
                for statement in (
                    "UPDATE orders SET state = 'void' WHERE state = 'open'",
                    "UPDATE leases SET state = 'void' WHERE state = 'held'",
                    "UPDATE slices SET there = 0",
                    "DELETE FROM baselines",
                    "DELETE FROM holds",
                ):
                    self.write(statement)
                self.keep("incarnation", incarnation)
                self.keep("inventory", None)
                self.keep("failed", None)
            epoch = int(self.fact("epoch") or 0) + 1
            self.keep("epoch", epoch)
        return epoch

    # -- orders and their steps ----------------------------------------------------

    def order(self, name: str) -> OrderRow | None:
        """Return an order that was heard, or None."""
        found = self._orders("WHERE id = ?", name)
        return found[0] if found else None

    def open_orders(self) -> list[OrderRow]:
        """Return the orders that were heard and not answered, in the order they came."""
        return self._orders("WHERE state = 'open' ORDER BY rowid")

    def _orders(self, where: str, *values: object) -> list[OrderRow]:
        columns = "id, kind, plain, state, plan, reason, answer, heard_wall_us, heard_steady_us"
        return [
            OrderRow(
                row[0],
                row[1],
                orjson.loads(row[2]),
                row[3],
                None if row[4] is None else orjson.loads(row[4]),
                row[5],
                None if row[6] is None else Said(**orjson.loads(row[6])),
                Stamp(row[7], row[8]),
            )
            for row in self.rows(f"SELECT {columns} FROM orders {where}", *values)  # noqa: S608 - the clauses are those above
        ]

    def hear(self, name: str, kind: str, plain: dict[str, Any]) -> None:
        """Keep an order that was heard, before anything is done about it."""
        incarnation = self.fact("incarnation")
        statement = (
            "INSERT INTO orders (id, kind, plain, incarnation, state, heard_wall_us,"
            " heard_steady_us) VALUES (?, ?, ?, ?, 'open', ?, ?)"
        )
        self.write(statement, name, kind, _text(plain), incarnation, stamped=True)

    def plan(self, name: str, plan: dict[str, Any]) -> None:
        """Keep the steps of an order, so that a restart goes on with the same ones."""
        self.write("UPDATE orders SET plan = ? WHERE id = ?", _text(plan), name)

    def give_up(self, name: str, reason: str) -> None:
        """Keep why an order is undone: a restart must not begin it again."""
        self.write("UPDATE orders SET reason = ? WHERE id = ?", reason, name)

    def close_order(self, name: str, answer: Said | None = None) -> None:
        """Close an order, with what was said of it; old ones are forgotten."""
        plain = None
        if answer is not None:
            plain = _text({"type": answer.type, "id": answer.id, "data": answer.data})
        with self.transaction():
            self.write("UPDATE orders SET state = 'closed', answer = ? WHERE id = ?", plain, name)
            # Those that go are found by their number: the others are not gone through.
            self.write(f"DELETE FROM steps WHERE id IN (SELECT id {_FORGOTTEN})", _REMEMBERED)  # noqa: S608 - the clause above
            self.write(f"DELETE {_FORGOTTEN}", _REMEMBERED)

    def forget_order(self, name: str) -> None:
        """Forget an order, with its steps."""
        with self.transaction():
            self.write("DELETE FROM orders WHERE id = ?", name)
            self.write("DELETE FROM steps WHERE id = ?", name)

    def step(self, name: str, at: int, phase: str, code: str = "", **detail: object) -> None:
        """Keep that a step is about to be made (``before``), was (``after``) or ``failed``."""
        statement = (
            "INSERT INTO steps (id, at, phase, code, detail, wall_us, steady_us)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)"
        )
        self.write(statement, name, at, phase, code, _text(detail), stamped=True)

    def marks(self, name: str) -> dict[int, Mark]:
        """Return how far each step of an order has come, by its number."""
        found: dict[int, Mark] = {}
        rows = self.rows(
            "SELECT at, phase, code, steady_us FROM steps WHERE id = ? ORDER BY seq", name
        )
        for at, phase, code, steady_us in rows:
            was = found.get(at, Mark())
            if phase == "before":
                found[at] = Mark("begun", was.tries + 1, "", steady_us)
            else:
                done = phase == "after"
                found[at] = Mark("done" if done else "begun", was.tries, code, steady_us)
        return found

    # -- what is to be said --------------------------------------------------------

    def say(self, kind: str, data: dict[str, Any]) -> Said:
        """Put an observation among what is to be sent; return it with its id."""
        with self.transaction():
            self.write(
                "INSERT INTO outbox (type, id, data, wall_us, steady_us) VALUES (?, '', ?, ?, ?)",
                kind,
                _text(data),
                stamped=True,
            )
            seq = self.rows("SELECT last_insert_rowid()")[0][0]
            name = f"{self.fact('incarnation')}.{self.fact('epoch')}-{seq}"
            self.write("UPDATE outbox SET id = ? WHERE seq = ?", name, seq)
        self.on_said()
        return Said(kind, name, data)

    def say_again(self, said: Said) -> None:
        """Put something that was said before among what is to be sent, under its id, once."""
        if self.rows("SELECT 1 FROM outbox WHERE id = ?", said.id):
            return
        statement = "INSERT INTO outbox (type, id, data, wall_us, steady_us) VALUES (?, ?, ?, ?, ?)"
        self.write(statement, said.type, said.id, _text(said.data), stamped=True)
        self.on_said()

    def unsent(self, limit: int) -> list[tuple[int, Said, bool]]:
        """Return what was not acknowledged, oldest first: number, what, whether it was tried."""
        rows = self.rows(
            "SELECT seq, type, id, data, tried FROM outbox ORDER BY seq LIMIT ?", limit
        )
        return [(seq, Said(k, i, orjson.loads(d)), bool(tried)) for seq, k, i, d, tried in rows]

    def waiting(self) -> int:
        """Return how many observations are not acknowledged."""
        return int(self.rows("SELECT count(*) FROM outbox")[0][0])

    def trying(self, numbers: Sequence[int]) -> None:
        """Keep that these are about to be appended: from here on the log may have them."""
        with self.transaction():
            for number in numbers:
                self.write("UPDATE outbox SET tried = 1 WHERE seq = ?", number)

    def untried(self, numbers: Sequence[int]) -> None:
        """Keep that the log has none of these, whatever was tried."""
        with self.transaction():
            for number in numbers:
                self.write("UPDATE outbox SET tried = 0 WHERE seq = ?", number)

    def sent(self, numbers: Sequence[int], position: int) -> None:
        """Forget what the log has, and keep the position after it."""
        with self.transaction():
            for number in numbers:
                self.write("DELETE FROM outbox WHERE seq = ?", number)
            self.keep("observed", position)

    # -- leases, slices, baselines, holds --------------------------------------------

    def bind(self, lease: str, unit: str, generation: int, *, exclusive: bool) -> None:
        """Let a lease hold a unit; one that holds it alone ends what held it before."""
        with self.transaction():
            if exclusive:
                self.write("UPDATE leases SET state = 'void' WHERE unit = ?", unit)
            self.write(
                "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, 'held', ?, ?)",
                lease,
                unit,
                generation,
                int(exclusive),
                stamped=True,
            )

    def unbind(self, lease: str) -> None:
        """Let a lease hold nothing any more."""
        self.write("DELETE FROM leases WHERE lease = ?", lease)

    def bound(self, *, lease: str | None = None, unit: str | None = None) -> list[Bound]:
        """Return who holds what: of a lease whatever became of it, on a unit what holds now."""
        where = "lease = ?" if unit is None else "unit = ? AND state = 'held'"
        columns = "lease, unit, generation, exclusive, state, wall_us, steady_us"
        return [
            Bound(row[0], row[1], row[2], bool(row[3]), row[4], Stamp(row[5], row[6]))
            for row in self.rows(
                f"SELECT {columns} FROM leases WHERE {where}",  # noqa: S608 - one of the two above
                lease if unit is None else unit,
            )
        ]

    def held(self) -> list[tuple[str, str, bool]]:
        """Return what is held now: lease, unit, and whether by it alone."""
        rows = self.rows("SELECT lease, unit, exclusive FROM leases WHERE state = 'held'")
        return [(lease, unit, bool(exclusive)) for lease, unit, exclusive in rows]

    def slices_seen(self, device: str, uuids: Sequence[str]) -> None:
        """Follow which slices are on a device: one that comes back begins another lifetime."""
        known = dict(self.rows("SELECT uuid, there FROM slices WHERE device = ?", device))
        with self.transaction():
            self.gone([uuid for uuid, there in known.items() if there and uuid not in uuids])
            for uuid in uuids:
                if not known.get(uuid):
                    self.write(
                        "INSERT INTO slices VALUES (?, 1, ?, 1, ?, ?) ON CONFLICT (uuid) DO UPDATE"
                        " SET generation = generation + 1, there = 1, device = excluded.device",
                        uuid,
                        device,
                        stamped=True,
                    )

    def gone(self, uuids: Sequence[str]) -> None:
        """Keep that slices are not there any more, with all that was known of them."""
        with self.transaction():
            for uuid in uuids:
                self.write("UPDATE slices SET there = 0 WHERE uuid = ?", uuid)
                self.write("DELETE FROM baselines WHERE unit = ?", uuid)

    def generation(self, uuid: str) -> int:
        """Return the lifetime that a slice is in; 0: it is not there, or is no slice."""
        found = self.rows("SELECT generation FROM slices WHERE uuid = ? AND there", uuid)
        return int(found[0][0]) if found else 0

    def home(self, unit: str) -> str | None:
        """Return the device that a unit is or was on; None for a slice that never was here."""
        if not unit.startswith("MIG-"):
            return unit
        found = self.rows("SELECT device FROM slices WHERE uuid = ?", unit)
        return found[0][0] if found else None

    def baseline(self, unit: str) -> int | None:
        """Return the memory (MiB) that a unit of this lifetime used when nobody was on it."""
        found = self.rows(
            "SELECT used_mib FROM baselines WHERE unit = ? AND generation = ?",
            unit,
            self.generation(unit),
        )
        return int(found[0][0]) if found else None

    def set_baseline(self, unit: str, used_mib: int) -> None:
        """Keep what a unit uses when idle."""
        statement = "INSERT OR REPLACE INTO baselines VALUES (?, ?, ?, ?, ?)"
        self.write(statement, unit, self.generation(unit), used_mib, stamped=True)

    def hold(self, one: Hold) -> None:
        """Keep a device out of use until what is left on it is gone."""
        places = _text(
            sorted({*one.places, *(p for h in self.holds(one.device) for p in h.places)})
        )
        statement = "INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?)"
        self.write(statement, one.device, places, one.reason, _text(one.evidence), stamped=True)

    def holds(self, device: str | None = None) -> list[Hold]:
        """Return the devices that are kept out of use, or the one if it is."""
        rows = self.rows("SELECT device, places, reason, evidence FROM holds ORDER BY device")
        return [
            Hold(uuid, tuple(orjson.loads(places)), reason, orjson.loads(evidence))
            for uuid, places, reason, evidence in rows
            if device in (None, uuid)
        ]

    def release(self, device: str) -> None:
        """Let a device be used again."""
        self.write("DELETE FROM holds WHERE device = ?", device)
