"""The single steps of a change of MIG partitions: one call that changes something each.

Nothing here retries, decides or remembers: that is the executor's, who records every step
before and after. Each step says what is true when it returns, and raises `Refused` with
NVML's code otherwise; whether a step that was cut off has happened is told by reading the
device again (`inventory.read_device`), never by its answer.

Always with a placement: without one the driver packs by the order of creation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectors.nvml.calls import Refused, act, read
from collectors.nvml.codes import Code, code_of, word

if TYPE_CHECKING:
    from collectors.nvml.session import Session

__all__ = ["create_ci", "create_gi", "destroy_ci", "destroy_gi", "set_mig_mode"]


def set_mig_mode(session: Session, uuid: str, *, enabled: bool) -> dict[str, Any]:
    """Ask for a MIG mode; return what came of it.

    ``activation`` is a code's word, ``success`` only when the mode is in force; the call
    itself succeeds also when nothing but ``pending`` has changed. Handles are taken anew.
    """
    handle = _need(session, uuid)
    status = code_of(act("set_mig_mode", handle, int(enabled), about=uuid))
    session.forget(uuid)
    mode = read("mig_mode", _need(session, uuid), about=uuid)
    current, pending = mode.value or (None, None)
    return {
        "activation": word(status),
        "current": None if current is None else bool(current),
        "pending": None if pending is None else bool(pending),
    }


def create_gi(
    session: Session, uuid: str, *, profile: int, start: int, size: int
) -> dict[str, int]:
    """Create a GPU instance of a profile id at a place; return ``gi`` and where it stands.

    `INSUFFICIENT_RESOURCES`: the place is taken or the profile used up; reading tells which.
    """
    handle = _need(session, uuid)
    made = act("create_gi", handle, profile, start, size, about=uuid)
    found: dict[str, int] = act("gi_info", made, about=uuid)
    return found


def create_ci(
    session: Session, uuid: str, *, gi: int, profile: int, start: int, size: int
) -> dict[str, Any]:
    """Create a compute instance of a profile id in a GPU instance; ``start`` is within it.

    Returns ``ci`` and ``uuid``. The UUID may be one that was seen before: it is a function
    of device, GPU instance and engine, so it names no lifetime.
    """
    instance = act("gi_by_id", _need(session, uuid), gi, about=uuid)
    made = act("create_ci", instance, profile, start, size, about=uuid)
    info = act("ci_info", made, about=uuid)
    # The MIG device's handle is in the answer; looking it up by walking costs seconds.
    return {"ci": info["ci"], "uuid": act("uuid", info["device"], about=uuid)}


def destroy_ci(session: Session, uuid: str, *, gi: int, ci: int) -> bool:
    """Destroy a compute instance; False: there was none, which is as good.

    `IN_USE`: a process is in it, listed or not.
    """
    try:
        instance = act("gi_by_id", _need(session, uuid), gi, about=uuid)
        act("destroy_ci", act("ci_by_id", instance, ci, about=uuid), about=uuid)
    except Refused as refused:
        if refused.code != Code.NOT_FOUND:
            raise
        return False
    return True


def destroy_gi(session: Session, uuid: str, *, gi: int) -> bool:
    """Destroy a GPU instance; False: there was none, which is as good.

    Success is the proof that nobody is in it: the driver refuses with `IN_USE` otherwise.
    """
    try:
        act("destroy_gi", act("gi_by_id", _need(session, uuid), gi, about=uuid), about=uuid)
    except Refused as refused:
        if refused.code != Code.NOT_FOUND:
            raise
        return False
    return True


def _need(session: Session, uuid: str) -> Any:
    """Return the handle of a device that is to be changed; raise `Refused` when there is none."""
    session.kept(uuid).touched()
    found = session.handle(uuid)
    if found.why:
        raise Refused(found.code, "nvmlDeviceGetHandleByUUID")
    return found.value
