"""Evidence: probes of a link, perftest's output, records of devices, and what an upgrade leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from typer.testing import CliRunner

from collectors.links.perftest import BadOutput, Bandwidth, Latency, read_perftest
from collectors.links.probe import Probed, answer, probe
from ledger.cli import app
from ledger.log.sqlite import SqliteLog
from ledger.testing import device
from tests.ledgers import Site

if TYPE_CHECKING:
    from pathlib import Path

# Made up, in the form that perftest prints.
RULE = "-" * 83
LATENCY = f"""
************************************
* Waiting for client to connect... *
************************************
{RULE}
                    Send Latency Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 local address: LID 0000 QPN 0x0107 PSN 0x9d3f5a
{RULE}
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          1.61           9.27         1.70     \t       1.72        \t0.09   \
\t\t2.04    \t\t9.27
 4096    1000          2.61           9.27         3.70     \t       3.72        \t0.09   \
\t\t4.04    \t\t9.27
{RULE}
"""
BANDWIDTH = f"""
{RULE}
                    RDMA_Write BW Test
{RULE}
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 2          5000             9.10               8.77                 4.384562
 65536      5000             11058.83            11057.51\t\t   0.176920
{RULE}
"""
GBITS = BANDWIDTH.replace("MB/sec", "Gb/sec").replace("11057.51", "92.7599")


def test_perftest_is_read_and_made_no_better_than_it_is() -> None:
    """The smallest message's percentiles, up; the largest message's average, down."""
    assert Latency(2, 3) == read_perftest(LATENCY)
    assert Bandwidth(88_460) == read_perftest(BANDWIDTH)
    assert Bandwidth(92_759) == read_perftest(GBITS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line that begins with '#bytes'"),
        (LATENCY[: LATENCY.index("percentile[usec]\n 2") + 17], "the run did not end"),
        (LATENCY.replace("99%", "95%"), "by iterations"),
        (BANDWIDTH.replace("MB/sec", "furlongs"), "unit"),
        (BANDWIDTH.replace("11057.51", "nan"), "a row has no"),
        ("#bytes #iterations\n 2 x\n", "the run did not end"),
    ],
)
def test_what_is_no_whole_run_is_refused(text: str, says: str) -> None:
    """Nothing is guessed from the rest."""
    with pytest.raises(BadOutput, match=says):
        read_perftest(text)


async def probed(**more: Any) -> Probed:
    """Probe somebody who answers on this machine."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(answer("127.0.0.1", 0, port.set_result, once=True))
    found = await probe("127.0.0.1", await port, **more)
    await task
    return found


async def test_a_probe_measures_the_link_between_two_ends() -> None:
    """Percentiles in order, all that was sent has arrived, and the answerer ends."""
    found = await probed(rounds=200, mib=4)
    assert 1 <= found.p50_us <= found.p99_us
    assert 1 <= found.bandwidth_mbps
    assert (200, 4 * 1_048_576) == (found.rounds, found.sent_bytes)


