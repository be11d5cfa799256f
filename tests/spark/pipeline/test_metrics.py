"""Metrics of a run, as Prometheus reads them."""

import urllib.request
from types import SimpleNamespace

from suwi.sim.clock import ManualClock
from suwi.spark.pipeline.metrics import MetricsServer, PipelineCollector
from suwi.spark.pipeline.progress import Watch


def test_lag_and_age_of_the_last_batch_are_metrics() -> None:
    clock = ManualClock(0)
    watch = Watch("orders", clock)
    watch.look(
        [
            {
                "timestamp": "2026-01-01T00:00:00.000Z",
                "batchId": 4,
                "numInputRows": 10,
                "durationMs": {"addBatch": 400, "triggerExecution": 500},
                "sources": [{"endOffset": {"orders": {"0": 10}}}],
            }
        ]
    )
    watch.lag = {"orders-0": 7, "orders-1": 0}
    clock.advance(2500)
    run = SimpleNamespace(watches=[watch], restarts=3)
    server = MetricsServer(PipelineCollector([run]), "127.0.0.2", 0)  # type: ignore[arg-type]
    try:
        with urllib.request.urlopen(f"http://127.0.0.2:{server.port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
    finally:
        server.close()
    assert {line for line in lines if not line.startswith("#")} == {
        'suwi_pipeline_restarts_total{query="orders"} 3.0',
        'suwi_pipeline_rows_total{query="orders"} 10.0',
        'suwi_pipeline_late_rows_total{query="orders"} 0.0',
        'suwi_pipeline_batches_total{query="orders"} 1.0',
        'suwi_pipeline_batch_seconds{query="orders"} 0.5',
        'suwi_pipeline_last_batch_age_seconds{query="orders"} 2.5',
        'suwi_pipeline_lag{partition="orders-0",query="orders"} 7.0',
        'suwi_pipeline_lag{partition="orders-1",query="orders"} 0.0',
    }
