"""MIG planning: `ledger.core.mig.layouts` and the four modules that build on it.

The real geometries are what the boards report (nvidia-smi mig -lgip and -lgipp: A100 80GB,
H100 80GB HBM3, A30; where only GiB with two decimals is printed, memory is rounded down).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ledger.core.mig.fleet import Choice, Fleet, best_start, choose, prices
from ledger.core.mig.layouts import (
    CREATE_MS,
    DESTROY_MS,
    MOST_SLICES,
    RELAYOUT_MS,
    Change,
    Geometry,
    Instance,
    Profile,
    Refusal,
    Step,
    complete_layout,
    layout_with,
    legal_starts,
    occupation_fault,
    plan_change,
    smallest_profile,
)
from ledger.core.mig.moves import MOST_MOVES, Move, plan_moves
from ledger.core.mig.packing import MOST_PACKED, lower_bound, pack
from ledger.core.mig.states import States, states_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import DrawFn

    from ledger.core.mig.moves import MovePlan

_SEVEN = (0, 1, 2, 3, 4, 5, 6)

A100 = Geometry(
    8,
    7,
    (
        Profile("1g.10gb", 1, 1, 9_728, _SEVEN, 7),
        Profile("1g.10gb+me", 1, 1, 9_728, _SEVEN, 1),
        Profile("1g.20gb", 2, 1, 19_968, (0, 2, 4, 6), 4),
        Profile("2g.20gb", 2, 2, 19_968, (0, 2, 4), 3),
        Profile("3g.40gb", 4, 3, 40_192, (0, 4), 2),
        Profile("4g.40gb", 4, 4, 40_192, (0,), 1),
        Profile("7g.80gb", 8, 7, 80_640, (0,), 1),
    ),
)
H100 = Geometry(
    8,
    7,
    (
        Profile("1g.10gb", 1, 1, 9_984, _SEVEN, 7),
        Profile("1g.20gb", 2, 1, 20_096, (0, 2, 4, 6), 4),
        Profile("2g.20gb", 2, 2, 20_096, (0, 2, 4), 3),
        Profile("3g.40gb", 4, 3, 40_448, (0, 4), 2),
        Profile("4g.40gb", 4, 4, 40_448, (0,), 1),
        Profile("7g.80gb", 8, 7, 81_152, (0,), 1),
    ),
)
A30 = Geometry(
    4,
    4,
    (
        Profile("1g.6gb", 1, 1, 5_949, (0, 1, 2, 3), 4),
        Profile("1g.6gb+me", 1, 1, 5_949, (0, 1, 2, 3), 1),
        Profile("2g.12gb", 2, 2, 11_970, (0, 2), 2),
        Profile("2g.12gb+me", 2, 2, 11_970, (0, 2), 1),
        Profile("4g.24gb", 4, 4, 24_002, (0,), 1),
    ),
)
BOARDS = {"A100 80GB": A100, "H100 80GB": H100, "A30": A30}

board = pytest.mark.parametrize("geometry", BOARDS.values(), ids=BOARDS)


def weights_of(geometry: Geometry) -> dict[str, int]:
    """Return the mix in which every profile is asked for as often."""
    return {one.name: 1 for one in geometry.profiles}


def at(geometry: Geometry, name: str, start: int) -> Instance:
    """Return the instance of a profile at a start."""
    kind = geometry.profile(name)
    assert kind is not None
    return Instance(start, kind.size, name)


@st.composite
def geometries(draw: DrawFn) -> Geometry:
    """Draw a geometry of any shape: gaps between starts, few compute slices, limits."""
    memory = draw(st.integers(1, 8))
    profiles = []
    for index in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, memory))
        starts = draw(st.sets(st.integers(0, memory - size), max_size=5))
        compute, most = draw(st.integers(0, 4)), draw(st.integers(0, 3))
        profiles.append(
            Profile(f"p{index}", size, compute, size * 1000, tuple(sorted(starts)), most)
        )
    return Geometry(memory, draw(st.integers(1, 8)), tuple(profiles))


@st.composite
def occupations(draw: DrawFn, geometry: Geometry) -> tuple[Instance, ...]:
    """Draw a set of instances that can be on the device together."""
    occupied: list[Instance] = []
    for name in draw(
        st.lists(st.sampled_from([one.name for one in geometry.profiles]), max_size=6)
    ):
        starts = legal_starts(geometry, occupied, name)
        if starts:
            occupied.append(at(geometry, name, draw(st.sampled_from(starts))))
    return tuple(occupied)


@st.composite
def devices(draw: DrawFn) -> tuple[Geometry, tuple[Instance, ...]]:
    """Draw a geometry and what is on one device of it."""
    geometry = draw(geometries() | st.sampled_from(list(BOARDS.values())))
    return geometry, draw(occupations(geometry))


@st.composite
def fleets(draw: DrawFn) -> tuple[Geometry, dict[str, tuple[Instance, ...]]]:
    """Draw a few devices of one geometry."""
    geometry = draw(geometries() | st.sampled_from(list(BOARDS.values())))
    count = draw(st.integers(1, 5))
    return geometry, {f"gpu-{each}": draw(occupations(geometry)) for each in range(count)}


def fleet_of(geometry: Geometry, content: Mapping[str, tuple[Instance, ...]]) -> Fleet:
    """Return a fleet with that on its devices."""
    fleet = Fleet(geometry)
    for device, occupied in content.items():
        assert fleet.put(device, occupied)
    return fleet


# ------------------------------------------------------------------- one device


def test_c07_a_the_halves_of_a_four_slice_board() -> None:
    """Two 1g go to one half, so the 2g that comes third has the other half (C07 a)."""
    occupied: list[Instance] = []
    for name in ("1g.6gb", "1g.6gb", "2g.12gb"):
        start = best_start(A30, occupied, name, weights_of(A30))
        assert start is not None
        occupied.append(at(A30, name, start))
    assert [0, 1, 2] == [one.start for one in occupied]
    wrong = [at(A30, "1g.6gb", 0), at(A30, "1g.6gb", 2)]
    assert () == legal_starts(A30, wrong, "2g.12gb")


@pytest.mark.parametrize("names", list(permutations(["1g.10gb", "2g.20gb", "4g.40gb"])))
def test_c07_b_a_complete_layout_before_anything_is_created(names: tuple[str, ...]) -> None:
    """4g at 0, 2g at 4 and 1g at 6, in whatever order they are asked for (C07 b)."""
    right = {"4g.40gb": 0, "2g.20gb": 4, "1g.10gb": 6}
    found = complete_layout(H100, names)
    assert found is not None
    assert [right[name] for name in names] == [one.start for one in found]
    assert list(names) == [one.profile for one in found]


@pytest.mark.parametrize("start", range(4))
def test_c07_b_a_1g_in_the_way_leaves_no_layout(start: int) -> None:
    """With a 1g at 0 to 3 there is no place for the 4g, and so for none of them (C07 b)."""
    assert None is complete_layout(H100, ["2g.20gb", "4g.40gb"], [at(H100, "1g.10gb", start)])


def test_a_layout_goes_back_where_the_first_choice_leads_nowhere() -> None:
    """Where the large profile's lowest start ruins the layout, another one is found."""
    geometry = Geometry(4, 4, (Profile("two", 2, 2, 2, (0, 2)), Profile("low", 1, 1, 1, (0, 1))))
    found = complete_layout(geometry, ["two", "low", "low"])
    assert found is not None
    assert [2, 0, 1] == [one.start for one in found]


