"""Signing: never back, only what is new, whole files whatever happens; and the commands."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from ledger.cli import app
from ledger.log.sqlite import SqliteLog
from ledger.proof.check import check_log
from ledger.proof.evidence import gather
from ledger.proof.history import history, prove_record
from ledger.proof.inclusion import check_proof
from ledger.proof.note import BadNote
from ledger.proof.store import BadCheckpoint, Store
from ledger.proof.writing import Rewound, sign_log
from ledger.reading import Damaged
from tests.ledgers import Site
from tests.proofs import KEY, OTHER_KEY, PREFIX, TOPIC, entries_of, entry, held, log_of, sign
from tests.test_cli import Cli

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.log.memory import MemoryLog

STEPS = (0, 1, 2, 255, 256, 257, 511, 512, 513, 800)


def files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, by name."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(one.relative_to(folder)): one.read_bytes() for one in found}


async def test_each_checkpoint_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """U2: sizes 0, 1, 2^n and around: signed one after the other, each proved consistent."""
    await sign(entries_of(800), tmp_path, STEPS[:-1])
    found = history(tmp_path, KEY.public)
    assert list(STEPS) == [one.checkpoint.size for one in found if one.checkpoint]
    assert [*["consistent"] * 9, "last"] == [one.verdict for one in found]
    for one in found:
        assert () == (await held(entries_of(800), one.path)).faults


async def test_signed_in_steps_or_at_once_is_the_same(tmp_path: Path) -> None:
    """Root, chain and tiles do not depend on when checkpoints were made."""
    steps = await sign(entries_of(800), tmp_path / "steps", STEPS[:-1])
    once = await sign(entries_of(800), tmp_path / "once")
    assert steps.checkpoint.root == once.checkpoint.root
    assert steps.checkpoint.chain == once.checkpoint.chain
    wanted = files(once.path.parent / "tile")
    assert ["0/000", "0/001", "0/002", "0/003.p/32", "1/000.p/3"] == list(wanted)
    assert wanted.items() <= files(steps.path.parent / "tile").items()


class Counting:
    """Counts the records that are read of a log."""

    def __init__(self, log: MemoryLog) -> None:
        self.read = 0
        self._read = log.read
        log.read = self._count  # type: ignore[assignment,method-assign]

    async def _count(self, *asked: Any) -> Any:
        found = await self._read(*asked)
        self.read += len(found)
        return found


async def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    """A later run reads the last record that was signed and those after it, and no others."""
    await sign(entries_of(1000), tmp_path)
    log = log_of(entries_of(1010))
    counting = Counting(log)
    one = (await sign_log(log, PREFIX, tmp_path, KEY, 5_000_000))[0]
    assert (11, 10, True) == (counting.read, one.added, one.new)
    again = (await sign_log(log, PREFIX, tmp_path, KEY, 6_000_000))[0]
    assert (12, 0, False) == (counting.read, again.added, again.new)
    assert 5_000_000 == again.checkpoint.time_us


async def test_lost_hashes_are_made_anew_and_must_come_to_what_was_signed(tmp_path: Path) -> None:
    """Without its tiles a store is filled again from the log, if that is still the one."""
    last = await sign(entries_of(600), tmp_path, [300])
    before = files(tmp_path)
    shutil.rmtree(last.path.parent / "tile")
    assert not (await sign(entries_of(600), tmp_path)).new
    after = files(tmp_path)
    assert after == {name: before[name] for name in after}
    assert {"1/000.p/1"} == {name.partition("tile/")[2] for name in before.keys() - after.keys()}
    assert ["consistent", "last"] == [one.verdict for one in history(tmp_path, KEY.public)]
    shutil.rmtree(last.path.parent / "tile")
    other = entries_of(700)
    other[5] = entry(5, "other")
    with pytest.raises(Rewound, match="first 600 records are not those"):
        await sign(other, tmp_path)
    assert 2 == len(Store(last.path.parent).checkpoints())


async def test_what_was_signed_is_never_taken_back(tmp_path: Path) -> None:
    """A log that is shorter, or has gone on otherwise, or another's place: nothing is signed."""
    last = await sign(entries_of(300), tmp_path)
    before = files(tmp_path)
    with pytest.raises(Rewound, match=r"events/0@299: rewound: the log ends at 299, but 300"):
        await sign(entries_of(299), tmp_path)
    other = [*entries_of(200), *(entry(number, "x") for number in range(200, 400))]
    with pytest.raises(Rewound, match=r"events/0@299: .* set back, and has gone on"):
        await sign(other, tmp_path)
    with pytest.raises(BadCheckpoint, match="no signature of the key"):
        await sign(entries_of(400), tmp_path, key=OTHER_KEY)
    assert before == files(tmp_path)
    assert last.path == Store(last.path.parent).checkpoints()[-1]


