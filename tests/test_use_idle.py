"""Idle on edges: from samples that there are, and never from those that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collectors.use.idleness import Edge, Idleness

if TYPE_CHECKING:
    from collections.abc import Sequence

S = 1_000_000
A, B = "/a#j/1", "/b#j/1"


def seen(
    one: Idleness, first: int, values: Sequence[Sequence[int | None]]
) -> list[tuple[int, Edge]]:
    """Show a lease's units, one sample a second from a second on; return edges with when."""
    found = []
    for at, units in enumerate(values, first):
        found += [(at, edge) for edge in one.see(at * S, S, {A: units})]
    return found


def test_idle_begins_when_it_was_seen_for_so_long_and_ends_with_one_sample() -> None:
    """60 seconds of nothing, from the beginning of the first sample; then work."""
    one = Idleness(after_us=60 * S)
    edges = seen(one, 1, [[0, 0]] * 100 + [[0, 40]] + [[0, 0]] * 30)
    assert [(60, Edge(A, True, 60)), (101, Edge(A, False, 0))] == edges
    assert [] == one.told


def test_c41_missing_samples_are_not_idle() -> None:
    """Half of the samples do not come, and the mean of the others is 0: it is not called idle."""
    one = Idleness(after_us=60 * S)
    assert [] == seen(one, 1, [[0], [None]] * 200)
    assert [] == seen(one, 401, [[0, None]] * 200), "one unit that nobody sees is enough"


def test_a_gap_between_samples_begins_the_time_anew() -> None:
    """Seen idle for 59 s, not seen for 100 s: the 60th second is that after the gap."""
    one = Idleness(after_us=60 * S)
    assert [] == seen(one, 1, [[0]] * 59)
    assert [(219, Edge(A, True, 60))] == seen(one, 160, [[0]] * 61)


def test_an_idle_lease_that_is_not_seen_any_more_is_taken_back() -> None:
    """The ledger reclaims on what was told; told again it is from what is seen from then on."""
    one = Idleness(after_us=60 * S, unseen_us=30 * S)
    assert [(60, Edge(A, True, 60))] == seen(one, 1, [[0]] * 60)
    assert [] == seen(one, 61, [[None]] * 29)
    assert [(90, Edge(A, False, 0))] == seen(one, 90, [[None]])
    assert [(150, Edge(A, True, 60))] == seen(one, 91, [[0]] * 60)


def test_what_was_told_before_a_restart_is_remembered() -> None:
    """The next start of the agent says that it works; of one that ended it says nothing."""
    one = Idleness([A, B])
    one.keep({A})
    assert [A] == one.told
    assert [(5, Edge(A, False, 0))] == seen(one, 5, [[500]])


def test_leases_are_followed_each_by_itself() -> None:
    """Sampled at different times, each has its own time."""
    one = Idleness(after_us=10 * S)
    for at in range(1, 10):
        assert [] == one.see(at * S, S, {A: [0]})
    assert [Edge(B, True, 10)] == one.see(10 * S, 10 * S, {B: [0]})
    assert [Edge(A, True, 10)] == one.see(10 * S, S, {A: [0]})
    assert [A, B] == one.told
