"""Ask for a GPU with aiokafka alone: python producer.py HOST:PORT CELL TENANT QUEUE [PREFIX]."""

import asyncio
import json
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main(server: str, cell: str, tenant: str, queue: str, prefix: str = "gpuledger") -> None:
    """Put one request on the log, and print what is answered until the answer is final."""
    source, name = "/examples/producer", f"{uuid.uuid4()}"
    asked = {"tenant": tenant, "queue": queue, "task": {"id": "hello"}, "ask": {"mode": "whole"}}
    kind = "io.gpuledger.request.submit.v1"
    event = {"id": name, "source": source, "type": kind, "specversion": "1.0"}
    headers = [(f"ce_{key}", text.encode()) for key, text in event.items()]
    headers.append(("content-type", b"application/json"))
    replies = AIOKafkaConsumer(f"{prefix}.replies", bootstrap_servers=server)
    async with replies, AIOKafkaProducer(bootstrap_servers=server, acks="all") as producer:
        await replies.seek_to_end()  # before asking, so that the answer cannot be missed
        record = (json.dumps(asked).encode(), cell.encode())  # value and key
        await producer.send_and_wait(f"{prefix}.requests", *record, headers=headers)
        async for record in replies:
            reply = json.loads(record.value)
            if reply["input"] == f"{source}#{name}":
                print(json.dumps(reply), flush=True)
                if reply["final"]:
                    break


asyncio.run(main(*sys.argv[1:]))
