"""What other systems write, as records of the ledger: ``gpuledger convert``.

Records go to stdout, one JSON object a line with ``--json``; what did not map goes to
stderr, one line each. Nothing is sent to a log: look at it, then apply or submit it.
Exit status 1: nothing could be mapped. 2: the file is not of the format.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ledger.cli.common import No, Session, Usage, command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.formats.asks import Options
    from ledger.formats.fields import Note

__all__ = ["register"]

FileArgument = Annotated[Path, typer.Argument(help="the file; - is stdin", allow_dash=True)]
ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", help="a device model as NVML spells it; may be repeated"),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        help="Other systems' files as records of the ledger, and back.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    command(group, "kueue")(kueue)
    command(group, "kueue-export")(kueue_export)
    command(group, "mig-parted")(mig_parted)
    command(group, "mig-parted-export")(mig_parted_export)
    command(group, "pod")(pod)
    command(group, "slurm")(slurm)
    group.registered_commands[-1].cls = _OptionsAsArgument
    command(group, "nomad")(nomad)
    app.add_typer(group, name="convert")


class _OptionsAsArgument(TyperCommand):
    """A command whose argument is itself a line of options, such as ``"--gres=gpu:2 -N 2"``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - Typer's own
        """Take what begins like an option and is none of this command's as the argument."""
        own = {name for one in self.get_params(ctx) for name in (*one.opts, *one.secondary_opts)}
        lines = [one for one in args if one[:1] == "-" != one and one.partition("=")[0] not in own]
        if "--" not in args and lines:
            args = [*(one for one in args if one not in lines), "--", *lines]
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class Asker:
    """Options that say what a request needs and the other system keeps elsewhere."""

    tenant: Annotated[str | None, typer.Option(help="tenant whose quota is charged")] = None
    project: Annotated[str | None, typer.Option(help="project of the tenant")] = None
    queue: Annotated[str | None, typer.Option(help="queue to wait in")] = None
    task: Annotated[str | None, typer.Option(help="your id of the task [its name]")] = None
    kind: Annotated[
        str | None, typer.Option("--type", help="training, online-inference, evaluation, ...")
    ] = None
    shares: Annotated[
        int | None,
        typer.Option("--shares-per-device", min=1, max=1_000_000, help="replicas, shards, units"),
    ] = None
    priority: Annotated[
        list[str] | None,
        typer.Option(
            "--priority-class", metavar="NAME=N", help="what a class is worth; may be repeated"
        ),
    ] = None
    model: ModelOption = None

    def options(self) -> Options:
        """Return them as the readers take them; raise `Usage` for a priority without a number."""
        from ledger.formats.asks import Options

        priorities = {}
        for one in self.priority or []:
            name, _, number = one.partition("=")
            if not number.removeprefix("-").isdecimal():
                raise Usage(f"--priority-class takes NAME=N, not {one!r}")
            priorities[name] = int(number)
        return Options(
            tenant=self.tenant,
            project=self.project,
            queue=self.queue,
            task=self.task,
            task_type=self.kind,
            shares=self.shares,
            priorities=priorities,
            models=tuple(self.model or ()),
        )


def kueue(session: Session, file: FileArgument, *, model: ModelOption = None) -> None:
    """Kueue's objects (YAML) as pools, quotas and queues."""
    from ledger.formats.kueue import read_kueue

    with _reading(file) as text:
        records, notes = read_kueue(text, model or ())
    _print(session, records, notes)


def kueue_export(
    session: Session,
    file: FileArgument,
    *,
    version: Annotated[str, typer.Option(help="of Kueue's API: v1beta1 or v1beta2")] = "v1beta2",
) -> None:
    """Records of policy, as `convert kueue --json` prints them, as Kueue's objects (YAML)."""
    from ledger.formats.kueue_objects import VERSIONS
    from ledger.formats.kueue_write import kueue_yaml, write_kueue

    if version not in VERSIONS:
        raise Usage(f"--version is {' or '.join(VERSIONS)}, not {version!r}")
    with _reading(file) as text:
        records = [_checked(record, at) for at, record in enumerate(_json_lines(text), 1)]
        objects, notes = write_kueue(records, version)
    _say(session, notes)
    if not objects:
        raise No("nothing could be mapped")
    if session.json:
        for one in objects:
            session.emit(one, "")
        return
    sys.stdout.write(kueue_yaml(objects))
    sys.stdout.flush()


def mig_parted(session: Session, file: FileArgument) -> None:
    """The mig-configs of mig-parted (YAML) as layouts by name."""
    from ledger.formats.mig_parted import read_mig_parted

    with _reading(file) as text:
        layouts, notes = read_mig_parted(text)
    _print(session, [{"layout": name, "entries": each} for name, each in layouts.items()], notes)


