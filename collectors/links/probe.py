"""A probe of a link between two hosts over TCP: latency of small messages, and bandwidth.

It measures what a task over TCP gets, kernel and interpreter included, and is no stand-in for
a tool of the fabric; a link that is good by this is good. Latency is half of a round trip, as
perftest has it. One probe at a time; nothing is believed of the other side but what it echoes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["LIMIT_S", "TOOL", "Probed", "answer", "probe"]

TOOL = "gpuledger-probe"
#: What a probe says first, so that no other program's connection is taken for one.
_HELLO = b"gpuledger probe 1\n"
_PING, _BLOCK = 64, 1_048_576
_WARM = 50
#: A connection may last so long, in seconds; whoever listens is not held by one that hangs.
LIMIT_S = 120.0


class Probed(NamedTuple):
    """Half round trips in us (rounded up), Mb/s (rounded down), and of how many of what."""

    p50_us: int
    p99_us: int
    bandwidth_mbps: int
    rounds: int
    sent_bytes: int


async def answer(host: str, port: int, listening: Callable[[int], None], *, once: bool) -> None:
    """Answer probes on an address until cancelled, or until one is over (``once``).

    ``listening`` is told the port: 0 takes a free one. Raise `OSError` where it is taken.
    """
    done, turn = asyncio.Event(), asyncio.Lock()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with turn, asyncio.timeout(LIMIT_S):
                if await _echo(reader, writer) and once:
                    done.set()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(one, host, port, limit=2 * _BLOCK)
    async with server:
        listening(server.sockets[0].getsockname()[1])
        await done.wait()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Echo pings, then count what comes and say how much it was; False: it was no probe."""
    if await reader.readexactly(len(_HELLO)) != _HELLO:
        return False
    _no_delay(writer)
    writer.write(_HELLO)
    rounds = int.from_bytes(await reader.readexactly(4), "big")
    for _ in range(rounds):
        writer.write(await reader.readexactly(_PING))
    length = int.from_bytes(await reader.readexactly(8), "big")
    left = length
    while left:
        left -= len(await reader.readexactly(min(_BLOCK, left)))
    writer.write(length.to_bytes(8, "big"))
    await writer.drain()
    return True


async def probe(
    host: str, port: int, *, rounds: int = 1000, mib: int = 256, limit_s: float = LIMIT_S
) -> Probed:
    """Measure the link to whoever answers; raise `OSError`, or `ConnectionError` for no probe."""
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(host, port, limit=2 * _BLOCK)
        try:
            return await _measure(reader, writer, rounds, mib)
        except asyncio.IncompleteReadError:
            raise ConnectionError(f"{host}:{port} does not answer as a probe") from None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _measure(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rounds: int, mib: int
) -> Probed:
    _no_delay(writer)
    writer.write(_HELLO)
    if await reader.readexactly(len(_HELLO)) != _HELLO:
        raise ConnectionError("whoever answers there is no probe")
    writer.write((rounds + _WARM).to_bytes(4, "big"))
    trips = []
    message = bytes(_PING)
    for _ in range(rounds + _WARM):
        began = time.perf_counter_ns()
        writer.write(message)
        await reader.readexactly(_PING)
        trips.append(time.perf_counter_ns() - began)
    length, block = mib * _BLOCK, bytes(_BLOCK)
    writer.write(length.to_bytes(8, "big"))
    took_ns = await _timed(lambda: _send(reader, writer, block, mib))
    trips = sorted(trips[_WARM:])
    p50, p99 = (_half_us(trips[_rank(rounds, part)]) for part in (50, 99))
    return Probed(p50, p99, length * 8 * 1000 // max(1, took_ns), rounds, length)


async def _timed(work: Callable[[], Awaitable[None]]) -> int:
    began = time.perf_counter_ns()
    await work()
    return time.perf_counter_ns() - began


async def _send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, block: bytes, count: int
) -> None:
    """Send blocks, and wait until the other side has them all."""
    for _ in range(count):
        writer.write(block)
        await writer.drain()
    if int.from_bytes(await reader.readexactly(8), "big") != count * len(block):
        raise ConnectionError("not all that was sent has arrived")


def _no_delay(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _rank(count: int, percent: int) -> int:
    """Return where in sorted values the percentile is: at least so many are not above it."""
    return -(-count * percent // 100) - 1


def _half_us(trip_ns: int) -> int:
    return -(-trip_ns // 2000)
