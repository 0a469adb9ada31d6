"""The command, from outside: two processes on one log, exit codes, stdout and stderr apart."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import typer
from typer.testing import CliRunner

from ledger.cli import _ALONE, _made, app, common
from ledger.cli.questions import _waiting
from ledger.cli.requests import next_step
from ledger.log.port import Entry
from ledger.log.sqlite import SqliteLog
from ledger.testing import CoreDriver, device
from schemas.messages import Reply
from tests.ledgers import PREFIX, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "ledger.cli"]


class Cli:
    """Runs the command on one log, as a user would."""

    def __init__(self, log: str, folder: Path, prefix: str = PREFIX) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if "GPULEDGER" not in name},
            "PYTHONPATH": str(ROOT),
            "GPULEDGER_LOG": log,
            "GPULEDGER_PREFIX": prefix,
            "GPULEDGER_SOURCE": "/cli/tester",
            "GPULEDGER_SNAPSHOTS": str(folder / "snapshots"),
        }

    def __call__(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *arguments: str, status: int = 0) -> dict[str, Any]:
        """Run one command with ``--json``; return the one object that it prints."""
        done = self(*arguments, "--json")
        assert done.returncode == status, done.stderr
        found: dict[str, Any] = orjson.loads(done.stdout)
        return found

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Keep a command running for the block; it must say something on stdout first."""
        with (self.folder / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        assert process.stdout is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], 60)
            assert ready, (self.folder / "stderr").read_text()
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, (self.folder / "stderr").read_text()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return the command on an SQLite log that does not exist yet."""
    return Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)


def live_a_little(cli: Cli) -> None:
    """Submit, wait, explain, cancel, release, watch: against a site in another process."""
    asked = ["--tenant", "demo", "--queue", "default"]
    granted = cli.json("submit", *asked, "--gpus", "4", "--id", "first", "--wait")
    assert (granted["answer"], granted["final"]) == ("granted", True)
    assert granted["request"] == "/cli/tester#first"
    again = cli.json("submit", *asked, "--gpus", "4", "--id", "first")
    assert again["lease"] == granted["lease"], "the same id and content: the same answer"
    conflict = cli.json("submit", *asked, "--gpus", "3", "--id", "first", status=1)
    assert conflict["code"] == "id_conflict"
    assert cli.json("submit", *asked, "--gpus", "4", "--id", "second")["answer"] == "granted"
    mig = cli.json("submit", *asked, "--mig", "1g.10gb", "--count", "2", "--id", "mig")
    assert mig["parts"][0]["node"] == "node-mig"
    queued = cli.json("submit", *asked, "--gpus", "2", "--id", "third")
    assert queued["answer"] == "queued"
    why = cli.json("why", "third")
    assert (why["status"], why["code"]) == ("waiting", queued["code"])
    assert why["line"] == {"place": 1, "length": 1, "ahead": []}
    released = cli.json("release", "first/1")
    assert released["answer"] == "released"
    assert cli.json("cancel", "second")["answer"] == "stopping"
    deadline = time.monotonic() + 30
    while cli.json("why", "third")["status"] == "waiting":
        assert time.monotonic() < deadline, "what was given back never reached who waited"
    refused = cli.json("release", "first/1", status=1)
    assert refused["code"] == "already_released"
    replies = cli("watch", "--all", "--timeout-s", "3", "--json")
    said = [orjson.loads(line) for line in replies.stdout.splitlines()]
    mine = [one["answer"] for one in said if one["input"] == "/cli/tester#third"]
    assert mine[:2] == ["queued", "granted"]
    assert all(one["input"].startswith("/cli/tester#") for one in said)


@pytest.mark.slow
def test_two_processes_on_one_sqlite_log(cli: Cli) -> None:
    """`up` in one terminal, everything else in another, and the log verifies afterwards."""
    with cli.running("up", "--json") as site:
        assert site.stdout is not None
        ready = orjson.loads(site.stdout.readline())
        assert ready["seeded"]
        live_a_little(cli)
        shown = cli("show", "third")
        assert "lease /cli/tester#third/1" in shown.stdout
        state = cli.json("state")
        assert state["cell"] == "main"
        drained = cli.json("node", "set", "node-1", "draining", "--reason", "test")
        assert drained["answer"] == "applied"
    verified = cli.json("verify")
    assert verified["ok"]
    assert verified["counts"]["void"] == 0
    rows = cli("sql", "SELECT request, state FROM requests ORDER BY request", "--csv").stdout
    assert rows.splitlines()[0] == "request,state"
    assert "/cli/tester#first,completed" in rows
    archived = cli.json("archive", "--to", "out", "--once")
    assert archived["records"] == verified["counts"]["records"]
    again = cli.json("--log", f"archive:{cli.folder / 'out'}", "verify")
    assert again["digest"] == verified["digest"]


@pytest.mark.kafka
@pytest.mark.slow
def test_two_processes_on_one_kafka(kafka: str, kafka_prefix: str, tmp_path: Path) -> None:
    """The same, unchanged, on Kafka."""
    cli = Cli(f"kafka://{kafka}", tmp_path, kafka_prefix)
    with cli.running("up", "--json") as site:
        assert site.stdout is not None
        assert orjson.loads(site.stdout.readline())["seeded"]
        live_a_little(cli)
    verified = cli.json("verify")
    assert verified["ok"], verified
    assert cli("topics", "check").returncode == 0


def test_a_second_start_keeps_what_was_set(cli: Cli) -> None:
    """The starter policy is for an empty ledger only; nodes come back as new incarnations."""
    with cli.running("up", "--json"):
        quota = cli.json("quota", "apply", "demo", "--gpus", "1", "--reason", "less")
        assert quota["answer"] == "applied"
    with cli.running("up", "--json") as site:
        assert site.stdout is not None
        assert not orjson.loads(site.stdout.readline())["seeded"]
        refused = cli.json(
            "submit", "--tenant", "demo", "--queue", "default", "--gpus", "2", status=1
        )
        assert refused["code"] == "exceeds_quota"
        nowhere = cli("submit", "--tenant", "demo")
        assert "compared queue none named" in nowhere.stdout
        assert "Name one with --queue" in nowhere.stderr
    assert cli.json("verify")["ok"]


def test_a_second_site_on_one_file_leaves_the_first_alone(cli: Cli) -> None:
    """It says who serves the file and what to do, and the first goes on answering."""
    with cli.running("up", "--json") as site:
        assert site.stdout is not None
        site.stdout.readline()
        second = cli("up")
        assert second.returncode == 1
        assert f"(process {site.pid})" in second.stderr
        assert "Traceback" not in second.stderr
        granted = cli.json("submit", "--tenant", "demo", "--queue", "default", "--wait")
        assert granted["answer"] == "granted"
    assert cli.json("verify")["counts"]["claims"] == 1


def test_a_site_that_a_worker_takes_over_says_so_in_a_line(cli: Cli, tmp_path: Path) -> None:
    """It ends with a status that is not 0, and where the other's claim stands."""
    with (tmp_path / "said").open("w") as stderr:
        site = subprocess.Popen(
            [*COMMAND, "up"],
            cwd=tmp_path, env=cli.environment, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
    assert site.stdout is not None
    worker = None
    try:
        site.stdout.readline()
        asked = ["submit", "--tenant", "demo", "--queue", "default"]
        assert cli.json(*asked, "--wait")["answer"] == "granted"
        with (tmp_path / "worker").open("w") as stderr:
            worker = subprocess.Popen(
                [*COMMAND, "worker"], cwd=tmp_path, env=cli.environment, stderr=stderr
            )
        deadline = time.monotonic() + 60
        while "partition claimed" not in (tmp_path / "worker").read_text():
            assert time.monotonic() < deadline, "the worker never took it over"
            time.sleep(0.05)
        # It is when it writes that the first learns of the other.
        assert cli.json(*asked, "--wait")["answer"] == "granted"
        assert site.wait(60) == 1
        said = (tmp_path / "said").read_text()
        assert "another worker has taken this log over" in said
        assert "/0: another writer is there, since " in said
        assert "Traceback" not in said
    finally:
        for process in (site, worker):
            if process is not None:
                process.kill()
                process.wait()
        site.stdout.close()


def test_fleet_and_faults_from_files(cli: Cli, tmp_path: Path) -> None:
    """A described fleet is played, and its faults happen; a wrong file is a usage error."""
    (tmp_path / "fleet.toml").write_text(
        """
        cell = "east"
        [[nodes]]
        name = "big"
        pool = "p"
        devices = [{ count = 2, model = "H200", memory_mib = 143771 }]
        """
    )
    (tmp_path / "faults.toml").write_text('[[fault]]\nkind = "silent"\nnode = "nobody"\nat_s = 0\n')
    wrong = cli("up", "--fleet", "fleet.toml", "--faults", "faults.toml")
    assert wrong.returncode == 2
    assert "nobody" in wrong.stderr
    with cli.running("up", "--fleet", "fleet.toml", "--json"):
        granted = cli.json(
            "submit", "--cell", "east", "--tenant", "demo", "--queue", "default", "--model", "H200"
        )
        assert granted["parts"][0]["node"] == "big"


@pytest.mark.slow
def test_worker_and_collectors_apart(cli: Cli, tmp_path: Path) -> None:
    """The parts of `up`, each in a process of its own; a node that is not described is refused."""
    (tmp_path / "fleet.toml").write_text(
        """
        cell = "main"
        [[nodes]]
        name = "n{}"
        count = 2
        pool = "p"
        devices = [{ count = 1, model = "H100", memory_mib = 81559 }]
        """
    )
    (tmp_path / "faults.toml").write_text(
        '[[fault]]\nkind = "duplicate"\nnode = "n1"\nat_s = 0\n'
        '[[fault]]\nkind = "silent"\nnode = "n2"\nat_s = 9999\n'
    )
    described = ["collector", "--simulate", "fleet.toml", "--json"]
    assert cli(*described, "--node", "n7").returncode == 2
    assert cli(*described, "--cell", "dc2").returncode == 2
    assert cli("topics", "apply").returncode == 0
    worker = [*COMMAND, "worker"]
    with (tmp_path / "worker").open("w") as stderr:
        running = subprocess.Popen(worker, cwd=tmp_path, env=cli.environment, stderr=stderr)
    try:
        for verb, name, more in (
            ("pool", "p", []),
            ("queue", "q", []),
            ("quota", "t", ["--gpus", "9"]),
        ):
            assert cli(verb, "apply", name, "--reason", "test", *more).returncode == 0
        with cli.running(*described, "--node", "n1", "--faults", "faults.toml") as first:
            assert first.stdout is not None
            assert orjson.loads(first.stdout.readline())["nodes"] == ["n1"]
            asked = ["submit", "--tenant", "t", "--queue", "q", "--max-wait-s", "60", "--wait"]
            granted = cli.json(*asked)
            assert granted["parts"][0]["node"] == "n1"
            # Said twice, decided once.
            assert cli.json("state")["leases"].keys() <= {granted["lease"]}
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0, (tmp_path / "worker").read_text()


def test_the_demonstration_in_small(cli: Cli) -> None:
    """A part of the trace: it verifies, and the commands it prints can be typed."""
    report = cli.json("demo", "--log", "sqlite:demo.sqlite", "--jobs", "20")
    assert report["verify"]["ok"]
    assert list(report["final_answers"]) == ["1"]
    assert cli.json("verify", "--log", "sqlite:demo.sqlite")["digest"] == report["digest"]
    for line in report["commands"][:3]:
        done = subprocess.run(
            line, shell=True, cwd=cli.folder, env=cli.environment, capture_output=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
    assert cli("demo", "--log", "kafka://x:1").returncode == 2
    assert cli("demo", "--openb-nodes", "x").returncode == 2


@pytest.fixture
async def filled(cli: Cli) -> Cli:
    """Return the command on a log that has some history and no worker."""
    async with SqliteLog(cli.folder / "log.sqlite") as log:
        site = Site(log)
        await site.start()
        await site.submit("a", 2)
        await site.submit("b", 9, max_wait_s=0)
        await site.log.append(f"{PREFIX}.requests", 0, [])
    return cli


def test_no_worker_is_told(filled: Cli) -> None:
    """Exit 3: nobody answers, and what to do about it is said."""
    done = filled("submit", "--tenant", "t", "--queue", "q", "--cell", "c", "--timeout-s", "0.2")
    assert done.returncode == 3
    assert "is a worker running" in done.stderr
    assert not done.stdout
    sent = filled.json("submit", "--tenant", "t", "--queue", "q", "--cell", "c", "--no-wait")
    assert sent["request"].startswith("/cli/tester#")


USAGE = {
    "no tenant": (["submit", "--queue", "q"], "--tenant must be given"),
    "two modes": (["submit", "--mig", "1g.10gb", "--share", "5"], "two ways to ask"),
    "count without MIG": (["submit", "--count", "2"], "goes with --mig"),
    "gpus of a share": (["submit", "--share", "5", "--gpus", "2"], "leave out"),
    "a bad profile": (["submit", "--tenant", "t", "--queue", "q", "--mig", "big"], "profile"),
    "a negative count": (["submit", "--tenant", "t", "--queue", "q", "--gpus", "-1"], "count"),
    "a bad label": (["submit", "--tenant", "t", "--queue", "q", "--label", "x"], "NAME=VALUE"),
    "a bad id": (["submit", "--tenant", "t", "--queue", "q", "--id", "a b"], "'id'"),
    "a bad source": (["cancel", "x", "--source", "a#b"], "'source'"),
    "a bad type": (["submit", "--tenant", "t", "--queue", "q", "--type", "fun"], "type"),
    "file and options": (["submit", "--file", "-", "--tenant", "t"], "leave out --tenant"),
    "a request, not a lease": (["release", "x"], "x/1"),
    "reclaim without reason": (["release", "x/1", "--reclaim"], "--reason"),
    "reason without reclaim": (["release", "x/1", "--reason", "y"], "--reclaim"),
    "two quotas": (["quota", "apply", "t", "--reason", "x"], "--gpu-milli"),
    "a policy without reason": (["pool", "apply", "p"], "--reason"),
    "a bad ordering": (["queue", "apply", "q", "--reason", "x", "--ordering", "y"], "strict"),
    "a bad mode": (["node", "set", "n", "off", "--reason", "x"], "draining"),
    "a bad time": (["state", "--at", "yesterday"], "--at"),
    "no query": (["sql"], "--tables"),
    "two forms": (["sql", "SELECT 1", "--csv", "--json"], "one of them"),
    "letters of no code": (["dead-letters", "list", "--code", "x"], "bad_envelope, bad_key"),
    "no code to send again": (["dead-letters", "redrive", "--code", "x"], "bad_field"),
    "a grace that is none": (["meter", "--periods", "--grace-s", "-1"], "--grace-s"),
    "a bill's grace": (["bill", "--period", "2026-10", "--grace-s", "-1"], "--grace-s"),
    "no price file": (["bill", "--period", "2026-10", "--prices", "no.yaml"], "no.yaml: No such"),
    "no file to apply": (["apply", "no.yaml", "--reason", "x"], "no.yaml: No such"),
    "no price file in a report": (["report", "ops", "--prices", "no.yaml"], "no.yaml: No such"),
    "a folder as a file": (["whatif", "replay", "--prices", "."], "Is a directory"),
    "letters and a code": (["dead-letters", "redrive", "0@1", "--code", "x"], "--code"),
    "a name of no letter": (["dead-letters", "show", "x"], "PARTITION@OFFSET"),
    "a bad runner": (["worker", "--runner", "x"], "faust"),
    "a bad URL": (["state", "--log", "ftp://x"], "not the URL of a log"),
    "an archive that is not named": (["state", "--log", "archive:"], "archive:"),
    "an unknown command": (["launch"], "launch"),
    "an unknown option": (["state", "--colour"], "--colour"),
}


@pytest.mark.parametrize(("arguments", "says"), USAGE.values(), ids=USAGE.keys())
async def test_usage_errors(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, one message on stderr that names what is wrong, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPULEDGER_LOG", raising=False)
    async with SqliteLog(tmp_path / "gpuledger.sqlite") as log:
        await Site(log).start()
    result = _run_in_thread(arguments)
    assert result.exit_code == 2, result.stderr
    assert says in result.stderr
    assert not result.stdout
    assert "Traceback" not in result.stderr


def _run_in_thread(arguments: list[str]) -> Any:
    """Run the command in this process, in a thread of its own: it starts an event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(CliRunner().invoke, app, arguments).result()


def test_what_is_not_there(filled: Cli, tmp_path: Path) -> None:
    """Exit 1 for what nobody knows, 3 for a log that cannot be reached."""
    for arguments in (
        ["why", "nobody"],
        ["show", "nothing"],
        ["show", "events/0@999"],
        ["state", "--cell", "x"],
        ["dead-letters", "show", "0@9"],
        ["sql", "SELECT * FROM nowhere"],
        ["sql", "DROP TABLE records"],
    ):
        done = filled(*arguments)
        assert done.returncode == 1, (arguments, done.stderr)
        assert done.stderr.startswith("gpuledger: ")
        assert "Traceback" not in done.stderr
    for url in (f"sqlite:{tmp_path / 'none.sqlite'}", f"archive:{tmp_path}", "kafka://127.0.0.1:9"):
        done = filled("state", "--log", url)
        assert done.returncode == 3, (url, done.stderr)
        assert "Traceback" not in done.stderr


def test_reading_what_was_recorded(filled: Cli) -> None:
    """Explain, show and look back, all from the file alone."""
    why = filled("why", "b")
    assert "refused: no_capacity" in why.stdout
    assert "NO  enough of them are free" in why.stdout
    assert "events/0@" in why.stdout
    record = filled.json("show", "events/0@5")
    assert record["verdict"] == "effective"
    tenant = filled("show", "t").stdout
    assert re.search(r"limits +gpu nominal [\d.,]+ GPUs\n", tenant), tenant
    assert re.search(r"used lately +[\d.,]+ GPU-hours\n", tenant), tenant
    assert "keeps below" not in tenant, "what is worked out to be quick tells nobody anything"
    device = filled("show", "GPU-0").stdout
    assert "lease /team/a#a/1 was granted" in device
    before = filled.json("state", "--at", "events/0@3")
    after = filled.json("state")
    assert not before["devices"]
    assert len(after["devices"]) == 4
    assert filled.json("state", "--at", "2999-01-01T00:00:00Z") == after
    assert filled("state", "--at", "1999-01-01T00:00:00Z").stdout == ""
    assert "seen" not in after
    whole = filled.json("state", "--all")
    assert whole.pop("seen")
    assert whole == after
    table = filled("state").stdout
    assert "2 available, 2 leased" in table
    rows = filled("sql", "-", "--json", given="SELECT count(*) AS n FROM records").stdout
    assert orjson.loads(rows) == {"n": 7}
    cut = filled("sql", "SELECT * FROM range(5)", "--limit", "2")
    assert len(cut.stdout.splitlines()) == 3
    assert "cut after 2 rows" in cut.stderr
    assert "source_offset" in filled("sql", "--tables").stdout


async def test_damage_is_exit_4(filled: Cli) -> None:
    """A log that is damaged says so, with its place, in every reading command."""
    db = sqlite3.connect(filled.folder / "log.sqlite")
    db.execute("DELETE FROM records WHERE topic = 'gpuledger.events' AND offset = 3")
    db.commit()
    db.close()
    verified = filled("verify", "--json")
    assert verified.returncode == 4
    assert orjson.loads(verified.stdout)["faults"][0]["kind"] == "hole"
    assert "DAMAGED gpuledger.events/0@3: hole: 1 entry missing: 3" in filled("verify").stdout
    for arguments in (
        ["state"],
        ["why", "a"],
        ["sql", "SELECT 1"],
        ["archive", "--to", "o", "--once"],
    ):
        done = filled(*arguments)
        assert done.returncode == 4, arguments
        assert "gpuledger.events/0@3" in done.stderr
    (filled.folder / "log.sqlite").write_bytes(b"no database" * 1000)
    assert filled("state").returncode == 4


async def test_dead_letters_by_command(cli: Cli) -> None:
    """List, show, dry run, and back."""
    async with SqliteLog(cli.folder / "log.sqlite") as log:
        site = Site(log)
        await site.start()
        await site.put(Entry(b"c", b"\xff"))
    (row,) = [
        orjson.loads(one) for one in cli("dead-letters", "list", "--json").stdout.splitlines()
    ]
    assert (row["letter"], row["code"]) == ("0@0", "bad_envelope")
    assert "gpuledger.requests/0@3" in cli("dead-letters", "list").stdout
    assert cli.json("dead-letters", "show", "0@0")["value"] == "hex:ff"
    dry = cli.json("dead-letters", "redrive", "0@0", "--dry-run")
    assert dry == {"letter": "0@0", "to": "gpuledger.requests/0@3", "bytes": 1}
    sent = cli.json("dead-letters", "redrive", "--code", "bad_envelope")
    assert sent["sent"] == "gpuledger.requests/0@4"
    assert cli("dead-letters", "list", "--code", "bad_field").stdout.count("\n") == 1


def test_a_request_from_a_file(filled: Cli) -> None:
    """The request as JSON, from a file or stdin, as strict as on the topic."""
    good = '{"tenant":"t","queue":"q","task":{"id":"x"},"ask":{"mode":"whole"}}'
    options = ["--cell", "c", "--no-wait", "--json"]
    assert filled("submit", "--file", "-", *options, given=good).returncode == 0
    for bad, says in (
        ('{"tenant":"t","tenant":"u"}', "duplicate_key"),
        ("{", "not_json"),
        ('{"tenant":"t"}', "task"),
    ):
        done = filled("submit", "--file", "-", *options, given=bad)
        assert done.returncode == 2
        assert says in done.stderr
    done = filled("submit", "--file", "nowhere.json", *options)
    assert done.returncode == 2
    assert "nowhere.json" in done.stderr


def test_topics(cli: Cli) -> None:
    """Made once; checked afterwards."""
    assert cli("topics", "check").returncode == 3
    made = cli("topics", "apply", "--json")
    assert len(made.stdout.splitlines()) == 9
    assert cli("topics", "apply", "--json").stdout == ""
    assert cli("topics", "check").returncode == 0
    assert cli("topics", "check", "--partitions", "7").returncode == 1


def test_help_is_quick_and_whole(cli: Cli) -> None:
    """Every command has help with its shared options, and starts without heavy imports."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, ledger.cli; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    heavy = {"pydantic", "duckdb", "pyarrow", "aiokafka", "faust", "structlog", "orjson"}
    assert not heavy & set(loaded)
    top = cli("--help").stdout
    for name in ("submit", "cancel", "release", "why", "show", "watch", "state", "sql", "verify"):
        assert name in top
        assert "--json" in cli(name, "--help").stdout
    assert cli("--version").stdout.startswith("gpuledger ")
    assert "\x1b" not in top


def test_a_closed_pipe_is_no_error(filled: Cli) -> None:
    """`gpuledger ... | head` ends without a complaint."""
    line = f"{sys.executable} -m ledger.cli sql 'SELECT * FROM range(9000)' | head -1"
    done = subprocess.run(
        ["sh", "-c", line],
        cwd=filled.folder,
        env=filled.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "range\n"
    assert not done.stderr


def test_tables_keep_control_characters_from_the_terminal() -> None:
    """What a stranger has sent cannot move the cursor."""
    text = common.table(["a", "b"], [["x\x1b[2J", "1"], ["long value", "2"]])
    assert "\x1b" not in text
    assert text == "a           b\nx\\x1b[2J    1\nlong value  2\n"


def test_a_command_that_stands_alone_is_the_same_as_among_all() -> None:
    """Each of these is in the module that it is said to need, and there is no other of its name."""
    for name, module in _ALONE.items():
        alone: Any = typer.main.get_command(_made((module,)))
        among: Any = typer.main.get_command(app)
        assert alone.commands[name].help == among.commands[name].help
        assert [one.name for one in alone.commands[name].params] == [
            one.name for one in among.commands[name].params
        ]


@pytest.mark.parametrize("asked", [["state"], ["diff", "begin", "end"], ["timeline", "t"]])
def test_what_only_reads_a_state_loads_little(filled: Cli, asked: list[str]) -> None:
    """No other command, no database, and nothing that could warn: it does not set logs up."""
    code = (
        "import sys; from ledger.cli import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *asked],
        cwd=filled.folder,
        env=filled.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout
    loaded = set(done.stderr.split())
    assert "ledger.replay.states" in loaded
    assert not loaded & {"structlog", "rich", "duckdb", "pyarrow", "ledger.cli.operations"}


def test_who_waits_is_counted_as_the_line_has_it() -> None:
    """By the quota that they count against and by queue, from the requests alone."""
    cell = CoreDriver()
    cell.pool(), cell.queue(), cell.queue("other"), cell.quota(), cell.quota("u")
    cell.node("n1", [device("GPU-a")])
    asked: list[dict[str, Any]] = [{}, {}, {"tenant": "u"}, {"queue": "other", "project": "p"}]
    for number, more in enumerate(asked):
        cell.submit(f"r{number}", **more)
    lines = [
        (key.holder, key.queue, len(shape.line))
        for key, shape in cell.state.index.waiting.shapes.items()
    ]
    holders, queues = _waiting(cell.state)
    assert sorted(holders.items()) == [("t", 2), ("u", 1)]
    assert sorted(queues.items()) == [("other", 1), ("q", 2)]
    assert sum(count for *_, count in lines) == holders.total() == queues.total()
    for name, count in holders.items():
        assert count == sum(waiting for holder, _, waiting in lines if holder == name)


def test_why_is_named_where_it_has_more_to_tell() -> None:
    """Of a request that was refused; of an act on one it would repeat the same words."""
    plain = {"request": "/x#a", "input": "/x#b", "final": True, "code": "ended"}
    for answer, told in (("rejected", True), ("refused", False)):
        reply = Reply.model_validate({**plain, "answer": answer})
        assert told == ("gpuledger why '/x#a' tells more" in next_step(reply)), answer