async def test_the_time_never_falls(tmp_path: Path) -> None:
    """U2: a clock that was set back does not set the checkpoints' time back."""
    await sign_log(log_of(entries_of(5)), PREFIX, tmp_path, KEY, 1000)
    one = (await sign_log(log_of(entries_of(6)), PREFIX, tmp_path, KEY, 10))[0]
    assert (6, 1000) == (one.checkpoint.size, one.checkpoint.time_us)


async def test_a_hole_is_not_signed(tmp_path: Path) -> None:
    """A record that is missing stops the signing, and is named."""
    log = log_of(entries_of(30))
    del log._store.topics[TOPIC][0][20]
    with pytest.raises(Damaged, match=r"events/0@20: gap"):
        await sign_log(log, PREFIX, tmp_path, KEY, 5)
    assert not [name for name in files(tmp_path) if name.endswith(".checkpoint")]


class Killed(BaseException):
    """The process is dead: nothing that would have come after happens."""


class Machine:
    """Lets so many steps on disk happen, and none after."""

    def __init__(self, patch: pytest.MonkeyPatch, steps: int) -> None:
        self.left = steps
        for owner, name in (
            (os, "open"),
            (os, "fsync"),
            (Path, "rename"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (shutil, "rmtree"),
        ):
            patch.setattr(owner, name, self._step(getattr(owner, name)))

    def _step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **named: Any) -> Any:
            if self.left <= 0:
                raise Killed
            self.left -= 1
            return real(*given, **named)

        return step


async def test_killed_at_every_step_no_half_file_is_left(tmp_path: Path) -> None:
    """Before and after, and at each step between: the store verifies, and the next run goes on."""
    template = tmp_path / "template"
    await sign(entries_of(250), template)
    log, killed = log_of(entries_of(600)), 0
    for steps in range(1000):
        folder = tmp_path / str(steps)
        shutil.copytree(template, folder)
        with pytest.MonkeyPatch.context() as patch:
            machine = Machine(patch, steps)
            try:
                await sign_log(log, PREFIX, folder, KEY, 2_000_000)
            except Killed:
                killed += 1
            done = machine.left > 0
        found = history(folder, KEY.public)
        assert all(one.ok and one.verdict != "unproved" for one in found)
        assert f"{250:020d}.checkpoint" == found[0].path.name
        await sign_log(log, PREFIX, folder, KEY, 3_000_000)
        found = history(folder, KEY.public)
        assert [(250, "consistent"), (600, "last")] == [
            (one.checkpoint.size, one.verdict) for one in found if one.checkpoint
        ]
        verdict = (await check_log(log, PREFIX, gather([folder], KEY.public)))[0]
        assert ((), ()) == (verdict.faults, verdict.notes)
        if done:
            break
    assert killed > 20


