"""What is shipped: locks without hosts, pins for every dependency, licences beside the data."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ;\\]+)(?: ; [^\\]+)?"
    r"(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n",
    re.MULTILINE,
)
NAME = re.compile(r"[A-Za-z0-9._-]+")
HELIOS_SHA256 = "15c4738f1e1da88bafc66fdb823f9455db18d89276aeb0dea2f70ab93ceae117"


@cache
def project() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def pins(lock: str) -> dict[str, tuple[str, str]]:
    """Return the version and the hashes of every package in a lock file, by its name."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {match["name"]: (match["version"], match["hashes"]) for match in PIN.finditer(text)}


def names(requirements: list[str]) -> set[str]:
    """Return the normalised names of requirements."""
    found = [NAME.match(requirement) for requirement in requirements]
    return {re.sub(r"[._-]+", "-", match[0]).lower() for match in found if match}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_pins_and_hashes_and_nothing_else(lock: str) -> None:
    """No host, path, option or comment: the installer's own settings say where to fetch."""
    text = (ROOT / lock).read_text(encoding="utf-8")

    assert "" == PIN.sub("", text)
    assert pins(lock)


def test_every_runtime_dependency_is_locked() -> None:
    """Whatever pyproject.toml asks for at run time has a pin in both locks."""
    wanted = names(project()["project"]["dependencies"])

    assert set() == wanted - pins("requirements.lock").keys()
    assert set() == wanted - pins("requirements-dev.lock").keys()


def test_every_development_dependency_is_locked() -> None:
    """The development group is in its lock, and its tools are not in the runtime's."""
    wanted = names(project()["dependency-groups"]["dev"])

    assert set() == wanted - pins("requirements-dev.lock").keys()
    assert set() == wanted & pins("requirements.lock").keys()


def test_the_development_lock_holds_the_runtime_lock() -> None:
    """What is tested is what runs: the same versions, the same files."""
    development = pins("requirements-dev.lock")

    assert pins("requirements.lock") == {
        name: development.get(name) for name in pins("requirements.lock")
    }


def test_exact_pins_of_what_the_worker_leans_on() -> None:
    """Faust, mode and aiokafka are pinned exactly, and click is held below what Faust breaks on."""
    dependencies = project()["project"]["dependencies"]
    locked = pins("requirements.lock")

    for exact in ("faust-streaming", "mode-streaming", "aiokafka"):
        assert f"{exact}=={locked[exact][0]}" in dependencies
    assert "click<8.4" in dependencies
    assert tuple(int(part) for part in locked["click"][0].split(".")) < (8, 4)


def test_all_packages_are_in_the_wheel() -> None:
    """Every shipped package is listed: hatchling would not find them by itself."""
    listed = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

    assert ["ledger", "processors", "collectors", "schemas"] == listed
    for package in listed:
        assert (ROOT / package / "__init__.py").is_file()


def test_the_licence_is_there_in_full() -> None:
    """The text is the Apache License 2.0, whole."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    assert "Apache-2.0" == project()["project"]["license"]
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_helios_data_is_attributed_and_unchanged() -> None:
    """CC-BY-4.0 asks for source, licence and citation; the file is as its publisher has it."""
    folder = ROOT / "examples" / "helios"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    data = (folder / "helios_venus_2vc_sept.csv").read_bytes()

    for needed in (
        "CC-BY-4.0",
        "HeliosData",
        "S-Lab",
        "10.1145/3458817.3476223",
        "Hu",
        "SC '21",
        "mini-compute-simulator",
    ):
        assert needed in readme
    assert data.count(b"\n") == 1876
    assert HELIOS_SHA256 == hashlib.sha256(data).hexdigest()
    assert {"helios_venus_2vc_sept.csv"} == {path.name for path in folder.glob("*.csv*")}


def test_the_continuous_integration_script_runs() -> None:
    """`.ci/run` can be executed, and is the two commands that a contributor runs."""
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert ["make lint", "make test"] == script.read_text(encoding="utf-8").splitlines()[-2:]