@pytest.mark.parametrize(
    ("memory_mib", "compute", "name"),
    [
        (1, 1, "1g.10gb"),
        (9_728, 0, "1g.10gb"),
        (9_729, 1, "1g.20gb"),
        (9_729, 2, "2g.20gb"),
        (1, 2, "2g.20gb"),
        (19_969, 1, "3g.40gb"),
        (1, 4, "4g.40gb"),
        (1, 5, "7g.80gb"),
        (80_640, 7, "7g.80gb"),
        (80_641, 1, None),
        (1, 8, None),
    ],
)
def test_the_smallest_profile_that_does(memory_mib: int, compute: int, name: str | None) -> None:
    """Of the profiles that give enough the one that takes least is chosen."""
    found = smallest_profile(A100, memory_mib, compute)
    assert name == (None if found is None else found.name)
    if found is not None:
        assert found.memory_mib >= memory_mib
        assert found.compute_slices >= compute


@given(devices())
def test_legal_starts_are_those_without_a_fault(
    device: tuple[Geometry, tuple[Instance, ...]],
) -> None:
    """A start is legal if and only if nothing is wrong with the device after it."""
    geometry, occupied = device
    assert None is occupation_fault(geometry, occupied)
    for kind in geometry.profiles:
        expected = tuple(
            start
            for start in range(geometry.memory_slices)
            if occupation_fault(geometry, [*occupied, Instance(start, kind.size, kind.name)])
            is None
        )
        assert expected == legal_starts(geometry, occupied, kind.name)


