"""Prometheus metrics of a broker: collected at each scrape, served over HTTP.

Metrics per partition, and sums over partitions, are gathered in slices (`PartitionFigures`) and
formatted without the library, so that a scrape of thousands of partitions does not delay requests.
Imported only if `--metrics-port` is given: importing the library takes a tenth of a second.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from suwi import __version__
from suwi.broker.group_metrics import GroupFigures, labelled
from suwi.env.tasks import RESTART
from suwi.handlers.slices import SLICE_PARTITIONS
from suwi.net.stats import BUCKETS_S, NetStats
from suwi.replica.partition import Partition
from suwi.wire.versions import APIS

if TYPE_CHECKING:
    from suwi.broker.broker import Broker

log = logging.getLogger(__name__)

_LAG_PERIOD_S = 0.5
_REQUEST_BYTES_MAX = 64 * 1024
_REQUEST_S_MAX = 10.0
_STATES_PER_SLICE = 5000


class LoopLag:
    """How late the event loop runs timers: a large lag means that something blocks the loop."""

    def __init__(self) -> None:
        self.last_s = 0.0
        self.max_s = 0.0

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self.last_s = max(0.0, loop.time() - due_s)
            self.max_s = max(self.max_s, self.last_s)


class PartitionFigures:
    """The partition metrics of one scrape; each partition is read without awaiting in between."""

    _SERIES = (
        ("suwi_log_end_offset", "Where the next record goes."),
        ("suwi_high_watermark", "Records below it are committed."),
        ("suwi_last_stable_offset", "Below it no transaction is open; read_committed ends here."),
        ("suwi_log_start_offset", "The first record that can be read."),
        ("suwi_log_size_bytes", "Bytes in segments."),
    )

    def __init__(self) -> None:
        self.open_transactions = 0
        self.under_replicated = 0
        self.under_min_isr = 0
        self.leaderless = 0
        self.offline_replicas = 0
        self._lines: tuple[list[str], ...] = tuple([] for _ in self._SERIES)
        self._written: tuple[list[bytes], ...] = tuple([] for _ in self._SERIES)

    def gather(self, broker: "Broker") -> Iterator[None]:
        """Yields after each slice, so that the event loop can run other tasks."""
        count = 0
        for partition in broker.replicas:
            self._count(partition)
            self.offline_replicas += partition.replica_log.offline_because is not None
            self._add(partition)
            count += 1
            if count % SLICE_PARTITIONS == 0:
                self._write()
                yield
        self._write()
        image = broker.replicas.image
        for topic in image.topics.values():
            for first in range(0, len(topic.partitions), _STATES_PER_SLICE):
                states = topic.partitions[first : first + _STATES_PER_SLICE]
                self.leaderless += sum(
                    state.leader not in image.unfenced_brokers for state in states
                )
                count += len(states)
                if count >= _STATES_PER_SLICE:
                    count = 0
                    yield

    def _count(self, partition: Partition) -> None:
        """Count partitions led by this broker; summed over all brokers this covers the cluster."""
        leader_state = partition.leader_state
        if leader_state is not None:
            in_sync, replicas = len(leader_state.members), leader_state.replication_factor
            self.under_replicated += in_sync < replicas
            self.under_min_isr += in_sync < min(partition.config.min_insync_replicas, replicas)
            if partition.is_open:
                self.open_transactions += partition.log_as_it_is.producers.open_txn_count

    def _add(self, partition: Partition) -> None:
        if not partition.is_open:
            return  # A scrape must not open the files of an unused log.
        log = partition.log_as_it_is
        topic, index = partition.partition
        at = f'{{topic="{topic}",partition="{index}"}}'  # Topic names need no escaping.
        watermark = partition.watermark_as_it_is
        last_stable = log.producers.last_stable_offset(log.start_offset, watermark)
        end, high, stable, start, size = self._lines
        end.append(f"suwi_log_end_offset{at} {log.end_offset}\n")
        high.append(f"suwi_high_watermark{at} {watermark}\n")
        stable.append(f"suwi_last_stable_offset{at} {last_stable}\n")
        start.append(f"suwi_log_start_offset{at} {log.start_offset}\n")
        size.append(f"suwi_log_size_bytes{at} {log.size_bytes}\n")

    def _write(self) -> None:
        for lines, written in zip(self._lines, self._written, strict=True):
            written.append("".join(lines).encode())
            lines.clear()

    def text(self) -> bytes:
        """The metrics of each partition, in Prometheus' text format."""
        parts = []
        for (name, doc), written in zip(self._SERIES, self._written, strict=True):
            parts.append(f"# HELP {name} {doc}\n# TYPE {name} gauge\n".encode())
            parts += written
        return b"".join(parts)


