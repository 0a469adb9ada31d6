"""Signed checkpoints: keys, signing, listing, and the proof of one record."""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import EXIT_DAMAGED, No, Session, Usage, command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ledger.log.port import Log
    from ledger.proof.check import Verdict
    from ledger.proof.checkpoint import Checkpoint
    from ledger.proof.note import PublicKey

__all__ = ["CheckpointOption", "KeyOption", "hold_against", "register", "said"]

KeyOption = Annotated[
    Path | None,
    typer.Option("--key", help="public key, as keygen wrote it into NAME.pub"),
]
CheckpointOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--checkpoint",
        help="a signed checkpoint, or a folder: the last of each partition; may be repeated",
    ),
]
_Public = Annotated[Path, typer.Option("--key", help="public key: the .pub file")]
_Folder = Annotated[
    Path, typer.Option("--to", help="folder of the checkpoints; keep it apart from the log")
]
_PRIVATE_MODE = 0o600
_POSITION = re.compile(r"events/(\d+)@(\d+)")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Sign where the log stands, and prove later that it is still the same.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    command(group, "keygen")(keygen)
    command(group, "create")(create)
    command(group, "list")(list_checkpoints)
    command(group, "prove")(prove)
    command(group, "check-proof")(check_proof)
    app.add_typer(group, name="checkpoint")


@contextmanager
def _judged(session: Session) -> Iterator[None]:
    """Turn what is wrong with keys into wrong usage, and with evidence into damage."""
    from ledger.proof.note import BadKey, BadNote
    from ledger.proof.store import BadCheckpoint

    try:
        yield
    except BadKey as error:
        raise Usage(f"--key: {error}") from None
    except (BadCheckpoint, BadNote) as error:
        session.note(f"gpuledger: {error}")
        raise typer.Exit(EXIT_DAMAGED) from None


def _public(path: Path) -> PublicKey:
    from ledger.proof.note import PublicKey

    return PublicKey.parse(path.read_text(encoding="utf-8", errors="replace"))


def keygen(
    session: Session,
    name: Annotated[
        str,
        typer.Argument(help="who signs, unique in the world: a domain and a path, no scheme"),
    ],
    key: Annotated[
        Path, typer.Option("--key", help="file of the key that signs; the other is beside it, .pub")
    ] = Path("checkpoint.key"),
) -> None:
    """Make a key that signs checkpoints, and the one that verifies them."""
    from ledger.proof.note import PrivateKey
    from ledger.proof.store import write_file

    public = key.with_name(f"{key.name}.pub")
    for path in (key, public):
        if path.exists():
            raise No(f"{path} exists; a key is never overwritten: give another --key")
    with _judged(session):
        made = PrivateKey.make(name)
        write_file(public, f"{made.public}\n".encode())
    write_file(key, f"{made.secret()}\n".encode(), mode=_PRIVATE_MODE)
    session.emit(
        {"name": name, "key": str(key), "public": str(public), "verifier": str(made.public)},
        f"{made.public}\n{key} signs: keep it where the log's operator cannot read it.\n"
        f"{public} verifies: give it to everybody who should check, before they need it.",
    )


async def create(
    session: Session,
    key: Annotated[Path, typer.Option("--key", help="the key that signs, as keygen made it")],
    to: _Folder = Path("checkpoints"),
) -> None:
    """Sign where each partition of the events stands now. Exit 4 when the log was set back."""
    from ledger.log.wakeup import wall_clock_us
    from ledger.proof.note import PrivateKey
    from ledger.proof.writing import sign_log

    with _judged(session):
        secret = PrivateKey.parse(key.read_text(encoding="utf-8", errors="replace"))
        async with session.open() as log:
            signed = await sign_log(
                log, session.prefix, to, secret, wall_clock_us(), session.progress("signing")
            )
    for one in signed:
        plain = {
            **_plain(one.checkpoint),
            "path": str(one.path),
            "added": one.added,
            "new": one.new,
        }
        grown = f"{one.added:,} more" if one.new else "nothing new, the last one stands"
        session.emit(plain, f"{one.path}: {one.checkpoint.size:,} records ({grown})")


