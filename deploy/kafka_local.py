"""A real Kafka broker on the loopback, for tests and for `make kafka`.

Needs Java 17 and the Maven client, once to fetch the jars (about 45 MB, into
``.kafka/`` of the checkout), and Java alone afterwards. One node in KRaft mode,
no ZooKeeper, no container engine.

    python -m deploy.kafka_local start            # until Ctrl-C
    python -m deploy.kafka_local start --detach   # until `stop`
    python -m deploy.kafka_local env              # KAFKA_BOOTSTRAP=... of the one started
    python -m deploy.kafka_local stop
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["KafkaError", "LocalKafka", "compose_bootstrap", "end", "file_lock", "jars"]

ROOT = Path(__file__).resolve().parent.parent
POM = ROOT / "deploy" / "kafka" / "pom.xml"
HOME = ROOT / ".kafka"

HOST = "127.0.0.1"

#: Where docker-compose.yml publishes its broker to this machine.
COMPOSE_BOOTSTRAP = f"{HOST}:19092"

HEAP = "-Xmx768m"

#: A start takes about 4 s on a free machine; much longer on a busy one.
START_S = 90.0
STOP_S = 20.0
FETCH_S = 600.0
_POLL_S = 0.05

_NEEDS = (
    "a local Kafka needs Java 17 or newer and the Maven client (Debian: openjdk-17-jre-headless,"
    " maven); or set KAFKA_BOOTSTRAP to a broker that may be used"
)


class KafkaError(RuntimeError):
    """The broker cannot be had, or did not start; the message says what to do."""


class LocalKafka:
    """One broker with its data in ``directory``, listening on ``port`` (0: a free one).

    The same object may be started again after `stop` or `kill`: on the same
    port, with the same data.
    """

    def __init__(self, directory: Path, port: int = 0) -> None:
        self.directory = directory
        self.port, self._controller_port = port or _free_port(), _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` for clients."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id, None when this object has not started it."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the broker and return when it takes connections; raise `KafkaError`."""
        if self._process is not None:
            raise KafkaError("this broker has been started already")
        classpath = f"{jars()}{os.sep}*"
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        if not properties.exists():
            properties.write_text(self._properties(), encoding="utf-8")
            self._format(classpath, properties)
        with self._log_path.open("ab") as log:
            # A session of its own: Ctrl-C at a terminal is for us, who then stop the broker.
            self._process = subprocess.Popen(
                [*_java(classpath), HEAP, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        self._wait_until_up(self._process)

    def stop(self) -> None:
        """End the broker in good order, or by force after `STOP_S`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a crash does (kill -9)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again on the same port and data, after `kill` or `stop`, or stopping first."""
        self.stop()
        self.start()

    def detach(self) -> int:
        """Let the broker run on without this object; return its process id, for `end`."""
        process, self._process = self._process, None
        if process is None:
            raise KafkaError("this broker has not been started")
        # Popen warns about a process that is left running; here that is the intention.
        process.returncode = 0
        return process.pid

    @property
    def _log_path(self) -> Path:
        return self.directory / "broker.log"

    def _properties(self) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self._controller_port}",
            "listeners": (
                f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}"
            ),
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # Tests do not wait for members that are yet to come.
            "group.initial.rebalance.delay.ms": "0",
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _format(self, classpath: str, properties: Path) -> None:
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # One word: the id may begin with a hyphen.
        arguments = ["format", f"--cluster-id={cluster}", "--config", str(properties)]
        try:
            done = subprocess.run(
                [*_java(classpath), "kafka.tools.StorageTool", *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=START_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            properties.unlink()
            raise KafkaError(
                f"the broker's storage was not formatted in {START_S} s; try again when the"
                " machine has less to do"
            ) from None
        if done.returncode:
            properties.unlink()
            raise KafkaError(f"the broker's storage cannot be formatted: {done.stderr[-2000:]}")

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_S
        while not _listens(self.port):
            if process.poll() is not None:
                self._process = None
                tail = self._log_path.read_text(encoding="utf-8", errors="replace")[-2000:]
                raise KafkaError(f"the broker ended with {process.returncode}: {tail}")
            if time.monotonic() > deadline:
                self.kill()
                raise KafkaError(f"the broker did not listen within {START_S:.0f} s")
            time.sleep(_POLL_S)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def jars() -> Path:
    """Return the directory of the broker's jars, fetched at the first call; raise `KafkaError`."""
    directory = HOME / "jars"
    wanted = POM.read_text(encoding="utf-8")
    fetched = directory / "pom.xml"
    if not shutil.which("java"):
        raise KafkaError(_NEEDS)
    HOME.mkdir(exist_ok=True)
    with file_lock(HOME / "lock"):
        # The pom is copied last: its presence says that all jars of it are there.
        if fetched.exists() and fetched.read_text(encoding="utf-8") == wanted:
            return directory
        maven = shutil.which("mvn")
        if not maven:
            raise KafkaError(_NEEDS)
        print("fetching Kafka's jars (once)", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(POM), *goal, f"-DoutputDirectory={directory}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
        if done.returncode:
            raise KafkaError(f"Maven cannot fetch Kafka's jars: {done.stdout[-2000:]}")
        fetched.write_text(wanted, encoding="utf-8")
    return directory


def compose_bootstrap() -> str | None:
    """Start the broker of docker-compose.yml; return its address, None without a container engine.

    It is left running, like anything else started with compose.
    """
    if not shutil.which("docker") or not _succeeds("docker", "info"):
        return None
    if not _succeeds("docker", "compose", "up", "--detach", "--wait", "kafka"):
        raise KafkaError("`docker compose up --detach --wait kafka` fails; run it to see why")
    return COMPOSE_BOOTSTRAP


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold ``path`` against other processes that ask for the same lock."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def end(pid: int) -> None:
    """End the broker with this process id, by force after `STOP_S`; nothing if it is gone."""
    deadline = time.monotonic() + STOP_S
    while _is_broker(pid):
        late = time.monotonic() > deadline
        # A second SIGTERM does no harm to a broker that is stopping already.
        os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        time.sleep(_POLL_S)


def _is_broker(pid: int) -> bool:
    """Return whether ``pid`` is a broker of ours: process ids are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"kafka.Kafka" in command and os.fsencode(HOME) in command


def _succeeds(*command: str) -> bool:
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0


def _java(classpath: str) -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return ["java", "-cp", classpath, quiet, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


# The command

_STATE = HOME / "running.json"


def _start(*, detach: bool) -> int:
    HOME.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="broker-", dir=HOME))
    broker = LocalKafka(directory)
    # A supervisor ends us with SIGTERM; make it end the broker as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep = False
    try:
        broker.start()
        print(f"KAFKA_BOOTSTRAP={broker.bootstrap}", flush=True)
        if detach:
            state = {"bootstrap": broker.bootstrap, "pid": broker.pid, "directory": str(directory)}
            _STATE.write_text(json.dumps(state), encoding="utf-8")
            broker.detach()
            keep = True
            return 0
        print(f"export GPULEDGER_LOG=kafka://{broker.bootstrap}", file=sys.stderr)
        print("Ctrl-C ends the broker and removes its data", file=sys.stderr)
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        if not keep:
            # A second Ctrl-C must not leave the broker behind.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            broker.stop()
            shutil.rmtree(directory, ignore_errors=True)
    return 0


def _stop() -> int:
    state = _running()
    if state is None:
        print("no broker was started with --detach", file=sys.stderr)
        return 1
    end(int(state["pid"]))
    _STATE.unlink()
    shutil.rmtree(state["directory"], ignore_errors=True)
    return 0


def _env() -> int:
    state = _running()
    if state is None or not _is_broker(int(state["pid"])):
        print("no broker runs; start one with --detach", file=sys.stderr)
        return 1
    print(f"KAFKA_BOOTSTRAP={state['bootstrap']}")
    return 0


def _running() -> dict[str, str] | None:
    if not _STATE.exists():
        return None
    state: dict[str, str] = json.loads(_STATE.read_text(encoding="utf-8"))
    return state


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m deploy.kafka_local", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a broker and print its address")
    start.add_argument("--detach", action="store_true", help="leave it running until `stop`")
    commands.add_parser("stop", help="end the one started with --detach")
    commands.add_parser("env", help="print the address of the one started with --detach")
    options = parser.parse_args(arguments)
    try:
        if options.command == "start":
            if options.detach and _running() is not None:
                _stop()
            return _start(detach=options.detach)
        return _stop() if options.command == "stop" else _env()
    except KafkaError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
