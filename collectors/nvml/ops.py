"""What can be asked of NVML from outside its process: one name for each question.

`OPS` is the table that the child process (`child`) and the fake node in this process
(`collectors.fake_nvml.reader`) both answer from, so what a simulated node runs is what a real
one does. Arguments and answers are plain JSON values or the dataclasses of `readings`. An
operation that changes something raises `Refused`; one that reads never does.

To add one: write a function of a `Session` and keyword arguments, and put it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.events import read_events
from collectors.nvml.inventory import read_device, read_processes
from collectors.nvml.pulse import pulse
from collectors.nvml.signs import read_signs
from collectors.nvml.steps import create_ci, create_gi, destroy_ci, destroy_gi, set_mig_mode
from collectors.nvml.survey import survey
from collectors.nvml.use import read_use, read_uses
from collectors.nvml.vigil import vigil

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectors.nvml.session import Session

__all__ = ["OPS"]


def _host(session: Session) -> Any:
    return session.host()


def _several(session: Session, *, questions: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    with session.one_question():
        return [OPS[name](session, **arguments) for name, arguments in questions]


#: Name -> what it does. Each takes a `Session` first, then keywords.
OPS: dict[str, Callable[..., Any]] = {
    # () -> Host: driver and listing
    "host": _host,
    # (uuids, whole) -> {listing, changed, read}: which have to be read again; those read
    "pulse": pulse,
    # (uuid, watched=) -> Device
    "device": read_device,
    # (uuid) -> Process, ... or None
    "processes": read_processes,
    # (uuid, wide=, slow=, since_us=) -> DeviceUse; (uuids, wide=, since_us={uuid: us}) -> many
    "use": read_use,
    "uses": read_uses,
    # (uuids, wait_ms=) -> Happenings: since the last question
    "events": read_events,
    # (uuid) -> Signs: how it is
    "signs": read_signs,
    # (questions: (name, arguments), ...) -> their answers: what one round asks, none of which
    # changes anything
    "several": _several,
    # (uses, uuids, events, rounds, every_us) -> {news, samples, events}: rounds of the process
    # alone, while nothing happens
    "vigil": vigil,
    # (uuid) -> {call: why}: which calls work
    "survey": survey,
    # The steps of a change of partitions; each is one call that changes something.
    "set_mig_mode": set_mig_mode,
    "create_gi": create_gi,
    "create_ci": create_ci,
    "destroy_ci": destroy_ci,
    "destroy_gi": destroy_gi,
}
