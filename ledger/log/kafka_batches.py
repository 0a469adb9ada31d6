"""Entries to Kafka's record batches, and batches to offsets.

Built batches cost about a third of the time of one send() for each entry, and
a batch is in the log whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ledger.log.port import LogUnavailable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from ledger.log.port import Entry

__all__ = ["Batch", "abandon", "fill_offsets", "headers_of", "send"]


class BatchProducer(Protocol):
    """What is used here of aiokafka's producer."""

    def create_batch(self) -> Any:  # noqa: ANN401 - aiokafka has no types
        """Return an empty batch."""

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> asyncio.Future[Any]:  # noqa: ANN401
        """Queue the batch; return the future of its place in the log."""


# A batch's future, and which entries it holds.
Batch = tuple["asyncio.Future[Any]", list[int]]


async def send(
    producer: BatchProducer,
    topic: str,
    partition: int,
    entries: Sequence[Entry],
    indices: Iterable[int],
    times_us: Sequence[int] | None = None,
) -> list[Batch]:
    """Hand the entries at ``indices`` to an aiokafka producer, in as few batches as they fit in.

    ``times_us``, one for each of the entries, are kept by a topic that takes times
    from its writers. Raises what the producer raises. The batches are under way when this returns.
    """
    sent: list[Batch] = []
    builder = producer.create_batch()
    held: list[int] = []

    async def submit() -> None:
        builder.close()
        future = await producer.send_batch(builder, topic, partition=partition)
        # When another batch fails first, nobody asks for this one's error.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        sent.append((future, held))

    for index in indices:
        entry = entries[index]
        time_ms = None if times_us is None else times_us[index] // 1000
        fields = {"timestamp": time_ms, "key": entry.key, "value": entry.value}
        if builder.append(**fields, headers=list(entry.headers)) is None:
            await submit()
            builder = producer.create_batch()
            held = []
            # The first entry of a batch always fits: sizes were checked.
            builder.append(**fields, headers=list(entry.headers))
        held.append(index)
    if held:
        await submit()
    return sent


async def fill_offsets(offsets: list[int], batches: Iterable[Batch]) -> None:
    """Wait for the batches and set each entry's offset."""
    for future, indices in batches:
        first = (await future).offset
        if first < 0:
            # A duplicate that the broker recognised but whose place it no longer knows.
            raise LogUnavailable("the broker returned no offset")
        for position, index in enumerate(indices):
            offsets[index] = first + position


def abandon(producer: Any, error: BaseException) -> None:  # noqa: ANN401 - aiokafka has no types
    """Make sure that nothing still waiting in ``producer`` is sent; its waiters get ``error``.

    An idempotent producer never gives a batch up by itself, and its stop()
    waits for all of them. There is no public way to end both.
    """
    sender = producer._sender.sender_task  # noqa: SLF001
    if sender is not None:
        sender.cancel()
    accumulator = producer._message_accumulator  # noqa: SLF001
    waiting = [*accumulator._pending_batches]  # noqa: SLF001
    for queue in accumulator._batches.values():  # noqa: SLF001
        waiting += queue
    accumulator.fail_all(error)
    for batch in waiting:
        # Ask for the errors here: asyncio complains about one that nobody asked for.
        for future in (batch.future, batch._drain_waiter):  # noqa: SLF001
            if future.done() and not future.cancelled():
                future.exception()


def headers_of(found: tuple[tuple[str, bytes | None], ...]) -> tuple[tuple[str, bytes], ...]:
    """Return Kafka's headers; one without a value, which Kafka knows, gets an empty one."""
    return tuple([(name, b"" if value is None else value) for name, value in found])
