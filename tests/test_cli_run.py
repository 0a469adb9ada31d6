"""A command under a lease, from outside: a site in one process, the command in another."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from ledger.cli import app
from ledger.handing_over.owners import Owners
from ledger.log.sqlite import SqliteLog
from ledger.reading import read_events
from tests.ledgers import PREFIX
from tests.test_cli import COMMAND, Cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Each test has a node of its own with one device, found by its model.
MODELS = (
    "normal", "failing", "terminated", "killed", "evicted", "requeued", "waiting", "renewed",
    "ended", "orphaned", "child", "missing", "granted", "late",
)  # fmt: skip

FLEET = 'cell = "main"\n' + "".join(
    f'[[nodes]]\nname = "n-{name}"\npool = "main"\n'
    f'devices = [{{ count = 1, model = "{name}", memory_mib = 81559 }}]\n'
    for name in MODELS
)

#: A command that says that it runs, and tells when it was told to end.
TOLD = "trap 'echo told; exit 3' TERM; echo runs; while :; do sleep 0.05; done"


class Started:
    """A run that goes on, and what it and its command have said so far."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self._folder = folder

    @property
    def out(self) -> str:
        """What the command has said."""
        return (self._folder / "out").read_text()

    @property
    def err(self) -> str:
        """What the run has said."""
        return (self._folder / "err").read_text()

    def told(self, word: str) -> dict[str, Any]:
        """Wait until the run has said something of this kind; return it."""
        await_that(lambda: self._of(word), word)
        return self._of(word)[0]

    def _of(self, word: str) -> list[dict[str, Any]]:
        whole = self.err[: self.err.rfind("\n") + 1]  # the last line may be half written
        return [one for one in said(whole) if one["run"] == word]

    def runs(self) -> int:
        """Wait until the command runs and says so; return its process."""
        await_that(lambda: "\n" in self.out, "the command never ran")
        return int(self.told("started")["pid"])

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what the command has said."""
        return self.process.wait(60), self.out


class Runs(Cli):
    """The command ``gpuledger run`` against a site that is up."""

    def line(self, model: str, *options: str) -> list[str]:
        """Return a whole line up to the command, for the node of that model."""
        asked = ["--tenant", "demo", "--queue", "default", "--model", model]
        return [*COMMAND, "run", *asked, "--node", f"n-{model}", "--json", *options]

    def run(self, model: str, *options: str, sh: str) -> subprocess.CompletedProcess[str]:
        """Run a shell's line under a lease, to its end."""
        return subprocess.run(
            [*self.line(model, *options), "--", "sh", "-c", sh],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def start(self, model: str, *options: str, sh: str) -> Iterator[Started]:
        """Start the same, for the block; what it says goes to files."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        line = [*self.line(model, *options), "--", "sh", "-c", sh]
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            process = subprocess.Popen(
                line, cwd=self.folder, env=self.environment, stdout=out, stderr=err
            )
        try:
            yield Started(process, folder)
        finally:
            process.kill()
            process.wait()

    def ends(self, event_id: str, kind: str = "lease") -> list[str]:
        """Return how a request's leases, or the request, have ended in the ledger, in order."""
        name, field = f"/cli/tester#{event_id}", {"lease": "reason", "request": "how"}[kind]
        return [
            event[field]
            for event in asyncio.run(_events(Path(self.environment["GPULEDGER_LOG"][7:])))
            if event["type"] == f"{kind}.ended" and f"{event[kind]}/".startswith(f"{name}/")
        ]

    @property
    def left(self) -> list[Path]:
        """The files of runs that have not ended."""
        return list(Path(self.environment["GPULEDGER_RUNS"]).glob("*.json"))


async def _events(path: Path) -> list[dict[str, Any]]:
    async with SqliteLog(path, read_only=True) as log:
        return [
            event
            async for seen in read_events(log, PREFIX, 0)
            for event in seen.data.get("events", ())
        ]


def said(stderr: str) -> list[dict[str, Any]]:
    """Return what the run has said itself: one object a line, on stderr."""
    return [orjson.loads(one) for one in stderr.splitlines() if one.startswith("{")]


def await_that(true: Callable[[], object], what: str) -> None:
    """Wait until something holds; fail with what it was."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Return the command beside a site of simulated nodes, the same for the module's tests."""
    folder = tmp_path_factory.mktemp("run")
    runs = Runs(f"sqlite:{folder / 'log.sqlite'}", folder)
    runs.environment["GPULEDGER_RUNS"] = str(folder / "runs")
    (folder / "fleet.toml").write_text(FLEET)
    with runs.running("up", "--fleet", "fleet.toml", "--json") as process:
        assert process.stdout is not None
        assert orjson.loads(process.stdout.readline())["seeded"]
        asked = ["queue", "apply", "urgent", "--reason", "test", "--preemption", "any-tenant"]
        assert runs(*asked).returncode == 0
        yield runs
    assert runs.json("verify")["ok"]


def test_a_command_runs_with_its_devices(site: Runs) -> None:
    """It sees the granted device and its lease, which ends as completed with it."""
    done = site.run("normal", "--id", "normal", sh='echo "$CUDA_VISIBLE_DEVICES $GPULEDGER_LEASE"')

    assert 0 == done.returncode, done.stderr
    device, lease = done.stdout.split()
    assert device.startswith("GPU-")
    assert "/cli/tester#normal/1" == lease
    assert ["started", "exited", "ended"] == [one["run"] for one in said(done.stderr)]
    assert ["completed"] == site.ends("normal")
    # The start of the command is on record, with its own clock beside the log's time.
    (wait,) = site.json("why", "normal")["waits"]
    assert "requester" == wait["by"]
    assert wait["since_us"] <= wait["granted_us"] <= wait["started_us"]
    assert abs(wait["said_us"] - wait["started_us"]) < 60_000_000


def test_the_exit_status_is_passed_through(site: Runs) -> None:
    """A command that fails ends its lease as failed; what it left behind is ended with it."""
    done = site.run("failing", "--id", "failing", sh="sleep 600 & echo $!; exit 7")

    assert 7 == done.returncode
    assert ["failed"] == site.ends("failing")
    assert _gone(int(done.stdout))
    missing = subprocess.run(
        [*site.line("missing", "--id", "missing"), "--", "./no-such-command"],
        cwd=site.folder, env=site.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert 127 == missing.returncode
    assert ["failed"] == site.ends("missing")


def _gone(pid: int) -> bool:
    """Say whether a process has ended; whoever adopted it need not have noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture
def heard() -> Iterator[None]:
    """Let what is started hear signals that a test run in the background ignores, and hands on."""
    numbers = (signal.SIGHUP, signal.SIGINT)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_are_passed_on(site: Runs, number: signal.Signals) -> None:
    """The command decides what a signal means; its status comes back, and the lease ends."""
    name = number.name.lower()
    trap = f"trap 'echo told; exit 9' {number.name[3:]}; echo runs; while :; do sleep 0.05; done"
    with site.start("terminated", "--id", name, sh=trap) as run:
        run.runs()
        run.process.send_signal(number)

        assert (9, "runs\ntold\n") == run.end()
    assert ["failed"] == site.ends(name)
    assert not site.left


def test_a_killed_command(site: Runs) -> None:
    """128 + 9, as a shell has it, and the lease ends as failed."""
    done = site.run("killed", "--id", "killed", sh="kill -KILL $$")

    assert 137 == done.returncode
    assert ["failed"] == site.ends("killed")


def test_an_evicted_command_is_stopped(site: Runs) -> None:
    """It is told to end, then ended; the lease ends as preempted, the request is withdrawn."""
    stubborn = "trap 'echo told' TERM; echo runs; while :; do sleep 0.05; done"
    asked = ["evicted", "--id", "evicted", "--preemptible", "--grace-s", "0.3"]
    with site.start(*asked, sh=stubborn) as run:
        run.runs()
        urgent = ["submit", "--tenant", "demo", "--queue", "urgent", "--model", "evicted"]
        assert site(*urgent, "--priority", "9", "--no-wait").returncode == 0

        assert (137, "runs\ntold\n") == run.end()
        assert "preempted" == run.told("stopping")["text"]
    assert ["preempted"] == site.ends("evicted")
    assert ["cancelled"] == site.ends("evicted", "request")


def test_an_evicted_command_starts_anew_when_told_so(site: Runs) -> None:
    """With --again it waits in its old place and runs under the next lease."""
    line = "trap 'exit 3' TERM; echo $GPULEDGER_LEASE; case $GPULEDGER_LEASE in */2) exit 0; esac;"
    line += " while :; do sleep 0.05; done"
    with site.start("requeued", "--id", "requeued", "--preemptible", "--again", sh=line) as run:
        run.runs()
        urgent = ["submit", "--tenant", "demo", "--queue", "urgent", "--model", "requeued"]
        more = ["--priority", "9", "--expected-run-s", "1", "--no-wait"]
        assert site(*urgent, *more).returncode == 0

        assert (0, "/cli/tester#requeued/1\n/cli/tester#requeued/2\n") == run.end()
    assert ["preempted", "completed"] == site.ends("requeued")
    assert ["completed"] == site.ends("requeued", "request")


def test_a_wait_says_why_and_ends_with_a_signal(site: Runs) -> None:
    """The reason and what would change it are told; what was asked for is withdrawn."""
    held = site.json(
        "submit", "--tenant", "demo", "--queue", "default", "--model", "waiting",
        "--id", "holder", "--max-run-s", "3000", "--expected-run-s", "3000",
    )  # fmt: skip
    assert "granted" == held["answer"]
    with site.start("waiting", "--id", "waits", sh="echo never") as run:
        text = run.told("waits")["text"]

        assert "no_capacity" in text
        assert "should start by" in text
        assert "what would let it run now" in text
        run.process.terminate()
        assert (143, "") == run.end()
    assert ["cancelled"] == site.ends("waits", "request")
    assert not site.left


def test_a_wait_for_the_grant_that_is_too_short_says_how_it_stands(site: Runs) -> None:
    """It was decided and stays in line: why, and how to wait on without asking twice."""
    asked = ["submit", "--tenant", "demo", "--queue", "default", "--model", "late", "--wait"]
    held = site.json(*asked, "--id", "late-1", "--max-run-s", "3000", "--expected-run-s", "3000")
    late = site(*asked, "--id", "late-2", "--timeout-s", "2")
    assert late.returncode == 3
    assert late.stdout.startswith("queued    /cli/tester#late-2  no_capacity")
    assert "stays in line" in late.stderr
    assert "waiting: no_capacity: needs 1 on one node" in late.stderr
    assert "with --id late-2" in late.stderr
    assert "is a worker running" not in late.stderr
    assert "released" == site.json("release", held["lease"])["answer"]
    assert "granted" == site.json(*asked, "--id", "late-2")["answer"]
    assert site("cancel", "late-2").returncode == 0


def test_a_refusal_starts_nothing(site: Runs) -> None:
    """Exit 1 with the reason, when the ledger says no and when the devices are elsewhere."""
    refused = site.run("normal", "--id", "refused", "--gpus", "16", sh="echo never")
    assert (1, "") == (refused.returncode, refused.stdout)
    assert "gpuledger why" in refused.stderr
    assert "exceeds_quota: compared asked 16 GPUs" in refused.stderr
    elsewhere = site.run("granted", "--node", "other", "--id", "elsewhere", sh="echo never")
    assert (1, "") == (elsewhere.returncode, elsewhere.stdout)
    assert "is for n-granted, and this is other; it was given back" in elsewhere.stderr
    assert ["failed"] == site.ends("elsewhere")
    anyway = site.run(
        "granted", "--node", "other", "--any-node", "--id", "anyway", sh="echo $GPULEDGER_NODE"
    )
    assert (0, "n-granted\n") == (anyway.returncode, anyway.stdout)
    assert not site.left


def test_a_renewed_command_outlives_its_longest_run(site: Runs) -> None:
    """The longest run is lengthened before it is over, so nothing stops the command."""
    done = site.run(
        "renewed", "--id", "renewed", "--max-run-s", "4", "--renew-s", "4",
        "--expected-run-s", "600", sh="sleep 5; echo done",
    )  # fmt: skip

    assert (0, "done\n") == (done.returncode, done.stdout)
    assert "renewed" in [one["run"] for one in said(done.stderr)]
    assert ["completed"] == site.ends("renewed")


def test_a_command_does_not_outlive_its_lease(site: Runs) -> None:
    """What the node ends, or the longest run, stops the command: its devices are others'."""
    done = site.run("ended", "--id", "late", "--max-run-s", "3", "--grace-s", "9", sh=TOLD)
    assert (3, "runs\ntold\n") == (done.returncode, done.stdout)
    assert ["max-run"] == site.ends("late")
    over = site.run("ended", "--id", "over", "--expected-run-s", "3", "--grace-s", "9", sh=TOLD)
    assert (3, "runs\ntold\n") == (over.returncode, over.stdout)
    assert ["completed"] == site.ends("over")


def test_what_a_dead_run_left_is_given_back(site: Runs) -> None:
    """The next run leaves a command that lives alone; --recover ends it, and its lease once."""
    with site.start("orphaned", "--id", "orphan", "--expected-run-s", "600", sh=TOLD) as run:
        pid = run.runs()
        run.process.kill()
        run.process.wait()
    assert 1 == len(list(Owners(Path(site.environment["GPULEDGER_RUNS"])).dead()))
    next_run = site.run("child", "--id", "next", sh="true")
    assert 0 == next_run.returncode
    assert "still runs under /cli/tester#orphan/1" in next_run.stderr
    assert [] == site.ends("orphan")
    recovered = site.json("run", "--recover")
    assert "/cli/tester#orphan/1" == recovered["lease"]
    assert "runs\ntold\n" == run.out
    assert _gone(pid)
    assert ["failed"] == site.ends("orphan")
    assert not site.left
    again = site("run", "--recover", "--json")
    assert ("", True) == (again.stdout, "nothing to end" in again.stderr)


def test_a_dead_run_without_its_command_is_given_back_by_the_next(site: Runs) -> None:
    """Nothing uses the devices, so the next run releases them without being told."""
    with site.start("orphaned", "--id", "both", "--expected-run-s", "600", sh=TOLD) as run:
        pid = run.runs()
        run.process.kill()
        run.process.wait()
        os.killpg(pid, signal.SIGKILL)
        await_that(lambda: _gone(pid), "it lives on")
    next_run = site.run("child", "--id", "after", sh="true")
    assert "gave back what a dead run had left" in next_run.stderr
    assert not site.left
    await_that(lambda: site.ends("both"), "what was sent was never decided")
    assert ["failed"] == site.ends("both")


def test_one_run_answers_for_a_request(site: Runs) -> None:
    """A second run of the same id, while the first lives, is a usage error."""
    with site.start("child", "--id", "twice", sh=TOLD) as run:
        run.runs()
        second = site.run("child", "--id", "twice", sh="echo never")
        run.process.terminate()
        assert (3, "runs\ntold\n") == run.end()

    assert (2, "") == (second.returncode, second.stdout)
    assert "runs /cli/tester#twice already" in second.stderr


def test_nobody_answers(tmp_path: Path) -> None:
    """Exit 3 after --timeout-s, and the request is withdrawn: who decides later ends it."""
    runs = Runs(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)
    runs.environment["GPULEDGER_RUNS"] = str(tmp_path / "runs")
    (tmp_path / "fleet.toml").write_text(FLEET)
    with runs.running("up", "--fleet", "fleet.toml", "--json"):
        pass
    done = runs.run("normal", "--id", "x", "--timeout-s", "0.5", sh="echo never")

    assert (3, "") == (done.returncode, done.stdout)
    assert "is a worker running" in done.stderr
    assert not runs.left
    with runs.running("up", "--fleet", "fleet.toml", "--json"):
        await_that(lambda: runs.ends("x", "request"), "nobody has ended it")
    assert ["cancelled"] == runs.ends("x", "request")


USAGE = {
    "nothing to run": (["--tenant", "t"], "what is to be run?"),
    "renewal of no longest run": (["--tenant", "t", "--renew-s", "5", "--", "x"], "--max-run"),
    "a negative grace": (["--tenant", "t", "--grace-s", "-1", "--", "x"], "--grace-s"),
    "an id that leaves no room": (["--tenant", "t", "--id", "x" * 120, "--", "x"], "100"),
}


@pytest.mark.parametrize(("arguments", "says"), USAGE.values(), ids=USAGE.keys())
def test_usage(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2 with one message, before anything is asked for."""
    monkeypatch.setenv("GPULEDGER_LOG", "sqlite:never-opened.sqlite")
    done = CliRunner().invoke(app, ["run", *arguments])

    assert (2, "") == (done.exit_code, done.stdout)
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_grant_is_printed(site: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every form of a live lease; exit 1 for a lease that is over, 2 for what is none."""
    held = site.json(
        "submit", "--tenant", "demo", "--queue", "default", "--model", "granted",
        "--id", "shown", "--expected-run-s", "600", "--wait",
    )  # fmt: skip
    lease, (part,) = held["lease"], held["parts"]
    device = part["units"][0]
    monkeypatch.setenv("GPULEDGER_LOG", site.environment["GPULEDGER_LOG"])

    def grant(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(app, ["grant", *arguments])
        assert status == done.exit_code, done.stderr
        return done.stdout

    assert part["environment"] == dict(one.split("=", 1) for one in shlex.split(grant("shown/1")))
    assert f"nvidia.com/gpu={device}\n" == grant(lease, "--as", "cdi")
    assert f"--device nvidia.com/gpu={device}\n" == grant(lease, "--as", "docker")
    slurm = grant(lease, "--as", "slurm").splitlines()
    assert "--nodelist=n-granted --gres=gpu:granted:1" == slurm[0]
    assert all(one.startswith("# ") for one in slurm[1:])
    plugin = orjson.loads(grant(lease, "--as", "device-plugin", "--json"))
    assert (lease, [device]) == (plugin["lease"], plugin["devicesIDs"])
    assert [device] == orjson.loads(grant(lease, "--as", "json"))["units"]
    slices = site.folder / "slices.json"
    slices.write_bytes(orjson.dumps({"kind": "List", "items": [_resource_slice(device)]}))
    claim = orjson.loads(grant(lease, "--as", "dra", "--slices", str(slices)))
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert ("k1", "gpu-5") == (result["pool"], result["device"])
    slices.write_text('{"items": [{"kind": "ResourceSlice"}]}')
    grant(lease, "--as", "dra", "--slices", str(slices), status=2)
    grant(lease, "--node", "elsewhere", status=1)
    grant("shown", status=2)
    grant(lease, "--as", "lsf", status=2)
    assert 0 == site("release", lease).returncode
    grant(lease, status=1)


def _resource_slice(uuid: str) -> dict[str, Any]:
    devices = [{"name": "gpu-5", "attributes": {"uuid": {"string": uuid}}}]
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "k1"}, "devices": devices}
    return {"kind": "ResourceSlice", "spec": spec}