def any_layout(geometry: Geometry, occupied: Sequence[Instance], names: Sequence[str]) -> bool:
    """Say whether there is a layout, by trying every start in the order given."""
    if not names:
        return True
    return any(
        any_layout(geometry, [*occupied, at(geometry, names[0], start)], names[1:])
        for start in legal_starts(geometry, occupied, names[0])
    )


@given(devices(), st.data())
def test_a_complete_layout_is_found_exactly_where_there_is_one(
    device: tuple[Geometry, tuple[Instance, ...]], data: st.DataObject
) -> None:
    """What is returned is legal with all that stays; None means that no layout is."""
    geometry, occupied = device
    known = st.sampled_from([one.name for one in geometry.profiles])
    names = data.draw(st.lists(known, max_size=5))
    found = complete_layout(geometry, names, occupied)
    assert (found is not None) == any_layout(geometry, occupied, names)
    if found is not None:
        assert names == [one.profile for one in found]
        assert None is occupation_fault(geometry, [*occupied, *found])


def test_beside_something_unknown_nothing_is_legal() -> None:
    """What an instance of an unreported profile takes is unknown, and unknown is not zero."""
    odd = Instance(0, 1, "1g.5gb")
    assert () == legal_starts(A100, [odd], "1g.10gb")
    assert () == legal_starts(A100, [], "1g.5gb")
    assert None is complete_layout(A100, ["1g.5gb"])
    fleet = Fleet(A100)
    assert not fleet.put("gpu", [odd])
    assert None is choose(fleet, "1g.10gb", weights_of(A100))


IMPOSSIBLE = {
    "an overlap": [at(H100, "3g.40gb", 0), at(H100, "1g.10gb", 3)],
    "a start that the profile has not": [Instance(2, 4, "3g.40gb")],
    "a size that the profile has not": [Instance(0, 3, "3g.40gb")],
    "more of a profile than the device takes": [
        at(A100, "1g.10gb+me", 0),
        at(A100, "1g.10gb+me", 1),
    ],
    "twice the same": [at(H100, "1g.10gb", 0), at(H100, "1g.10gb", 0)],
}


