"""The best place of a pool under its policy, over all classes of devices that match."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.core.derived.places import NO_DEVICE
from ledger.core.placing.constraints import narrowed
from ledger.core.policies.first_fit import FirstFit
from ledger.core.policies.fragmentation import FragmentationDescent
from ledger.core.policies.least_waste import LeastWaste
from ledger.core.policies.ranking import Scores
from ledger.core.policies.spot import ask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ledger.core.derived.places import ClassKey
    from ledger.core.policies.spot import Measure
    from ledger.core.policies.workload import Workload
    from ledger.core.state import Need, State

__all__ = ["MEASURES", "Choice", "choose", "faults"]

#: Policy -> its measure for the devices of one model, by what is known of the workload.
MEASURES: dict[str, Callable[[Workload | None, str], Measure]] = {
    "first-fit": lambda _workload, _model: FirstFit(),
    "fgd": FragmentationDescent,
    "least-waste": LeastWaste,
}


class Choice(NamedTuple):
    """A node, its devices, and the class they are of."""

    node: str
    units: tuple[str, ...]
    of_class: ClassKey


def choose(
    state: State,
    need: Need,
    classes: Iterable[ClassKey],
    allowed: Callable[[str], bool] | None = None,
) -> Choice | None:
    """Return the best place in these classes of one pool, or None when there is none.

    Nodes for which ``allowed`` says no are passed over.
    """
    ask = ask_of(need)
    best = None
    of_class = None
    for key in classes:
        may = narrowed(state, need, key, allowed)
        found = _scores_of(state, key).best(state, ask, may, best)
        if found is not None:
            best, of_class = found, key
    if best is None or of_class is None:
        return None
    units = _scores_of(state, of_class).units(state, ask, best)
    return Choice(best.node, units, of_class)


def _scores_of(state: State, key: ClassKey) -> Scores:
    """Return what is kept of the class under its pool's policy, new when there is nothing."""
    index = state.index
    cards = index.cards[key]
    scores = index.scores.get(key)
    if scores is None or scores.cards is not cards:
        policy = state.pools[key[0]].placement
        model = "" if key[3] == NO_DEVICE else key[1]
        measure = MEASURES[policy](state.workloads.get(key[0]), model)
        scores = index.scores[key] = Scores(cards, measure)
    return scores


def faults(state: State, fresh: State) -> Iterator[str]:
    """Yield where kept scores choose otherwise than ones made anew (S2).

    ``fresh`` is the same state with an index that keeps no scores yet.
    """
    for key, scores in state.index.scores.items():
        if state.index.cards.get(key) is scores.cards:
            for ask in scores.asks():
                kept, anew = scores.best(state, ask), _scores_of(fresh, key).best(fresh, ask)
                if kept != anew:
                    yield f"{ask} in {key}: kept {kept}, made anew {anew}"
