"""Partition changes under everything at once: promises kept, nothing leaked, every step checked."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.mig.layouts import Instance, occupation_fault
from ledger.testing import CoreDriver, mig_slice
from tests.test_partition import A30, H100, a30, h100

PICK = st.integers(0, 40)
CARDS = ("GPU-a", "GPU-b", "GPU-c")
KINDS = {"GPU-a": H100, "GPU-b": H100, "GPU-c": A30}
NODES = {"n1": ("GPU-a", "GPU-c"), "n2": ("GPU-b",)}
CARD = st.sampled_from(CARDS)
NODE = st.sampled_from(list(NODES))
ASKS = st.one_of(
    st.fixed_dictionaries(
        {"profile": st.sampled_from([*H100, *A30]), "count": st.sampled_from([1, 1, 1, 2, 3])}
    ),
    st.fixed_dictionaries(
        {"memory_mib": st.sampled_from([5_000, 11_000, 30_000]), "count": st.just(1)}
    ),
    st.fixed_dictionaries({"compute_slices": st.sampled_from([1, 2, 4]), "count": st.just(1)}),
)
POLICY = st.sampled_from(["never", "create", "create", "relayout", "relayout"])


class PartitionMachine(RuleBasedStateMachine):
    """Cards with a layout of their own, which orders change and now and then somebody else."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = CoreDriver(check=True)
        self.there: dict[str, list[dict[str, Any]]] = {uuid: [] for uuid in CARDS}
        self.modes = dict.fromkeys(CARDS, "on")
        self.boots = dict.fromkeys(NODES, 1)
        self.made = 0
        self.asked: list[str] = []

    @initialize(policy=st.sampled_from(["create", "relayout"]), first=POLICY)
    def start(self, policy: str, first: str) -> None:
        """Set policies and nodes."""
        self.cell.pool(partition=first)
        self.cell.queue(preemption="any-tenant")
        self.cell.queue("strict", ordering="strict", max_wait_s=900)
        self.cell.quota(nominal_gpu_milli=2_500)
        for node in NODES:
            self.report(node)
        self.cell.pool(partition=policy)

    def report(self, node: str) -> None:
        """Tell what the node has."""
        devices = []
        for uuid in NODES[node]:
            made = (a30 if KINDS[uuid] is A30 else h100)(uuid, *self.there[uuid])
            on = self.modes[uuid] == "on"
            devices.append(made if on else made | {"mig_enabled": False, "mig_pending": True})
        self.cell.node(node, devices, incarnation=f"b{self.boots[node]}", cpu_milli=9_000)

    # -- services ------------------------------------------------------------------

    @rule(
        ask=ASKS,
        more=st.fixed_dictionaries(
            {},
            optional={
                "beside": st.just({"cpu_milli": 4_000}),
                "priority": st.sampled_from([1, 5]),
                "preemptible": st.just(True),
                "queue": st.just("strict"),
                "max_wait_s": st.sampled_from([0, 60]),
                "retries": st.just(1),
            },
        ),
    )
    def submit(self, ask: dict[str, Any], more: dict[str, Any]) -> None:
        """Ask for slices."""
        name = f"r{len(self.asked)}"
        self.asked.append(name)
        self.cell.submit(name, {"mode": "mig", **ask}, **more)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        """Withdraw a request, in whatever state."""
        if self.asked:
            self.cell.cancel(self.asked[pick % len(self.asked)])

    @rule(profile=st.sampled_from(list(H100)))
    def submit_one(self, profile: str) -> None:
        """Ask for one slice."""
        self.submit({"profile": profile, "count": 1}, {})

    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        """Give a lease back."""
        leases = sorted(self.cell.state.leases)
        if leases:
            self.cell.release(leases[pick % len(leases)])

    # -- nodes ---------------------------------------------------------------------

    @rule(pick=PICK, how=st.sampled_from(["well", "well", "well", "fails", "lies", "late"]))
    def answer(self, pick: int, how: str) -> None:
        """Carry an order out, fail, say so without doing it, or do it without saying so."""
        orders = sorted(self.cell.state.orders)
        if not orders:
            return
        order = self.cell.state.orders[orders[pick % len(orders)]]
        if self.cell.state.nodes[order.node].state in ("silent", "lost"):
            return
        if order.kind != "partition":
            self.cell.order_done(order.id)
            return
        made = self.carry_out(order.units[0], order.steps) if how in ("well", "late") else []
        if made is None or how == "fails":
            self.cell.order_failed(order.id, "insufficient resources")
        elif how != "late":
            self.cell.says("order.done", order.node, order=order.id, slices=made)

    @rule()
    def answer_all(self) -> None:
        """Let the nodes that are heard carry out all their orders."""
        for pick in range(len(self.cell.state.orders)):
            self.answer(pick, "well")

    def carry_out(self, uuid: str, steps: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        """Change the card as a driver would: step by step, refusing what cannot be."""
        made = []
        for step in steps:
            there = self.there[uuid]
            if step["do"] == "destroy":
                left = [one for one in there if one["mig_uuid"] != step["mig_uuid"]]
                if len(left) == len(there):
                    return None
                self.there[uuid] = left
                continue
            one = self.create(uuid, step["profile"], step["start"])
            if one is None:
                return None
            made.append(one)
        return made

    def create(self, uuid: str, profile: str, start: int) -> dict[str, Any] | None:
        """Create a slice, or not where it has no place."""
        device = self.cell.state.devices[uuid]
        size, compute, mib, _, _ = KINDS[uuid][profile]
        there = [Instance(one["start"], one["size"], one["profile"]) for one in self.there[uuid]]
        assert device.geometry is not None
        if occupation_fault(device.geometry, [*there, Instance(start, size, profile)]):
            return None
        self.made += 1
        one = mig_slice(
            f"MIG-{self.made}", self.made, start, profile=profile, size=size,
            compute_slices=compute, memory_mib=mib,
        )  # fmt: skip
        self.there[uuid] = [*self.there[uuid], one]
        return one

    @rule(node=st.sampled_from(list(NODES)), boot=st.sampled_from([False, False, True]))
    def inventory(self, node: str, boot: bool) -> None:
        """Tell what there is, sometimes after a restart on which every slice is gone."""
        if boot:
            self.boots[node] += 1
            for uuid in NODES[node]:
                self.there[uuid] = []
                self.modes[uuid] = "on"
        self.report(node)

    def meddle(self, uuid: str, pick: int, create: bool) -> None:
        """Create or destroy something by hand, beside the ledger."""
        if create:
            profile = list(KINDS[uuid])[pick % len(KINDS[uuid])]
            starts = KINDS[uuid][profile][3]
            self.create(uuid, profile, starts[pick % len(starts)])
        elif self.there[uuid]:
            del self.there[uuid][pick % len(self.there[uuid])]

    def mode(self, uuid: str, what: str) -> None:
        """Change the MIG mode: slices are gone, and it takes effect after a reboot."""
        if what == "pending":
            self.there[uuid] = []
        self.modes[uuid] = what

    def health(self, uuid: str, health: str) -> None:
        """Change a card's health; one that is gone is back with the next inventory."""
        self.cell.health(uuid, health)

    def hear(self, node: str, silent: bool) -> None:
        """Stop hearing a node, or hear it again."""
        if silent:
            self.cell.silent(node)
        else:
            self.cell.back(node)

    @rule(
        act=st.one_of(
            st.tuples(st.just("meddle"), CARD, PICK, st.booleans()),
            st.tuples(st.just("mode"), CARD, st.sampled_from(["on", "on", "pending"])),
            st.tuples(
                st.just("health"),
                CARD,
                st.sampled_from(["healthy", "healthy", "unhealthy", "gone"]),
            ),
            st.tuples(st.just("hear"), NODE, st.sampled_from([False, False, True])),
        )
    )
    def trouble(self, act: tuple[Any, ...]) -> None:
        """Let something go wrong, or be well again."""
        getattr(self, act[0])(*act[1:])

    # -- operators and time ----------------------------------------------------------

    def pool(self, policy: str, warning: int) -> None:
        """Change the policy."""
        self.cell.pool(partition=policy, slices_warning=warning)

    def layout(self, uuid: str, pick: int, count: int) -> None:
        """Order a layout."""
        names = list(KINDS[uuid])
        layout = [names[(pick * at) % len(names)] for at in range(count)]
        plain = {"device": uuid, "layout": layout, "author": "op", "reason": "x"}
        self.cell.feed("device.partition", plain, source="/operator")

    def clear(self, uuid: str) -> None:
        """Give a word for a card."""
        self.cell.clear(uuid)

    def service(self, node: str, mode: str) -> None:
        """Put a node in or out of service."""
        self.cell.node_set(node, mode)

    def quota(self, nominal: int) -> None:
        """Raise or lower the quota."""
        self.cell.quota(nominal_gpu_milli=nominal)

    @rule(
        act=st.one_of(
            st.tuples(st.just("pool"), POLICY, st.sampled_from([0, 2, 4])),
            st.tuples(st.just("layout"), CARD, PICK, st.integers(0, 7)),
            st.tuples(st.just("layout"), CARD, PICK, st.integers(0, 3)),
            st.tuples(st.just("clear"), CARD),
            st.tuples(st.just("service"), NODE, st.sampled_from(["online", "online", "draining"])),
            st.tuples(st.just("quota"), st.sampled_from([0, 2_500, 2_500])),
        )
    )
    def operator(self, act: tuple[Any, ...]) -> None:
        """Let an operator do something."""
        getattr(self, act[0])(*act[1:])

    @rule(seconds=st.sampled_from([0, 1, 1, 40, 400]))
    def time(self, seconds: int) -> None:
        """Let time pass."""
        self.cell.tick(at_us=self.cell.now_us + seconds * 1_000_000)

    # -- at the end ------------------------------------------------------------------

    def teardown(self) -> None:
        """When all nodes are well and answer, nothing is left of any plan; a load is the same."""
        cell = self.cell
        loaded = load_fold(save_fold(cell.fold)).ready()
        assert digest(loaded.cells) == cell.digest() == digest(cell.replayed().cells)
        if not cell.state.nodes:
            return
        for name in self.asked:
            cell.cancel(name)
        for node in NODES:
            self.inventory(node, boot=True)
        for _ in range(20):
            for order in list(cell.state.orders.values()):
                if order.kind == "partition":
                    made = self.carry_out(order.units[0], order.steps)
                    assert made is not None
                    cell.says("order.done", order.node, order=order.id, slices=made)
                else:
                    cell.order_done(order.id)
        assert {} == cell.state.orders
        assert {} == cell.state.requests
        assert {} == cell.state.slices
        assert not any(quota.used.get("gpu") for quota in cell.state.quotas.values())


TestPartitionMachine = PartitionMachine.TestCase
if settings.get_current_profile_name() == "quick":
    # The same ones every time in CI.
    TestPartitionMachine.settings = settings(
        max_examples=100, stateful_step_count=40, derandomize="CI" in os.environ
    )
