"""What a worker counts, for Prometheus. Served on the loopback, and only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from processors.setup import Refused

if TYPE_CHECKING:
    from threading import Thread
    from types import TracebackType
    from wsgiref.simple_server import WSGIServer

    from ledger.shard import ShardCounts

__all__ = ["Metrics", "MetricsServer"]

#: Loading reads a snapshot and what came after it: milliseconds to minutes.
_LOAD_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Metrics:
    """One worker's counters, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._decisions = Counter(
            "gpuledger_decisions",
            "Inputs decided, by the outcome's code; those without a record too",
            ["code"],
            registry=self.registry,
        )
        self._dead_letters = Counter(
            "gpuledger_dead_letters",
            "Malformed inputs put aside",
            registry=self.registry,
        )
        self._again = Counter(
            "gpuledger_answered_again",
            "Inputs that came once more and were answered, not decided",
            registry=self.registry,
        )
        self._lost = Counter(
            "gpuledger_partition_lost",
            "Times a held partition was dropped, by cause (fenced, unavailable)",
            ["cause"],
            registry=self.registry,
        )
        self._void = Gauge(
            "gpuledger_void_records",
            "Records of the partition's ledger without effect, since its begin",
            ["partition"],
            registry=self.registry,
        )
        self._lag = Gauge(
            "gpuledger_lag_records",
            "Inputs that lie in the log and were not looked at yet",
            ["topic", "partition"],
            registry=self.registry,
        )
        self._load = Histogram(
            "gpuledger_load_seconds",
            "Time from the claim to the folded state",
            buckets=_LOAD_BUCKETS,
            registry=self.registry,
        )

    def worked(self, counts: ShardCounts) -> None:
        """Add what a shard has done and committed."""
        for code, number in counts.codes.items():
            self._decisions.labels(code).inc(number)
        self._dead_letters.inc(counts.dead_letters)
        self._again.inc(counts.answered_again)

    def loaded(self, partition: int, seconds: float, void: int) -> None:
        """Note a load: how long it took and how many void records there are."""
        self._load.observe(seconds)
        self._void.labels(partition).set(void)

    def lost(self, cause: str) -> None:
        """Note that a partition was dropped because of ``fenced`` or ``unavailable``."""
        self._lost.labels(cause).inc()

    def lag(self, topic: str, partition: int, records: int) -> None:
        """Set how many inputs wait in one partition of an input topic (without prefix)."""
        self._lag.labels(topic, partition).set(records)

    def forget(self, partition: int) -> None:
        """Stop telling the lag of a partition that this worker no longer holds."""
        for topic in ("requests", "observations"):
            self._lag.remove(topic, str(partition))
        self._void.remove(str(partition))


class MetricsServer:
    """Serve metrics at ``127.0.0.1:port`` while in the block; ``port`` None serves nothing."""

    def __init__(self, metrics: Metrics, port: int | None) -> None:
        self._metrics = metrics
        self._port = port
        self._server: tuple[WSGIServer, Thread] | None = None

    def __enter__(self) -> Self:
        """Begin to serve; raise `Refused` when the port cannot be had."""
        if self._port is not None:
            try:
                # Loopback only: whoever is to see it from outside puts a proxy in front.
                self._server = start_http_server(
                    self._port, addr="127.0.0.1", registry=self._metrics.registry
                )
            except OSError as error:
                raise Refused(f"metrics_port {self._port} cannot be used: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop serving."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