@pytest.mark.parametrize("occupied", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_be_is_said_and_not_ordered(occupied: list[Instance]) -> None:
    """A layout that cannot be has a fault, and no change leads to it."""
    assert None is not occupation_fault(A100, occupied)
    answer = plan_change(A100, (), (), occupied)
    assert isinstance(answer, Refusal)
    assert "not_a_layout" == answer.code


@pytest.mark.parametrize(
    ("memory", "compute", "profiles"),
    [
        (0, 1, ()),
        (MOST_SLICES + 1, 7, ()),
        (8, 0, ()),
        (8, 7, (Profile("a", 1, 1, 1, (0,)), Profile("a", 2, 1, 1, (0,)))),
        (8, 7, (Profile("a", 4, 1, 1, (5,)),)),
        (8, 7, (Profile("a", 4, 1, 1, (4, 0)),)),
        (8, 7, (Profile("a", 0, 1, 1, (0,)),)),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(
    memory: int, compute: int, profiles: tuple[Profile, ...]
) -> None:
    """Nonsense and more slices than are planned for are errors, not tables."""
    with pytest.raises(ValueError, match=r"slices|two profiles|has a|has starts"):
        Geometry(memory, compute, profiles)


# --------------------------------------------------------------------- changes

SEVEN_1G = [at(H100, "1g.10gb", start) for start in _SEVEN]
TWO_3G = [at(H100, "3g.40gb", 0), at(H100, "3g.40gb", 4)]


def test_c09_a_busy_instance_is_never_destroyed() -> None:
    """An order to split the card is refused with the instance in use; nothing is done (C09)."""
    answer = plan_change(H100, TWO_3G, TWO_3G[:1], SEVEN_1G)
    assert isinstance(answer, Refusal)
    assert "instance_busy" == answer.code
    assert (TWO_3G[0],) == answer.busy
    assert "3g.40gb at 0" in answer.detail


def test_c09_the_idle_half_can_be_split() -> None:
    """What is not in use is given up for what is wanted; what is in use is untouched (C09)."""
    wanted = [TWO_3G[0], *SEVEN_1G[4:]]
    answer = plan_change(H100, TWO_3G, TWO_3G[:1], wanted)
    creates = tuple(Step("create", one) for one in SEVEN_1G[4:])
    cost_ms = DESTROY_MS + 3 * CREATE_MS
    assert Change((Step("destroy", TWO_3G[1]), *creates), cost_ms) == answer


def test_an_idle_card_is_laid_out_anew() -> None:
    """Where nothing of the old layout stays, the change costs a whole re-layout."""
    answer = plan_change(H100, TWO_3G, (), SEVEN_1G)
    assert isinstance(answer, Change)
    assert ["destroy"] * 2 + ["create"] * 7 == [step.kind for step in answer.steps]
    assert RELAYOUT_MS == answer.cost_ms
    empty = plan_change(H100, TWO_3G, (), ())
    assert isinstance(empty, Change)
    assert 2 * DESTROY_MS == empty.cost_ms
    assert Change((), 0) == plan_change(H100, TWO_3G, TWO_3G, TWO_3G)


@given(devices(), st.data())
def test_changes_can_be_done_step_by_step(
    device: tuple[Geometry, tuple[Instance, ...]], data: st.DataObject
) -> None:
    """From what is there to what is wanted, valid after every step, busy ones untouched."""
    geometry, present = device
    wanted = data.draw(occupations(geometry))
    busy = [one for one in present if data.draw(st.booleans())]
    answer = plan_change(geometry, present, busy, wanted)
    if isinstance(answer, Refusal):
        assert set(answer.busy) == set(busy) - set(wanted)
        assert answer.busy
        return
    now = set(present)
    for step in answer.steps:
        if step.kind == "destroy":
            assert step.instance not in busy
            now.remove(step.instance)
        else:
            assert step.instance not in now
            now.add(step.instance)
        assert None is occupation_fault(geometry, now)
    assert now == set(wanted)


@given(devices(), st.data())
def test_room_for_one_costs_no_more_than_it_must(
    device: tuple[Geometry, tuple[Instance, ...]], data: st.DataObject
) -> None:
    """Making room keeps all that is busy and every idle instance that could stay."""
    geometry, present = device
    busy = [one for one in present if data.draw(st.booleans())]
    kind = data.draw(st.sampled_from(geometry.profiles))
    starts = legal_starts(geometry, busy, kind.name)
    assume(starts)
    new = Instance(data.draw(st.sampled_from(starts)), kind.size, kind.name)
    layout = layout_with(geometry, present, busy, new)
    assert {new, *busy} <= set(layout)
    assert None is occupation_fault(geometry, layout)
    assert isinstance(plan_change(geometry, present, busy, layout), Change)
    for one in set(present) - set(layout):
        assert one.start not in legal_starts(geometry, layout, one.profile)


def test_an_instance_that_is_there_already_needs_no_step() -> None:
    """An idle instance at the chosen place is taken as it is."""
    layout = layout_with(H100, TWO_3G, TWO_3G[:1], TWO_3G[1])
    assert Change((), 0) == plan_change(H100, TWO_3G, TWO_3G[:1], layout)


# ---------------------------------------------------------------------- states


def test_an_h100_without_media_engines_has_723_states() -> None:
    """The tables stay small: every set of instances that can be together, and no more."""
    states = States(H100)
    seen, pending = {0}, [0]
    while pending:
        state = pending.pop()
        for profile in range(len(H100.profiles)):
            for start in states.fits(state)[profile]:
                kind = H100.profiles[profile]
                after = state | states.bit(Instance(start, kind.size, kind.name))
                if after not in seen:
                    seen.add(after)
                    pending.append(after)
    assert 723 == len(seen)
    assert 18 == len(states.places)


@given(devices())
def test_worth_is_the_closed_form_of_departures(
    device: tuple[Geometry, tuple[Instance, ...]],
) -> None:
    """The recursion equals the sum over what may be left at an exponential time of rate 8.

    A set of s of n instances is what is left with probability 8 (7 + s)! (n - s)! / (8 + n)!.
    """
    geometry, occupied = device
    states, n = states_of(geometry), len(occupied)
    state = states.encode(occupied)
    assert state is not None
    assert tuple(sorted(occupied)) == states.decode(state)
    for profile, kind in enumerate(geometry.profiles):
        chance = Fraction(0)
        for s in range(n + 1):
            weight = Fraction(
                8 * math.factorial(7 + s) * math.factorial(n - s), math.factorial(8 + n)
            )
            for left in combinations(occupied, s):
                chance += weight * bool(legal_starts(geometry, left, kind.name))
        now = bool(legal_starts(geometry, occupied, kind.name))
        expected = 3_000_000 * now + 7 * int(chance * 1_000_000)
        assert expected == states.worth(state)[profile]


@given(devices())
def test_creating_takes_and_never_gives(device: tuple[Geometry, tuple[Instance, ...]]) -> None:
    """No profile is better off after an instance more; each option leads where it says."""
    geometry, occupied = device
    states = states_of(geometry)
    state = states.encode(occupied)
    assert state is not None
    for profile, kind in enumerate(geometry.profiles):
        starts = legal_starts(geometry, occupied, kind.name)
        for start, change, after in states.options(state, profile):
            assert start in starts
            assert all(each <= 0 for each in change)
            expected = {*occupied, Instance(start, kind.size, kind.name)}
            assert expected == set(states.decode(after))
        assert bool(starts) == bool(states.options(state, profile))


# ----------------------------------------------------------------------- choice


def naive_choice(
    geometry: Geometry, content: dict[str, tuple[Instance, ...]], name: str
) -> Choice | None:
    """Score every start of every device one by one, without groups or tables of options."""
    states, fleet = states_of(geometry), fleet_of(geometry, content)
    paid = prices(fleet, weights_of(geometry))
    found = []
    for device, occupied in content.items():
        for start in legal_starts(geometry, occupied, name):
            before = states.encode(occupied)
            after = states.encode([*occupied, at(geometry, name, start)])
            assert before is not None
            assert after is not None
            lost = sum(
                price * (old - new)
                for price, old, new in zip(
                    paid, states.worth(before), states.worth(after), strict=True
                )
            )
            found.append((lost, device, start))
    return Choice(*min(found)[1:]) if found else None


@given(fleets(), st.randoms(use_true_random=False))
def test_the_choice_is_legal_and_the_least_loss(
    drawn: tuple[Geometry, dict[str, tuple[Instance, ...]]], shuffle: object
) -> None:
    """Groups and tables change nothing, nor does the order in which devices came."""
    geometry, content = drawn
    names = list(content)
    shuffle.shuffle(names)  # type: ignore[attr-defined]
    fleet = fleet_of(geometry, {name: content[name] for name in names})
    for kind in geometry.profiles:
        expected = naive_choice(geometry, content, kind.name)
        assert expected == choose(fleet, kind.name, weights_of(geometry))


@given(fleets(), st.data())
def test_a_fleet_is_what_is_on_its_devices(
    drawn: tuple[Geometry, dict[str, tuple[Instance, ...]]], data: st.DataObject
) -> None:
    """After any changes groups and counts are those of a fleet made from scratch."""
    geometry, content = drawn
    fleet = Fleet(geometry)
    for device in content:
        fleet.put(device, data.draw(occupations(geometry)))
    for device, occupied in content.items():
        fleet.put(device, ())
        for one in occupied:
            fleet.create(device, one)
        for one in occupied[::2]:
            fleet.destroy(device, one)
            fleet.create(device, one)
    gone = data.draw(st.sampled_from(sorted(content)))
    fleet.set(gone, None)
    fresh = fleet_of(geometry, {name: one for name, one in content.items() if name != gone})
    for each in (fleet, fleet.copy()):
        assert fresh.where == each.where
        assert fresh.groups == each.groups
        assert fresh.open == each.open


def test_a_scarce_placement_is_spared() -> None:
    """A 1g goes where 7g is lost already, and where only it would lose the last 4g it does not."""
    used = (at(H100, "3g.40gb", 0),)
    fleet = fleet_of(H100, {"a": (), "b": used})
    assert Choice("b", 6) == choose(fleet, "1g.10gb", weights_of(H100))


def test_a_device_may_be_barred() -> None:
    """A choice is among usable devices only; the next best is taken, or none."""
    fleet = fleet_of(H100, dict.fromkeys("abc", ()))
    weights = weights_of(H100)
    assert Choice("a", 0) == choose(fleet, "7g.80gb", weights)
    assert Choice("b", 0) == choose(fleet, "7g.80gb", weights, lambda name: name != "a")
    assert None is choose(fleet, "7g.80gb", weights, lambda _: False)
    assert None is choose(fleet, "8g.96gb", weights)


def test_a_large_fleet_still_packs() -> None:
    """With a thousand idle devices three instances share a half of one: prices do not vanish."""
    fleet = fleet_of(H100, {f"{name:04}": () for name in range(1000)})
    for _ in range(3):
        choice = choose(fleet, "1g.10gb", weights_of(H100))
        assert choice is not None
        assert "0000" == choice.device
        assert 4 <= choice.start
        fleet.create("0000", at(H100, "1g.10gb", choice.start))


_REPLAY = """
from bench.mig_board import H100
from ledger.core.mig.layouts import Instance
from ledger.core.mig.fleet import Fleet, choose
from ledger.core.mig.moves import plan_moves
kinds = [(one.name, one.size) for one in H100.profiles]
weights = {name: 1 for name, _ in kinds}
fleet = Fleet(H100)
for at in range(8):
    fleet.put(f"gpu-{at}", ())
there = []
for step in range(200):
    name, size = kinds[step * 7 % 11 % 6]
    found = choose(fleet, name, weights)
    print(found)
    if found is None:
        print(plan_moves(fleet, name, weights, lambda *_: True))
        for device, one in there[::3]:
            fleet.destroy(device, one)
        del there[::3]
    else:
        there.append((found.device, Instance(found.start, size, name)))
        fleet.create(*there[-1])
"""


def test_choices_do_not_depend_on_the_process() -> None:
    """Two processes that hash differently choose and plan the same, line by line (C19)."""
    said = [
        subprocess.run(
            [sys.executable, "-c", _REPLAY],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert "MovePlan(moves=(Move(" in said[0]
    assert said[0] == said[1]


# ------------------------------------------------------------------------ moves


def carry_out(
    geometry: Geometry, content: dict[str, tuple[Instance, ...]], plan: MovePlan
) -> dict[str, set[Instance]]:
    """Do the plan step by step, and check every device after every step."""
    now = {device: set(occupied) for device, occupied in content.items()}
    for move in plan.moves:
        assert move.instance in now[move.device]
        assert move.instance.profile == move.to.profile
        assert move.to not in now[move.to_device]
        now[move.to_device].add(move.to)
        assert None is occupation_fault(geometry, now[move.to_device])
        now[move.device].remove(move.instance)
    now[plan.device].add(plan.place)
    assert None is occupation_fault(geometry, now[plan.device])
    return now


@given(fleets(), st.data())
def test_move_plans_can_be_done_step_by_step(
    drawn: tuple[Geometry, dict[str, tuple[Instance, ...]]], data: st.DataObject
) -> None:
    """Nothing overlaps at any time, only what may be moved is, and the place is free then."""
    geometry, content = drawn
    fixed = {
        (device, one)
        for device, occupied in content.items()
        for one in occupied
        if data.draw(st.booleans())
    }
    most = data.draw(st.integers(0, MOST_MOVES))
    fleet = fleet_of(geometry, content)
    before = fleet.copy()
    kind = data.draw(st.sampled_from(geometry.profiles))
    weights = weights_of(geometry)
    plan = plan_moves(fleet, kind.name, weights, lambda *one: one not in fixed, most)
    assert before.where == fleet.where
    assert before.groups == fleet.groups
    if plan is None:
        assert None is choose(fleet, kind.name, weights)
        return
    assert len(plan.moves) <= most
    assert kind.name == plan.place.profile
    assert not fixed & {(move.device, move.instance) for move in plan.moves}
    assert (not plan.moves) == (choose(fleet, kind.name, weights) is not None)
    after = carry_out(geometry, content, plan)
    there = sorted(one.profile for occupied in content.values() for one in occupied)
    assert sorted([*there, kind.name]) == sorted(
        one.profile for occupied in after.values() for one in occupied
    )


#: Two cards with room for a 4g between them, on neither of which it fits.
BLOCKED = {
    "a": (at(H100, "1g.10gb", 0), at(H100, "1g.10gb", 1), at(H100, "3g.40gb", 4)),
    "b": (at(H100, "1g.10gb", 2), at(H100, "2g.20gb", 4)),
}


def test_the_fewest_moves_are_planned_and_named() -> None:
    """One move on b frees a 4g where two would be needed on a; it stays on its card if best."""
    plan = plan_moves(fleet_of(H100, BLOCKED), "4g.40gb", weights_of(H100), lambda *_: True)
    assert plan is not None
    assert ("b", at(H100, "4g.40gb", 0)) == (plan.device, plan.place)
    (move,) = plan.moves
    assert ("b", at(H100, "1g.10gb", 2)) == (move.device, move.instance)
    assert CREATE_MS + DESTROY_MS == plan.cost_ms
    carry_out(H100, BLOCKED, plan)


def test_on_one_card_the_instance_moves_within_it() -> None:
    """A site of one card can be tidied too, if there is room for the new before the old goes."""
    content = {"b": BLOCKED["b"]}
    plan = plan_moves(fleet_of(H100, content), "4g.40gb", weights_of(H100), lambda *_: True)
    assert plan is not None
    assert (Move("b", at(H100, "1g.10gb", 2), "b", at(H100, "1g.10gb", 6)),) == plan.moves
    carry_out(H100, content, plan)


def test_c09_a_busy_instance_is_moved_only_where_that_is_allowed() -> None:
    """The plan goes round what may not be moved, or there is none (C09)."""
    fleet, weights = fleet_of(H100, BLOCKED), weights_of(H100)
    around = plan_moves(fleet, "4g.40gb", weights, lambda device, _: device == "a")
    assert around is not None
    assert {"a"} == {move.device for move in around.moves}
    assert 2 == len(around.moves)
    assert None is plan_moves(fleet, "4g.40gb", weights, lambda device, _: device == "a", 1)
    assert None is plan_moves(fleet, "4g.40gb", weights, lambda *_: False)


def test_where_there_is_room_nothing_moves() -> None:
    """A profile that is not blocked needs no move; one that nothing frees has no plan."""
    weights = weights_of(H100)
    idle = plan_moves(fleet_of(H100, {"a": ()}), "4g.40gb", weights, lambda *_: True)
    assert idle is not None
    assert () == idle.moves
    full = {"a": (at(H100, "7g.80gb", 0),)}
    assert None is plan_moves(fleet_of(H100, full), "1g.10gb", weights, lambda *_: True)
    assert None is plan_moves(fleet_of(H100, full), "8g.96gb", weights, lambda *_: True)


# ---------------------------------------------------------------------- packing

#: Lists of segments with the least devices. The last is ParvaGPU's sixth set of service levels
#: (62 segments, 112 compute slices: every one of 16 devices is full).
PACKED = {
    "nothing": ({}, 0),
    "one": ({"1g.10gb": 1}, 1),
    "two 3g are one device": ({"3g.40gb": 2}, 1),
    "three 3g have nine compute slices, and two places each": ({"3g.40gb": 3}, 2),
    "a device takes one 4g": ({"4g.40gb": 3}, 3),
    "4g and 3g pair": ({"4g.40gb": 3, "3g.40gb": 3}, 3),
    "memory binds before compute does": ({"1g.20gb": 5}, 2),
    "seven 1g": ({"1g.10gb": 7}, 1),
    "eight 1g": ({"1g.10gb": 8}, 2),
    "a full house": (
        {"1g.10gb": 40, "2g.20gb": 4, "3g.40gb": 14, "4g.40gb": 2, "7g.80gb": 2},
        16,
    ),
}


@pytest.mark.parametrize(("counts", "least"), PACKED.values(), ids=PACKED)
def test_lists_are_packed_into_the_fewest_devices(counts: dict[str, int], least: int) -> None:
    """Each list needs so many devices, and each device's layout is one that can be."""
    names = [name for name, count in counts.items() for _ in range(count)]
    packing = pack(H100, names)
    assert packing.exact
    assert least == len(packing.devices)
    for layout in packing.devices:
        assert None is occupation_fault(H100, layout)
    assert sorted(names) == sorted(one.profile for each in packing.devices for one in each)


def fewest(geometry: Geometry, names: Sequence[str]) -> int:
    """Return the fewest devices by giving each profile to every device in turn."""
    best = len(names)

    def give(left: Sequence[str], loads: list[list[str]]) -> None:
        nonlocal best
        if len(loads) >= best:
            return
        if not left:
            best = len(loads)
            return
        for load in [*loads, []]:
            trial = [*load, left[0]]
            if complete_layout(geometry, trial) is not None:
                others = [one for one in loads if one is not load]
                give(left[1:], [*others, trial])

    give(names, [])
    return best


@given(geometries() | st.sampled_from(list(BOARDS.values())), st.data())
def test_packing_is_exact(geometry: Geometry, data: st.DataObject) -> None:
    """No way to share the profiles out needs fewer devices; the bound is never above that."""
    possible = [
        one.name for one in geometry.profiles if complete_layout(geometry, [one.name]) is not None
    ]
    assume(possible)
    names = data.draw(st.lists(st.sampled_from(possible), max_size=6))
    packing = pack(geometry, names)
    assert packing.exact
    assert fewest(geometry, names) == len(packing.devices)
    assert lower_bound(geometry, names) <= len(packing.devices)


def test_packing_has_limits_and_says_so() -> None:
    """What cannot be packed is an error; a search given up still gives a packing."""
    with pytest.raises(ValueError, match=r"8g\.96gb"):
        pack(H100, ["8g.96gb"])
    with pytest.raises(ValueError, match="no placement"):
        pack(Geometry(8, 7, (Profile("a", 1, 8, 1, (0,)),)), ["a"])
    with pytest.raises(ValueError, match=str(MOST_PACKED)):
        pack(H100, ["1g.10gb"] * (MOST_PACKED + 1))
    # Its bound is one device, so that the search has to prove something.
    geometry = Geometry(8, 8, (Profile("a", 2, 2, 2, (0,)), Profile("b", 3, 2, 2, (1,))))
    tried = pack(geometry, ["a", "b"], most_tried=0)
    assert not tried.exact
    assert 2 == len(tried.devices)
    assert pack(geometry, ["a", "b"]).exact


@board
def test_every_profile_has_a_place_on_its_idle_board(geometry: Geometry) -> None:
    """Each start that a board reports is legal while it is idle, and the largest fills it."""
    for kind in geometry.profiles:
        assert kind.starts == legal_starts(geometry, (), kind.name)
    largest = geometry.profiles[-1]
    assert geometry.compute_slices == largest.compute_slices
    whole = [at(geometry, largest.name, 0)]
    assert all(not legal_starts(geometry, whole, one.name) for one in geometry.profiles)
