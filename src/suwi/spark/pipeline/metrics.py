"""Prometheus metrics of a running pipeline, served over HTTP.

Imported only where a port is given: the library alone costs a tenth of a second.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from suwi.spark.pipeline.running import Runner

_PREFIX = "suwi_pipeline_"


class PipelineCollector(Collector):
    """Reads what a run knows at the moment of a scrape."""

    def __init__(self, run: Runner) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(f"{_PREFIX}restarts", "Starts after a failure.")
        restarts.add_metric([], self._run.restarts)
        yield restarts
        rows = CounterMetricFamily(f"{_PREFIX}rows", "Records read.", labels=["query"])
        late = CounterMetricFamily(
            f"{_PREFIX}late_rows",
            "Rows dropped because the watermark had passed them.",
            labels=["query"],
        )
        batches = CounterMetricFamily(f"{_PREFIX}batches", "Batches done.", labels=["query"])
        took = GaugeMetricFamily(
            f"{_PREFIX}batch_seconds", "How long the last batch took.", labels=["query"]
        )
        age = GaugeMetricFamily(
            f"{_PREFIX}last_batch_age_seconds",
            "Since when no batch was done, nor found to be empty.",
            labels=["query"],
        )
        lag = GaugeMetricFamily(
            f"{_PREFIX}lag", "Records left to read.", labels=["query", "partition"]
        )
        for watch in self._run.watches:
            rows.add_metric([watch.name], watch.rows)
            late.add_metric([watch.name], watch.late_rows)
            batches.add_metric([watch.name], watch.batches)
            took.add_metric([watch.name], watch.batch_ms / 1000)
            if watch.age_s is not None:
                age.add_metric([watch.name], watch.age_s)
            for partition, behind in (watch.lag or {}).items():
                lag.add_metric([watch.name, partition], behind)
        yield from (rows, late, batches, took, age, lag)


class MetricsServer:
    def __init__(self, collector: PipelineCollector, host: str, port: int) -> None:
        """Raises OSError where the port is taken, or the address is not this machine's."""
        registry = CollectorRegistry()
        registry.register(collector)
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
