"""The end of a run: everything is mended, nodes answer, time passes; then nobody may be left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.world import NODES, QUEUES, QUOTAS, owner

if TYPE_CHECKING:
    from tests.world import World

__all__ = ["heal"]

#: Rounds after which whoever still waits though all is well has been forgotten.
_ROUNDS = 2_000


def heal(world: World) -> None:
    """Mend everything and let time pass until nobody runs; V1: nobody may be left waiting.

    What waits for hardware that is nowhere is withdrawn at the end, and answered too.
    """
    _mend(world)
    state = world.cell.state
    for _ in range(_ROUNDS):
        world.answer_all()
        world.time(1)
        if not state.requests:
            break
        if state.leases:
            lease = min(state.leases)
            world.feed("lease.release", {"lease": lease}, source=owner(lease))
        elif not state.orders and not _cleared(world):
            _withdraw_hopeless(world)
    world.answer_all()
    assert not state.requests, f"V1: left at the end: {sorted(state.requests)}"
    assert not state.orders, f"V1: {len(state.orders)} orders are open at the end"
    for device in state.devices.values():
        assert not device.holds or device.health == "gone", f"V1: {device.uuid} is never clean"
    kept = [one.uuid for one in state.devices.values() if one.kept_for is not None]
    assert not kept, f"V1: {kept} are kept for ever"
    _slices_are_there(world)
    for source, name, _ in world.submitted:
        count = world.naive.answered.get(f"{source}#{name}", 0)
        assert count == 1, f"A5: {source}#{name} has {count} final answers"


def _cleared(world: World) -> bool:
    """Give the word for cards on which a change failed; say whether there were any."""
    about = [name.split() for name in world.cell.state.alarms]
    failed = [one[1] for one in about if one[0] == "partition_failed"]
    for uuid in failed:
        world.clear(uuid)
    return bool(failed)


def _slices_are_there(world: World) -> None:
    """A8: what the ledger has of slices is what the cards have, no more and no less."""
    for node in world.cards.of:
        world.report(node)
    world.answer_all()
    state = world.cell.state
    for device in state.devices.values():
        # Another agent may speak for the node by now.
        card = world.cards.of[device.node].get(device.uuid)
        if device.health == "gone" or card is None:
            continue
        there = sorted((one["mig_uuid"], one["start"]) for one in card.get("slices", ()))
        items = [state.slices[name] for name in device.slices]
        known = sorted((one.mig_uuid, one.start) for one in items)
        assert there == known, f"A8: {device.uuid} has {there}, and {known} are known"
    quotas = [one.name for one in state.quotas.values() if any(one.used.values())]
    assert not quotas, f"Q2: {quotas} use something, and nobody runs"


def _withdraw_hopeless(world: World) -> None:
    """With all free, only those may wait who could not be served by all there is."""
    clerk = world.naive
    waiting = sorted(clerk.asked)
    for name in waiting:
        asked = clerk.asked[name]
        hopeless = not list(clerk.places(asked, ())) and not clerk.could_be_made(asked)
        assert hopeless or not asked.ask.get("count", 1), f"V1: {name} waits, and all is free"
    if waiting:
        world.feed("request.cancel", {"request": waiting[0]}, source=owner(waiting[0]))


def _mend(world: World) -> None:
    for name in sorted(world.naive.bookings):
        world.unreserve(name)
    for name in sorted(world.naive.licences):
        world.licence(name, 100)
    for pool in ("main", "side", "new"):
        world.operator("pool.apply", pool=pool, labels={"zone": "1"}, partition="relayout")
    for queue in QUEUES:
        # Whoever waits has its queue's rules as they are; only a strict one may hold back.
        known = world.cell.state.queues[queue]
        ordering = "best-effort" if known.ordering == "strict" else known.ordering
        world.operator("queue.apply", queue=queue, ordering=ordering)
    world.operator("quota.apply", tenant="org", nominal_gpu_milli=100_000_000)
    for tenant, project, _ in QUOTAS[1:]:
        more = {"project": project} if project else {}
        nominal = 10_000_000 if project else 30_000_000
        world.operator("quota.apply", tenant=tenant, nominal_gpu_milli=nominal, **more)
    # Whoever else speaks for a node by now, its own agent is the later one.
    world.epoch = max(world.epoch, *(node.epoch for node in world.cell.state.nodes.values()))
    world.repair()
    for node in NODES:
        for other in NODES:
            world.link(node, other, 1, 1_000_000, 1_000_000)
