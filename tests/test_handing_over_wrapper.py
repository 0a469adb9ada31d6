"""A wrapper whose log fails it, and the files by which a dead wrapper is found."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from ledger.client import Client, Sent
from ledger.handing_over import talk as talking
from ledger.handing_over.owners import Owned, Owners, Taken, default_folder
from ledger.handing_over.process import started_ticks
from ledger.handing_over.talk import Talk
from ledger.handing_over.wrapper import Plan, Wrapper
from ledger.log.memory import MemoryLog
from ledger.log.port import LogDamaged, LogUnavailable, TopicState
from ledger.log.topics import declared
from schemas.messages import Reply
from schemas.requests import RequestSubmit, TaskBegin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from ledger.log.port import Entry

KEY = "/team#x"
REQUEST = RequestSubmit.model_validate({"tenant": "t", "task": {"id": "x"}})


def _reply(answer: str, about: str = KEY, **more: Any) -> Reply:
    plain = {"request": about, "input": about, "answer": answer, "final": False, "code": "observed"}
    return Reply.model_validate({**plain, **more})


GRANTED = _reply(
    "granted",
    lease=f"{KEY}/1",
    attempt=1,
    parts=({"node": "n", "units": ("GPU-1",), "environment": {"A": "b"}, "cdi": ()},),
)


@dataclass
class FakeTalk:
    """Answers as told: by what was said, the replies that follow, or an error."""

    answers: dict[str, list[Reply] | Exception]
    request: str = KEY
    said: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with nothing heard."""
        self.heard: asyncio.Queue[Reply] = asyncio.Queue()

    async def _say(self, word: str) -> Sent:
        self.said.append(word)
        found = self.answers.get(word.partition(" ")[0], [])
        if isinstance(found, Exception):
            raise found
        for reply in found:
            self.heard.put_nowait(reply)
        return Sent(word, KEY if word == "submit" else f"{KEY}.{word.partition(' ')[0]}", 0)

    async def submit(self, data: object) -> Sent:
        """Ask."""
        return await self._say("submit")

    async def cancel(self, reason: str) -> Sent:
        """Withdraw."""
        return await self._say("cancel")

    async def release(self, lease: str, how: str) -> Sent:
        """Give back."""
        return await self._say(f"release {how}")

    @asynccontextmanager
    async def telling_begun(self, lease: str, node: str, after_s: float) -> AsyncIterator[None]:
        """Say that the command has begun."""
        assert after_s >= 0
        self.begun.append(f"{lease} on {node}")
        yield

    async def listen(self, start: int, hear: Callable[[Reply], None]) -> None:
        """Hand over what is heard."""
        while True:
            hear(await self.heard.get())


async def _nothing() -> str:
    return ""


async def _run(
    tmp_path: Path,
    talk: FakeTalk,
    sh: str,
    explain: Callable[[], Awaitable[str]] = _nothing,
    interrupt_s: float | None = None,
    **more: Any,
) -> tuple[int, Owners, list[str]]:
    owners, words = Owners(tmp_path / "runs"), list[str]()
    plan = Plan(REQUEST, ("sh", "-c", sh), dict(os.environ), "n", answer_s=0.2, **more)

    def tell(word: str, text: str, **about: object) -> None:
        words.append(word)

    owned = owners.take("memory:", "gpuledger", "c", "/team", "x")
    wrapper = Wrapper(plan, talk, owners, owned, tell, lambda: explain)  # type: ignore[arg-type]
    if interrupt_s is not None:
        asyncio.get_running_loop().call_later(interrupt_s, wrapper.signal, 15)
    async with asyncio.timeout(30):
        return await wrapper.run(), owners, words


def _files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "runs").glob("*.json"))


async def test_an_end_that_cannot_be_said_stays_on_file(tmp_path: Path) -> None:
    """The command's status comes back all the same, and a clean-up finds how it ended."""
    talk = FakeTalk({"submit": [GRANTED], "release": LogUnavailable("away")})
    status, owners, words = await _run(tmp_path, talk, "exit 5")

    assert (5, "left") == (status, words[-1])
    (path,) = _files(tmp_path)
    owned = owners._read(path)
    assert owned is not None
    assert ("failed", f"{KEY}/1") == (owned.how, owned.lease)


async def test_an_end_without_an_answer_is_in_the_log(tmp_path: Path) -> None:
    """What is in the log will be decided: nothing is left to clean up, nothing said twice."""
    talk = FakeTalk({"submit": [GRANTED]})
    status, _, _ = await _run(tmp_path, talk, "exit 0")

    assert 0 == status
    assert ["submit", "release completed"] == talk.said
    assert [f"{KEY}/1 on n"] == talk.begun
    assert [] == _files(tmp_path)


