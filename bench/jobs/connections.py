"""Thousands of idle connections: the memory of each, and the cost of a produce beside them."""

import itertools
import time
from collections.abc import Iterator

from bench.clients import Metrics
from bench.homes import homes
from bench.jobs import raw
from bench.measure import Figure, take_turns
from bench.plan import KIB, Plan
from bench.processes import rss_mb
from bench.rig import Run
from bench.servers import Server, idle_connections

JOB = "idle connections"
_REQUESTS = 6_000
_BATCH_BYTES = 16 * KIB


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    topics = (f"beside-{number}" for number in itertools.count())
    with homes(brokers) as places:
        servers = {name: place.start() for name, place in places.items()}
        runs = {name: _round(plan, server, topics) for name, server in servers.items()}
        first_kb_each = {name: run()["kb_each"] for name, run in runs.items()}
        figures = take_turns(JOB, runs, plan.connection_rounds, warm_ups=1)
    for figure in figures:
        # Memory of closed connections is used again: the first round is the correct one.
        figure.values["kb_each"] = [first_kb_each[figure.system]]
        # Other work on the machine can only add to a cost: the least values are compared.
        ratio = figure.least("beside_us") / figure.least("alone_us")
        figure.values["produce_cpu_ratio"] = [ratio]
    return figures


def _round(plan: Plan, server: Server, topics: Iterator[str]) -> Run:
    def produce() -> Metrics:
        return raw.produce_once(server, next(topics), _BATCH_BYTES, _REQUESTS)

    def run() -> Metrics:
        alone = produce()
        before_mb = rss_mb(server.pid)
        with idle_connections(server, plan.connections):
            kb_each = (rss_mb(server.pid) - before_mb) * 1000 / plan.connections
            beside = produce()
        time.sleep(0.5)  # the broker notices that the connections have ended
        return {
            "connections": plan.connections,
            "kb_each": kb_each,
            "alone_us": alone["server_cpu_us_per_request"],
            "beside_us": beside["server_cpu_us_per_request"],
            "requests_per_s": beside["requests_per_s"],
            "produce_rate_ratio": beside["requests_per_s"] / alone["requests_per_s"],
        }

    return run
