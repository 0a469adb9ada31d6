"""The acceptance pack of a proof of concept: checks, eight questions, six pieces of evidence.

It is read from the log alone, whatever was run on it: ``gpuledger report acceptance --run``
runs a script that shows everything (`collectors.simulation.acceptance`), a site's own weeks
show what happened in them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ledger.amounts import per_cent
from ledger.operations.checks import AREAS, checks
from ledger.operations.measure import Column, Metric, Report, Section
from ledger.operations.ops import money_of, waste
from ledger.operations.questions import answers
from ledger.operations.stories import LIFE, QUOTA, RECOVERY
from ledger.operations.words import amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.operations.stories import Story
    from ledger.operations.trial import Trial

__all__ = ["acceptance_report"]


def acceptance_report(trial: Trial) -> Report:
    """Return the pack of a window."""
    found = checks(trial)
    verdicts = Counter(one.verdict for one in found)
    sections = [_verdict(verdicts, len(found))]
    for area, title in AREAS.items():
        rows = tuple(
            {
                "check": one.name,
                "title": one.title,
                "verdict": one.verdict,
                "shown": one.shown,
                "broken": one.broken,
                "places": list(one.places),
            }
            for one in found
            if one.area == area
        )
        sections.append(
            Section(
                area,
                title,
                "governance" if area == "governance" else "",
                columns=_CHECKS,
                rows=rows,
            )
        )
    sections += [_questions(trial), *_evidence(trial)]
    more = money_of(trial) | {
        "digest": trial.digest,
        "verdicts": {name: verdicts[name] for name in ("shown", "broken", "not shown")},
    }
    return Report("acceptance", "Acceptance pack", trial.reading, tuple(sections), more)


_CHECKS = (
    Column("title", "what must hold"),
    Column("verdict", "verdict"),
    Column("shown", "seen", "count", "records or grants that show it"),
    Column("broken", "broken", "count", "records or grants that contradict it"),
    Column("places", "where"),
)


def _verdict(verdicts: Counter[str], total: int) -> Section:
    titles = {
        "shown": "shown by the log",
        "broken": "contradicted by the log",
        "not shown": "not shown: nothing in the window is about it",
    }
    metrics = tuple(
        Metric(f"checks.{name.replace(' ', '-')}", title, f"checks with the verdict {name}",
               verdicts[name], "count", total, "checks")
        for name, title in titles.items()
    )  # fmt: skip
    return Section("verdict", "Verdict", metrics=metrics)


def _questions(trial: Trial) -> Section:
    rows = tuple(
        {
            "number": number,
            "name": one.name,
            "question": one.question,
            "answer": one.answer,
            "numbers": one.numbers,
            "places": list(one.places),
        }
        for number, one in enumerate(answers(trial), start=1)
    )
    columns = (
        Column("number", "", "count"),
        Column("question", "question"),
        Column("answer", "answer, from the log"),
        Column("places", "for example"),
    )
    return Section("questions", "Eight questions of a buyer", columns=columns, rows=rows)


# -- six pieces of evidence --------------------------------------------------------


def _evidence(trial: Trial) -> Iterator[Section]:
    found = trial.stories.found
    yield _inventory(trial)
    yield _story("evidence-life", "Evidence 2: the whole life of one request", found.get(LIFE))
    yield _shared(trial)
    yield _story(
        "evidence-recovery", "Evidence 4: a failure, and the work that went on", found.get(RECOVERY)
    )
    yield _story(
        "evidence-quota", "Evidence 5: a quota that was asked for and answered", found.get(QUOTA)
    )
    kept = waste(trial)
    yield Section(
        "evidence-time", "Evidence 6: the time of everything, to the microsecond", kept.group,
        (*kept.words, f"the state at the end: {trial.digest}"), kept.metrics, charts=kept.charts,
    )  # fmt: skip


def _inventory(trial: Trial) -> Section:
    rows = tuple(
        {
            "node": device["node"],
            "device": uuid,
            "model": device["model"],
            "memory": device["memory_mib"],
            "slices": sum(one["device"] == uuid for one in trial.boundary.slices.values()),
        }
        for uuid, device in sorted(
            trial.boundary.devices.items(), key=lambda one: (one[1]["node"], one[0])
        )[:_MOST_DEVICES]
    )
    more = len(trial.boundary.devices) - len(rows)
    columns = (
        Column("node", "node"),
        Column("device", "device"),
        Column("model", "model"),
        Column("memory", "memory", "mib", "as its node reported it"),
        Column("slices", "slices at the end", "count", "slices present at the end of the window"),
    )
    words = (f"and {more} more",) if more > 0 else ()
    return Section(
        "evidence-inventory", "Evidence 1: what was discovered", "", words, columns=columns,
        rows=rows,
    )  # fmt: skip


#: So many devices, and steps of a story, are listed.
_MOST_DEVICES, _MOST_STEPS = 64, 60


def _shared(trial: Trial) -> Section:
    peak = trial.boundary.peak
    title = "Evidence 3: the card that most held at once"
    if not peak.holders:
        return Section("evidence-shared", title, words=("not shown: no card was held",))
    there = sum(one["gpu_milli"] for one in peak.holders)
    when = amount_text(peak.time_us, "time_us")
    words = (f"{peak.device}, at {when} ({peak.place}): {per_cent(there, 1000)} of the device",)
    columns = (
        Column("lease", "lease"),
        Column("tenant", "tenant"),
        Column("unit", "unit"),
        Column("gpu_milli", "share", "milli", "what the lease is charged for it"),
        Column("memory_mib", "memory", "mib", "kept or promised"),
        Column("memory_slices", "memory slices"),
    )
    return Section("evidence-shared", title, "", words, columns=columns, rows=peak.holders)


def _story(name: str, title: str, story: Story | None) -> Section:
    """Return a story as evidence; one that did not happen is not shown, and that is said."""
    if story is None:
        return Section(name, title, words=("not shown: it did not happen in the window",))
    start_us = story.steps[0]["time_us"]
    steps = story.steps[:_MOST_STEPS]
    rows = tuple({**step, "after_us": step["time_us"] - start_us} for step in steps)
    columns = (
        Column("time_us", "when", "time_us"),
        Column("after_us", "after", "us", "since the first of these records"),
        Column("place", "record"),
        Column("words", "what"),
    )
    words = [story.about]
    if story.numbers:
        words.append(", ".join(f"{name} {value}" for name, value in story.numbers.items()))
    if len(story.steps) > len(steps):
        words.append(
            f"and {len(story.steps) - len(steps)} more records: gpuledger show {story.about}"
        )
    return Section(name, title, "", tuple(words), columns=columns, rows=rows)