async def test_a_proof_of_one_record_needs_nothing_else(tmp_path: Path) -> None:
    """U3: the text and the key prove the record and show it; changed anywhere it proves nothing."""
    last = await sign(entries_of(300), tmp_path)
    evidence = gather([tmp_path], KEY.public)[0]
    proof = b""
    for offset in (0, 1, 255, 256, 298, 299):
        proof = await prove_record(log_of(entries_of(400)), PREFIX, evidence, offset)
        proved = check_proof(proof, KEY.public)
        assert entry(offset) == proved.record[4:]
        assert (offset, last.checkpoint) == (proved.record.offset, proved.checkpoint)
        with pytest.raises(BadNote):
            check_proof(proof, OTHER_KEY.public)
    for at in range(len(proof)):
        bad = bytearray(proof)
        bad[at] ^= 1
        with pytest.raises(BadNote):
            check_proof(bytes(bad), KEY.public)


async def test_what_is_not_as_signed_has_no_proof(tmp_path: Path) -> None:
    """A changed or missing record is named instead; so are tiles that do not do."""
    last = await sign(entries_of(300), tmp_path)
    evidence = gather([tmp_path], KEY.public)[0]
    changed = entries_of(300)
    changed[7] = entry(7, "x")
    with pytest.raises(Damaged, match="0@7: changed"):
        await prove_record(log_of(changed), PREFIX, evidence, 7)
    with pytest.raises(Damaged, match="0@250: hole"):
        await prove_record(log_of(entries_of(250)), PREFIX, evidence, 250)
    (last.path.parent / "tile" / "0" / "000").unlink()
    with pytest.raises(BadCheckpoint, match="tile 0 of level 0 is missing"):
        await prove_record(log_of(entries_of(300)), PREFIX, evidence, 7)


async def test_a_list_tells_what_does_not_go_on(tmp_path: Path) -> None:
    """A checkpoint that was changed, of another history, or older than the one before."""
    last = await sign(entries_of(300), tmp_path / "true", [100])
    other = await sign([*entries_of(50), *entries_of(150, "x")], tmp_path / "other")
    (last.path.parent / other.path.name).write_bytes(other.path.read_bytes())
    found = history(tmp_path / "true", KEY.public)
    assert ["consistent", "inconsistent", "last"] == [one.verdict for one in found]
    (last.path.parent / other.path.name).write_bytes(b"x")
    found = history(tmp_path / "true", KEY.public)
    assert ["consistent", "refused", "last"] == [one.verdict for one in found]
    shutil.rmtree(last.path.parent / "tile")
    assert "unproved" == history(tmp_path / "true", KEY.public)[0].verdict


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return the command on a small site's log, with a key made."""

    async def live() -> None:
        async with SqliteLog(tmp_path / "log.sqlite") as log:
            site = Site(log)
            await site.start()
            for number in range(5):
                await site.submit(f"r{number}", 1)

    asyncio.run(live())
    found = Cli(f"sqlite:{tmp_path / 'log.sqlite'}", tmp_path)
    made = found.json("checkpoint", "keygen", "example.org/site", "--key", "site.key")
    assert (tmp_path / "site.key.pub").read_text() == made["verifier"] + "\n"
    assert 0o600 == stat.S_IMODE((tmp_path / "site.key").stat().st_mode)
    return found


PUBLIC = ("--key", "site.key.pub")


def test_sign_verify_change_and_find(cli: Cli) -> None:
    """The whole of it by commands: sign, prove, archive, verify offline; one byte, and its name."""
    made = cli.json("checkpoint", "create", "--key", "site.key")
    size = made["size"]
    assert (True, size, "example.org/site/gpuledger.events/0") == (
        made["new"], made["added"], made["origin"],
    )  # fmt: skip
    listed = cli.json("checkpoint", "list", *PUBLIC)
    assert ("last", size) == (listed["verdict"], listed["size"])
    report = cli.json("verify", "--checkpoint", "checkpoints", *PUBLIC)
    assert report["ok"]
    assert report["checkpoints"][0]["faults"] == []
    proof = cli("checkpoint", "prove", "events/0@3", *PUBLIC).stdout
    (cli.folder / "r3.tlog-proof").write_text(proof)
    assert 3 == cli.json("checkpoint", "check-proof", "r3.tlog-proof", *PUBLIC)["offset"]
    piped = cli("checkpoint", "check-proof", "-", *PUBLIC, given=proof)
    assert "record 3 stands under example.org/site/gpuledger.events/0" in piped.stdout
    assert 0 == cli("archive", "--once", "--to", "archive").returncode
    offline = Cli(f"archive:{cli.folder / 'archive'}", cli.folder)
    (cli.folder / "log.sqlite").unlink()
    text = offline("verify", "--checkpoint", made["path"], *PUBLIC)
    assert 0 == text.returncode
    assert f"PROVED {made['origin']} at {size}: every record is the one" in text.stdout


