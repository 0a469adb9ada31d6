"""``gpuledger grant``: what a lease was granted, in the words of what uses it."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import No, Session, Usage, command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.handing_over.grant import Part

__all__ = ["node_name", "register"]

#: Formats for what runs on a node: of a lease on several nodes they say one node's part.
_OF_A_NODE = ("env", "cdi", "docker")
_FORMATS = (*_OF_A_NODE, "dra", "device-plugin", "slurm", "json")


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "grant")(grant)


async def grant(
    session: Session,
    lease: Annotated[str, typer.Argument(help="lease: ID/ATTEMPT, or SOURCE#ID/ATTEMPT")],
    *,
    form: Annotated[
        str, typer.Option("--as", metavar="FORMAT", help=f"one of {', '.join(_FORMATS)}")
    ] = "env",
    node: Annotated[
        str | None, typer.Option(help="only what is granted on this node [this host's, else all]")
    ] = None,
    slices: Annotated[
        Path | None,
        typer.Option(help="for dra: kubectl get resourceslices --output json, to name devices"),
    ] = None,
) -> None:
    """Say what a lease was granted: for a shell, a container, Kubernetes or Slurm.

    Exit 1 when there is no such lease (any more), or the format cannot say it. Nothing is
    asked of the ledger: it is read.
    """
    from ledger.handing_over.grant import NotSayable

    if form not in _FORMATS:
        raise Usage(f"--as is one of {', '.join(_FORMATS)}, not {form!r}")
    if slices is not None and form != "dra":
        raise Usage("--slices goes with --as dra")
    name, parts = await _parts(session, lease)
    parts = _chosen(parts, name, node, one=form in _OF_A_NODE)
    try:
        said = [(part, *_say(form, name, part, slices)) for part in parts]
    except NotSayable as error:
        raise No(f"{error}; --as json has everything") from None
    if form == "dra" and len(said) > 1 and not session.json:
        # kubectl takes several objects as a list.
        items = [plain for _, plain, _ in said]
        session.emit({}, _pretty({"apiVersion": "v1", "kind": "List", "items": items}))
        return
    for part, plain, text in said:
        # What is an object of another system is printed as it is, for that system to take.
        whole = form in ("dra", "json")
        session.emit(plain if whole else {"lease": name, "node": part.given.node, **plain}, text)


async def _parts(session: Session, lease: str) -> tuple[str, list[Part]]:
    from ledger.explain import Ambiguous, resolve
    from ledger.handing_over.grant import parts_of
    from ledger.reading import cells_of, fold_log

    async with session.open() as log:
        cells = cells_of(await fold_log(log, session.prefix, progress=session.progress("reading")))
    try:
        name = resolve(cells.values(), lease)
    except Ambiguous as error:
        raise Usage(str(error)) from None
    if "/" not in name.rpartition("#")[2]:
        raise Usage(f"{lease!r} names a request; a lease is named with its attempt: {lease}/1")
    for cell in cells.values():
        parts = parts_of(cell, name)
        if parts:
            return name, parts
    raise No(f"there is no lease {lease} now; gpuledger show '{lease}' tells what became of it")


def _chosen(parts: list[Part], lease: str, node: str | None, *, one: bool) -> list[Part]:
    """Return the parts that are meant: those on a node that is named, or this host's, or all."""
    nodes = [part.given.node for part in parts]
    if node is not None and node not in nodes:
        raise No(f"{lease} has nothing on node {node}; it is on {', '.join(nodes)}")
    wanted = node or (node_name() if one else None)
    mine = [part for part in parts if part.given.node == wanted]
    if mine or not one or len(parts) == 1:
        return mine or parts
    raise Usage(f"{lease} is on {', '.join(nodes)}; say which with --node")


def node_name() -> str:
    """Return what this host is called in the ledger when nobody says so (`ledger.cli.nodes`)."""
    return socket.gethostname().partition(".")[0]


def _say(form: str, lease: str, part: Part, slices: Path | None) -> tuple[dict[str, Any], str]:
    """Return a part in the format: as an object, and as text."""
    forms: dict[str, Callable[[], tuple[dict[str, Any], str]]] = {
        "env": lambda: _env(part),
        "cdi": lambda: _cdi(part),
        "docker": lambda: _docker(part),
        "dra": lambda: _dra(lease, part, slices),
        "device-plugin": lambda: _device_plugin(part),
        "slurm": lambda: _slurm(part),
        "json": lambda: _json(lease, part),
    }
    return forms[form]()


def _env(part: Part) -> tuple[dict[str, Any], str]:
    from ledger.handing_over.environment import shell_line, variables

    values = variables(part)
    return {"environment": values}, shell_line(values)


def _cdi(part: Part) -> tuple[dict[str, Any], str]:
    from ledger.handing_over.cdi import device_names

    names = device_names(part)
    return {"cdi": names}, "\n".join(names)


def _docker(part: Part) -> tuple[dict[str, Any], str]:
    from ledger.handing_over.cdi import container_options

    options = container_options(part)
    return {"options": options}, shlex.join(options)


def _dra(lease: str, part: Part, slices: Path | None) -> tuple[dict[str, Any], str]:
    from ledger.handing_over.dra import resource_claim, with_allocation

    claim = resource_claim(lease, part)
    if slices is not None:
        claim = with_allocation(claim, part, _slices_in(slices))
    return claim, _pretty(claim)


def _device_plugin(part: Part) -> tuple[dict[str, Any], str]:
    from ledger.handing_over.device_plugin import plugin_allocation

    plain = plugin_allocation(part)
    return plain, _pretty(plain)


def _slurm(part: Part) -> tuple[dict[str, Any], str]:
    from ledger.handing_over.environment import shell_line
    from ledger.handing_over.slurm import gres_conf, job_options, job_variables

    options, lines, values = job_options(part), gres_conf(part), job_variables(part)
    text = [shlex.join(options), *(f"# {one}" for one in lines), f"# {shell_line(values)}"]
    return {"options": options, "gres_conf": lines, "environment": values}, "\n".join(text)


def _json(lease: str, part: Part) -> tuple[dict[str, Any], str]:
    from dataclasses import asdict

    plain = {
        "lease": lease,
        **part.given.model_dump(mode="json"),
        "kinds": [asdict(one) for one in part.kinds],
    }
    return plain, _pretty(plain)


def _pretty(plain: dict[str, Any]) -> str:
    import orjson

    return orjson.dumps(plain, option=orjson.OPT_INDENT_2).decode()


def _slices_in(path: Path) -> Sequence[dict[str, Any]]:
    """Return the ResourceSlices in a file: a list of them, or one; raise `Usage` for others."""
    import orjson

    items: list[dict[str, Any]] = []
    try:
        found = orjson.loads(path.read_bytes())
        items = found.get("items", [found])
        whole = all(
            one["kind"] == "ResourceSlice" and one["spec"]["driver"] and one["spec"]["pool"]["name"]
            for one in items
        )
    except (ValueError, AttributeError, KeyError, TypeError):
        whole = False
    if not whole:
        raise Usage(f"{path} holds no ResourceSlices in JSON")
    return items
