"""A cell with its services, operators and nodes, every act a plain method; a clerk looks on.

The Hypothesis machine (tests/test_core_machine.py) and the seeded simulation
(tests/simulation) both drive it, each in its own way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.decide import decide
from ledger.core.digest import load_fold, save_fold
from ledger.core.outbox import messages
from ledger.testing import AGENT, CoreDriver, device
from tests.fleet import LABELS, NODES, PARTED, POOLS, PROFILES, SLICES, UUIDS, Cards, card
from tests.naive import Naive

if TYPE_CHECKING:
    from ledger.core.decide import Decision

__all__ = ["NODES", "PARTED", "QUEUES", "QUOTAS", "SLICES", "TEAMS", "TENANTS", "UUIDS", "World"]

TEAMS = ("/team/a", "/team/b")
TENANTS = ("t", "u", "v")
#: (tenant, project, parent) of all quotas, those above first.
QUOTAS = (
    ("org", None, None),
    ("t", None, "org"),
    ("t", "p", None),
    ("t", "q", None),
    ("u", None, "org"),
    ("v", None, None),
)
QUEUES = ("q", "strict", "fill", "fair")


class World:
    """Everything that services, operators, nodes and time can do to a cell.

    ``check``: the core's own invariants after every step. ``every``: how many steps
    lie between two comparisons with the clerk's tables; the clerk follows, and
    refuses, at every step.
    """

    def __init__(self, *, check: bool = True, every: int = 1) -> None:
        """Start before there is any policy or node."""
        self.cell = CoreDriver(check=check)
        self.naive = Naive()
        self.every = every
        self.steps = 0
        self.cards = Cards()
        #: Partition orders, as they were issued.
        self.work: dict[str, dict[str, Any]] = {}
        self.boots = dict.fromkeys(NODES, 1)
        self.epoch = 1
        self.pools = dict(POOLS)
        self.places = dict(LABELS)
        self.submitted: list[tuple[str, str, dict[str, Any]]] = []
        self.leases: list[str] = []
        self.orders: list[tuple[str, str, str]] = []
        self.asks: list[str] = []

    # -- driving ---------------------------------------------------------------

    def feed(self, name: str, plain: dict[str, Any], **more: Any) -> str:
        """Feed an input to the ledger, its decision to the clerk; compare."""
        self.steps += 1
        looked = self.steps % self.every == 0
        before = save_fold(self.cell.fold) if looked else b""
        decision = self.cell.feed(name, plain, **more)
        self.naive.learn(decision)
        if looked:
            self.naive.compare(self.cell.state)
            self._decide_again(before, decision)
        if decision.code != "duplicate":
            for topic, _, _, said in messages(self.cell.state, decision, "events/0@1"):
                if topic == "replies" and said["final"] and said["request"] == said["input"]:
                    about = said["request"]
                    self.naive.answered[about] = self.naive.answered.get(about, 0) + 1
                    assert self.naive.answered[about] == 1, f"A5: {about} is answered twice"
        self.remember(decision)
        return decision.code

    def remember(self, decision: Decision) -> None:
        """Remember what later acts are about."""
        for event in decision.events:
            if event["type"] == "lease.granted":
                self.leases.append(event["lease"])
            if event["type"] == "order.issued":
                boot = self.cell.state.nodes[event["node"]].incarnation
                self.orders.append((event["order"], event["node"], boot))
                if event["kind"] == "partition":
                    self.work[event["order"]] = event

    def _decide_again(self, before: bytes, decision: Decision) -> None:
        """S2: a worker that has just loaded a snapshot decides as one that went all the way."""
        state = load_fold(before).ready().cell(self.cell.name)
        again = decide(state, decision.input)
        assert again.events == decision.events, "S2: decided otherwise after a load"
        assert again.code == decision.code, "S2: answered otherwise after a load"

    def operator(self, name: str, **plain: Any) -> str:
        """Feed what an operator says."""
        return self.feed(name, {"author": "op", "reason": "x", **plain}, source="/operator")

    def says(self, name: str, node: str, boot: str | None = None, **plain: Any) -> str:
        """Feed what a node's agent says."""
        said = {"node": node, "incarnation": boot or self.boot(node), **plain}
        return self.feed(name, said, source=AGENT + node)

    def report(self, node: str, **more: Any) -> str:
        """Feed a node's inventory as the fleet has it."""
        size = {"n1": {"cpu_milli": 10_000, "memory_mib": 1_000}}.get(node, {})
        said: dict[str, Any] = {"epoch": self.epoch, "pool": self.pools[node]}
        devices = [dict(one) for one in self.cards.of[node].values()]
        said |= self.places[node]
        return self.says("node.inventory", node, devices=devices, **(said | size | more))

    def start(self, *, late: bool, nominal: int) -> None:
        """Set policies and nodes; the side pool sometimes comes after its node."""
        self.operator(
            "pool.apply",
            pool="main",
            labels={"zone": "1"},
            order_timeout_s=120,
            partition="create",
            routing=[{"when": "elastic", "mode": "share"}],
        )
        self.operator("queue.apply", queue="q", preemption="any-tenant", reclaim="lower-priority")
        self.operator("queue.apply", queue="strict", ordering="strict", max_wait_s=900)
        self.operator("queue.apply", queue="fill", ordering="backfill", max_run_s=900)
        self.operator(
            "queue.apply", queue="fair", fair_share=True, reclaim="any", idle_reclaim_s=60
        )
        for tenant, project, parent in QUOTAS:
            mine = {"org": 2 * nominal, "v": nominal}.get(tenant, nominal if project is None else 0)
            self.operator(
                "quota.apply", tenant=tenant, project=project, parent=parent,
                nominal_gpu_milli=mine,
            )  # fmt: skip
        if not late:
            self.operator("pool.apply", pool="side", partition="relayout")
        self.licence("one", 2)
        self.licence("two", 1)
        self.compatibility("m1", {"architectures": ["hopper"]})
        self.template("small", "evaluation", {"defaults": {"queue": "q", "preemptible": True}})
        for node in NODES:
            self.report(node)
        for node in NODES[1:]:
            self.link("n1", node, 10, 1_000, 2_000)
        self.reserve("x", "t", (1, 1), (60, 900), {})

    # -- services ----------------------------------------------------------------

    def submit(
        self,
        who: tuple[str, str, str | None, str],
        ask: dict[str, Any],
        more: dict[str, Any],
        task: tuple[str, str] = ("task", "training"),
    ) -> str:
        """Let a service ask."""
        source, tenant, project, queue = who
        about: dict[str, Any] = {
            "tenant": tenant,
            "queue": queue,
            "task": {"id": task[0], "type": task[1]},
            "ask": ask,
        }
        if project is not None:
            about["project"] = project
        booking = self.naive.bookings.get(more.get("reservation", ""))
        if booking is not None:
            about["tenant"] = booking["tenant"]
        if "template" in more and len(self.submitted) % 2:
            del about["queue"], about["task"]["type"]
            if len(self.submitted) % 3:
                del about["ask"]
        name = f"r{len(self.submitted)}"
        self.submitted.append((source, name, about | more))
        return self.feed("request.submit", about | more, source=source, id=name)

    def submit_again(self, pick: int, *, other: bool) -> None:
        """Send the same id again: a copy for the same content, a conflict for other."""
        source, name, plain = self.submitted[pick % len(self.submitted)]
        more = {"expected_run_s": 77} if other else {}
        code = self.feed("request.submit", plain | more, source=source, id=name)
        assert code == ("id_conflict" if other else "duplicate")

    def cancel(self, pick: int, *, wrong: bool) -> None:
        """Withdraw a request, sometimes as a stranger."""
        source, name, _ = self.submitted[pick % len(self.submitted)]
        stranger = TEAMS[1 - TEAMS.index(source)]
        said = {"request": f"{source}#{name}"}
        code = self.feed("request.cancel", said, source=stranger if wrong else source)
        assert not wrong or code in ("not_owner", "unknown_request")

    def cancel_reserved(self, pick: int) -> None:
        """Withdraw a request for which a place is kept, if there is one."""
        kept = sorted(one.id for one in self.naive.asked.values() if one.kept)
        if kept:
            name = kept[pick % len(kept)]
            code = self.feed("request.cancel", {"request": name}, source=owner(name))
            assert code in ("cancelled", "stopping", "already_ended")

    def release(self, pick: int, *, wrong: bool) -> None:
        """Give back a lease that lasts, or any that ever was."""
        lease = self._lease(pick)
        source = owner(lease)
        live = lease in self.cell.state.leases
        stranger = TEAMS[1 - TEAMS.index(source)]
        code = self.feed("lease.release", {"lease": lease}, source=stranger if wrong else source)
        if wrong:
            assert code == "not_owner"
        elif live:
            # A deadline that the input carries the clock past comes before it.
            assert code in ("released", "already_released")
        else:
            assert code == "already_released"

    def extend(self, pick: int, seconds: int, *, wrong: bool) -> None:
        """Ask for a longer run, mostly of a lease that lasts."""
        live = sorted(self.cell.state.leases) or self.leases
        lease = live[pick % len(live)]
        source = owner(lease)
        stranger = TEAMS[1 - TEAMS.index(source)]
        said = {"lease": lease, "more_s": seconds}
        code = self.feed("lease.extend", said, source=stranger if wrong else source)
        assert not wrong or code in ("not_owner", "already_released")

    def _lease(self, pick: int) -> str:
        """Return mostly a lease that lasts, now and then any that ever was."""
        live = sorted(self.cell.state.leases)
        named = live if live and pick % 4 else self.leases
        return named[pick % len(named)]

    # -- nodes -------------------------------------------------------------------

    def task(self, pick: int, how: str) -> None:
        """Let a node see a task start, idle or end."""
        lease = self._lease(pick)
        known = self.cell.state.leases.get(lease)
        node = NODES[pick % 3] if known is None else list(known.parts)[pick % len(known.parts)]
        if how == "started":
            self.says("task.started", node, lease=lease)
        elif how in ("idle", "busy"):
            self.says("task.use", node, lease=lease, idle=how == "idle", idle_s=pick)
        else:
            self.says("task.ended", node, lease=lease, how=how)

    def answer(self, pick: int, *, done: bool, old: bool) -> None:
        """Answer an order, perhaps an old one, perhaps as an earlier incarnation."""
        state = self.cell.state
        named = [one for one in self.orders if old or one[0] in state.orders] or self.orders
        order, node, boot = named[pick % len(named)]
        said = None if not old else boot
        if done:
            self._done(order, node, said, how=pick % 8)
        else:
            self.says("order.failed", node, said, order=order, reason="left")

    def _done(self, order: str, node: str, said: str | None = None, how: int = 2) -> None:
        """Carry an order out; of a partition, perhaps only say so (0), or do not say so (1)."""
        work = self.work.get(order)
        if work is None:
            self.says("order.done", node, said, order=order)
            return
        made = self.cards.carry_out(node, work) if how else []
        if made is None:
            self.says("order.failed", node, said, order=order, reason="insufficient resources")
        elif how != 1:
            self.says("order.done", node, said, order=order, slices=made)

    def answer_all(self) -> None:
        """Let every node that is heard carry out its orders."""
        state = self.cell.state
        for _ in range(3):
            for name, order in list(state.orders.items()):
                node = state.nodes[order.node]
                heard = node.state not in ("silent", "lost")
                # One may be closed by what another led to.
                if heard and name in state.orders and node.incarnation == self.boot(node.name):
                    self._done(name, node.name)

    def boot(self, node: str) -> str:
        """Return the incarnation that a node is in."""
        return f"b{self.boots[node]}"

    def inventory(self, node: str, *, boot: bool) -> None:
        """Let a node tell what it has, sometimes after a restart: slices made are gone then."""
        self.boots[node] += boot
        if boot:
            self.cards.forget_slices(node)
        self.report(node)

    def move(self, uuid: str, to: str, *, tell: bool) -> None:
        """Pull a card, and perhaps put it into another node (or back)."""
        found = None
        for node, cards in self.cards.of.items():
            if uuid in cards and node != to:
                found = cards.pop(uuid)
                if uuid in PARTED:
                    found["slices"] = []
                if tell:
                    self.report(node)
        if to:
            self.cards.of[to].setdefault(uuid, found or card(uuid))
            self.report(to)

    def change(self, uuid: str, change: dict[str, Any]) -> None:
        """Report a card with other facts."""
        for node, cards in self.cards.of.items():
            if uuid in cards:
                cards[uuid] = cards[uuid] | change
                self.report(node)

    def meddle(self, uuid: str, pick: int, *, tell: bool) -> None:
        """Make or destroy a slice by hand, beside the ledger; or leave a change of mode pending."""
        found = self.cards.find(uuid)
        if found is None:
            return
        kinds = PROFILES[found["model"]]
        if pick % 3 == 0:
            name = list(kinds)[pick % len(kinds)]
            starts = kinds[name][3]
            self.cards.create(found, name, starts[pick % len(starts)])
        elif pick % 3 == 1 and found["slices"]:
            found["slices"] = found["slices"][1:]
        elif pick % 5 == 0:
            found |= {"slices": [], "mig_enabled": False, "mig_pending": True}
        if tell:
            self.report(next(node for node, cards in self.cards.of.items() if uuid in cards))

    def layout(self, uuid: str, pick: int, count: int) -> None:
        """Order a whole layout of a card."""
        found = self.cards.find(uuid)
        names = list(PROFILES.get("H100" if found is None else found["model"], PROFILES["H100"]))
        layout = [names[(pick * at) % len(names)] for at in range(count)]
        self.operator("device.partition", device=uuid, layout=layout)

    def hear(self, node: str, what: str) -> None:
        """Stop hearing a node, or hear it again."""
        more: dict[str, Any] = {"last_heartbeat_us": 1} if what == "silent" else {}
        self.says(f"node.{what}", node, **more)

    def health(self, pick: int, health: str) -> None:
        """Change a card's health."""
        known = sorted(self.cell.state.devices.values(), key=lambda one: one.uuid)
        card = known[pick % len(known)]
        self.says("device.health", card.node, device=card.uuid, health=health)

    def health_reserved(self, pick: int, health: str) -> None:
        """Change the health of a card that is kept for somebody, if there is one."""
        kept = sorted(
            one.uuid for one in self.cell.state.devices.values() if one.kept_for is not None
        )
        if kept:
            card = self.cell.state.devices[kept[pick % len(kept)]]
            self.says("device.health", card.node, device=card.uuid, health=health)

    def repool(self, node: str, pool: str) -> None:
        """Configure a node into another pool."""
        self.pools[node] = pool
        self.report(node)

    def odd(self, node: str, kind: str) -> None:
        """Send an inventory by a second agent, of an old boot, or of a node that has grown."""
        if kind == "cpu":
            self.epoch += 1
            self.report(node, cpu_milli=20_000)
        elif kind == "epoch":
            self.report(node, epoch=0)
        else:
            said = {"pool": "main", "epoch": 5, "devices": [device("GPU-b")]}
            boot = "b0" if kind == "boot" else f"b{self.boots[node]}"
            source = AGENT + (node if kind == "boot" else "other")
            plain = {"node": node, "incarnation": boot, **said}
            if kind == "agent" or boot in self.cell.state.nodes[node].past_incarnations:
                self.feed("node.inventory", plain, source=source)

    # -- operators and time --------------------------------------------------------

    def repair(self) -> None:
        """Put every node and card back as it was, and into service."""
        self.cards.of = Cards().of
        self.places = dict(LABELS)
        self.pools = dict(POOLS)
        self.epoch += 1
        for node in NODES:
            self.report(node)
            self.hear(node, "back")
            self.mode(node, "online")
        for node in NODES:
            # A card that another node still had a moment ago is seen by now.
            self.report(node)
        for uuid in sorted(self.cell.state.devices):
            self.clear(uuid)

    def reclaim(self, pick: int) -> None:
        """Take a lease back."""
        self.operator("lease.reclaim", lease=self._lease(pick))

    def clear(self, uuid: str) -> None:
        """Give the word that a card is clean."""
        self.operator("device.clear", device=uuid)

    def mode(self, node: str, mode: str) -> None:
        """Put a node in or out of service, silent or not."""
        self.operator("node.set", node=node, mode=mode)

    def quota(self, at: int, nominal: int, more: dict[str, Any]) -> None:
        """Raise or lower a quota, with other limits, under another parent."""
        tenant, project, parent = QUOTAS[at % len(QUOTAS)]
        plain: dict[str, Any] = {"tenant": tenant, "nominal_gpu_milli": nominal}
        plain |= {"project": project} if project else {"parent": parent}
        if project:
            more = {name: value for name, value in more.items() if name != "parent"}
        self.operator("quota.apply", **(plain | more))

    def quota_ask(self, at: int, nominal: int) -> None:
        """Ask for another quota."""
        tenant, project, _ = QUOTAS[at % len(QUOTAS)]
        self.asks.append(f"/operator#ask-{len(self.asks)}")
        plain = {
            "tenant": tenant, "nominal_gpu_milli": nominal, "author": "op", "reason": "x",
        } | ({"project": project} if project else {})  # fmt: skip
        name = f"ask-{len(self.asks) - 1}"
        self.feed("quota.ask", plain, source="/operator", id=name)

    def quota_answer(self, pick: int, author: str, *, approve: bool) -> None:
        """Answer what was asked for, sometimes as the same person."""
        code = self.operator(
            "quota.answer", ask=self.asks[pick % len(self.asks)], approve=approve, author=author
        )
        assert author != "op" or code in ("same_person", "unknown_ask")

    def pool(self, pool: str, zone: str, patience: int, more: dict[str, Any]) -> None:
        """Make a pool, or change its labels, its patience and its other rules."""
        self.operator(
            "pool.apply",
            pool=pool,
            labels={"zone": zone},
            silent_grace_s=patience,
            order_timeout_s=patience,
            **more,
        )

    def queue(self, queue: str, ordering: str, more: dict[str, Any]) -> None:
        """Change a queue's rules while requests wait in it."""
        if ordering == "strict":
            more = {name: value for name, value in more.items() if name != "fair_share"}
        self.operator("queue.apply", queue=queue, ordering=ordering, **more)

    def where(self, node: str, said: dict[str, Any]) -> None:
        """Let a node tell another rack, or another driver."""
        self.places[node] = self.places[node] | said
        self.report(node)

    def link(self, node: str, to_node: str, p99_us: int, mbps: int, valid_s: int) -> None:
        """Let a node measure its link to another."""
        more: dict[str, Any] = {"tool": "ping", "version": "1", "valid_s": valid_s}
        self.says(
            "link.evidence", node, to_node=to_node, p99_us=p99_us, bandwidth_mbps=mbps, **more
        )

    def licence(self, licence: str, count: int) -> None:
        """Set how many of a licence may be in use."""
        self.operator("licence.apply", licence=licence, count=count)

    def compatibility(self, model: str, more: dict[str, Any]) -> None:
        """Set what a version of a model needs."""
        self.operator("compatibility.apply", model_version=model, **more)

    def template(self, name: str, task_type: str, more: dict[str, Any]) -> None:
        """Set a template of a task type."""
        self.operator("template.apply", template=name, task_type=task_type, **more)

    def reserve(
        self, name: str, tenant: str, much: tuple[int, int], when: tuple[int, int], more: Any
    ) -> None:
        """Reserve so many cards on so many nodes, from so many seconds on, for so many."""
        start_us = self.cell.now_us + when[0] * 1_000_000
        self.operator(
            "reservation.apply",
            reservation=name,
            tenant=tenant,
            count=much[0],
            nodes=much[1],
            start_us=start_us,
            end_us=start_us + when[1] * 1_000_000,
            **more,
        )

    def unreserve(self, name: str) -> None:
        """Give a reservation up."""
        self.operator("reservation.cancel", reservation=name)

    def time(self, seconds: int) -> None:
        """Let time pass, or an input come with an earlier stamp."""
        at = max(1, self.cell.now_us + seconds * 1_000_000)
        self.feed("tick", {}, source="/tick", at_us=at)


def owner(name: str) -> str:
    """Return the source that a request or lease belongs to."""
    return name.partition("#")[0]