async def test_an_interrupted_lease_without_an_answer_is_followed_by_a_cancel(
    tmp_path: Path,
) -> None:
    """It may send the request back to its queue, from where nobody would take a lease."""
    notice = _reply("stopping", lease=f"{KEY}/1", attempt=1, numbers={"reason": "preempted"})
    talk = FakeTalk({"submit": [GRANTED, notice]})
    status, _, words = await _run(tmp_path, talk, "exec sleep 60")

    assert 143 == status
    assert "stopping" in words
    assert ["submit", "release failed", "cancel"] == talk.said


async def test_a_grant_that_comes_with_the_end_of_the_last_is_taken(tmp_path: Path) -> None:
    """Queued and granted again in one decision, before the release is answered: it runs anew."""
    again = [
        _reply("queued", attempt=1, numbers={"interrupted_by": "preempted"}),
        GRANTED.model_copy(update={"lease": f"{KEY}/2", "attempt": 2}),
        _reply("released", f"{KEY}.release"),
    ]
    notice = _reply("stopping", lease=f"{KEY}/1", attempt=1, numbers={"reason": "preempted"})
    talk = FakeTalk({"submit": [GRANTED, notice], "release": again})
    line = "case $GPULEDGER_LEASE in */2) exit 0;; esac; exec sleep 60"
    status, _, words = await _run(tmp_path, talk, line, again=True)

    assert 0 == status
    assert 2 == words.count("started")
    assert ["submit", "release failed", "release completed"] == talk.said


async def test_a_grant_that_comes_with_the_end_of_the_last_is_given_back(tmp_path: Path) -> None:
    """Without --again the same grant is cancelled, and its lease released."""
    again = [
        _reply("queued", attempt=1, numbers={"interrupted_by": "preempted"}),
        GRANTED.model_copy(update={"lease": f"{KEY}/2", "attempt": 2}),
        _reply("released", f"{KEY}.release"),
    ]
    notice = _reply("stopping", lease=f"{KEY}/1", attempt=1, numbers={"reason": "preempted"})
    stopping = [_reply("stopping", f"{KEY}.cancel")]
    talk = FakeTalk({"submit": [GRANTED, notice], "release": again, "cancel": stopping})
    status, _, words = await _run(tmp_path, talk, "exec sleep 60")

    assert 143 == status
    assert 1 == words.count("started")
    assert ["submit", "release failed", "cancel", "release failed"] == talk.said


async def test_what_the_log_raises_ends_the_command(tmp_path: Path) -> None:
    """A wrapper that cannot go on leaves no command behind, and its file for a clean-up."""
    talk = FakeTalk({"submit": [GRANTED]})

    async def listen(start: int, hear: Callable[[Reply], None]) -> None:
        hear(await talk.heard.get())
        await asyncio.sleep(0.3)
        raise OSError("broken")

    talk.listen = listen  # type: ignore[method-assign]
    pid_file = tmp_path / "pid"
    with pytest.raises(OSError, match="broken"):
        await _run(tmp_path, talk, f"echo $$ > {pid_file}; exec sleep 60")
    assert started_ticks(int(pid_file.read_text())) is None
    assert 1 == len(_files(tmp_path))


async def _for_ever() -> str:
    await asyncio.Event().wait()
    return "never"


async def test_a_grant_does_not_wait_for_the_reason_why_it_is_waited(tmp_path: Path) -> None:
    """Of a long log that takes minutes, in which the devices would be held for nothing."""
    talk = FakeTalk({"submit": [_reply("queued"), GRANTED]})
    status, _, words = await _run(tmp_path, talk, "exit 7", _for_ever)
    assert 7 == status
    assert ["queued", "started", "exited", "ended"] == words


async def test_nor_does_a_signal(tmp_path: Path) -> None:
    """The request is withdrawn."""
    talk = FakeTalk({"submit": [_reply("queued")]})
    status, _, words = await _run(tmp_path, talk, "exit 7", _for_ever, interrupt_s=0.05)
    assert 128 + 15 == status
    assert ["submit", "cancel"] == talk.said
    assert ["queued", "cancelled"] == words


