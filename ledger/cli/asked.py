"""A request as it is given on the command line: by options, or in a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ledger.cli.common import Usage, pairs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schemas.requests import RequestSubmit

__all__ = ["Asked", "FileOption", "IdOption", "Terms", "request_in", "request_of"]

FileOption = Annotated[
    Path | None,
    typer.Option(help="the request as JSON instead of options; - is stdin", allow_dash=True),
]
#: The most whole devices on each node (`schemas.asks.WholeAsk`), as a word to who asks for more.
_MOST_OF_A_NODE = 16

IdOption = Annotated[str | None, typer.Option("--id", help="id of the request [a new UUID]")]


@dataclass(frozen=True, slots=True)
class Asked:
    """Options that describe a request."""

    tenant: Annotated[str | None, typer.Option(help="tenant whose quota is charged")] = None
    queue: Annotated[str | None, typer.Option(help="queue to wait in")] = None
    project: Annotated[str | None, typer.Option(help="project of the tenant")] = None
    task: Annotated[str | None, typer.Option(help="your id of the task [its request's]")] = None
    kind: Annotated[
        str | None,
        typer.Option("--type", help="training, online-inference, batch-inference, evaluation, ..."),
    ] = None
    gpus: Annotated[int | None, typer.Option(help="whole devices on each node [1]")] = None
    nodes: Annotated[int | None, typer.Option(help="distinct nodes, all or nothing [1]")] = None
    mig: Annotated[str | None, typer.Option(metavar="PROFILE", help="MIG, as 2g.20gb")] = None
    compute_slices: Annotated[
        int | None, typer.Option(help="MIG by least compute (and --gpu-memory-mib), any profile")
    ] = None
    count: Annotated[int | None, typer.Option(help="MIG slices [1]")] = None
    share: Annotated[
        int | None, typer.Option(metavar="MILLI", help="thousandths of one device, shared")
    ] = None
    passthrough: Annotated[
        int | None, typer.Option(metavar="GPUS", help="whole devices for a machine, by PCI address")
    ] = None
    vgpu: Annotated[str | None, typer.Option(metavar="TYPE", help="one vGPU of this type")] = None
    auto: Annotated[
        int | None, typer.Option(metavar="MILLI", help="as the pool's routing has it")
    ] = None
    gpu_memory_mib: Annotated[int | None, typer.Option(help="least device memory")] = None
    pool: Annotated[str | None, typer.Option(help="only this pool")] = None
    model: Annotated[list[str] | None, typer.Option(help="device model; may be repeated")] = None
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="label the pool must have")
    ] = None
    cpu_milli: Annotated[int | None, typer.Option(help="CPU on each node, thousandths")] = None
    host_memory_mib: Annotated[int | None, typer.Option(help="memory on each node")] = None
    priority: Annotated[int | None, typer.Option(help="higher goes first [0]")] = None
    preemptible: Annotated[bool, typer.Option(help="may be ended for others")] = False
    max_wait_s: Annotated[
        int | None, typer.Option("--max-wait-s", "--max-wait", help="0 answers at once [for ever]")
    ] = None
    max_run_s: Annotated[
        int | None, typer.Option("--max-run-s", "--max-run", help="longest time held, all tries")
    ] = None
    expected_run_s: Annotated[
        int | None,
        typer.Option("--expected-run-s", "--expected-run", help="how long it should take"),
    ] = None
    retries: Annotated[int | None, typer.Option(help="tries after an interruption [0]")] = None
    replicas_min: Annotated[
        int | None, typer.Option(help="replicas of the task that an eviction leaves")
    ] = None
    recovery: Annotated[str | None, typer.Option(help="when evicted: requeue or end")] = None
    template: Annotated[str | None, typer.Option(help="template [the task type's]")] = None
    reservation: Annotated[str | None, typer.Option(help="run within it, or not at all")] = None
    checkpoint: Annotated[str | None, typer.Option(help="where the checkpoint is")] = None
    rollback: Annotated[str | None, typer.Option(help="model or version to go back to")] = None
    image: Annotated[str | None, typer.Option(help="image, for the record")] = None
    environment: Annotated[str | None, typer.Option(help="runtime, for the record")] = None

    def plain(self) -> dict[str, Any]:
        """Return what was given, as the request has it; raise `Usage` for two modes at once."""
        return _given(
            {
                "tenant": self.tenant,
                "queue": self.queue,
                "project": self.project,
                "task": {"id": self.task, "type": self.kind},
                "ask": {
                    **self._mode(),
                    "memory_mib": self.gpu_memory_mib,
                    "pool": self.pool,
                    "models": self.model or None,
                    "labels": pairs_of(self.label),
                },
                "beside": {"cpu_milli": self.cpu_milli, "memory_mib": self.host_memory_mib},
                "priority": self.priority,
                "preemptible": self.preemptible or None,
                "max_wait_s": self.max_wait_s,
                "max_run_s": self.max_run_s,
                "expected_run_s": self.expected_run_s,
                "retries": self.retries,
                "replicas_min": self.replicas_min,
                "recovery": self.recovery,
                "template": self.template,
                "reservation": self.reservation,
                "checkpoint": self.checkpoint,
                "rollback": self.rollback,
                "image": self.image,
                "environment": self.environment,
            }
        )

    def _mode(self) -> dict[str, Any]:
        """Return the fields of the mode that is asked for; whole devices when none is."""
        by_mode: dict[str, dict[str, Any]] = {
            "--mig": {"mode": "mig", "profile": self.mig},
            "--compute-slices": {"mode": "mig", "compute_slices": self.compute_slices},
            "--share": {"mode": "share", "gpu_milli": self.share},
            "--passthrough": {"mode": "passthrough", "count": self.passthrough},
            "--vgpu": {"mode": "vgpu", "type": self.vgpu},
            "--auto": {"mode": "auto", "gpu_milli": self.auto},
        }
        given = [(option, ask) for option, ask in by_mode.items() if None not in ask.values()]
        if len(given) > 1:
            raise Usage(f"{given[0][0]} and {given[1][0]} are two ways to ask; give one of them")
        if given and (self.gpus is not None or self.nodes is not None):
            raise Usage(f"--gpus and --nodes ask for whole devices; leave out {given[0][0]}")
        ask = given[0][1] if given else {"count": self.gpus, "nodes": self.nodes}
        if self.gpus is not None and self.gpus > _MOST_OF_A_NODE:
            raise Usage(
                f"--gpus counts the devices of one node, at most {_MOST_OF_A_NODE}: for more,"
                f" --nodes says on how many nodes, as --gpus 8 --nodes {-(-self.gpus // 8)}"
            )
        if self.count is not None:
            if ask.get("mode") != "mig":
                raise Usage("--count counts MIG slices; it goes with --mig (whole devices: --gpus)")
            ask["count"] = self.count
        return ask


@dataclass(frozen=True, slots=True)
class Terms:
    """Options that say what else must hold where a request runs."""

    architecture: Annotated[
        list[str] | None, typer.Option(help="device architecture; may be repeated")
    ] = None
    capability: Annotated[str | None, typer.Option(help="least compute capability, as 8.0")] = None
    driver_min: Annotated[str | None, typer.Option(help="least driver version")] = None
    spread: Annotated[
        str | None, typer.Option(help="failure domains apart: node, or label:NAME")
    ] = None
    same_nvlink_domain: Annotated[bool, typer.Option(help="devices of one NVLink domain")] = False
    encoder_sessions: Annotated[int | None, typer.Option(help="of each device")] = None
    decoder_sessions: Annotated[int | None, typer.Option(help="of each device")] = None
    licence: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COUNT", help="licences it uses")
    ] = None
    service_class: Annotated[
        str | None, typer.Option(help="latency-sensitive or elastic, for --auto")
    ] = None
    runtime_model: Annotated[str | None, typer.Option(help="model and version that runs")] = None
    framework: Annotated[str | None, typer.Option(help="framework and version it runs in")] = None
    remote_from: Annotated[
        str | None, typer.Option(metavar="NODE", help="use devices over the network from here")
    ] = None
    remote_p99_us: Annotated[int | None, typer.Option(help="P99 latency that will do")] = None
    remote_mbps: Annotated[int | None, typer.Option(help="bandwidth it takes at least")] = None

    def plain(self) -> dict[str, Any]:
        """Return what was given, as the request has it."""
        licences = pairs_of(self.licence, "--licence")
        wrong = next((one for one in licences.values() if not one.isdecimal()), None)
        if wrong is not None:
            raise Usage(f"--licence takes NAME=COUNT with a whole number, not {wrong!r}")
        return _given(
            {
                "ask": {
                    "architectures": self.architecture or None,
                    "capability": self.capability,
                    "driver_min": self.driver_min,
                    "spread": self.spread,
                    "same_nvlink_domain": self.same_nvlink_domain or None,
                    "encoder_sessions": self.encoder_sessions,
                    "decoder_sessions": self.decoder_sessions,
                    "remote": {
                        "from_node": self.remote_from,
                        "p99_us_max": self.remote_p99_us,
                        "bandwidth_mbps_min": self.remote_mbps,
                    },
                },
                "licences": {name: int(count) for name, count in licences.items()},
                "service_class": self.service_class,
                "runtime": {"model": self.runtime_model, "framework": self.framework},
            }
        )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return what was given: no None, and no object in which nothing is left."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        kept = _given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            found[name] = kept
    return found


def _typed(group: Asked | Terms) -> Iterator[str]:
    """Yield the options of a group that were given, as they are typed."""
    for one in fields(group):
        if getattr(group, one.name) not in (None, False):
            name = "type" if one.name == "kind" else one.name.removesuffix("_s")
            yield f"--{name.replace('_', '-')}"


def request_of(asked: Asked, terms: Terms, event_id: str, file: Path | None) -> RequestSubmit:
    """Return the request that the options, or the file instead of them, describe."""
    import json

    from schemas.requests import RequestSubmit

    options, more = asked.plain(), terms.plain()
    ask = options.get("ask", {}) | more.get("ask", {})
    options |= more | ({"ask": ask} if ask else {})
    if file is not None:
        if options:
            typed = next(chain(_typed(asked), _typed(terms)))
            raise Usage(f"--file holds the whole request; leave out {typed}")
        return request_in(file)
    if "tenant" not in options:
        raise Usage("--tenant must be given (or --file)")
    options.setdefault("task", {}).setdefault("id", event_id)
    if ask:
        ask.setdefault("mode", "whole")
    # The standard library writes out any number and any text; the model says what is too much.
    return RequestSubmit.model_validate_json(json.dumps(options))


def request_in(file: Path) -> RequestSubmit:
    """Return the request that a file, or stdin for ``-``, holds as JSON; raise `Usage`."""
    from schemas.requests import RequestSubmit
    from schemas.strict_json import JsonFault, loads_strict

    try:
        raw = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        loads_strict(raw)
    except OSError as error:
        raise Usage(f"{file}: {error.strerror or error}") from None
    except JsonFault as fault:
        raise Usage(f"{file}: {fault}") from None
    return RequestSubmit.model_validate_json(raw)
