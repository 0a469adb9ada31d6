"""Follow the ledger with aiokafka alone: python reader.py HOST:PORT [PREFIX [COUNT]]."""

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer


async def main(server: str, prefix: str = "gpuledger", count: str = "0") -> None:
    """Print each decision and its events; end after COUNT records, 0 is never.

    A decision counts if its token is that of the last claim before it; others are void.
    """
    options = {"bootstrap_servers": server, "auto_offset_reset": "earliest"}
    events = AIOKafkaConsumer(f"{prefix}.events", **options)
    seen = 0
    async with events:
        async for record in events:
            decision = json.loads(record.value)
            if decision["kind"] == "decision":
                kinds = " ".join(event["type"] for event in decision["events"])
                code, about = decision["outcome"]["code"], decision["input"]["type"]
                print(f"{record.partition}@{record.offset} {about}: {code} [{kinds}]", flush=True)
            seen += 1
            if seen == int(count):
                return


asyncio.run(main(*sys.argv[1:]))
