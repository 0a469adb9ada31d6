"""docker-compose.yml and deploy/Dockerfile name only what there is."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import typer
import yaml

from collectors.fleet.description import read_fleet
from deploy.kafka_local import COMPOSE_BOOTSTRAP, POM
from processors.settings import Settings

ROOT = Path(__file__).parent.parent
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
COMMENTED_CALL = re.compile(r"^# .*\bgpuledger ([a-z -]+)$", re.MULTILINE)
COPY = re.compile(r"^COPY (?!--from)(.+)$", re.MULTILINE)
VARIABLE = re.compile(r"\bGPULEDGER_[A-Z_]+\b")


@cache
def services() -> dict[str, dict[str, Any]]:
    """Return the services of the compose file, with anchors and merges resolved."""
    found = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert isinstance(found, dict)
    return found


def ours() -> dict[str, dict[str, Any]]:
    """Return the services that run the command `gpuledger`."""
    return {name: each for name, each in services().items() if "build" in each}


def mounts(service: dict[str, Any]) -> dict[PurePosixPath, Path]:
    """Return where files of the checkout appear in the service's container."""
    found = {}
    for volume in service.get("volumes", []):
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[PurePosixPath(target)] = ROOT / source
    return found


def on_the_host(service: dict[str, Any], argument: str) -> str:
    """Return the argument, or the checkout's file that it is the container's path of."""
    for target, source in mounts(service).items():
        if PurePosixPath(argument).is_relative_to(target):
            return str(source / PurePosixPath(argument).relative_to(target))
    return argument


def calls() -> dict[str, list[str]]:
    """Return every call of `gpuledger` in the file, as arguments on the host, by its place."""
    found = {}
    for name, service in ours().items():
        found[f"{name}: command"] = [on_the_host(service, each) for each in service["command"]]
        check = service.get("healthcheck", {}).get("test", [])
        if check[:2] == ["CMD", "gpuledger"]:
            found[f"{name}: healthcheck"] = check[2:]
    for comment in COMMENTED_CALL.findall(COMPOSE.read_text("utf-8")):
        found[f"comment: {comment}"] = shlex.split(comment)
    return found


def parse(arguments: list[str]) -> None:
    """Parse a call as the command would, running nothing; raise when it would refuse it."""
    from ledger.cli import app  # noqa: PLC0415 - the other tests here need no command line

    command: Any = typer.main.get_command(app)
    context: Any = None
    name, rest = "gpuledger", arguments
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not hasattr(command, "commands"):
            return
        left = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = command.resolve_command(context, left)


@pytest.mark.parametrize("place", calls())
def test_every_call_is_one_that_the_command_takes(place: str) -> None:
    """Each sub-command exists, and takes these options with these values."""
    parse(calls()[place])


@pytest.mark.parametrize(
    "arguments",
    [["no-such-command"], ["topics", "no-such-verb"], ["topics", "apply", "--no-such-option"]],
)
def test_the_check_of_calls_can_fail(arguments: list[str]) -> None:
    """A call that the command does not take is noticed."""
    with pytest.raises(Exception, match=r"(?i)no such"):
        parse(arguments)


def test_every_variable_is_a_setting() -> None:
    """Each ``GPULEDGER_*`` that is set is read somewhere."""
    known = {f"GPULEDGER_{name.upper()}" for name in Settings.model_fields}
    for path in (ROOT / "ledger" / "cli").rglob("*.py"):
        known |= set(VARIABLE.findall(path.read_text(encoding="utf-8")))
    named = {name for service in services().values() for name in service.get("environment", {})}
    written = VARIABLE.findall(COMPOSE.read_text("utf-8") + DOCKERFILE.read_text("utf-8"))

    assert set() == {name for name in named if name.startswith("GPULEDGER_")} - known
    assert set() == set(written) - known


def test_every_file_exists() -> None:
    """Build contexts, mounted folders, files in them, and what the image copies are there."""
    for service in ours().values():
        build = service["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
        for target, source in mounts(service).items():
            assert source.exists(), source
            for argument in service["command"]:
                if PurePosixPath(argument).is_relative_to(target):
                    assert Path(on_the_host(service, argument)).is_file(), argument
    for name in copied():
        assert (ROOT / name).exists(), name


def copied() -> list[str]:
    """Return what the image copies from the checkout."""
    lines = COPY.findall(DOCKERFILE.read_text(encoding="utf-8"))
    return [source for line in lines for source in line.split()[:-1]]


def test_the_image_is_built_from_what_it_names() -> None:
    """.dockerignore lets in exactly what the Dockerfile copies."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert "*" in lines
    assert set(copied()) == {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_the_image_installs_by_hash_and_is_not_root() -> None:
    """Dependencies come from the runtime lock with their hashes; processes have a user."""
    text = DOCKERFILE.read_text(encoding="utf-8")

    assert "--require-hashes --requirement requirements.lock" in text
    assert text.rindex("USER gpuledger") > text.rindex("FROM")


def test_ports_are_published_on_the_loopback_only() -> None:
    """Nothing is reachable from another machine, and tests find the broker where they look."""
    ports = [str(port) for service in services().values() for port in service.get("ports", [])]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert COMPOSE_BOOTSTRAP in {port.rpartition(":")[0] for port in ports}
    assert COMPOSE_BOOTSTRAP in services()["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_whatever_stays_up_is_checked() -> None:
    """Every service but the one that ends has a health check and waits for the topics."""
    for name, service in services().items():
        if name == "topics":
            continue
        assert "healthcheck" in service, name
        if name != "kafka":
            waits_for = service["depends_on"]["topics"]["condition"]
            assert "service_completed_successfully" == waits_for, name


def test_two_workers_and_two_nodes() -> None:
    """There is something to take over, and something to choose from."""
    nodes = [each for each in ours().values() if each["command"][0] == "collector"]

    assert 2 == services()["worker"]["deploy"]["replicas"]
    assert 2 == len(nodes)


def test_the_nodes_are_in_their_description() -> None:
    """Each simulated node's file describes that node in that cell."""
    for service in ours().values():
        command = service["command"]
        if command[0] != "collector":
            continue
        option = dict(zip(command[1::2], command[2::2], strict=True))
        fleet = read_fleet(Path(on_the_host(service, option["--simulate"])))

        assert option["--cell"] == fleet.cell
        assert option["--node"] in {spec.name for spec in fleet.specs()}


def test_one_kafka_version() -> None:
    """The container is the version that the tests start by themselves."""
    _, _, version = services()["kafka"]["image"].partition(":")

    assert f"<version>{version}</version>" in POM.read_text(encoding="utf-8")
