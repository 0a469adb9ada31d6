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
    from collectors.nvml.readings import DeviceUse
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
    when there is another question, and after one that was late or took too long for the next:
    who asks is then not told late of what is due, and a call that is only slow is not seen in
    round after round as if it had never returned. ``samples`` are those of each round with the
    steady time (us) at which they were taken, ``events`` the last round's where there were any.
    """
    samples: list[tuple[int, list[DeviceUse]]] = []
    happened, news = None, False
    began = session.steady_us() // every_us
    for made in range(rounds):
        late = session.steady_us() // every_us > began + made
        if news or late or _asked(session, made, every_us):
            break
        with session.one_question():
            if uses is not None:
                found = read_uses(session, uses, wide=False, counted=False)
                samples.append((session.steady_us(), found))
            due = pulse(session, uuids, [])
            heard = read_events(session, uuids=events)
        happened = heard if heard.events or heard.lost or heard.why else None
        # That nothing can be heard is told with the rest: on some drivers it is so every second.
        news = bool(heard.events or heard.lost or due["listing"] or due["changed"])
    return {"news": news, "samples": samples, "events": happened}


def _asked(session: Session, number: int, every_us: int) -> bool:
    """Wait for the next round; say whether there is another question."""
    asleep(number)
    return session.pause((every_us - session.steady_us() % every_us) / _US)
