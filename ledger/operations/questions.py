"""Eight questions that a buyer asks, each answered from the log, with the figures it rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ledger.amounts import duration_text, per_cent
from ledger.operations.causes import FREE, USED
from ledger.operations.words import hours_text
from ledger.percentile import percentile
from ledger.wording import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.operations.trial import Trial

__all__ = ["QUESTIONS", "Answer", "answers"]


#: An answer in words, the numbers it rests on, and places in the log.
Grounded = tuple[str, dict[str, Any], tuple[str, ...]]


class Answer(NamedTuple):
    """A question, its answer in words, and the numbers and places that it rests on."""

    name: str
    question: str
    answer: str
    numbers: dict[str, Any]
    places: tuple[str, ...]


def _took(values: list[int]) -> str:
    half, most = percentile(values, 50), percentile(values, 100)
    if half is None or most is None:
        return "which did not happen"
    return f"half of the time within {duration_text(half)}, at most {duration_text(most)}"


def _counts(counts: Mapping[str, int]) -> str:
    return listed([f"{count} {name}" for name, count in sorted(counts.items())], 12) or "none"


def _hardware(trial: Trial) -> Grounded:
    account, counts = trial.boundary, trial.register.counts
    unseen = account.broken["observed"]
    models: dict[str, int] = {}
    for device in account.devices.values():
        models[device["model"]] = models.get(device["model"], 0) + 1
    nodes = {device["node"] for device in account.devices.values()}
    numbers = {
        "nodes": len(nodes), "devices": len(account.devices),
        "models": dict(sorted(models.items())),
        "slices_seen": counts["slice.present"], "returned": account.returned.total(),
    }  # fmt: skip
    text = (
        f"{len(account.devices)} devices on {len(nodes)} nodes ({_counts(models)}), each under its"
        f" UUID; {counts['slice.present']} MIG slices; {account.returned.total()} devices went away"
        f" and came back as themselves. {unseen} grants were of what no node had reported."
    )
    return text, numbers, _places(trial, "device.discovered")


def _division(trial: Trial) -> Grounded:
    account, isolation = trial.boundary, trial.register.isolation
    most = len(account.peak.holders)
    broken = sum(account.broken[rule] for rule in ("alone", "shares", "memory"))
    numbers = {
        "modes": dict(sorted(account.modes.items())), "isolation": dict(sorted(isolation.items())),
        "most_holders_of_one_device": most, "overlaps": broken,
    }  # fmt: skip
    text = (
        f"Leased: {_counts(account.modes)}. At most {most} held one device at once; {broken} times"
        f" one had a part of another's. What keeps them apart is told with each grant:"
        f" {_counts(isolation)}."
    )
    return text, numbers, _places(trial, "lease.granted")


def _waiting(trial: Trial) -> Grounded:
    tasks = trial.tasks
    asked = tasks.counts["received"] + tasks.counts["rejected"]
    numbers = {
        "asked": asked, "granted": tasks.counts["granted"], "refused": dict(tasks.refused),
        "held_back_by": dict(tasks.held_back), "expired": tasks.ends["expired"],
        "waiting": tasks.counts["waiting"], "wait_p50_us": percentile(tasks.waits_us, 50),
        "wait_max_us": percentile(tasks.waits_us, 100),
    }  # fmt: skip
    text = (
        f"Of {asked} requests {tasks.counts['granted']} were granted, {_took(tasks.waits_us)} after"
        f" they came; refused at once: {_counts(tasks.refused)}; the others waited with a reason"
        f" ({_counts(tasks.held_back)}); {tasks.ends['expired']} gave up at their longest wait."
    )
    return text, numbers, _places(trial, "request.queued", "request.rejected")


def _failing(trial: Trial) -> Grounded:
    tasks, counts = trial.tasks, trial.register.counts
    faults = {
        name: counts[name]
        for name in ("node silent", "node lost", "device unhealthy", "device gone")
    }
    interrupted = trial.time.total().ends["interrupted"]
    numbers = {
        "faults": faults, "interrupted": dict(tasks.interruptions),
        "granted_again": tasks.counts["granted_again"],
        "repair_p50_us": percentile(tasks.repairs_us, 50),
        "repair_max_us": percentile(tasks.repairs_us, 100),
        "interrupted_milli_us": interrupted,
    }  # fmt: skip
    text = (
        f"Seen: {_counts(faults)}. Leases interrupted: {_counts(tasks.interruptions)}; granted"
        f" again: {tasks.counts['granted_again']}, {_took(tasks.repairs_us)} later."
        f" {hours_text(interrupted)} were under leases that were interrupted."
    )
    kinds = ("node lost", "device unhealthy", "device gone", "node silent")
    return text, numbers, _places(trial, *kinds)


def _cleaning(trial: Trial) -> Grounded:
    register = trial.register
    counts = register.counts
    quarantined = counts["device.quarantined"] + counts["slice.quarantined"]
    broken = trial.boundary.broken["clean"]
    numbers = {
        "ordered": counts["clean ordered"], "proved": counts["clean done"],
        "failed": counts["clean failed"], "quarantined": quarantined,
        "cleared": counts["device.cleared"], "granted_unclean": broken,
        "clean_p50_us": percentile(register.cleans_us, 50),
        "clean_max_us": percentile(register.cleans_us, 100),
    }  # fmt: skip
    text = (
        f"{counts['clean ordered']} cleanings were ordered, {counts['clean done']} proved"
        f" ({_took(register.cleans_us)}), {counts['clean failed']} not: {quarantined} devices or"
        f" slices were put out of use, {counts['device.cleared']} cleared by an operator."
        f" {broken} grants were of something that was not proved clean."
    )
    return text, numbers, _places(trial, "clean done", "clean failed", "device.quarantined")


def _deciding(trial: Trial) -> Grounded:
    register = trial.register
    counts = register.counts
    numbers = {
        "policies": counts["policy"], "reasoned": counts["policy with author and reason"],
        "authors": dict(sorted(register.authors.items())),
        "quotas_answered": counts["quota.answered"],
        "by_a_second_person": counts["quota answered by a second person"],
        "refused_acts": dict(sorted(register.refused_acts.items())),
        "taken_back": counts["lease stopped by an operator"],
    }  # fmt: skip
    text = (
        f"{counts['policy']} changes of policy are on record, {numbers['reasoned']} with author and"
        f" reason; acts by {_counts(register.authors)}. Of {counts['quota.answered']} answers to"
        f" quota increases {numbers['by_a_second_person']} were by a second person. Acts refused:"
        f" {_counts(register.refused_acts)}. Leases taken back by name: {numbers['taken_back']}."
    )
    return text, numbers, _places(trial, "policy", "quota.answered")


def _using(trial: Trial) -> Grounded:
    time = trial.time
    total, wholes = time.total(), time.total().denominators()
    lost = {
        name: amount for name, amount in time.kinds.items() if name not in (USED, FREE) and amount
    }
    numbers = {
        "allocated_milli_us": total.parts["allocated"], **{
            f"{name}_milli_us": amount for name, amount in wholes.items()
        },
        "used_milli_us": time.kinds[USED], "free_milli_us": time.kinds[FREE],
        "lost_milli_us": dict(sorted(lost.items())), "present_milli_us": time.present_milli_us,
    }  # fmt: skip
    shares = ", ".join(
        f"{per_cent(total.parts['allocated'], amount)} of {name}" for name, amount in wholes.items()
    )
    most = sorted(lost, key=lambda name: (-lost[name], name))
    told = ", ".join(f"{name} {hours_text(lost[name])}" for name in most) or "nothing"
    text = (
        f"Leased was {shares}. Of {hours_text(time.present_milli_us)} present"
        f" {hours_text(time.kinds[USED])} were used, {hours_text(time.kinds[FREE])} free; the rest:"
        f" {told}. Together they are what was there, exactly."
    )
    return text, numbers, tuple(one.last for one in trial.reading.read)


def _checking(trial: Trial) -> Grounded:
    counts = trial.register.counts
    numbers = {
        "effective": counts["record effective"], "void": counts["record void"],
        "claims": counts["record claim"], "digest": trial.digest,
    }  # fmt: skip
    ranges = ", ".join(f"{one.first} to {one.last}" for one in trial.reading.read)
    text = (
        f"All of this was read from {ranges}: {numbers['effective']} decisions,"
        f" {numbers['claims']} claims, {numbers['void']} void records. Anybody who reads these"
        f" records gets the same report, and the state {trial.digest[:16]}… at their end"
        " (gpuledger verify); as files: gpuledger archive."
    )
    return text, numbers, tuple(one.last for one in trial.reading.read)


def _places(trial: Trial, *kinds: str) -> tuple[str, ...]:
    found = [place for kind in kinds for place in trial.register.places.get(kind, ())]
    return tuple(dict.fromkeys(found))[:4]


#: Name -> the question, and what answers it.
QUESTIONS: dict[str, tuple[str, Callable[[Trial], Grounded]]] = {
    "hardware": ("What does it find, and does it stay the same device?", _hardware),
    "division": ("How is one card divided, and is what a tenant gets its own?", _division),
    "waiting": ("What happens to a request that cannot be served now?", _waiting),
    "failing": ("What happens when hardware fails, and when does work go on?", _failing),
    "cleaning": ("Is what one tenant leaves gone before the next one comes?", _cleaning),
    "deciding": ("Who decides, who may not, and is it on record with a reason?", _deciding),
    "using": ("How much of what was bought was used, and where did the rest go?", _using),
    "checking": ("Can we check this ourselves, without trusting the operator?", _checking),
}


def answers(trial: Trial) -> list[Answer]:
    """Return the eight answers."""
    return [Answer(name, question, *tell(trial)) for name, (question, tell) in QUESTIONS.items()]