@pytest.mark.parametrize("error", [LogUnavailable("away"), LogDamaged("hole"), ValueError("bug")])
async def test_a_log_that_is_away_costs_a_reason_and_no_place_in_line(
    tmp_path: Path, error: Exception
) -> None:
    """The next look tells it; what is damaged or a mistake of ours ends the wait."""
    looks = 0
    talk = FakeTalk({"submit": [_reply("queued")]})

    async def explain() -> str:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise error
        talk.heard.put_nowait(GRANTED)
        return "its turn has come"

    running = _run(tmp_path, talk, "exit 0", explain, why_every_s=0.05)
    if type(error) is LogUnavailable:
        assert ["queued", "waits", "started", "exited", "ended"] == (await running)[2]
    else:
        with pytest.raises(type(error)):
            await running


async def test_what_takes_no_signal_costs_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that became another user's (``sudo``): its devices are given back all the same."""

    def refused(group: int, number: int) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr("ledger.handing_over.process.os.killpg", refused)
    talk = FakeTalk({"submit": [GRANTED]})
    status, _, words = await _run(tmp_path, talk, "sleep 0.3; exit 3", interrupt_s=0.1)
    assert 3 == status
    assert ["submit", "release failed"] == talk.said
    assert "ended" in words


class AwayLog(MemoryLog):
    """A log that takes every record, and twice does not say so."""

    away = 2

    async def append(self, topic: str, partition: int | None, entries: Sequence[Entry]) -> Any:
        """Append; the outcome is unknown the first two times."""
        done = await super().append(topic, partition, entries)
        if self.away:
            self.away -= 1
            raise LogUnavailable("no answer")
        return done


async def test_one_id_however_often_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose fate is unknown is sent again under its id: the ledger decides it once."""
    monkeypatch.setattr(talking, "_FIRST_RETRY_S", 0.01)
    log = AwayLog()
    await log.create_topics({name: TopicState(1) for name in declared("gpuledger")})
    talk = Talk(Client(log, "c", source="/team"), "x")
    sent = await talk.release(f"{KEY}/3", "completed")

    assert f"{KEY}.release.3" == sent.key
    records = await log.read("gpuledger.requests", 0, 0, 10)
    assert 3 == len(records)
    assert 1 == len({(one.value, one.headers) for one in records})


async def test_the_start_is_told_beside_the_command_and_never_in_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log that is away costs the command nothing but a short wait at its end."""
    monkeypatch.setattr(talking, "_BEGUN_S", 0.05)
    log = AwayLog()
    await log.create_topics({name: TopicState(1) for name in declared("gpuledger")})
    log.away = 1_000_000
    talk = Talk(Client(log, "c", source="/team"), "x")
    async with talk.telling_begun(f"{KEY}/1", "n1", 0.25):
        pass
    log.away = 0
    async with talk.telling_begun(f"{KEY}/1", "n1", 0.25):
        pass
    records = await log.read("gpuledger.requests", 0, 0, 10)
    ids = {dict(one.headers)["ce_id"] for one in records}
    assert {b"x.begin.1"} == ids
    told = TaskBegin.model_validate_json(records[-1].value or b"")
    assert (f"{KEY}/1", "n1", 250_000) == (told.lease, told.node, told.after_us)


def _owned(**more: Any) -> Owned:
    plain = Owned("memory:", "gpuledger", "c", "/team", "x", "", "", os.getpid(), 0)
    return replace(plain, **more)


def test_who_is_dead_is_not_guessed(tmp_path: Path) -> None:
    """A process number that came back, and another boot, are dead; another host is not."""
    owners = Owners(tmp_path)
    mine = owners.take("memory:", "gpuledger", "c", "/team", "x")
    assert [] == list(owners.dead())
    with pytest.raises(Taken, match="runs /team#x already"):
        owners.take("memory:", "gpuledger", "c", "/team", "x")
    for change in ({"started": mine.started + 1}, {"boot": "another"}):
        owners.write(replace(mine, **change))
        assert 1 == len(list(owners.dead()))
    owners.write(replace(mine, host="another", boot="another"))
    assert [] == list(owners.dead())
    owners.remove(mine)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "pid": 1}'])
def test_a_file_that_cannot_be_read_is_left_alone(tmp_path: Path, text: str) -> None:
    """It is another version's, or nobody's: nothing is ended for it."""
    (tmp_path / "x.json").write_text(text)

    assert [] == list(Owners(tmp_path).dead())
    assert (tmp_path / "x.json").exists()


def test_files_are_their_users_alone(tmp_path: Path) -> None:
    """The folder and the files can be read by nobody else."""
    folder = default_folder({"XDG_STATE_HOME": str(tmp_path)})
    Owners(folder).write(_owned())

    assert 0o700 == folder.stat().st_mode & 0o777
    assert [0o600] == [one.stat().st_mode & 0o777 for one in folder.iterdir()]
    assert tmp_path / "r" == default_folder({"GPULEDGER_RUNS": str(tmp_path / "r")})
