"""The client: its answers are found, copies are not handed out twice, silence has an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest

from ledger.client import Client, NoAnswer
from ledger.log.memory import MemoryLog
from ledger.log.partition import partition_of
from ledger.log.port import Entry
from ledger.wire import message_entry
from schemas.asks import MigAsk, WholeAsk
from schemas.requests import QuotaApply, RequestSubmit, Task
from schemas.topics import full_name
from tests.ledgers import PREFIX, TEAM, Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from schemas.messages import Reply

REQUEST = RequestSubmit(tenant="t", queue="q", task=Task(id="x"), ask=WholeAsk(count=2))


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Return a site whose shard takes what comes, all the time."""
    site = Site(MemoryLog())
    await site.start()

    async def serve() -> None:
        while True:
            await site.pump()
            await asyncio.sleep(0.01)

    server = asyncio.create_task(serve())
    yield site
    server.cancel()


def client_of(site: Site, source: str = TEAM) -> Client:
    """Return a client of the site's cell."""
    return Client(site.log, "c", source=source)


async def test_the_whole_conversation(site: Site) -> None:
    """Submit, queue, release, cancel: each call returns its own answer."""
    client = client_of(site)
    first = await client.submit(REQUEST, "first", final=True)
    assert (first.answer, first.lease) == ("granted", f"{TEAM}#first/1")
    large = REQUEST.model_copy(update={"ask": WholeAsk(count=4)})
    assert (await client.submit(large, "second")).answer == "queued"
    assert (await client.release(f"{TEAM}#first/1")).answer == "released"
    assert (await client.cancel(f"{TEAM}#second", "no longer needed")).answer == "cancelled"
    other = client_of(site, "/team/b")
    refused = await other.release(f"{TEAM}#first/1")
    assert (refused.answer, refused.code) == ("refused", "not_owner")
    quota = QuotaApply(tenant="t", nominal_gpu_milli=1000, author="op", reason="x")
    assert (await other.ask(quota)).answer == "applied"


async def test_a_request_may_be_sent_again(site: Site) -> None:
    """Same id and content: same answer. Other content: a conflict, which is an answer too."""
    client = client_of(site)
    first = await client.submit(REQUEST, "r", final=True)
    again = await client.submit(REQUEST, "r", final=True)
    assert again.lease == first.lease
    other = REQUEST.model_copy(update={"priority": 1})
    assert (await client.submit(other, "r", final=True)).code == "id_conflict"


async def test_the_modes_default_is_written_out(site: Site) -> None:
    """The mode may be left to the model, but the record says it."""
    request = REQUEST.model_copy(update={"ask": MigAsk(mode="mig", profile="1g.10gb")})
    assert (await client_of(site).submit(request)).code == "no_such_hardware"
    assert (await client_of(site).submit(REQUEST)).answer == "granted"


async def test_silence_has_an_end() -> None:
    """Nobody serves the log: an error that names the request, in time."""
    site = Site(MemoryLog())
    await site.start()
    started = time.monotonic()
    with pytest.raises(NoAnswer, match=rf"{TEAM}#r within 0\.2 s"):
        await client_of(site).submit(REQUEST, "r", timeout_s=0.2)
    assert time.monotonic() - started < 5


async def test_ids_that_nobody_takes_are_refused_before_they_are_sent(site: Site) -> None:
    """A record that would be put aside is not written."""
    end = await site.log.end(full_name(PREFIX, "requests"), 0)
    with pytest.raises(ValueError, match="'id'"):
        await client_of(site).submit(REQUEST, "a b")
    assert await site.log.end(full_name(PREFIX, "requests"), 0) == end


async def replies_within(client: Client, seconds: float) -> list[Reply]:
    """Return what a client is told within some time."""
    found: list[Reply] = []

    async def follow() -> None:
        async for reply in client.watch(await client.first_reply()):
            found.append(reply)  # noqa: PERF401 - the loop has no end of its own

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(follow(), seconds)
    return found


async def test_copies_are_handed_out_once() -> None:
    """A copy has the same position or none; the same notice from another record is news."""
    site = Site(MemoryLog())
    await site.start()
    source = "/team/z"
    queued: dict[str, Any] = {
        "request": f"{source}#r",
        "input": f"{source}#r",
        "answer": "queued",
        "final": False,
        "code": "no_capacity",
    }
    told = [
        queued | {"position": "events/0@1"},
        queued | {"position": "events/0@1"},
        queued | {"code": "queued"},
        queued | {"position": "events/0@9"},
    ]
    topic = full_name(PREFIX, "replies")
    where = partition_of(source.encode(), await site.log.partitions(topic))
    entries = [message_entry(("replies", source, "reply", one)) for one in told]
    # Of a newer program, and to somebody else.
    entries += [Entry(source.encode(), b"{}"), Entry(b"/other", b"{}")]
    await site.log.append(topic, where, entries)
    found = await replies_within(client_of(site, source), 0.3)
    assert [one.position for one in found] == ["events/0@1", "events/0@9"]
