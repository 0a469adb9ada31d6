"""``gpuledger convert``: records on stdout, notes on stderr, and the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest
import typer
from typer.testing import CliRunner

from ledger.cli import formats
from ledger.formats.kueue import read_kueue
from schemas.requests import RequestSubmit
from tests.test_formats_kueue import SITE
from tests.test_formats_mig_parted import FILE
from tests.test_formats_nomad import HCL
from tests.test_formats_pod import limits, pod

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


def run(*arguments: str, given: str = "") -> Result:
    """Run ``convert`` with the arguments, and a text on stdin."""
    app = typer.Typer(pretty_exceptions_enable=False)
    formats.register(app)
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, ["convert", *arguments], input=given)


def lines(result: Result) -> list[Any]:
    """Return the JSON objects on stdout, one a line."""
    assert 0 == result.exit_code, result.stderr
    return [orjson.loads(line) for line in result.stdout.splitlines()]


def test_kueue_there_and_back(tmp_path: Path) -> None:
    """What is printed one a line is what export reads, and the objects mean the same."""
    file = tmp_path / "site.yaml"
    file.write_text(SITE)

    records = run("kueue", str(file), "--json")
    objects = run("kueue-export", "-", given=records.stdout)

    assert read_kueue(SITE)[0] == lines(records)
    assert "spec.fairSharing.weight: times 2 to be whole" in records.stderr
    assert 0 == objects.exit_code
    back = {one["data"].get("tenant"): one for one in read_kueue(objects.stdout)[0]}
    assert lines(records)[:4] == [back[name] for name in ("org", "teams", "vision", "research")]
    older = run("kueue-export", "-", "--version", "v1beta1", "--json", given=records.stdout)
    assert {"kueue.x-k8s.io/v1beta1"} == {one["apiVersion"] for one in lines(older)}


def test_without_json_records_are_for_people() -> None:
    """The same records, indented; nothing else is on stdout."""
    result = run("kueue", "-", given=SITE)

    assert 0 == result.exit_code
    assert result.stdout.startswith('{\n  "type": "quota.apply"')


def test_mig_parted_there_and_back() -> None:
    """Layouts are one a line, and come back as a file of mig-parted."""
    layouts = run("mig-parted", "-", "--json", given=FILE)
    back = run("mig-parted-export", "-", given=layouts.stdout)

    assert ["all-disabled", "all-1g.5gb", "mixed", "empty"] == [
        one["layout"] for one in lines(layouts)
    ]
    assert 0 == back.exit_code
    assert lines(layouts) == lines(run("mig-parted", "-", "--json", given=back.stdout))


def test_a_pod_is_what_submit_takes() -> None:
    """With what the pod lacks given as options, the printed request is whole."""
    given = orjson.dumps(pod(limits(shared=1), priorityClassName="high")).decode()

    result = run(
        *("pod", "-", "--json", "--shares-per-device", "4", "--priority-class", "high=100"),
        *("--project", "det", "--type", "evaluation"),
        given=given,
    )

    request = RequestSubmit.model_validate_json(result.stdout)
    assert ("det", "evaluation", 100) == (request.project, request.task.type, request.priority)
    assert 250 == lines(result)[0]["ask"]["gpu_milli"]


@pytest.mark.parametrize(
    "arguments",
    {
        "as it is": ("--gres=gpu:1g.10gb:2 -N 1",),
        "after the options": ("--tenant", "t", "-N1 --gres=gpu:1g.10gb:2"),
        "before the options": ("-n 1 --gres gpu:1g.10gb:2", "--tenant", "t"),
        "behind --": ("--", "--gres=gpu:1g.10gb:2"),
        "with its command": ("sbatch --gres=gpu:1g.10gb:2",),
    }.values(),
)
def test_a_line_of_options_is_an_argument(arguments: tuple[str, ...]) -> None:
    """Although it looks like options of the command itself."""
    result = run("slurm", "--json", *arguments)

    assert {"mode": "mig", "profile": "1g.10gb", "count": 2}.items() <= lines(result)[0][
        "ask"
    ].items()


def test_a_job_of_nomad() -> None:
    """HCL is read as JSON is, and the notes have lines."""
    result = run("nomad", "-", "--json", "--queue", "q", given=HCL)

    assert "docs" == RequestSubmit.model_validate_json(result.stdout).task.id
    assert "line 9: TaskGroups[0].Count: the request is for one allocation" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "given"),
    {
        "a request in two modes": (("slurm", "--gres=gpu:1,shard:1"), ""),
        "no policy": (
            ("kueue", "-"),
            orjson.dumps(
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "LocalQueue",
                    "metadata": {"name": "a", "namespace": "b"},
                }
            ).decode(),
        ),
        "a job without devices": (("nomad", "-"), '{"TaskGroups": [{"Name": "a"}]}'),
        "no records": (("kueue-export", "-"), "\n"),
        "no layouts": (("mig-parted-export", "-"), "\n"),
    }.values(),
)
def test_nothing_mapped_is_a_no(arguments: tuple[str, ...], given: str) -> None:
    """Exit status 1, and nothing on stdout."""
    result = run(*arguments, given=given)

    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr.endswith("gpuledger: nothing could be mapped\n")


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    {
        "not YAML": (("pod", "-"), "a: [", "stdin:1: not YAML"),
        "another file": (("kueue", "-"), "a: b", "stdin: holds no ResourceFlavor"),
        "a field": (("mig-parted", "-"), "a: 1\nversion: v2", "stdin:2: version: must be v1"),
        "not UTF-8": (("nomad", "-"), "a\nb\udcff", "stdin:2: not UTF-8"),
        "a line": (("slurm", "--gres"), "", "--gres: is the last word"),
        "a record": (("kueue-export", "-"), '{"type": "x"}', "stdin:1: a record has a type"),
        "a record's field": (
            ("kueue-export", "-"),
            '{"type": "pool.apply", "data": {"pool": 1}}',
            "stdin:1: pool.apply: pool: ",
        ),
        "a record's JSON": (("kueue-export", "-"), "\n{", "stdin:2: one JSON object a line"),
        "a layout": (("mig-parted-export", "-"), '{"a": 1}', "a layout has the fields"),
        "a layout's entries": (
            ("mig-parted-export", "-"),
            '{"layout": "a", "entries": [{}]}',
            "devices: must be all",
        ),
        "a version": (
            ("kueue-export", "-", "--version", "v2"),
            "",
            "--version is v1beta1 or v1beta2",
        ),
        "a priority": (("pod", "-", "--priority-class", "a=b"), "", "takes NAME=N"),
    }.values(),
)
def test_what_is_not_the_format_says_file_line_and_what(
    arguments: tuple[str, ...], given: str, message: str
) -> None:
    """Exit status 2, and nothing on stdout."""
    result = run(*arguments, given=given.encode("utf-8", "surrogateescape"))  # type: ignore[arg-type]

    assert (2, "") == (result.exit_code, result.stdout)
    assert message in result.stderr


def test_a_file_that_is_not_there_was_named_wrongly(tmp_path: Path) -> None:
    """Exit status 2, as for any other wrong use."""
    assert 2 == run("pod", str(tmp_path / "none.yaml")).exit_code
