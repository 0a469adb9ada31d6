"""What a node's agent would say, and what it could do here: ``doctor``, and the dry run."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ledger.cli.common import No, Session, command, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectors.nvml.doctor import Check
    from collectors.nvml.report import Note
    from schemas.observations import DeviceReport

__all__ = ["FakeOption", "checked", "dry_run", "name_of", "register"]

FakeOption = Annotated[
    Path | None,
    typer.Option(help="a described node instead of this host's GPUs, TOML or JSON"),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "doctor")(doctor)


async def doctor(session: Session, *, fake: FakeOption = None) -> None:
    """Say what works on this host, and what each missing right costs. Changes nothing.

    With --fake only the described node is looked at: it needs no right of this host.
    Exit 1 when no GPU of it could be reported.
    """
    from dataclasses import asdict

    from collectors.nvml import doctor as checks
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.watchdog import NvmlChild

    child = NvmlChild(fake=checked(fake))
    reader = NvmlReader(child)
    try:
        host = await reader.host()
        # What a described node can is in its description, whatever this host may do.
        rights = checks.host_checks() if fake is None else []
        found = [checks.nvml_check(host), *rights]
        for one in host.listed:
            if one.uuid is not None:
                found += checks.device_checks(one.uuid, await reader.survey(one.uuid))
    finally:
        await child.close()
    if session.json:
        for each in found:
            session.emit(asdict(each), "")
    else:
        session.emit({}, _shown(found))
    if found[0].state != "ok":
        raise No(f"no GPU of this host can be reported ({found[0].found})")


def _shown(found: Sequence[Check]) -> str:
    """Return the checks for people: the host's all, a device's where something is missing."""
    host = [[one.name, one.state, one.found] for one in found if not one.device]
    text = table(("host", "state", "found"), host)
    # What a board does not have could not be had; what the host lacks may be given to it.
    costly = [
        one
        for one in found
        if one.state in ("denied", "broken") or (one.state == "absent" and not one.device)
    ]
    for device in dict.fromkeys(one.device for one in found if one.device):
        mine = [one for one in found if one.device == device]
        works = sum(one.state == "ok" for one in mine)
        text += f"\n{device}: {works} of {len(mine)} readings work\n"
        missing = ", ".join(one.name for one in mine if one.state == "absent")
        if missing:
            text += f"  not on this device: {missing}\n"
    if costly:
        rows = [[one.device or "host", one.name, one.found, one.costs] for one in costly]
        text += "\n" + table(("where", "missing", "why", "what it costs"), rows)
    return text.removesuffix("\n")


def name_of(node: Sequence[str] | None) -> str:
    """Return the name that this host is to have: the one given, or its own."""
    return node[0] if node else socket.gethostname().partition(".")[0]


def checked(fake: Path | None) -> Path | None:
    """Return the path; raise `Usage` when the file describes no node."""
    from collectors.fake_nvml.described import Described, node_of
    from collectors.files import BadFile, read_model
    from ledger.cli.common import Usage

    if fake is not None:
        try:
            node_of(read_model(fake, Described))
        except BadFile as error:
            raise Usage(str(error)) from None
    return fake


async def dry_run(
    session: Session, *, node: str, pool: str, fake: Path | None, labels: dict[str, str]
) -> None:
    """Print what the agent of this host would report now, and put nothing on any log.

    Raise `ConnectionError` when NVML does not work here.
    """
    from collectors.nvml.host_facts import host_facts, iommu_group
    from collectors.nvml.reader import NvmlReader
    from collectors.nvml.report import Standing, node_inventory
    from collectors.nvml.watchdog import NvmlChild

    child = NvmlChild(fake=checked(fake))
    try:
        inventory = await NvmlReader(child).inventory()
    finally:
        await child.close()
    standing = Standing(node, pool, labels)
    report, notes = node_inventory(
        inventory,
        standing,
        host_facts(),
        epoch=0,
        node_time_us=time.time_ns() // 1000,
        group_of=iommu_group,
    )
    if report is None:
        raise ConnectionError(f"{notes[0].text}; gpuledger doctor says what to do")
    plain = {
        "type": "node.inventory",
        "data": report.model_dump(mode="json"),
        "notes": [{"device": one.device, "text": one.text} for one in notes],
    }
    session.emit(plain, _told(report.devices, notes, str(report.driver)))


def _told(devices: Sequence[DeviceReport], notes: Sequence[Note], driver: str) -> str:
    columns = ("device", "model", "MiB", "health", "MIG", "slices")
    rows = [
        [
            one.uuid,
            one.model,
            str(one.memory_mib),
            one.health,
            _mig(one),
            " ".join(f"{each.profile}@{each.start}" for each in one.slices),
        ]
        for one in devices
    ]
    text = f"driver {driver}, {len(devices)} devices\n" + table(columns, rows)
    text += "".join(f"note: {one.device or 'node'}: {one.text}\n" for one in notes)
    return text.removesuffix("\n")


def _mig(one: DeviceReport) -> str:
    """Say how MIG is on a device: off is said only of one that could have it."""
    state: dict[tuple[bool, bool], str] = {
        (True, False): "on",
        (True, True): "on, off after a reset",
        (False, True): "off, on after a reset",
    }
    return state.get((one.mig_enabled, one.mig_pending), "-")