class BrokerCollector(Collector):
    """Reads the broker's state during a scrape, on its event loop."""

    def __init__(self, broker: "Broker", stats: NetStats, lag: LoopLag) -> None:
        self._broker = broker
        self._stats = stats
        self._lag = lag
        self.figures = PartitionFigures()
        self.groups = GroupFigures(broker)

    def collect(self) -> Iterator[Metric]:
        yield from self._build()
        yield self._requests()
        yield from self._network()
        yield from self._logs()
        yield from self._transactions()
        yield from self._replication()
        yield from self._cluster()
        yield from self.groups.collect()

    def _build(self) -> Iterator[Metric]:
        broker = self._broker
        about = [([__version__, str(broker.node_id)], 1)]
        yield labelled(Gauge, "suwi_info", "The broker itself.", "version node", about)
        yield Gauge("suwi_event_loop_lag_seconds", "How late the loop was last.", self._lag.last_s)
        yield Gauge("suwi_event_loop_lag_max_seconds", "How late it was at most.", self._lag.max_s)
        failures = [([task], count) for task, count in sorted(broker.tasks.failures.items())]
        doc = "Unexpected errors in background tasks."
        yield labelled(Counter, "suwi_task_failures", doc, "task", failures)
        problems = [([kind], count) for kind, count in broker.problems.counts().items()]
        doc = "What is wrong with the broker now, by kind; `suwi doctor` says what to do."
        yield labelled(Gauge, "suwi_problems", doc, "kind", problems)

    def _requests(self) -> Metric:
        family = HistogramMetricFamily(
            "suwi_request_duration_seconds",
            "From a request's arrival until its reply is ready.",
            labels=["api"],
        )
        for api_key, stats in sorted(self._stats.by_api.items()):
            cumulative, buckets = 0, []
            for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), stats.buckets, strict=True):
                cumulative += count
                buckets.append((bound, cumulative))
            name = APIS[api_key].name if api_key in APIS else str(api_key)
            family.add_metric([name], buckets, stats.total_s)
        return family

    def _network(self) -> Iterator[Metric]:
        stats, listeners = self._stats, self._broker.listeners
        yield Counter("suwi_received_bytes", "Bytes of requests.", stats.received_bytes)
        yield Counter("suwi_sent_bytes", "Bytes of replies.", stats.sent_bytes)
        open_ = [([each.name], len(each.connections)) for each in listeners]
        yield labelled(Gauge, "suwi_connections", "Open connections.", "listener", open_)
        failed = [
            ([each.name, mechanism], count)
            for each in listeners
            for mechanism, count in each.failed_authentications.by_mechanism.items()
        ]
        doc = "Failed authentications; TLS: in the handshake, PEER: as another broker."
        yield labelled(Counter, "suwi_failed_authentications", doc, "listener mechanism", failed)

    def _replication(self) -> Iterator[Metric]:
        figures, stats = self.figures, self._broker.replicas.stats
        doc = "Partitions led here with replicas that are not in sync."
        yield Gauge("suwi_under_replicated_partitions", doc, figures.under_replicated)
        doc = "Partitions led here with fewer in-sync replicas than min.insync.replicas."
        yield Gauge("suwi_under_min_isr_partitions", doc, figures.under_min_isr)
        yield Counter("suwi_isr_shrinks", "How often a replica left the ISR.", stats.isr_shrinks)
        yield Counter("suwi_isr_expands", "How often a replica joined the ISR.", stats.isr_expands)

    def _cluster(self) -> Iterator[Metric]:
        election, image = self._broker.controller_election, self._broker.replicas.image
        doc = "1 while this broker is the controller."
        yield Gauge("suwi_active_controller", doc, int(election.is_active_controller))
        doc = (
            "Leaders that this broker elected as the controller; suspect: all replicas had an "
            "unclean shutdown."
        )
        elections = [
            ([kind], getattr(election.elections, kind)) for kind in ("clean", "suspect", "unclean")
        ]
        yield labelled(Counter, "suwi_leader_elections", doc, "kind", elections)
        doc = "Unfenced brokers in this broker's metadata image."
        yield Gauge("suwi_live_brokers", doc, len(image.unfenced_brokers))
        doc = "Partitions of the cluster without a leader."
        yield Gauge("suwi_offline_partitions", doc, self.figures.leaderless)

    def _logs(self) -> Iterator[Metric]:
        replicas, directories = self._broker.replicas, self._broker.directories
        doc = "Replicas on this broker that are offline after an unexpected error."
        yield Gauge("suwi_failed_partitions", doc, len(replicas.failed))
        yield Gauge("suwi_partitions", "Partitions led here.", len(replicas.led()))
        yield Gauge("suwi_replicas", "Replicas here, leading or not.", len(replicas))
        doc = "Replicas on this broker whose log cannot be opened."
        yield Gauge("suwi_offline_replicas", doc, self.figures.offline_replicas)
        offline = [each for each in directories if each.state.offline_because is not None]
        yield Gauge("suwi_offline_log_directories", "Offline log directories.", len(offline))
        full = [([each.path], int(each.state.is_full)) for each in directories]
        doc = "1 from a write that failed on a full disk until the next successful write."
        yield labelled(Gauge, "suwi_log_directory_full", doc, "directory", full)
        errors = [([each.path], each.state.full_errors) for each in directories]
        doc = "Writes that failed because the disk was full."
        yield labelled(Counter, "suwi_log_directory_full_errors", doc, "directory", errors)
        manager = self._broker.log_manager
        doc = "Partitions that the log cleaner skips because compacting them failed."
        yield Gauge("suwi_uncleanable_partitions", doc, len(manager.log_cleaner.uncleanable))
        scrubbed_bytes = manager.log_scrubber.scrubbed_bytes
        yield Counter("suwi_scrubbed_bytes", "Bytes of closed segments checked.", scrubbed_bytes)
        doc = "Damaged parts of segments that the log scrubber found."
        yield Counter("suwi_damaged_batches", doc, manager.log_scrubber.damages_found)

    def _transactions(self) -> Iterator[Metric]:
        coordinator = self._broker.transactions
        doc = "Open transactions in partitions led here; one counts in each of its partitions."
        yield Gauge("suwi_partition_open_transactions", doc, self.figures.open_transactions)
        doc = "Open transactions that this broker coordinates."
        yield Gauge("suwi_open_transactions", doc, coordinator.open_transactions)
        doc = "For how long the oldest of them has been open."
        open_s = coordinator.oldest_open_ms / 1000
        yield Gauge("suwi_oldest_open_transaction_seconds", doc, open_s)


