"""Ask for a GPU with aiokafka alone: python producer.py HOST:PORT CELL TENANT QUEUE [PREFIX]."""

import asyncio
import json
import sys
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main(server: str, cell: str, tenant: str, queue: str, prefix: str = "gpuledger") -> None:
    """Put one request on the log, and print what is answered until the answer is final."""
    asked = {"tenant": tenant, "queue": queue, "task": {"id": "hello"}, "ask": {"mode": "whole"}}
    event = {"id": uuid.uuid4().hex, "source": "/example", "type": "io.gpuledger.request.submit.v1"}
    headers = [("ce_specversion", b"1.0"), ("content-type", b"application/json")]
    headers += [(f"ce_{name}", text.encode()) for name, text in event.items()]
    replies = AIOKafkaConsumer(f"{prefix}.replies", bootstrap_servers=server)
    async with replies, AIOKafkaProducer(bootstrap_servers=server, acks="all") as producer:
        await replies.seek_to_end()  # before asking, so that the answer cannot be missed
        value, key = json.dumps(asked).encode(), cell.encode()
        await producer.send_and_wait(f"{prefix}.requests", value, key, headers=headers)
        async for record in replies:
            reply = json.loads(record.value)
            if reply["input"] == "{source}#{id}".format(**event):
                print(record.value.decode(), flush=True)
                if reply["final"]:
                    return


asyncio.run(main(*sys.argv[1:]))