def list_checkpoints(
    session: Session,
    folder: Annotated[Path, typer.Argument(help="folder of the checkpoints")] = Path("checkpoints"),
    *,
    key: _Public,
) -> None:
    """List all checkpoints, each verified, and proved to be what the last begins with (U2).

    Exit 4 when one is not signed by the key, or is of another history.
    """
    from ledger.proof.history import history

    if not folder.is_dir():
        raise No(f"{folder} is no folder; gpuledger checkpoint create makes one")
    with _judged(session):
        found = history(folder, _public(key))
    rows = []
    for one in found:
        plain = {} if one.checkpoint is None else _plain(one.checkpoint)
        rows.append({**plain, "path": str(one.path), "verdict": one.verdict})
    session.emit_rows(rows, ["origin", "size", "time", "root", "verdict"])
    for one in found:
        if one.detail:
            session.note(f"{one.path}: {one.detail}")
    if not all(one.ok for one in found):
        raise typer.Exit(EXIT_DAMAGED)


def _plain(one: Checkpoint) -> dict[str, Any]:
    from ledger.amounts import time_text

    return {
        "origin": one.origin,
        "partition": one.partition,
        "size": one.size,
        "root": one.root.hex(),
        "chain": one.chain.hex(),
        "time_us": one.time_us,
        "time": time_text(one.time_us),
    }


async def prove(
    session: Session,
    position: Annotated[str, typer.Argument(help="a record, as events/0@17")],
    *,
    key: _Public,
    checkpoint: Annotated[
        Path, typer.Option("--checkpoint", help="the checkpoint to prove it under, or their folder")
    ] = Path("checkpoints"),
) -> None:
    """Print the proof that a record stands under a checkpoint: one text, verifiable alone (U3)."""
    from ledger.proof.evidence import gather
    from ledger.proof.history import prove_record

    match = _POSITION.fullmatch(position)
    if match is None:
        raise Usage(f"{position!r} is no position of a record, as events/0@17")
    partition, offset = int(match[1]), int(match[2])
    with _judged(session):
        evidence = [
            one
            for one in gather([checkpoint], _public(key))
            if one.checkpoint.partition == partition and offset < one.checkpoint.size
        ]
        if not evidence:
            raise No(f"no checkpoint in {checkpoint} covers {position}")
        async with session.open() as log:
            proof = await prove_record(log, session.prefix, evidence[0], offset)
    session.emit({"position": position, "proof": proof.decode()}, proof.decode().rstrip("\n"))


def check_proof(
    session: Session,
    proof: Annotated[Path, typer.Argument(help="file of the proof; - reads stdin")],
    *,
    key: _Public,
) -> None:
    """Verify the proof of one record, from the file alone, and print the record."""
    from ledger.proof.inclusion import check_proof as check

    raw = sys.stdin.buffer.read() if str(proof) == "-" else proof.read_bytes()
    with _judged(session):
        proved = check(raw, _public(key))
    record, under = proved.record, proved.checkpoint
    value = None if record.value is None else record.value.decode(errors="replace")
    session.emit(
        {
            "ok": True,
            **_plain(under),
            "offset": record.offset,
            "key": None if record.key is None else record.key.decode(errors="replace"),
            "headers": {name: each.decode(errors="replace") for name, each in record.headers},
            "value": value,
        },
        f"record {record.offset} stands under {under.origin} at {under.size:,}:\n{value}",
    )


async def hold_against(
    session: Session, log: Log, checkpoints: Sequence[Path] | None, key: Path | None
) -> list[Verdict]:
    """Return what the log is, held against checkpoints; nothing where none is named.

    Raise `Usage` for one of them without the other: a key alone would prove nothing.
    """
    from ledger.proof.check import check_log
    from ledger.proof.evidence import gather

    if not checkpoints:
        if key is not None:
            raise Usage("--key needs --checkpoint: what was signed, a file or its folder")
        return []
    if key is None:
        raise Usage("--checkpoint needs --key: the public key, from where you trust it")
    with _judged(session):
        evidence = gather(checkpoints, _public(key))
        return await check_log(log, session.prefix, evidence, session.progress("proving"))


def said(verdict: Verdict) -> str:
    """Return a verdict in words."""
    about = f"{verdict.origin} at {verdict.size:,}"
    newer = max(0, verdict.end - verdict.size)
    if not verdict.faults:
        lines = [f"PROVED {about}: every record is the one that was signed, in its place"]
    else:
        lines = []
        for fault in verdict.faults:
            more = f" (and {fault.more} more are not as signed)" if fault.more else ""
            lines.append(f"TAMPERED {fault.position}: {fault.kind}: {fault.detail}{more}")
        first = (
            "this is the first bad record" if verdict.exact else "the first bad record is in there"
        )
        lines.append(
            f"  {about}: {first}; keep the log as it is, and restore from this record on from a"
            " copy that verifies"
        )
    if newer:
        lines.append(f"  {newer:,} records are newer than the checkpoint, and not proved by it")
    lines += [f"  {note}" for note in verdict.notes]
    return "\n".join(lines)