def mig_parted_export(session: Session, file: FileArgument) -> None:
    """Layouts, as `convert mig-parted --json` prints them, as a file of mig-parted."""
    from ledger.formats.mig_parted import read_mig_parted, write_mig_parted

    with _reading(file) as text:
        layouts = {}
        for line, one in enumerate(_json_lines(text), 1):
            if not isinstance(one.get("layout"), str) or not _is_entries(one.get("entries")):
                raise Usage(f"{file}:{line}: a layout has the fields layout and entries")
            layouts[one["layout"]] = one["entries"]
        if not layouts:
            raise No("nothing could be mapped")
        written = write_mig_parted(layouts)
        read_mig_parted(written)  # what it refuses, mig-parted would refuse
    session.emit({"file": written}, written.removesuffix("\n"))


def _is_entries(entries: object) -> bool:
    return isinstance(entries, list) and all(isinstance(one, dict) for one in entries)


def pod(session: Session, file: FileArgument, asker: Asker) -> None:
    """Pods of Kubernetes (YAML or JSON) as requests; `submit --file` takes each."""
    from ledger.formats.pod import read_pods

    with _reading(file) as text:
        requests, notes = read_pods(text, asker.options())
    _print(session, requests, notes)


def slurm(
    session: Session,
    line: Annotated[str, typer.Argument(help='options of sbatch, as "--gres=gpu:2 --time=60"')],
    asker: Asker,
) -> None:
    """Options of sbatch, srun or salloc as a request."""
    from ledger.formats.documents import NotTheFormat
    from ledger.formats.slurm import read_slurm

    try:
        request, notes = read_slurm(line, asker.options())
    except NotTheFormat as error:
        raise Usage(str(error)) from None
    _print(session, [] if request is None else [request], notes)


def nomad(session: Session, file: FileArgument, asker: Asker) -> None:
    """A job of Nomad (JSON, or plain HCL) as requests."""
    from ledger.formats.nomad import read_nomad

    with _reading(file) as text:
        requests, notes = read_nomad(text, asker.options())
    _print(session, requests, notes)


@contextmanager
def _reading(file: Path) -> Iterator[str]:
    """Give the file's text; what is not of the format becomes `Usage`, with file and line."""
    from ledger.formats.documents import MAX_CHARS, NotTheFormat

    name = "stdin" if str(file) == "-" else str(file)
    # A character has at most four bytes; whatever is longer need not be read whole.
    limit = 4 * MAX_CHARS + 1
    if str(file) == "-":
        raw = sys.stdin.buffer.read(limit)
    else:
        with file.open("rb") as stream:
            raw = stream.read(limit)
    try:
        yield raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Usage(f"{name}:{line}: not UTF-8; save it as UTF-8") from None
    except NotTheFormat as error:
        raise Usage(f"{name}:{error.line}: {error}" if error.line else f"{name}: {error}") from None


def _json_lines(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a text, one a line."""
    from ledger.formats.documents import NotTheFormat
    from schemas.strict_json import JsonFault, loads_strict

    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(loads_strict(line.encode()))
            except JsonFault as fault:
                raise NotTheFormat(f"one JSON object a line: {fault}", line=number) from None
    return found


def _checked(record: dict[str, Any], line: int) -> dict[str, Any]:
    """Return a record of policy whose data are of its type, all fields filled in."""
    import orjson
    from pydantic import ValidationError

    from ledger.formats.documents import NotTheFormat
    from schemas.catalogue import TYPES
    from schemas.faults import first_fault

    kind, data = record.get("type"), record.get("data")
    spec = TYPES.get((kind, 1)) if isinstance(kind, str) else None
    if spec is None or not isinstance(data, dict):
        raise NotTheFormat("a record has a type, such as quota.apply, and data", line=line)
    whole = {"author": "export", "reason": "", **data}
    try:
        checked = spec.model.model_validate_json(orjson.dumps(whole))
    except ValidationError as error:
        where, message = first_fault(error)
        said = f"{'.'.join(map(str, where))}: {message}"
        raise NotTheFormat(said, f"{kind}", line) from None
    return {"type": kind, "data": checked.model_dump(mode="json")}


def _say(session: Session, notes: Iterable[Note]) -> None:
    for note in notes:
        session.note(str(note))


def _print(session: Session, found: list[dict[str, Any]], notes: list[Note]) -> None:
    """Print what was mapped, and say what was not; raise `No` when nothing was."""
    import orjson

    _say(session, notes)
    if not found:
        raise No("nothing could be mapped")
    for one in found:
        session.emit(one, orjson.dumps(one, option=orjson.OPT_INDENT_2).decode())
