"""What can be computed from the state and must not be computed twice.

Free devices by class and node, room on shared devices, free slices, the waiting
line and the deadlines. All of it is derived: `rebuild` makes it from the state
alone, `ledger.core.invariants` holds the kept one against a rebuilt one, and
every choice made from it depends on its content only, never on its history.

A *class* is ``(pool, model, memory_mib)``: devices that are alike for every
request. Free is counted per node and device, never as a sum (DESIGN 1.11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.core.derived.supply_index import SupplyIndex, usable
from ledger.core.derived.waiting import Waiting, replica_group
from ledger.core.quotas.quota import holder_of, root_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.core.promises.reservations import Reservation
    from ledger.core.state import Request, State

__all__ = ["Index", "rebuild", "usable"]


class Index(SupplyIndex):
    """Follows requests, leases and policy as well: everything derived."""

    __slots__ = ()

    def quotas_changed(self, state: State, *, reshaped: bool) -> None:
        """Note that quotas were set; ``reshaped``: requests may count against another now."""
        self.relieved.update(root_of(state, name) for name in state.quotas)
        self.loosened_queues.update(state.queues)
        self.ripen()
        if reshaped:
            self._file_again(state)
            self.hold_again(state)

    def queue_changed(self, state: State, name: str) -> None:
        """Note that a queue's rules were set."""
        self.loosened_queues.add(name)
        self._file_again(state)

    def needs_changed(self, state: State) -> None:
        """Note that requests ask as another now; `classes_changed` comes next."""
        self._matches.clear()
        self._file_again(state)

    def hold_again(self, state: State) -> None:
        """Make what is kept of leases from the state alone."""
        self.held_by, self.held_in = {}, {}
        self._replicas, self.floored = None, {}
        for lease in state.leases.values():
            request = state.requests[lease.request]
            holder = holder_of(state, request.tenant, request.project)
            self.leased(state, request, lease.id, holder)

    def _file_again(self, state: State) -> None:
        self.waiting = Waiting()
        for request in state.requests.values():
            if request.state == "queued":
                self.waiting.add(state, request, self.matches(state, request.need))

    def loosen_all(self, state: State) -> None:
        """Let the next pass look at everything that waits."""
        self.freed.update(self.cards)
        self.freed.update(self.slices)
        self.relieved.update(root_of(state, name) for name in state.quotas)
        self.loosened_queues.update(state.queues)

    def queued(self, state: State, request: Request) -> None:
        """Put a request in line, with its longest wait."""
        self.waiting.add(state, request, self.matches(state, request.need))
        self.deadlines.push(state, request.wait_due_us, "wait", request.id)

    def unqueued(self, state: State, request: Request) -> None:
        """Take a request out of the line: those behind it may go."""
        self.waiting.discard(request)
        if state.queues[request.queue].ordering != "best-effort":
            self.loosened_queues.add(request.queue)

    def planned(self, request: Request) -> None:
        """Keep a request's plan by node."""
        if request.plan is not None:
            for node in request.plan.nodes:
                self.plans[node] = request.id

    def unplanned(self, state: State, request: Request) -> None:
        """Drop a request's plan: its nodes are there for others again."""
        plan, request.plan = request.plan, None
        if plan is None:
            return
        for name in plan.nodes:
            if self.plans.get(name) == request.id:
                del self.plans[name]
                self.free_class(state, state.nodes[name])

    def repairing(self, request: Request) -> None:
        """Keep the former place of an interrupted gang by node."""
        for node in request.repair.parts if request.repair is not None else ():
            self.repairs.setdefault(node, {})[request.id] = None

    def booking(self, one: Reservation) -> None:
        """Keep a reservation by node; plans there may not stand beside it."""
        self.unsure.add(one.name)
        for node in one.chosen:
            self.booked.setdefault(node, {})[one.name] = None
            self._shaken(node)

    def unbooked(self, one: Reservation) -> None:
        """Keep it no longer."""
        for node in one.chosen:
            names = self.booked.get(node, {})
            names.pop(one.name, None)
            if not names:
                self.booked.pop(node, None)

    def kept(self, request: Request, sign: int) -> None:
        """Keep what the request needs beside its devices (+1), or let it go (-1)."""
        need = request.need
        if need.terms is not None and need.terms.apart:
            self._kept_apart(need.terms.apart, request.id, sign)
        if need.cpu_milli or need.host_memory_mib:
            for node in request.kept:
                cpu, memory = self.beside.pop(node, (0, 0))
                cpu += sign * need.cpu_milli
                memory += sign * need.host_memory_mib
                if cpu or memory:
                    self.beside[node] = (cpu, memory)
                self.scores.touch(node)

    def _kept_apart(self, task: str, request: str, sign: int) -> None:
        if sign > 0:
            self.apart.setdefault(task, {})[request] = None
            return
        kept = self.apart[task]
        del kept[request]
        if not kept:
            del self.apart[task]
        self.loosen(f"apart {task}")

    def leased(self, state: State, request: Request, lease: str, holder: str) -> None:
        """Keep a lease by its quota (``holder``), and by the task that it is a replica of."""
        leases = self.held_by.get(holder)
        if leases is None:
            leases = self.held_by[holder] = {}
            self.held_in.setdefault(root_of(state, holder), {})[holder] = None
        leases[lease] = None
        self._replica(request, lease, here=True)
        for name in self.apart.get("#".join(replica_group(request)), ()) if self.apart else ():
            # What is kept for it may be in the failure domain of this one now.
            self.ripe_for(name)
        if request.replicas_min:
            group = replica_group(request)
            self.floored[group] = self.floored.get(group, 0) + 1

    def unleased(self, state: State, request: Request, lease: str, holder: str) -> None:
        """Keep it no longer."""
        leases = self.held_by[holder]
        del leases[lease]
        if not leases:
            del self.held_by[holder]
            del self.held_in[root_of(state, holder)][holder]
        self._replica(request, lease, here=False)
        if request.replicas_min:
            group = replica_group(request)
            self.floored[group] -= 1
            if not self.floored[group]:
                del self.floored[group]
        if self.waiting.any_tagged:
            self.loosen("apart " + "#".join(replica_group(request)))

    def _replica(self, request: Request, lease: str, *, here: bool) -> None:
        if self._replicas is None:
            return
        group = replica_group(request)
        if here:
            self._replicas.setdefault(group, {})[lease] = None
            return
        del self._replicas[group][lease]
        if not self._replicas[group]:
            del self._replicas[group]

    def replicas_of(self, state: State, group: tuple[str, str]) -> Iterable[str]:
        """Return the leases of a task's replicas. Kept from the first time that it is asked."""
        if self._replicas is None:
            self._replicas = {}
            for lease in state.leases.values():
                mine = replica_group(state.requests[lease.request])
                self._replicas.setdefault(mine, {})[lease.id] = None
        return self._replicas.get(group, ())

    def tightened(self, state: State, holder: str) -> None:
        """Note that there is less room in a tree: what cannot be had any more blocks nobody."""
        if not self.waiting.shapes:
            return
        for queue in self.waiting.queues_of(root_of(state, holder)):
            if state.queues[queue].ordering == "strict":
                self.loosened_queues.add(queue)


def rebuild(state: State) -> Index:
    """Make the index from the state alone and put it in place."""
    index = state.index = Index()
    for node in state.nodes.values():
        index.refresh_node(state, node)
    for request in state.requests.values():
        if request.state == "queued":
            index.waiting.add(state, request, index.matches(state, request.need))
            index.planned(request)
            index.repairing(request)
            if request.plan is not None:
                index.shaken.add(request.id)
        if request.kept:
            index.ripe_for(request.id)
            index.kept(request, 1)
    for one in state.reservations.values():
        index.booking(one)
    index.hold_again(state)
    index.deadlines.rebuild(state)
    index.settle()
    return index
