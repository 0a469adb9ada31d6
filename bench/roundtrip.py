"""A bare echo through two topics: what a reply costs with no ledger in between."""

from __future__ import annotations

import asyncio
import contextlib
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from ledger.log.port import Entry
from ledger.log.url import open_log

__all__ = ["echo"]


async def echo(url: str, source: str, target: str) -> None:
    """Copy every record of ``source``/0 to ``target``/0, until cancelled."""
    if url.startswith("kafka://"):
        await _echo_kafka(url.removeprefix("kafka://"), source, target)
    else:
        await _echo_port(url, source, target)


async def _echo_kafka(bootstrap: str, source: str, target: str) -> None:
    place = TopicPartition(source, 0)
    async with (
        AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
        AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0) as producer,
    ):
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        async for message in consumer:
            await producer.send_and_wait(target, message.value, key=message.key, partition=0)


async def _echo_port(url: str, source: str, target: str) -> None:
    async with open_log(url) as log:
        offset = 0
        while True:
            for record in await log.read(source, 0, offset, 1000, wait_s=1.0):
                await log.append(target, 0, [Entry(record.key, record.value)])
                offset = record.offset + 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(echo(*sys.argv[1:4]))
