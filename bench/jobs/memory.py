"""Resident memory after gigabytes of traffic, produced and fetched."""

import sys

from bench.homes import home
from bench.jobs import raw
from bench.measure import Figure
from bench.plan import KIB, MIB, Plan
from bench.processes import rss_mb
from bench.servers import Server

TRAFFIC_JOB = "memory after traffic"
_BATCH_BYTES = 16 * KIB
_SEGMENT_BYTES = 64 * MIB
_RETENTION_BYTES = 512 * MIB
_FETCHED_PIECES = 64


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    return [_traffic(plan, name) for name in brokers]


def _traffic(plan: Plan, name: str) -> Figure:
    """Through one topic whose retention limits the disk space, and out of another."""
    figure = Figure(TRAFFIC_JOB, name)
    with home(name, log_retention_check_interval_ms="1000") as place:
        server = place.start()
        server.make_topic(
            "in", segment_bytes=str(_SEGMENT_BYTES), retention_bytes=str(_RETENTION_BYTES)
        )
        raw.load(server, "out", _FETCHED_PIECES)
        for gb in range(1, plan.traffic_gb + 1):
            _one_gb(server)
            figure.add({"gb": gb, "rss_mb": rss_mb(server.pid)})
            print(f"{name}, {gb} GB: {rss_mb(server.pid):.1f} MB resident", file=sys.stderr)
    return figure


def _one_gb(server: Server) -> None:
    raw.produce(server, "in", _BATCH_BYTES, 10**9 // _BATCH_BYTES)
    raw.fetch(server, "out", _FETCHED_PIECES, _BATCH_BYTES, 10**9 // MIB)
