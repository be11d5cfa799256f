"""Prometheus metrics of a running pipeline, served over HTTP.

Imported only where a port is given: the library alone costs a tenth of a second.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from suwi.spark.pipeline.progress import Watch
from suwi.spark.pipeline.running import Runner

_PREFIX = "suwi_pipeline_"
_LATE = "Rows dropped because the watermark had passed them."
_AGE = "Since when no batch was done, nor found to be empty."
_OF_QUERIES: tuple[tuple[Any, str, str, Callable[[Watch], float | None]], ...] = (
    (CounterMetricFamily, "rows", "Records read.", lambda watch: watch.rows),
    (CounterMetricFamily, "late_rows", _LATE, lambda watch: watch.late_rows),
    (CounterMetricFamily, "batches", "Batches done.", lambda watch: watch.batches),
    (GaugeMetricFamily, "batch_seconds", "Of the last batch.", lambda watch: watch.batch_ms / 1000),
    (GaugeMetricFamily, "last_batch_age_seconds", _AGE, lambda watch: watch.age_s),
)


class PipelineCollector(Collector):
    """Reads what a run knows at the moment of a scrape."""

    def __init__(self, runs: Sequence[Runner]) -> None:
        """More may be added to `runs` later."""
        self._runs = runs

    def collect(self) -> Iterator[Metric]:
        restarts = CounterMetricFamily(
            f"{_PREFIX}restarts", "Starts after a failure.", labels=["query"]
        )
        for run in self._runs:
            restarts.add_metric([run.watches[0].name], run.restarts)
        yield restarts
        watches = [watch for run in self._runs for watch in run.watches]
        for kind, name, doc, value_of in _OF_QUERIES:
            family = kind(f"{_PREFIX}{name}", doc, labels=["query"])
            for watch in watches:
                value = value_of(watch)
                if value is not None:
                    family.add_metric([watch.name], value)
            yield family
        lag = GaugeMetricFamily(
            f"{_PREFIX}lag", "Records left to read.", labels=["query", "partition"]
        )
        for watch in watches:
            for partition, behind in (watch.lag or {}).items():
                lag.add_metric([watch.name, partition], behind)
        yield lag
        broken = CounterMetricFamily(
            f"{_PREFIX}rule_broken_rows", "Rows that broke a rule.", labels=["query", "rule"]
        )
        for watch in watches:
            for rule, rows in watch.broken.items():
                broken.add_metric([watch.name, rule], rows)
        yield broken


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
