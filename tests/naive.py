"""The clerk at work: follows every decision with pencil and paper, and refuses what is wrong.

It knows nothing of lifecycles, indexes or schedules. It is told what nodes said
and what was decided, and refuses any decision that a careful clerk with pencil
and paper would refuse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ledger.core.quotas.quota import available
from tests.clerk.asked import Vgpu
from tests.clerk.bookings import Bookings
from tests.clerk.books import Card, Host, Plan
from tests.clerk.evictions import Evictions
from tests.clerk.reading import agrees, read
from tests.clerk.tree import Amounts

if TYPE_CHECKING:
    from ledger.core.decide import Decision
    from ledger.core.state import State
    from tests.clerk.asked import Asked

__all__ = ["Naive"]

_US = 1_000_000


class Naive(Bookings):
    """Who holds what, who was promised what, and what is not clean."""

    def __init__(self) -> None:
        """Start with empty books."""
        super().__init__()
        self.evictions = Evictions(self)
        self.over: set[str] = set()
        self.waiting: set[str] = set()
        self.since: dict[str, int] = {}
        self.cleaning: dict[str, dict[str, Any]] = {}
        self.arrivals = 0
        self.asks: dict[str, dict[str, Any]] = {}
        #: Request -> final answers.
        self.answered: dict[str, int] = {}
        self.given: Any = None
        self.planned_at: dict[str, set[str]] = {}

    def learn(self, decision: Decision) -> None:
        """Follow a decision, event by event."""
        self.given, self.now_us = decision.input, decision.time_us
        looked: set[str] = set()
        for at, event in enumerate(decision.events):
            if event["type"] == "lease.stopping" and event["reason"] == "preempted":
                by = event["by"]
                if by not in looked:
                    looked.add(by)
                    self._look(by, decision.events[at:])
            if event["type"] == "request.reserved" and event["why"]["rule"] == "partition":
                assert not event["evicted"]
                units = [unit for part in event["parts"] for unit in part["units"]]
                made = [unit for unit in units if not self.pieces[unit].uuid]
                assert made, f"{event['request']}: nothing is made"
            elif event["type"] == "request.reserved":
                assert event["request"] in looked, "reserved without an eviction"
                looked.discard(event["request"])
            follow = getattr(self, "_" + event["type"].replace(".", "_").replace("-", "_"), None)
            if follow is not None:
                follow(event, decision.time_us)
        assert not looked, f"Q6: evicted for {looked}, who got no place"
        closed = {
            one["order"] for one in decision.events
            if one["type"].startswith("order.") and one["type"] != "order.issued"
        }  # fmt: skip
        for name in closed:
            self.changing.pop(name, None)
        self.look_at_slices(closed)
        self.look_at_bookings()

    def _look(self, by: str, events: list[dict[str, Any]]) -> None:
        rules: dict[str, str] = {}
        for event in events:
            if event["type"] == "request.reserved" and event["request"] == by:
                assert set(rules) == set(event["evicted"])
                self.evictions.look(by, rules, event["parts"], self.now_us)
                return
            if event["type"] == "lease.stopping" and event.get("by") == by:
                rules[event["lease"]] = event["rule"]
        raise AssertionError(f"Q6: evicted for {by}, who got no place")

    # -- supply -------------------------------------------------------------

    def _pool_applied(self, event: dict[str, Any], _now: int) -> None:
        self.pools[event["pool"]] = event

    def _queue_applied(self, event: dict[str, Any], _now: int) -> None:
        self.queues[event["queue"]] = event
        self.evictions.done.clear()

    def _node_registered(self, event: dict[str, Any], _now: int) -> None:
        known = self.hosts.get(event["node"])
        mode = "online" if known is None else known.mode
        self.hosts[event["node"]] = Host(
            event["pool"], event["cpu_milli"], event["memory_mib"], mode,
            away=event["pool"] not in self.pools,
            driver=event.get("driver", ""), labels=event.get("labels", {}),
        )  # fmt: skip

    def _node_changed(self, event: dict[str, Any], _now: int) -> None:
        host = self.hosts[event["node"]]
        host.mode = event.get("mode") or host.mode
        host.away = event["state"] in ("silent", "lost", "registering")

    def _device_discovered(self, event: dict[str, Any], _now: int) -> None:
        uuid = event["device"]
        known = self.cards.get(uuid)
        assert known is None or known.health == "gone" or known.node == event["node"], event
        card = Card(
            event["node"], event["model"], event["memory_mib"], event["mig_enabled"],
            event["compute_slices"],
            pending=event.get("mig_pending", False),
            profiles={
                one["profile"]: (
                    one["size"], one["compute_slices"], one["memory_mib"], tuple(one["starts"]),
                    one.get("most", 0),
                )
                for one in event.get("profiles", ())
            },
            architecture=event["architecture"] or "",
            capability=event.get("capability", ""),
            nvlink=event.get("nvlink_domain", ""),
            encoders=event.get("encoder_sessions", 0),
            decoders=event.get("decoder_sessions", 0),
            iommu=event.get("iommu_group", ""),
            pci=event.get("pci_address", ""),
            vgpus=tuple(
                Vgpu(one["memory_mib"], one["most"], one["type"])
                for one in event.get("vgpu_types", ())
            ),
        )  # fmt: skip
        if known is not None:
            card.shut = known.shut
            card.health = "unknown" if known.health == "gone" else known.health
        self.cards[uuid] = card

    def _device_health(self, event: dict[str, Any], _now: int) -> None:
        self.cards[event["device"]].health = event["health"]

    def _device_quarantined(self, event: dict[str, Any], _now: int) -> None:
        self.cards[event["unit"]].shut = True

    def _slice_quarantined(self, event: dict[str, Any], _now: int) -> None:
        self.pieces[event["unit"]].shut = True

    def _device_cleared(self, event: dict[str, Any], _now: int) -> None:
        self.cards[event["device"]].shut = False
        for piece in self.pieces.values():
            if piece.card == event["device"]:
                piece.shut = False

    def _link_measured(self, event: dict[str, Any], now: int) -> None:
        at = (event["from_node"], event["to_node"])
        self.links[at] = event | {"measured_us": now}

    # -- policy ---------------------------------------------------------------

    def _quota_applied(self, event: dict[str, Any], _now: int) -> None:
        self.tree.apply(event)
        self.evictions.done.clear()
        self._adds_up()

    def _quota_asked(self, event: dict[str, Any], _now: int) -> None:
        self.asks[event["ask"]] = event

    def _quota_answered(self, event: dict[str, Any], _now: int) -> None:
        asked = self.asks.pop(event["ask"])
        assert asked["author"] != event["author"], "two persons sign"
        if event["approve"]:
            name = self.tree.holder(asked["tenant"], asked.get("project"))
            limits = self.tree.nodes[name].limits
            limits["gpu"] = (asked["nominal_gpu_milli"], *limits["gpu"][1:])
            self.evictions.done.clear()
            self._adds_up()

    def _adds_up(self) -> None:
        """Q3: what is below a quota is never more than it has."""
        for name, node in self.tree.nodes.items():
            for resource, limit in node.limits.items():
                below = sum(self.tree.stated(one, resource) for one in self.tree.children(name))
                assert below <= limit[0], f"Q3: {name} has {limit[0]} of {resource}, {below} below"

    def _licence_applied(self, event: dict[str, Any], _now: int) -> None:
        self.licences[event["licence"]] = event["count"]

    def _compatibility_applied(self, event: dict[str, Any], _now: int) -> None:
        self.rules[event["model_version"]] = event

    def _template_applied(self, event: dict[str, Any], _now: int) -> None:
        if event.get("default"):
            for other in self.templates.values():
                if other["task_type"] == event["task_type"]:
                    other["default"] = False
        self.templates[event["template"]] = dict(event)

    # -- requests ----------------------------------------------------------------

    def _request_rejected(self, event: dict[str, Any], _now: int) -> None:
        assert event["request"] not in self.over | set(self.asked)
        self.over.add(event["request"])

    def _request_received(self, event: dict[str, Any], now: int) -> None:
        assert event["request"] == self.given.key
        assert event["request"] not in self.over | set(self.asked)
        self.arrivals += 1
        asked, said = read(self, self.given.key, self.given.plain, now, self.arrivals)
        queue = self.queues[asked.queue]
        assert not queue.get("tenants") or asked.tenant in queue["tenants"], "may not submit"
        agrees(asked, event["need"])
        self._within_template(asked, said, event)
        self.asked[asked.id] = asked

    def _within_template(self, asked: Asked, said: dict[str, Any], event: dict[str, Any]) -> None:
        template = self.templates.get(said.get("template", ""))
        if template is None:
            return
        limits = template.get("limits", {})
        assert all(self.given.plain.get(one) for one in template.get("required", ()))
        assert asked.priority <= limits.get("max_priority", asked.priority)
        assert event.get("priority", 0) == asked.priority
        assert event.get("max_run_us") == asked.run_us
        if "max_run_s" in limits:
            assert asked.run_us is not None
            assert asked.run_us <= limits["max_run_s"] * _US

    def _request_queued(self, event: dict[str, Any], _now: int) -> None:
        assert event["request"] not in self.over | self.waiting
        self.waiting.add(event["request"])

    def _request_ended(self, event: dict[str, Any], _now: int) -> None:
        assert event["request"] not in self.over
        self.over.add(event["request"])
        self.waiting.discard(event["request"])
        self.plans.pop(event["request"], None)
        self.repairs.pop(event["request"], None)
        assert self.asked.pop(event["request"]).lease is None

    def _request_reserved(self, event: dict[str, Any], _now: int) -> None:
        asked = self.asked[event["request"]]
        self.waiting.discard(asked.id)
        self.plans.pop(asked.id, None)
        self.repairs.pop(asked.id, None)
        assert asked.lease is None
        parts = [(part["node"], unit) for part in event["parts"] for unit in part["units"]]
        due_us = None if asked.run_us is None else self.now_us + asked.run_us - asked.used_us
        for node, unit in parts:
            assert self.kept_for(unit) is None, "kept for two"
            made = event["why"]["rule"] == "partition" and self._may_start(node, asked, due_us)
            assert made or not self.promised(node, asked), f"{node} is planned before {asked.id}"
        asked.kept = {unit: node for node, unit in parts}
        self._charge(asked, event, [unit for _, unit in parts])
        self._within(asked, running=False)

    def _request_unreserved(self, event: dict[str, Any], _now: int) -> None:
        asked = self.asked[event["request"]]
        assert asked.kept
        assert self._lost(asked), f"C23: {asked.id} is let go for nothing: {event['reason']}"
        asked.kept, asked.amounts = {}, None
        self.waiting.add(asked.id)

    def _lost(self, asked: Asked) -> bool:
        """Say whether something went wrong with a kept place, or with what its quota is."""
        return self._place_lost(asked) or self._quota_lost(asked)

    def _place_lost(self, asked: Asked) -> bool:
        for unit, node in asked.kept.items():
            piece = self.pieces.get(unit)
            card = self.cards.get(unit if piece is None else piece.card)
            if card is None or card.node != node or not self.able(unit):
                return True
            if not self.host_fits(node, asked, ended=True):
                return True
        if self._terms_fault(asked, asked.kept) is not None:
            return True
        if not all(self.admits(node, asked, doubt=False) for node in asked.kept.values()):
            return True
        kinds = self._kinds_of(list(asked.kept))
        if len(kinds) > 1 or not kinds <= self.kinds(asked):
            return True
        assert asked.amounts is not None
        if {kind[1] for kind in kinds} != {asked.amounts.model}:
            return True
        milli, mib = asked.amounts.milli, asked.amounts.mib
        mode = asked.ask["mode"]
        if mode == "mig":
            return milli != sum(self.slice_milli(unit) for unit in asked.kept)
        return mode == "whole" and mib != sum(self.cards[unit].mib for unit in asked.kept)

    def _quota_lost(self, asked: Asked) -> bool:
        if self.at.licence_lacking(asked) is not None:
            return True
        holder = self.holder(asked)
        for one in self.tree.chain(holder):
            budget = self.tree.nodes[one].budget
            if budget is not None and budget.left(self.now_us) < self._longest(asked):
                return True
        return any(
            self.tree.fault(holder, one, self.usage(one)) is not None
            for one in self.tree.resources(holder)
            if asked.amounts is not None and asked.amounts.of(one)
        )

    def _longest(self, asked: Asked) -> int:
        assert asked.amounts is not None
        return asked.amounts.milli * max(0, (asked.run_us or 0) - asked.used_us)

    def _request_planned(self, event: dict[str, Any], _now: int) -> None:
        name = event["request"]
        self.plans.pop(name, None)
        self.planned_at.pop(name, None)
        if event["nodes"]:
            assert name in self.waiting
            others = {node for plan in self.plans.values() for node in plan.nodes}
            assert others.isdisjoint(event["nodes"]), "planned for two"
            self.plans[name] = Plan(event["nodes"], event["start_us"])
            self.planned_at[name] = set(self.held)

    def _request_repairing(self, event: dict[str, Any], _now: int) -> None:
        parts = {part["node"]: part["units"] for part in event["parts"]}
        self.repairs[event["request"]] = parts

    def _request_repair_over(self, event: dict[str, Any], _now: int) -> None:
        del self.repairs[event["request"]]

    # -- leases --------------------------------------------------------------------

    def _lease_granted(self, event: dict[str, Any], now: int) -> None:
        lease, asked = event["lease"], self.asked[event["request"]]
        assert lease not in self.since, "a lease is granted once"
        self.waiting.discard(asked.id)
        self.plans.pop(asked.id, None)
        self.repairs.pop(asked.id, None)
        ask = asked.ask
        units = [(part["node"], unit) for part in event["parts"] for unit in part["units"]]
        assert len(units) == ask.get("count", 1) * ask.get("nodes", 1), "all or nothing"
        reserved = bool(asked.kept)
        if reserved:
            assert asked.kept == {unit: node for node, unit in units}, "not what was kept"
        due_us = event.get("due_us")
        self.due[lease] = due_us
        for node in {part["node"] for part in event["parts"]}:
            assert reserved or self._may_start(node, asked, due_us), f"{node} is planned"
        for node, unit in units:
            self._may_take(node, unit, asked)
        fault = self._terms_fault(asked, {unit: node for node, unit in units})
        assert fault is None, fault
        self._given_by(asked, event)
        self.look_at_entry(asked, event)
        self._serves(asked, [unit for _, unit in units])
        asked.kept = {}
        self._charge(asked, event, [unit for _, unit in units])
        for part in event["parts"]:
            assert self.host_fits(part["node"], asked, ended=False), "A2: CPU or memory"
        asked.lease = lease
        held = asked.held
        self.held[lease] = {
            unit: held._replace(mib=self.cards[unit].mib) if ask["mode"] == "whole" else held
            for _, unit in units
        }
        lacking = self.at.licence_lacking(asked)
        assert lacking is None, f"more of licence {lacking} than there are, with {asked.id}"
        self.where[lease] = {part["node"] for part in event["parts"]}
        self.since[lease] = now
        self._within(asked, running=not reserved)
        self._spend(asked, now)

    def _may_start(self, node: str, asked: Asked, due_us: int | None) -> bool:
        """Back-fill: a planned start is never put off by who is later in line."""
        return not any(
            plan.start_us is None or due_us is None or due_us > plan.start_us
            for owner, plan in self.plans.items()
            if node in plan.nodes and owner != asked.id and self.asked[owner].rank < asked.rank
        )

    def _serves(self, asked: Asked, units: list[str]) -> None:
        """What is given is all of one kind, and of one that was asked for."""
        assert len(found := self._kinds_of(units)) <= 1, "cards of several kinds"
        assert found <= self.kinds(asked), f"{found} was not asked for"

    def _kinds_of(self, units: list[str]) -> set[tuple[str, str, int]]:
        pieces = [self.pieces[unit].card if unit in self.pieces else unit for unit in units]
        cards = [self.cards[uuid] for uuid in pieces]
        return {(self.hosts[card.node].pool, card.model, card.mib) for card in cards}

    def _may_take(self, node: str, unit: str, asked: Asked) -> None:
        piece = self.pieces.get(unit) if asked.ask["mode"] == "mig" else None
        uuid = unit if piece is None else piece.card
        assert self.cards[uuid].node == node
        assert self.able(unit), f"A6: {unit} is out of use"
        assert self.kept_for(unit) in (None, asked.id), f"{unit} is kept for another"
        if piece is not None:
            assert piece.uuid, f"{unit} is not there"
            assert not piece.order, f"{unit} is being changed"
            assert not self.holders(unit), "one holder of a slice"
            assert not self.holders(uuid), "not sliced and held whole"
            assert piece.profile == asked.ask.get("profile", piece.profile), "another profile"
            assert piece.mib >= asked.ask.get("memory_mib", 0), "a slice of less memory"
            assert piece.parts >= asked.ask.get("compute_slices", 0), "a slice of less compute"
            fault = self.alone(unit)
            assert fault is None, f"A2: {fault}"
            return
        there = self.holders(unit)
        more = asked.held
        assert sum(one.milli for one in there.values()) + more.milli <= 1000, "A9: too much"
        if asked.ask["mode"] == "whole":
            assert not there, "A1: whole, and held"
            assert self.cards[unit].mib >= more.mib, "A9: memory"
            assert self.sessions_left(unit, (), asked), "A13: sessions"
        else:
            assert self.has_room(unit, there, asked), f"A9, A13: no room on {unit} for {asked.id}"

    def _terms_fault(self, asked: Asked, units: dict[str, str]) -> str | None:
        """Say which term a place (unit -> node) does not meet, or None (A12-A14)."""
        by_node: dict[str, list[str]] = {}
        for unit, node in units.items():
            piece = self.pieces.get(unit)
            by_node.setdefault(node, []).append(unit if piece is None else piece.card)
        for node, uuids in by_node.items():
            cards = [self.cards[uuid] for uuid in uuids]
            if not self.at.pool_serves(self.hosts[node].pool, asked):
                return f"{self.hosts[node].pool} is not for {asked.id}"
            served = all(self.at.card_serves(one, asked) for one in cards)
            if not served or not self.at.node_serves(node, asked):
                return f"A14: {node} does not do for {asked.id}"
            passed = asked.terms.delivery == "passthrough"
            if passed and not self.at.whole_groups(node, uuids):
                return f"A14: {uuids} of {node} are not whole IOMMU groups"
            if not self.at.reached(node, asked, self.now_us):
                return f"A12: no fresh evidence of {node} for {asked.id}"
        if asked.terms.nvlink:
            kind = {(self.hosts[one.node].pool, one.model, one.mib) for one in
                    (self.cards[uuid] for uuid in units)}.pop()  # fmt: skip
            alike = [self.cards[uuid] for uuids in self.of_kind(kind).values()
                     for uuid in uuids]  # fmt: skip
            fault = self.at.linked(by_node, alike)
            if fault is not None:
                return f"A14: {fault}"
        return self.at.apart(by_node, asked)

    def _given_by(self, asked: Asked, event: dict[str, Any]) -> None:
        """What is written of the delivery: addresses, the type, the evidence, the isolation."""
        terms = asked.terms
        for part in event["parts"]:
            if terms.delivery == "passthrough":
                addresses = [self.cards[unit].pci for unit in part["units"]]
                assert list(part["pci_addresses"]) == addresses
            if terms.vgpu is not None:
                assert part["vgpu_type"] == terms.vgpu.type
            if terms.remote is not None:
                link = self.links[terms.remote[0], part["node"]]
                assert link["evidence"] in event["evidence"], "A12: another's evidence"
        if terms.delivery == "share":
            pool = self.pools[self.hosts[event["parts"][0]["node"]].pool]
            factor = pool.get("memory_overcommit_permille", 1000)
            assert event.get("memory_overcommit_permille", 1000) == factor

    def _charge(self, asked: Asked, event: dict[str, Any], units: list[str]) -> None:
        """Work out what the place counts for, and hold it against what was written."""
        ask = asked.ask
        if ask["mode"] == "mig":
            cards = {self.pieces[unit].card for unit in units}
            milli = sum(self.slice_milli(unit) for unit in units)
            mib = sum(self.pieces[unit].mib for unit in units)
        elif ask["mode"] == "whole":
            cards = set(units)
            milli, mib = 1000 * len(units), sum(self.cards[unit].mib for unit in units)
        else:
            cards, milli, mib = set(units), ask["gpu_milli"], ask.get("memory_mib", 0)
        models = {self.cards[uuid].model for uuid in cards} or {""}
        assert len(models) == 1
        assert event["charge_milli"] == milli
        assert event.get("memory_mib", 0) == mib
        profiles = {self.pieces[unit].profile for unit in units if ask["mode"] == "mig"} or {""}
        assert len(profiles) == 1
        asked.amounts = Amounts(milli, models.pop(), profiles.pop(), len(units), mib)

    def _within(self, asked: Asked, *, running: bool) -> None:
        """Q1-Q3: what is held now can be covered, by who has it or by who lends it."""
        holder = self.holder(asked)
        assert asked.amounts is not None
        for resource in self.tree.resources(holder):
            if asked.amounts.of(resource):
                usage = self.usage(resource, leaving=holder if running else None)
                fault = self.tree.fault(holder, resource, usage)
                assert fault is None, f"Q1: {fault}, {asked.id}"

    def _spend(self, asked: Asked, now: int) -> None:
        for one in self.tree.chain(self.holder(asked)):
            budget = self.tree.nodes[one].budget
            if budget is not None and asked.lease is not None:
                budget.counted[asked.lease] = (now, self._longest(asked))
                assert budget.left(now) >= 0, f"Q1: more GPU time than {one} has"

    def _lease_stopping(self, event: dict[str, Any], _now: int) -> None:
        self.stopping.add(event["lease"])
        if event["reason"] == "preempted":
            self.request_of(event["lease"]).evicted = True

    def _lease_extended(self, event: dict[str, Any], now: int) -> None:
        lease, asked = event["lease"], self.request_of(event["lease"])
        before = self.due[lease]
        assert before is not None
        assert asked.run_us is not None
        asked.run_us += event["due_us"] - before
        longest = self.queues[asked.queue].get("max_run_us")
        assert longest is None or asked.run_us <= longest
        self.due[lease] = event["due_us"]
        for plan in self.plans.values():
            if self.where[lease] & set(plan.nodes):
                assert plan.start_us is not None
                assert event["due_us"] <= plan.start_us, "a planned start is put off"
        for one in self.tree.chain(self.holder(asked)):
            budget = self.tree.nodes[one].budget
            if budget is not None and lease in budget.counted:
                granted, _ = budget.counted[lease]
                budget.counted[lease] = (granted, self._longest(asked))
                assert budget.left(now) >= 0, f"Q1: {lease} is extended beyond {one}'s budget"

    def _lease_ended(self, event: dict[str, Any], now: int) -> None:
        lease = event["lease"]
        asked = self.request_of(lease)
        held_us = now - self.since[lease]
        assert event["held_us"] == held_us
        assert asked.amounts is not None
        for node in self.tree.nodes.values():
            if node.budget is not None and lease in node.budget.counted:
                granted, _ = node.budget.counted[lease]
                node.budget.counted[lease] = (granted, asked.amounts.milli * held_us)
        asked.lease, asked.amounts, asked.evicted = None, None, False
        asked.used_us += held_us
        self.stopping.discard(lease)
        del self.where[lease]
        for unit, much in self.held.pop(lease).items():
            self.dirty.setdefault(unit, {})[lease] = much

    # -- orders ---------------------------------------------------------------------

    def _order_issued(self, event: dict[str, Any], _now: int) -> None:
        if event["kind"] == "partition":
            self._change_ordered(event)
        if event["kind"] == "clean":
            self.cleaning[event["order"]] = event

    def _cleaned(self, name: str) -> list[str]:
        """Take an order off the list; return its units that are still where it was sent."""
        order = self.cleaning.pop(name, {"units": (), "lease": ""})
        there = [unit for unit in order["units"] if self._home(unit) == order["node"]]
        for unit in there:
            self.dirty.get(unit, {}).pop(order["lease"], None)
        return there

    def _home(self, unit: str) -> str | None:
        piece = self.pieces.get(unit)
        card = self.cards.get(unit if piece is None else piece.card)
        return None if card is None else card.node

    def _order_done(self, event: dict[str, Any], _now: int) -> None:
        self._cleaned(event["order"])

    def _order_superseded(self, event: dict[str, Any], _now: int) -> None:
        self.cleaning.pop(event["order"], None)

    def _order_failed(self, event: dict[str, Any], _now: int) -> None:
        for unit in self._cleaned(event["order"]):
            piece = self.pieces.get(unit)
            shut = self.cards[unit].shut if piece is None else piece.shut
            assert shut, "A11: what is not proved clean is shut away"

    _order_timed_out = _order_failed

    # -- side by side -----------------------------------------------------------

    def compare(self, state: State) -> None:
        """Hold the pencil's tables against the ledger's."""
        leases = {
            lease.id: {unit for part in lease.parts.values() for unit in part.units}
            for lease in state.leases.values()
        }
        assert leases == {lease: set(units) for lease, units in self.held.items()}
        queued = {one.id for one in state.requests.values() if one.state == "queued"}
        assert queued == self.waiting
        kept = {one.id: set(one.kept) for one in self.asked.values() if one.kept}
        assert kept == {
            one.id: {unit for units in one.kept.values() for unit in units}
            for one in state.requests.values()
            if one.kept
        }
        self.compare_slices(state)
        assert set(state.requests) == set(self.asked)
        for name, licence in state.licences.items():
            assert licence.used == self.at.licences_used(name), f"Q2: licence {name}"
        assert set(self.plans) == {one.id for one in state.requests.values() if one.plan}
        for owner, plan in self.plans.items():
            self._plan_stands(owner, plan)
        for asked in self.asked.values():
            if asked.kept:
                self._waits_for_something(asked)

    def _waits_for_something(self, asked: Asked) -> None:
        """V1: a kept place is given as soon as it is free, clean, and within the quota."""
        holder = self.holder(asked)
        assert asked.amounts is not None
        clean = all(self._ready(unit, asked) for unit in asked.kept)
        beside = all(self.host_fits(node, asked, ended=False) for node in asked.kept.values())
        within = all(
            self.tree.fault(holder, one, self.usage(one, leaving=holder)) is None
            for one in self.tree.resources(holder)
            if asked.amounts.of(one)
        )
        assert not (clean and beside and within), f"V1: {asked.id} waits for nothing"

    def _ready(self, unit: str, asked: Asked) -> bool:
        piece = self.pieces.get(unit)
        if piece is not None and (not piece.uuid or piece.order):
            return False
        there = self.holders(unit)
        return self.has_room(unit, there, asked) if asked.ask["mode"] == "share" else not there

    def _plan_stands(self, owner: str, plan: Plan) -> None:
        """V1: nodes are promised only as long as they can keep the promise."""
        asked = self.asked[owner]
        for node in plan.nodes:
            able = [
                uuid
                for kind in self.kinds(asked)
                for uuid in self.of_kind(kind).get(node, ())
                if self.able(uuid)
            ]
            assert len(able) >= asked.ask.get("count", 1), (
                f"V1: {node} cannot serve {owner} any more"
            )

    def compare_room(self, state: State) -> None:
        """Hold what every quota may still hold against what the ledger says (Q1-Q3)."""
        for name in self.tree.nodes:
            for resource in self.tree.resources(name):
                usage = self.usage(resource)
                room = available(state, name, resource)
                assert room is not None
                for more in {1, 500, 1000, max(1, room), max(1, room + 1)}:
                    trial = usage.copy()
                    trial[name] += more
                    fits = self.tree.fault(name, resource, trial) is None
                    assert fits == (more <= room), f"{name} {resource}: {room}, {more} fits: {fits}"