def test_a_changed_record_is_named_by_the_command(cli: Cli) -> None:
    """Exit 4, the record's position, and what to do; in JSON the same."""
    cli("checkpoint", "create", "--key", "site.key")
    with sqlite3.connect(cli.folder / "log.sqlite") as db:
        found = "SELECT value FROM records WHERE topic = 'gpuledger.events' AND offset = 6"
        value = bytearray(db.execute(found).fetchone()[0])
        value[-3] ^= 1
        changed = "UPDATE records SET value = ? WHERE topic = 'gpuledger.events' AND offset = 6"
        db.execute(changed, (bytes(value),))
    done = cli("verify", "--checkpoint", "checkpoints", *PUBLIC)
    assert 4 == done.returncode
    assert "TAMPERED gpuledger.events/0@6: changed: this record is not the one" in done.stdout
    assert "this is the first bad record; keep the log as it is, and restore" in done.stdout
    report = cli.json("verify", "--checkpoint", "checkpoints", *PUBLIC, status=4)
    assert not report["ok"]
    assert (6, True) == (
        report["checkpoints"][0]["faults"][0]["offset"], report["checkpoints"][0]["exact"],
    )  # fmt: skip
    refused = cli("checkpoint", "prove", "events/0@6", *PUBLIC)
    assert (4, True) == (refused.returncode, "events/0@6: changed" in refused.stderr)
    with sqlite3.connect(cli.folder / "log.sqlite") as db:
        db.execute("DELETE FROM records WHERE topic = 'gpuledger.events' AND offset >= 8")
    refused = cli("checkpoint", "create", "--key", "site.key")
    assert (4, True) == (refused.returncode, "rewound" in refused.stderr)


WRONG = {
    "no key": (("verify", "--checkpoint", "checkpoints"), 2, "needs --key"),
    "a key alone": (("verify", *PUBLIC), 2, "--key needs --checkpoint"),
    "the private key": (
        ("verify", "--checkpoint", "checkpoints", "--key", "site.key"), 2, "the .pub file",
    ),
    "signing with the public one": (("checkpoint", "create", *PUBLIC), 2, "no key that signs"),
    "a key that is there": (
        ("checkpoint", "keygen", "example.org/x", "--key", "site.key"), 1, "never overwritten",
    ),
    "a name with a plus": (("checkpoint", "keygen", "a+b", "--key", "b.key"), 2, "no key name"),
    "no folder": (("checkpoint", "list", "nowhere", *PUBLIC), 1, "is no folder"),
    "no file": (("verify", "--checkpoint", "nowhere", *PUBLIC), 2, "nowhere: No such file"),
    "no checkpoint in it": (("verify", "--checkpoint", ".", *PUBLIC), 4, "no checkpoint in this"),
    "no position": (("checkpoint", "prove", "17", *PUBLIC), 2, "no position of a record"),
    "nothing proved": (("checkpoint", "check-proof", "site.key.pub", *PUBLIC), 4, "is no proof"),
}  # fmt: skip


def test_what_is_wrong_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake has its exit status and a sentence."""
    monkeypatch.chdir(cli.folder)
    for case, (arguments, status, said) in WRONG.items():
        given = ["--log", f"sqlite:{cli.folder / 'log.sqlite'}", *arguments]
        with ThreadPoolExecutor(1) as pool:  # a command starts an event loop of its own
            done = pool.submit(CliRunner().invoke, app, given).result()
        assert (status, True) == (done.exit_code, said in done.stderr), (case, done.stderr)
