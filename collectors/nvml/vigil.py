"""Rounds that NVML's process makes alone while nothing happens: many at one question.

A question wakes two processes, and a cold wake-up costs more than the answer to most of what a
round asks. So while a node rests, its agent asks once for the rounds up to the next thing that
is due, and is told when that is there, or something has happened, or it has more to ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import asleep
from collectors.nvml.events import read_events
from collectors.nvml.pulse import pulse
from collectors.nvml.use import read_uses

if TYPE_CHECKING:
    from collectors.nvml.readings import DeviceUse, Happenings
    from collectors.nvml.session import Session

__all__ = ["vigil"]

_US = 1_000_000


def vigil(
    session: Session,
    *,
    uses: list[str] | None,
    uuids: list[str],
    events: list[str],
    rounds: int,
    every_us: int,
) -> dict[str, Any]:
    """Make so many rounds, at multiples of ``every_us`` by the steady clock.

    ``uses`` are the devices that are sampled (None: none is), ``uuids`` those of which `pulse`
    says whether they are to be read, ``events`` those that are listened to. It ends early, and
    says ``news``, after a round in which something was to be told; also before the next one
    when there is another question. ``rounds`` is how many were made, ``samples`` are those of
    each round with the steady time (us) at which they were taken, ``events`` the last round's
    where there were any.
    """
    samples: list[tuple[int, list[DeviceUse]]] = []
    happened, news, made = None, False, 0
    while made < rounds and not news and not _slept(session, made, every_us):
        with session.one_question():
            if uses is not None:
                found = read_uses(session, uses, wide=False, counted=False)
                samples.append((session.steady_us(), found))
            due = pulse(session, uuids, [])
            heard = read_events(session, uuids=events)
        made += 1
        if _tells(heard):
            happened = heard
        news = happened is not None or due["listing"] or bool(due["changed"])
    return {"rounds": made, "news": news, "samples": samples, "events": happened}


def _slept(session: Session, made: int, every_us: int) -> bool:
    """Wait for the next round; say whether there is another question."""
    asleep(made)
    return session.pause((every_us - session.steady_us() % every_us) / _US)


def _tells(heard: Happenings) -> bool:
    return bool(heard.events or heard.lost or heard.why)
