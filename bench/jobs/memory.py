"""Resident memory: idle, with thousands of silent connections, and after gigabytes of traffic."""

import sys
import time

from bench.clients import run_client
from bench.jobs.raw import produce_once
from bench.measure import Figure
from bench.plan import KIB, MIB, Plan
from bench.processes import cpu_s, rss_mb
from bench.servers import SUWI, Server, idle_connections, suwi

IDLE_JOB = "memory of an idle broker"
CONNECTIONS_JOB = "idle connections"
TRAFFIC_JOB = "memory after traffic"
_IDLE_S = 3.0
_PRODUCE_REQUESTS = 6_000
_TRAFFIC_BATCH_BYTES = 16 * KIB
_SEGMENT_BYTES = 64 * MIB
_RETENTION_BYTES = 512 * MIB


def measure(plan: Plan) -> list[Figure]:
    with suwi() as server:
        figures = [_idle(server), _connections(plan, server)]
    if plan.traffic_gb:
        figures.append(_traffic(plan))
    return figures


def _idle(server: Server) -> Figure:
    figure = Figure(IDLE_JOB, SUWI)
    before_s = cpu_s(server.pid)
    time.sleep(_IDLE_S)
    figure.add(
        {
            "rss_mb": rss_mb(server.pid),
            "cpu_percent": (cpu_s(server.pid) - before_s) / _IDLE_S * 100,
        }
    )
    return figure


def _connections(plan: Plan, server: Server) -> Figure:
    """Memory for each connection, and what a produce costs beside them."""
    alone, beside, kb_each = [], [], []
    _produce_cost_us(server)  # warm-up
    for _ in range(plan.repetitions):
        alone.append(_produce_cost_us(server))
        before_mb = rss_mb(server.pid)
        with idle_connections(server, plan.connections):
            kb_each.append((rss_mb(server.pid) - before_mb) * 1000 / plan.connections)
            beside.append(_produce_cost_us(server))
        time.sleep(0.5)  # the broker takes note of the connections that ended
    figure = Figure(CONNECTIONS_JOB, SUWI)
    figure.add(
        {
            "connections": plan.connections,
            # Memory that closed connections leave is used again: the first round is the honest one.
            "kb_each": kb_each[0],
            # Other work on the machine can only add to a cost: the least of each is compared.
            "produce_cpu_ratio": min(beside) / min(alone),
        }
    )
    return figure


def _produce_cost_us(server: Server) -> float:
    metrics = produce_once(server, _TRAFFIC_BATCH_BYTES, "all", _PRODUCE_REQUESTS)
    cost_us: float = metrics["server_cpu_us_per_request"]
    return cost_us


def _traffic(plan: Plan) -> Figure:
    """Produce and fetch gigabytes through one topic whose retention keeps the disk from filling."""
    figure = Figure(TRAFFIC_JOB, SUWI)
    with suwi("log.retention.check.interval.ms=1000") as server:
        server.make_topic(
            "traffic",
            segment_bytes=str(_SEGMENT_BYTES),
            retention_bytes=str(_RETENTION_BYTES),
        )
        per_gb = 10**9 // _TRAFFIC_BATCH_BYTES
        for gb in range(1, plan.traffic_gb + 1):
            run_client(
                "replay",
                {
                    **server.target,
                    "topic": "traffic",
                    "batch_bytes": _TRAFFIC_BATCH_BYTES,
                    "acks": -1,
                    "requests": per_gb,
                    "checks": True,
                },
            )
            figure.add({"gb": gb, "rss_mb": rss_mb(server.pid)})
            print(f"{gb} GB: {rss_mb(server.pid):.1f} MB resident", file=sys.stderr)
    return figure