async def test_who_is_no_probe_is_no_link() -> None:
    """Something else that listens; and something else that calls costs the answerer nothing."""

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"220 mail.example ESMTP ready\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ConnectionError, match="probe"):
            await probe("127.0.0.1", server.sockets[0].getsockname()[1], rounds=100, mib=1)

    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(answer("127.0.0.1", 0, port.set_result, once=True))
    _, writer = await asyncio.open_connection("127.0.0.1", await port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    writer.close()
    assert 100 == (await probe("127.0.0.1", await port, rounds=100, mib=1)).rounds
    await task


# -- on the log -------------------------------------------------------------------------


def run(log: Path, *arguments: str) -> Any:
    """Run a command; return its exit status, its rows, and what it says."""
    given = ["evidence", *arguments, "--json", "--log", f"sqlite:{log}"]
    result = CliRunner().invoke(app, given)
    code = result.exit_code if not isinstance(result.return_value, int) else result.return_value
    return code, [orjson.loads(one) for one in result.stdout.splitlines()], result.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A ledger with two nodes, in a file."""
    path = tmp_path / "log.db"

    async def make() -> None:
        async with SqliteLog(path) as found:
            site = Site(found)
            await site.start(gpus=1)
            about: dict[str, Any] = {"node": "n2", "incarnation": "b1", "epoch": 1, "pool": "main"}
            await site.says("node.inventory", "/nodes/n2", devices=[device("GPU-x")], **about)

    asyncio.run(make())
    return path


def decided(path: Path) -> Any:
    """Let the ledger decide what is there; return its links."""

    async def decide() -> Any:
        async with SqliteLog(path) as found:
            site = Site(found)
            await site.shard.load()
            await site.pump()
            return dict(site.state.links)

    return asyncio.run(decide())


def test_a12_a_link_is_recorded_and_the_ledger_takes_it(log: Path, tmp_path: Path) -> None:
    """From perftest's two files, with its version; then the newer probe takes its place."""
    (tmp_path / "lat.txt").write_text(LATENCY)
    (tmp_path / "bw.txt").write_text(BANDWIDTH)
    files = [str(tmp_path / "lat.txt"), str(tmp_path / "bw.txt")]
    nodes = ["--node", "n1", "--to-node", "n2"]
    code, _, output = run(log, "record", *files, *nodes)
    assert (2, True) == (code, "give its --version" in output)
    code, [row], _ = run(log, "record", *files, *nodes, "--version", "6.21", "--valid-s", "60")
    assert 0 == code
    (link,) = decided(log).values()
    assert (3, 88_460, "perftest", "6.21") == (
        link.p99_us, link.bandwidth_mbps, link.tool, link.version
    )  # fmt: skip
    assert 60_000_000 == link.valid_until_us - link.measured_us
    # What 'record' has printed can be shown; it is the same evidence by its own name.
    assert link.id == run(log, "show", row["evidence"])[1][0]["evidence"]
    assert 2 == row["p50_us"]

    plain = {"tool": "gpuledger-probe", "version": "1", "p50_us": 40, "p99_us": 90}
    (tmp_path / "probe.json").write_bytes(orjson.dumps(plain | {"bandwidth_mbps": 9_000}))
    code, _, _ = run(log, "record", str(tmp_path / "probe.json"), *nodes)
    assert 0 == code
    (older,), (link,) = [link], decided(log).values()
    assert (90, "gpuledger-probe") == (link.p99_us, link.tool)
    # The one that was replaced is on record like the newest.
    for one, p99_us in ((older, 3), (link, 90)):
        code, [row], _ = run(log, "show", one.id)
        assert (0, p99_us, "n2", []) == (code, row["p99_us"], row["to_node"], row["leases"])
    text = CliRunner().invoke(app, ["evidence", "show", link.id, "--log", f"sqlite:{log}"]).stdout
    assert f"{link.id}: link, of the link from n1 to n2\n  latency P99 90 us" in text
    assert "leases that rest on it: none" in text
    code, rows, _ = run(log, "list")
    assert ["n1 to n2"] == [row["about"] for row in rows]


def test_what_the_ledger_does_not_know_is_refused(log: Path, tmp_path: Path) -> None:
    """Nodes, devices, baselines; and a file without one of the two numbers."""
    (tmp_path / "lat.txt").write_text(LATENCY)
    lat = str(tmp_path / "lat.txt")
    code, _, output = run(log, "record", lat, "--node", "n1", "--to-node", "n2", "--version", "1")
    assert (2, True) == (code, "bandwidth_mbps" in output)
    (tmp_path / "bw.txt").write_text(BANDWIDTH)
    both = [lat, str(tmp_path / "bw.txt"), "--version", "1"]
    code, _, _ = run(log, "record", *both, "--node", "n1", "--to-node", "n9")
    assert 1 == code
    about = ["--workload", "w", "--metric", "tokens_per_s", "--value", "1", "--tool", "t"]
    assert 1 == run(log, "record-device", "GPU-none", *about, "--version", "1")[0]
    more = [*about, "--version", "1", "--kind", "slice", "--mig-uuid", "MIG-none"]
    code, _, output = run(log, "record-device", "GPU-0", *more)
    assert (1, True) == (code, "no slice MIG-none" in output)
    more = [*about, "--version", "1", "--baseline", "e-none"]
    assert 1 == run(log, "record-device", "GPU-0", *more)[0]
    assert {} == decided(log)


def test_baselines_and_what_neighbours_leave_of_them(log: Path) -> None:
    """Alone 2,000, beside two others 1,500: three quarters, by the id of the evidence."""
    about = ["--workload", "llm", "--metric", "tokens_per_s", "--tool", "bench", "--version", "3"]
    code, [alone], _ = run(log, "record-device", "GPU-0", *about, "--value", "2000")
    assert 0 == code
    beside = ["--kind", "co-running", "--neighbour", "a", "--neighbour", "b"]
    more = [*about, "--value", "1500", "--baseline", alone["evidence"], *beside]
    code, [row], _ = run(log, "record-device", "GPU-0", *more)
    assert (0, 750, ["a", "b"]) == (code, row["of_baseline_permille"], row["neighbours"])
    assert "n1" == row["node"]
    code, [shown], _ = run(log, "show", alone["evidence"])
    assert (0, 2000, [row["evidence"]]) == (code, shown["value"], shown["baseline_of"])
    given = ["evidence", "show", row["evidence"], "--log", f"sqlite:{log}"]
    text = CliRunner().invoke(app, given).stdout
    assert f"that is 75.00 % of {alone['evidence']}" in text
    code, _, output = run(log, "show", "e-none")
    assert (1, True) == (code, "there is no record of evidence e-none" in output)
    code, rows, _ = run(log, "list", "--fresh")
    assert ["whole-card", "co-running"] == [one["kind"] for one in rows]
    other = [*about, "--value", "1", "--kind", "co-running"]
    assert 2 == run(log, "record-device", "GPU-0", *other)[0]
    assert 2 == run(log, "record-device", "GPU-0", *about, "--value", "1", "--kind", "x")[0]