class MetricsServer:
    """Serves GET /metrics, and GET /health: the event loop of the broker runs."""

    def __init__(self, broker: "Broker", stats: NetStats, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._tasks = broker.tasks
        self._lag = LoopLag()
        self._registry = CollectorRegistry()
        self._broker = broker
        self._collector = BrokerCollector(broker, stats, self._lag)
        self._registry.register(self._collector)
        self._process_registry = CollectorRegistry()
        ProcessCollector(registry=self._process_registry)
        self._server: asyncio.AbstractServer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError."""
        server = await asyncio.start_server(
            self._serve, self.host, self.port, limit=_REQUEST_BYTES_MAX
        )
        self.port = server.sockets[0].getsockname()[1]
        self._server = server
        self._watch = self._tasks.start(self._lag.watch, name="loop lag", on_failure=RESTART)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # The client disconnected, or does not speak HTTP.
        finally:
            writer.close()

    async def _respond(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", b"only GET\n", "text/plain")
        if path == b"/health":
            return _response("200 OK", b"ok\n", "text/plain")
        if path != b"/metrics":
            return _response("404 Not Found", b"try /metrics\n", "text/plain")
        body = await self._scrape()
        return _response("200 OK", body, CONTENT_TYPE_PLAIN_0_0_4)

    async def _scrape(self) -> bytes:
        figures = PartitionFigures()
        for _ in figures.gather(self._broker):
            await asyncio.sleep(0)
        groups = self._collector.groups
        await groups.refresh()
        # In a thread: it counts the open files one by one, and there may be tens of thousands.
        loop = asyncio.get_running_loop()
        process_metrics = await loop.run_in_executor(None, generate_latest, self._process_registry)
        self._collector.figures = figures
        return generate_latest(self._registry) + process_metrics + figures.text() + groups.text


def _response(status: str, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
