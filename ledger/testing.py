"""Helpers to test what is built on the ledger: a cell that is driven by hand.

`CoreDriver` feeds inputs to one cell, keeps the records they lead to, and makes
the common inputs from a few words. Time is explicit: every input is a
millisecond later than the one before unless ``at_us`` says otherwise.

>>> cell = CoreDriver(check=True)
>>> _ = cell.pool(), cell.queue(), cell.quota(nominal_gpu_milli=1000)
>>> _ = cell.node("n1", devices=[device("GPU-a")])
>>> cell.submit("r1").code
'granted'
>>> cell.lease("r1").parts["n1"].units
['GPU-a']
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import orjson

from ledger.core.decide import Decision, decide, to_record
from ledger.core.decisions.turn import Input
from ledger.core.digest import digest
from ledger.core.fold import Fold
from ledger.core.invariants import check as broken
from ledger.core.limits import MAX_DUE
from ledger.core.quotas.quota import GPU, available
from schemas import records
from schemas.catalogue import TYPES, adapter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.state import Lease, State

__all__ = ["AGENT", "TEAM", "CoreDriver", "device", "mig_slice"]

#: The source that requests come from unless a test says otherwise.
TEAM = "/team/a"
#: A node's agent is this prefix and the node's name.
AGENT = "/nodes/"
_OPERATOR = {"author": "operator", "reason": "test"}
_STEP_US = 1_000


def device(uuid: str, **more: object) -> dict[str, Any]:
    """Return one device as an inventory reports it: an H100 unless told otherwise."""
    return {"uuid": uuid, "model": "H100", "memory_mib": 81_920, **more}


def mig_slice(uuid: str, gi: int, start: int, **more: object) -> dict[str, Any]:
    """Return one MIG slice as an inventory reports it: the smallest of an H100."""
    shape = {"profile": "1g.10gb", "size": 1, "compute_slices": 1, "memory_mib": 9_856}
    return {"mig_uuid": uuid, "gi": gi, "ci": 0, "start": start, **shape, **more}


class CoreDriver:
    """One cell, its log, and the inputs that made it.

    With ``check`` every step is followed by all invariants, by the models that
    the records must satisfy, and by a fold of the record into a second copy,
    whose digest must be the same.
    """

    def __init__(self, cell: str = "c", *, check: bool = False, now_us: int = 1_000_000) -> None:
        """Start with an empty cell under a first claim."""
        self.name = cell
        self.check = check
        self.now_us = now_us
        self.fold = Fold()
        self.twin = Fold()
        self.records: list[bytes] = []
        self.inputs: list[Input] = []
        self.token = ""
        self._offsets = {"requests": -1, "observations": -1}
        self._ids = 0
        self.claim()

    # -- the cell ---------------------------------------------------------

    @property
    def state(self) -> State:
        """The cell's state."""
        return self.fold.cell(self.name)

    def key(self, request: str, source: str = TEAM) -> str:
        """Return the ledger's id of a request."""
        return request if "#" in request else f"{source}#{request}"

    def lease(self, request: str) -> Lease:
        """Return the lease that a request has now; raise KeyError when it has none."""
        return self.state.leases[self.state.requests[self.key(request)].lease or ""]

    def digest(self) -> str:
        """Return the digest of the live state."""
        return digest(self.fold.cells)

    def replayed(self) -> Fold:
        """Return a second fold, made from the kept bytes alone."""
        fold = Fold()
        for offset, value in enumerate(self.records):
            fold.apply(offset, value)
        return fold

    # -- inputs -----------------------------------------------------------

    def claim(self) -> None:
        """Take the partition anew: a claim with a token of its own."""
        self.token = f"{self.fold.head.claims + 1:032x}"
        record = {
            "v": 1,
            "kind": "claim",
            "token": self.token,
            "worker": "test",
            "host": "test",
            "generation": 1,
            "time_us": self.now_us,
        }
        value = orjson.dumps(record)
        self.fold.apply(len(self.records), value)
        if self.check:
            self.twin.apply(len(self.records), value)
        self.records.append(value)

    def feed(
        self,
        name: str,
        plain: dict[str, Any],
        *,
        source: str = TEAM,
        id: str | None = None,  # noqa: A002 - the CloudEvents attribute
        at_us: int | None = None,
    ) -> Decision:
        """Decide one input of type ``name``; keep the record when there is one."""
        if id is None:
            self._ids += 1
            id = f"auto-{self._ids}"  # noqa: A001 - the CloudEvents attribute
        self.now_us = self.now_us + _STEP_US if at_us is None else at_us
        canonical = orjson.dumps([name, plain], option=orjson.OPT_SORT_KEYS)
        given = Input(
            TYPES[name, 1].topic,
            name,
            1,
            source,
            id,
            self.now_us,
            adapter(name, 1).validate_json(orjson.dumps(plain)),
            plain,
            blake2b(canonical, digest_size=8).hexdigest(),
        )
        self.inputs.append(given)
        return self._decide(given)

    def _decide(self, given: Input) -> Decision:
        topic = given.topic
        self._offsets[topic] += 1
        before = {one.name: one.used.get("gpu", 0) for one in self.state.quotas.values()}
        decision = decide(self.state, given)
        if decision.recorded:
            head = self.fold.head
            value = orjson.dumps(
                to_record(
                    decision,
                    cell=self.name,
                    token=self.token,
                    seq=head.seq + 1,
                    offset=self._offsets[topic],
                )
            )
            self.fold.advance(topic, self._offsets[topic], decision.time_us)
            head.offset += 1
            self.records.append(value)
            if self.check:
                self._check_record(value)
        if self.check:
            self._check_state(before, len(decision.events))
        return decision

    def _check_record(self, value: bytes) -> None:
        records.Decision.model_validate_json(value)
        verdict, _ = self.twin.apply(len(self.records) - 1, value)
        assert verdict == "effective", verdict

    def _check_state(self, before: dict[str, int], fired: int) -> None:
        assert digest(self.twin.cells) == self.digest(), "the fold of the records differs"
        for cells in (self.fold.cells, self.twin.cells):
            found = [one for state in cells.values() for one in broken(state)]
            assert not found, "\n".join(map(str, found))
        for due_us, kind, name in self.state.index.deadlines.standing(self.state):
            # A pool's or queue's patience may be lowered below what has passed, and a lease
            # may have been idle for longer: the next input acts on it.
            soon = kind in ("node", "remind", "idle")
            late = due_us < self.state.now_us and not soon and fired < MAX_DUE
            assert not late, f"V1: {kind} {name} was due at {due_us}"
        for quota in self.state.quotas.values():
            grown = quota.used.get(GPU, 0) > before.get(quota.name, 0)
            left = available(self.state, quota.name, GPU)
            # What is kept from lending may be used, whatever is lacking above.
            kept = quota.used.get(GPU, 0) <= quota.kept.get(GPU, 0)
            assert not grown or kept or left is None or left >= 0, f"Q1: {quota}"

    # -- policy -----------------------------------------------------------

    def pool(self, name: str = "main", **more: object) -> Decision:
        """Apply a pool."""
        return self.feed("pool.apply", {"pool": name, **_OPERATOR, **more}, source="/operator")

    def queue(self, name: str = "q", **more: object) -> Decision:
        """Apply a queue."""
        return self.feed("queue.apply", {"queue": name, **_OPERATOR, **more}, source="/operator")

    def quota(self, tenant: str = "t", *, nominal_gpu_milli: int = 1_000_000) -> Decision:
        """Set a tenant's quota."""
        plain = {"tenant": tenant, "nominal_gpu_milli": nominal_gpu_milli, **_OPERATOR}
        return self.feed("quota.apply", plain, source="/operator")

    def node_set(self, node: str, mode: str) -> Decision:
        """Put a node in or out of service."""
        plain = {"node": node, "mode": mode, **_OPERATOR}
        return self.feed("node.set", plain, source="/operator")

    def clear(self, uuid: str) -> Decision:
        """Give the word that a device is clean."""
        return self.feed("device.clear", {"device": uuid, **_OPERATOR}, source="/operator")

    def reclaim(self, lease: str) -> Decision:
        """Take a lease back."""
        return self.feed("lease.reclaim", {"lease": lease, **_OPERATOR}, source="/operator")

    # -- requests ---------------------------------------------------------

    def submit(
        self,
        id: str | None = None,  # noqa: A002 - the CloudEvents attribute
        ask: dict[str, Any] | None = None,
        *,
        source: str = TEAM,
        at_us: int | None = None,
        **more: object,
    ) -> Decision:
        """Submit a request: one whole device for tenant ``t`` unless told otherwise."""
        plain = {
            "tenant": "t",
            "queue": "q",
            "task": {"id": "task"},
            "ask": {"mode": "whole"} if ask is None else ask,
            **more,
        }
        return self.feed("request.submit", plain, source=source, id=id, at_us=at_us)

    def cancel(self, request: str, *, source: str = TEAM, **more: Any) -> Decision:  # noqa: ANN401
        """Withdraw a request."""
        return self.feed("request.cancel", {"request": self.key(request)}, source=source, **more)

    def release(self, lease: str, *, source: str = TEAM, **more: Any) -> Decision:  # noqa: ANN401
        """Give a lease back."""
        return self.feed("lease.release", {"lease": lease}, source=source, **more)

    # -- what nodes say ---------------------------------------------------

    def node(
        self,
        name: str,
        devices: Iterable[dict[str, Any]] = (),
        *,
        incarnation: str = "b1",
        epoch: int = 1,
        agent: str | None = None,
        **more: object,
    ) -> Decision:
        """Report a node's whole inventory."""
        plain = {
            "node": name,
            "incarnation": incarnation,
            "epoch": epoch,
            "pool": "main",
            "devices": list(devices),
            **more,
        }
        return self.feed("node.inventory", plain, source=agent or AGENT + name)

    def says(
        self, name: str, node: str, *, incarnation: str | None = None, **more: object
    ) -> Decision:
        """Let a node say something, as its present incarnation unless told otherwise."""
        known = self.state.nodes.get(node)
        boot = incarnation or (known.incarnation if known is not None else "b1")
        return self.feed(name, {"node": node, "incarnation": boot, **more}, source=AGENT + node)

    def silent(self, node: str) -> Decision:
        """Report that a node is not heard any more."""
        return self.says("node.silent", node, last_heartbeat_us=self.now_us)

    def back(self, node: str) -> Decision:
        """Report that a node is heard again."""
        return self.says("node.back", node)

    def health(self, uuid: str, health: str) -> Decision:
        """Report a device's health, from the node that has it."""
        node = self.state.devices[uuid].node
        return self.says("device.health", node, device=uuid, health=health)

    def task_started(self, lease: str, node: str) -> Decision:
        """Report that the lease's task runs on the node."""
        return self.says("task.started", node, lease=lease)

    def task_ended(self, lease: str, node: str, how: str = "completed") -> Decision:
        """Report that the lease's task no longer runs on the node."""
        return self.says("task.ended", node, lease=lease, how=how)

    def order_done(self, order: str) -> Decision:
        """Answer an open order."""
        return self.says("order.done", self.state.orders[order].node, order=order)

    def order_failed(self, order: str, reason: str = "a process is left") -> Decision:
        """Answer an open order that it could not be carried out."""
        node = self.state.orders[order].node
        return self.says("order.failed", node, order=order, reason=reason)

    def answer_all_orders(self) -> int:
        """Let every node that is heard carry out its orders until none is open; return how many."""
        count = 0
        while True:
            nodes = self.state.nodes
            heard = [
                order.id
                for order in self.state.orders.values()
                if nodes[order.node].state not in ("silent", "lost")
            ]
            if not heard:
                return count
            self.order_done(heard[0])
            count += 1

    def tick(self, at_us: int | None = None) -> Decision:
        """Let time pass."""
        return self.feed("tick", {}, source="/gpuledger/tick", at_us=at_us)
