"""Silence and return of nodes, told from heartbeats and the state alone."""

from __future__ import annotations

import pytest

from ledger.core.evolve import empty
from ledger.core.state import Node, State
from processors.liveness import Liveness

_S = 1_000_000
LIMIT_S = 15


def cell(state: str = "online", *, name: str = "c1", incarnation: str = "boot1") -> State:
    """Return a cell with the node n1 in ``state``."""
    found = empty(name)
    found.nodes["n1"] = Node("n1", "p", incarnation, 1, "/nodes/n1", state, None, None)
    return found


def listening(since_s: int = 0) -> Liveness:
    """Return a liveness that has listened since ``since_s``."""
    liveness = Liveness(LIMIT_S * _S, repeat_us=10 * _S)
    liveness.listen_from(since_s * _S)
    return liveness


def told(liveness: Liveness, state: State, now_s: int) -> list[str]:
    """Return the types of the verdicts at ``now_s``."""
    return [each.type for each in liveness.verdicts({state.cell: state}, now_s * _S)]


def test_nothing_is_told_before_anybody_listens() -> None:
    """A process that has not begun to listen knows of no silence."""
    assert Liveness(LIMIT_S * _S).verdicts({"c1": cell()}, 10**15) == []


@pytest.mark.parametrize("state", ["online", "draining", "maintenance"])
def test_a_node_never_heard_is_silent_after_the_limit(state: str) -> None:
    """The limit counts from when listening began, to the microsecond."""
    liveness = listening(100)
    assert liveness.verdicts({"c1": cell(state)}, 115 * _S - 1) == []
    (verdict,) = liveness.verdicts({"c1": cell(state)}, 115 * _S)
    assert ("c1", "node.silent") == verdict[:2]
    assert {"node": "n1", "incarnation": "boot1", "last_heartbeat_us": 100 * _S} == verdict.data


@pytest.mark.parametrize("state", ["registering", "lost", "silent"])
def test_silence_is_told_only_where_a_node_is_expected(state: str) -> None:
    """A node that is not in service, or known to be silent, is not told silent."""
    assert told(listening(), cell(state), 1000) == []


def test_the_limit_counts_from_the_last_heartbeat() -> None:
    """A heartbeat puts the silence off; an older one that comes late does not bring it on."""
    liveness = listening()
    liveness.heard("c1", "n1", "boot1", 20 * _S)
    liveness.heard("c1", "n1", "boot1", 10 * _S)
    assert told(liveness, cell(), 34) == []
    (verdict,) = liveness.verdicts({"c1": cell()}, 35 * _S)
    assert verdict.data["last_heartbeat_us"] == 20 * _S


def test_another_incarnation_or_cell_is_not_this_node() -> None:
    """A heartbeat counts for the boot and the cell that it names."""
    liveness = listening()
    liveness.heard("c1", "n1", "boot0", 14 * _S)
    liveness.heard("c2", "n1", "boot1", 14 * _S)
    assert told(liveness, cell(), 15) == ["node.silent"]


def test_a_verdict_is_given_once_and_again_after_the_repeat_interval() -> None:
    """The ledger gets time to follow; an observation that was lost is made again."""
    liveness = listening()
    assert told(liveness, cell(), 15) == ["node.silent"]
    assert told(liveness, cell(), 16) == []
    assert told(liveness, cell(), 24) == []
    assert told(liveness, cell(), 25) == ["node.silent"]


def test_a_clock_that_is_set_back_keeps_no_verdict() -> None:
    """What was told by the clock before is told again, and not hours later."""
    liveness = listening()
    assert told(liveness, cell(), 4000) == ["node.silent"]
    assert told(liveness, cell(), 400) == ["node.silent"]
    assert told(liveness, cell(), 401) == []


def test_silent_back_and_silent_again() -> None:
    """When the state has followed, the next change is told at once."""
    liveness = listening()
    assert told(liveness, cell(), 15) == ["node.silent"]
    assert told(liveness, cell("silent"), 16) == []
    liveness.heard("c1", "n1", "boot1", 17 * _S)
    assert told(liveness, cell("silent"), 17) == ["node.back"]
    assert told(liveness, cell("silent"), 18) == []
    assert told(liveness, cell(), 19) == []
    assert told(liveness, cell(), 31) == []
    assert told(liveness, cell(), 32) == ["node.silent"]


def test_an_old_heartbeat_does_not_bring_a_node_back() -> None:
    """What was heard before the silence is no sign of life after it."""
    liveness = listening()
    liveness.heard("c1", "n1", "boot1", 1 * _S)
    assert told(liveness, cell("silent"), 16) == []


def test_listening_again_gives_the_nodes_their_limit_again() -> None:
    """While the log could not be read nothing was heard, which says nothing about nodes."""
    liveness = listening()
    liveness.heard("c1", "n1", "boot1", 5 * _S)
    liveness.listen_from(60 * _S)
    assert told(liveness, cell(), 74) == []
    assert told(liveness, cell(), 75) == ["node.silent"]


def test_names_made_up_are_forgotten() -> None:
    """Heartbeats of nodes that the ledger does not know take no memory for ever."""
    liveness = listening()
    for number in range(1000):
        liveness.heard("c1", f"made-up-{number}", "boot1", _S)
    assert told(liveness, cell("silent"), 1000) == []
    assert not liveness._heard
