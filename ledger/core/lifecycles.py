"""The lifecycles as tables (DESIGN 1.7): what may follow what, and nothing else.

Everything that decides whether a transition is legal lives here; what causes a
transition lives in ``decide_*``, what it does to the state in ``evolve_*``. An
edge that is not in a table raises `IllegalTransition` and changes nothing. The
diagrams in ``docs/lifecycles.md`` and the tests are made from these tables.
"""

from __future__ import annotations

__all__ = [
    "DEVICE",
    "LEASE",
    "LIFECYCLES",
    "NODE",
    "ORDER",
    "REQUEST",
    "SLICE",
    "IllegalTransition",
    "step",
]

Table = dict[str, frozenset[str]]


class IllegalTransition(ValueError):
    """The lifecycle has no such edge (A4)."""

    def __init__(self, lifecycle: str, about: str, old: str, new: str) -> None:
        """Name the lifecycle, the thing, and the edge that does not exist."""
        super().__init__(f"{lifecycle} {about}: no edge from {old} to {new}")
        self.lifecycle = lifecycle
        self.about = about
        self.old = old
        self.new = new


def _table(**edges: str) -> Table:
    return {state.replace("_", "-"): frozenset(after.split()) for state, after in edges.items()}


#: A lost node comes back only by registering again.
NODE = _table(
    new="registering online",
    registering="registering online draining maintenance silent",
    online="online draining maintenance silent registering",
    draining="draining online maintenance silent registering",
    maintenance="maintenance online draining silent registering",
    silent="online draining maintenance registering lost",
    lost="online draining maintenance registering",
)

#: Derived from what a device holds (`ledger.core.state.device_state`). There is
#: no edge from leased to available: between them stands the proof of clean (A11).
DEVICE = _table(
    discovered="available sliced unhealthy",
    available="leased partly-leased sliced unhealthy quarantined missing",
    partly_leased="leased cleaning unhealthy quarantined missing",
    leased="partly-leased cleaning unhealthy quarantined missing",
    cleaning="available sliced partly-leased leased unhealthy quarantined missing",
    sliced="available unhealthy quarantined missing cleaning leased partly-leased",
    unhealthy="available leased partly-leased cleaning sliced quarantined missing",
    quarantined="available leased partly-leased cleaning sliced unhealthy missing",
    missing="available leased partly-leased cleaning sliced unhealthy quarantined",
)

SLICE = _table(
    discovered="present ordered",
    ordered="present gone",
    present="leased quarantined destroying gone",
    destroying="present gone",
    leased="cleaning quarantined gone",
    cleaning="present quarantined gone",
    quarantined="present leased cleaning gone",
    gone="",
)

REQUEST = _table(
    received="queued reserved granted rejected ended",
    queued="queued reserved granted ended",
    reserved="queued granted ended",
    granted="queued ended",
    rejected="",
    ended="",
)

LEASE = _table(
    new="granted",
    granted="running stopping ended",
    running="running stopping ended",
    stopping="stopping ended",
    ended="",
)

ORDER = _table(
    new="issued",
    issued="done failed timed-out superseded",
    done="",
    failed="",
    timed_out="",
    superseded="",
)

LIFECYCLES: dict[str, Table] = {
    "node": NODE,
    "device": DEVICE,
    "slice": SLICE,
    "request": REQUEST,
    "lease": LEASE,
    "order": ORDER,
}


def step(lifecycle: str, about: str, old: str, new: str) -> str:
    """Return ``new`` when the lifecycle has the edge; raise `IllegalTransition`."""
    if new not in LIFECYCLES[lifecycle][old]:
        raise IllegalTransition(lifecycle, about, old, new)
    return new
