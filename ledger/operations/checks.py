"""What a proof of concept is judged by, as checks of the log: shown, broken, or not shown.

A check that nothing in the window is about is *not shown*, and that is no pass. One that a
record contradicts is *broken*, and names the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.operations.boundary import RULES
from ledger.operations.stories import RECOVERY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.operations.trial import Trial

__all__ = ["AREAS", "Check", "checks"]

#: What is checked, in the order of the pack.
AREAS = {
    "discovery": "Discovery and organisation",
    "boundary": "The boundary of a card, and sharing it",
    "failure": "Failure and recovery",
    "governance": "Governance",
}


class Check(NamedTuple):
    """One thing that must hold: how often it was seen to, how often not, and where."""

    area: str
    name: str
    title: str
    shown: int
    broken: int = 0
    places: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Return ``shown``, ``broken`` or ``not shown``."""
        if self.broken:
            return "broken"
        return "shown" if self.shown else "not shown"


def checks(trial: Trial) -> list[Check]:
    """Return all checks, by area."""
    return [*_discovery(trial), *_boundary(trial), *_failure(trial), *_governance(trial)]


def _seen(trial: Trial, area: str, name: str, title: str, *kinds: str) -> Check:
    """Return a check that something is on record."""
    register = trial.register
    places = [place for kind in kinds for place in register.places.get(kind, ())][:3]
    shown = sum(register.counts[kind] for kind in kinds)
    return Check(area, name, title, shown, 0, tuple(places))


def _held(trial: Trial, area: str, rule: str) -> Check:
    """Return a check of the second account: what must hold of every grant."""
    account = trial.boundary
    broken = account.broken[rule]
    places = account.places.get(f"broken {rule}" if broken else rule, ())
    return Check(area, rule, RULES[rule], account.held[rule], broken, tuple(places))


def _discovery(trial: Trial) -> Iterator[Check]:
    area, register = "discovery", trial.register
    yield _seen(trial, area, "nodes", "nodes tell what they are, each boot as one of its own",
                "node.registered")  # fmt: skip
    yield _seen(trial, area, "devices", "devices are discovered under their UUID",
                "device.discovered")  # fmt: skip
    yield Check(area, "returned", "a device that was away comes back as the same device",
                trial.boundary.returned.total(), 0,
                tuple(trial.boundary.places.get("returned", ())))  # fmt: skip
    yield _seen(trial, area, "slices", "MIG slices are seen, each with an id of its own",
                "slice.present")  # fmt: skip
    yield _seen(trial, area, "pools", "pools, queues and quotas are set as records",
                "pool.applied", "queue.applied", "quota.applied")  # fmt: skip
    yield _held(trial, area, "observed")
    refused = register.counts["alarm duplicate_device"]
    if refused:
        yield Check(area, "two-places", "a device that two nodes report raises an alarm", refused)


def _boundary(trial: Trial) -> Iterator[Check]:
    area, modes = "boundary", trial.boundary.modes
    titles = {
        "whole": "cards are leased as a whole",
        "slice": "MIG slices are leased",
        "share": "shares of a card are leased",
    }
    for mode, title in titles.items():
        yield Check(area, f"mode-{mode}", title, modes[mode])
    most = len(trial.boundary.peak.holders)
    yield Check(area, "together", "several hold one card at the same time", most if most > 1 else 0,
                0, (trial.boundary.peak.place,) if most > 1 else ())  # fmt: skip
    for rule in ("alone", "shares", "memory"):
        yield _held(trial, area, rule)
    grants = trial.register.counts["lease.granted"]
    yield Check(area, "isolation", "each grant says what keeps its holder apart from others",
                trial.register.isolation.total(), grants - trial.register.isolation.total(),
                tuple(trial.register.places.get("lease.granted", ())))  # fmt: skip
    yield _seen(trial, area, "partitioned", "a card is cut as a request needs it",
                "partition done")  # fmt: skip
    yield _seen(trial, area, "not-destroyed", "a layout that would destroy what is in use: refused",
                "refused instance_busy", "refused not_a_layout")  # fmt: skip


def _failure(trial: Trial) -> Iterator[Check]:
    area = "failure"
    yield _seen(trial, area, "silent", "a node that is not heard is noticed", "node silent")
    yield _seen(trial, area, "lost", "a node that stays away is given up", "node lost")
    yield _seen(trial, area, "unhealthy", "a device that breaks, or goes away, is noticed",
                "device unhealthy", "device gone")  # fmt: skip
    yield _held(trial, area, "healthy")
    yield _held(trial, area, "online")
    again = trial.tasks.counts["granted_again"]
    story = trial.stories.found.get(RECOVERY)
    yield Check(area, "again", "work that was interrupted is granted again", again, 0,
                () if story is None else (story.steps[0]["place"],))  # fmt: skip
    yield _held(trial, area, "once")
    yield _seen(trial, area, "not-clean", "a card that is not proved clean is put out of use",
                "device.quarantined", "slice.quarantined")  # fmt: skip
    yield _held(trial, area, "clean")
    yield _seen(trial, area, "taken-over", "a worker takes the ledger over", "record claim")
    yield _seen(trial, area, "fenced", "what a worker writes that was replaced has no effect",
                "record void")  # fmt: skip


def _governance(trial: Trial) -> Iterator[Check]:
    area, counts, places = "governance", trial.register.counts, trial.register.places
    policies, reasoned = counts["policy"], counts["policy with author and reason"]
    yield Check(area, "reasoned", "each change of policy has an author and a reason", reasoned,
                policies - reasoned, tuple(places.get("policy", ())))  # fmt: skip
    answered, second = counts["quota.answered"], counts["quota answered by a second person"]
    yield Check(area, "second-person", "a larger quota is answered by a second person", second,
                answered - second,
                tuple(places.get("quota answered by a second person", ())))  # fmt: skip
    yield _seen(trial, area, "same-person", "who asked may not approve: refused",
                "refused same_person")  # fmt: skip
    yield _seen(trial, area, "owner", "what is another's may not be touched: refused",
                "refused not_owner")  # fmt: skip
    yield _held(trial, area, "quota")
    yield _seen(trial, area, "coded", "every no has a code and the numbers compared",
                "refused with a code")  # fmt: skip
    yield _seen(trial, area, "conflict", "one id with other content is a conflict, on record",
                "outcome id_conflict")  # fmt: skip
    yield _seen(trial, area, "reclaimed", "an operator takes a lease back, under his name",
                "lease stopped by an operator")  # fmt: skip
