"""The MIG benches: the same chance for every rule, honest counts, and public data read in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from typer.testing import CliRunner

from bench.cli import bench_app
from bench.mig_board import H100
from bench.mig_loss import BEST_KNOWN, LOADS, MIXES, Case, Tally, simulate
from bench.mig_rules import RULES
from bench.parvagpu import data_folder

if TYPE_CHECKING:
    from pathlib import Path


def short(policy: str, migrations: int = 0, load: float = 1.2) -> Tally:
    """Run a short case of the uniform mix."""
    return simulate(Case("uniform", load, policy, migrations, 1), warm_up=1000, arrivals=2000)


def slices(tally: Tally) -> int:
    """Return the compute slices accepted."""
    return sum(
        kind.compute_slices * count
        for kind, count in zip(H100.profiles, tally.accepted, strict=True)
    )


def test_every_rule_meets_the_same_requests() -> None:
    """What is asked for depends on the seed alone, and what is accepted is part of it."""
    tallies = {name: short(name) for name in RULES}
    assert 1 == len({one.asked for one in tallies.values()})
    assert 2000 == sum(tallies["scarcity"].asked)
    for one in tallies.values():
        assert all(some <= every for some, every in zip(one.accepted, one.asked, strict=True))
        assert 0 == one.migrations
    assert slices(tallies["scarcity"]) > slices(tallies["first-fit"])


def test_a_light_load_is_accepted_in_full() -> None:
    """At a tenth of what there is nothing is turned away."""
    tally = short("scarcity", load=0.1)
    assert tally.asked == tally.accepted


def test_migrations_are_earned_and_help() -> None:
    """One migration for 100 accepted requests, the warm-up's among them, and more slices."""
    without, moved = short("scarcity"), short("scarcity", migrations=1)
    assert without.asked == moved.asked
    assert 0 < moved.migrations <= 30
    assert slices(moved) > slices(without)


def test_there_is_a_figure_to_beat_for_every_row() -> None:
    """The twelve rows of the protocol each have the best that was known."""
    assert {(mix, load) for mix in MIXES for load in LOADS} == set(BEST_KNOWN)


def test_parvagpu_packs_what_the_folder_holds(tmp_path: Path) -> None:
    """A map with a hole is packed into fewer devices than it says."""
    (tmp_path / "parvagpu").mkdir()
    lines = [
        "Num instance,Num GPU,Model,Placement,Instance size,Batch size,Num proc",
        "0,0,bert,0,4,1,1",
        "0,1,vgg19,0,3,1,1",
        "1,0,bert,0,7,1,1",
    ]
    path = tmp_path / "parvagpu" / "SLO1_ParvaGPU_deploy.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = CliRunner().invoke(bench_app, ["parvagpu", "--data", str(tmp_path), "--json"])
    assert 0 == result.exit_code
    row = orjson.loads(result.stdout)
    assert (1, 3, 2, 2, 3) == tuple(
        row[name] for name in ("slo", "segments", "gpus", "lower_bound", "published_gpus")
    )


def test_the_data_folder_is_given_or_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The option counts more than the variable; without data the command says what to do."""
    monkeypatch.setenv("GPULEDGER_DATA", str(tmp_path / "named"))
    assert tmp_path == data_folder(tmp_path)
    assert tmp_path / "named" == data_folder(None)
    result = CliRunner().invoke(bench_app, ["parvagpu", "--json"])
    assert 2 == result.exit_code
    assert "parvagpu" in result.stderr


@pytest.mark.parametrize(
    "wrong", [["--mixes", "even"], ["--policy", "luck"], ["--loads", "full"], ["--loads", "0"]]
)
def test_mig_loss_names_what_it_does_not_know(wrong: list[str]) -> None:
    """A wrong option is wrong usage, before anything is run."""
    result = CliRunner().invoke(bench_app, ["mig-loss", *wrong])
    assert 2 == result.exit_code
    assert wrong[1] in result.stderr
