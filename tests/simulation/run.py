"""One seed: its acts, its checks, its end; and a failed one made small."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from ledger.core.digest import digest, load_fold, save_fold
from ledger.core.fold import Fold
from ledger.core.invariants import check
from tests.simulation.acts import draw
from tests.simulation.healing import heal
from tests.world import World

if TYPE_CHECKING:
    from tests.simulation.acts import Act

__all__ = ["Failure", "run", "shrink"]

#: Steps between two full checks. The clerk follows every step, and refuses at once.
EVERY = 25


@dataclass(frozen=True)
class Failure:
    """What a seed found: the acts up to it, and what was said."""

    seed: int
    acts: tuple[Act, ...]
    error: str

    def __str__(self) -> str:
        """Return one line."""
        return f"seed {self.seed}, step {len(self.acts)}: {self.error}"


def run(seed: int, steps: int) -> Failure | None:
    """Run a seed; return what broke, or None."""
    random = Random(seed)
    world = World(check=False, every=EVERY)
    acts: list[Act] = [
        ("start", (), {"late": bool(seed % 2), "nominal": (3_000, 20_000)[seed % 3 > 0]})
    ]
    error = _try(world, acts[0], 0)
    for number in range(1, steps + 1):
        if error is not None:
            break
        acts.append(draw(random, world, seed))
        error = _try(world, acts[-1], number)
    if error is None:
        error = _end(world)
    return None if error is None else Failure(seed, tuple(acts), error)


def replay(acts: tuple[Act, ...]) -> str | None:
    """Do the acts again, with every check at every step; return what broke."""
    world = World(check=False)
    for act in acts:
        error = _try(world, act, 0)
        if error is not None:
            return error
    return _end(world)


def shrink(failure: Failure) -> Failure:
    """Leave out what the failure does not need."""
    acts, error = failure.acts, failure.error
    kind = _kind(error)
    size = max(1, len(acts) // 2)
    while True:
        at = 1
        while at < len(acts):
            fewer = acts[:at] + acts[at + size :]
            found = replay(fewer)
            if found is not None and _kind(found) == kind:
                acts, error = fewer, found
            else:
                at += size
        if size == 1:
            return Failure(failure.seed, acts, error)
        size //= 2


def _kind(error: str) -> str:
    """Two failures are alike when the first words are, and the place."""
    return " ".join(error.split()[:2])


def _try(world: World, act: Act, number: int) -> str | None:
    name, args, words = act
    try:
        getattr(world, name)(*args, **words)
        if number % EVERY == 0:
            _check(world)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        return _said(error)
    return None


def _said(error: Exception) -> str:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f"{at.tb_frame.f_code.co_name}:{at.tb_lineno}"
    return f"{type(error).__name__} {where} {error}"


def _check(world: World) -> None:
    found = check(world.cell.state)
    assert not found, "; ".join(map(str, found))
    world.naive.compare_room(world.cell.state)
    state = world.cell.state
    for due_us, kind, name in state.index.deadlines.standing(state):
        # Of these the state may say afterwards that they were due before.
        soon = kind in ("node", "remind", "idle")
        assert soon or due_us >= state.now_us, f"V1: {kind} {name} was due at {due_us}"


def _end(world: World) -> str | None:
    """Check everything, heal, see everybody answered, and fold the log in two other ways."""
    try:
        _check(world)
        heal(world)
        _check(world)
        live = world.cell.digest()
        records = world.cell.records
        assert digest(world.cell.replayed().cells) == live, "S2: replay"
        # As a reader folds it, which keeps no index, and a worker takes it up from there.
        half = Fold().reading()
        for offset, value in enumerate(records[: len(records) // 2]):
            half.apply(offset, value)
        tail = load_fold(save_fold(half)).ready()
        for offset in range(len(records) // 2, len(records)):
            tail.apply(offset, records[offset])
        assert digest(tail.cells) == live, "S2: snapshot and tail"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        return _said(error)
    return None
