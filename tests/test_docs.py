"""The documents speak of what is there: files, tests, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ledger.cli import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link of a document is a file."""
    targets = re.findall(r"\]\(([^)#:]+)\)", path.read_text())

    assert [] == [target for target in targets if not (path.parent / target).exists()]


def test_invariants_name_tests_that_exist() -> None:
    """What the table says proves an invariant is a test of that name."""
    text = (ROOT / "docs" / "invariants.md").read_text()
    missing = []
    file = ""
    for name, function in re.findall(r"`(tests/\w+\.py|)(?:::(\w+))?`", text):
        file = name or file
        if not file:
            continue
        path = ROOT / file
        if not path.exists() or (function and f"def {function}(" not in path.read_text()):
            missing.append(f"{file}::{function}")

    assert [] == missing


def _commands() -> list[str]:
    text = "".join(path.read_text() for path in DOCUMENTS)
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    found = [part for line in lines for part in line.removeprefix("$ ").split(" && ")]
    return [part.split("  #")[0] for part in found if part.startswith("gpuledger ")]


@pytest.mark.parametrize("command", _commands())
def test_commands_of_documents_exist(command: str) -> None:
    """Every command of a document is one, with the options it is given there."""
    words = re.findall(r"[\w:./-]+", re.sub(r'"[^"]*"', "TEXT", command))[1:]
    verbs = [word for word in words if re.fullmatch(r"[a-z]+(-[a-z]+)*", word)]
    options = [word for word in words if word.startswith("--") and word not in ("--log", "--json")]
    group = typer.main.get_command(app)
    path = [verbs[0]]
    if hasattr(group.commands[verbs[0]], "commands"):  # type: ignore[attr-defined]
        path.append(verbs[1])

    result = CliRunner().invoke(app, [*path, "--help"])

    assert 0 == result.exit_code
    assert [] == [option for option in options if option not in result.output]
