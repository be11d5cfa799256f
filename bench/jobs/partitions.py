"""Many partitions on one broker, in topics of up to 1,000: produce, start and idling."""

import time

from bench.clients import Metrics, run_client
from bench.homes import Home, homes
from bench.jobs import startup
from bench.jobs.latency import percentiles
from bench.measure import Figure, take_turns
from bench.plan import Plan
from bench.processes import idle_cpu_percent, rss_mb
from bench.rig import Run
from bench.servers import Server

_TOPIC_PARTITIONS_MAX = 1_000
_RECORD_BYTES = 1_000
_SETTLE_S = 6  # by then the high watermarks are in their checkpoint


def job(partitions: int) -> str:
    return f"{partitions:,} partitions"


def measure(plan: Plan, brokers: tuple[str, ...]) -> list[Figure]:
    with homes(brokers) as places:
        servers = {name: place.start() for name, place in places.items()}
        made_s = {name: _make_topics(server, plan.partitions) for name, server in servers.items()}
        runs = {name: _producer(plan, server, plan.partitions) for name, server in servers.items()}
        figures = take_turns(job(plan.partitions), runs, plan.partition_rounds)
        for figure in figures:
            name = figure.system
            figure.add({"create_s": made_s[name], **_rest(servers[name], plan)})
        for figure in figures:
            figure.add(_restart(places[figure.system]))
    return figures


def _topics(count: int) -> dict[str, int]:
    """Names and numbers of partitions."""
    topics = max(1, count // _TOPIC_PARTITIONS_MAX)
    return {f"wide-{number}": count // topics for number in range(topics)}


def _make_topics(server: Server, count: int) -> float:
    start = time.perf_counter()
    for topic, partitions in _topics(count).items():
        server.make_topic(topic, partitions)
    return time.perf_counter() - start


def _producer(plan: Plan, server: Server, count: int) -> Run:
    topics = _topics(count)
    options = {
        **server.target,
        "topics": list(topics),
        "partitions_each": next(iter(topics.values())),
        "record_bytes": _RECORD_BYTES,
        "records": plan.partition_produces,
    }
    touched: list[bool] = []

    def run() -> Metrics:
        metrics = run_client("scatter", {**options, "touch_all": not touched})
        touched.append(True)
        took_ms = metrics.pop("took_ms")
        return metrics | percentiles(took_ms)

    return run


def _rest(server: Server, plan: Plan) -> Metrics:
    time.sleep(_SETTLE_S)
    return {
        "cpu_percent": idle_cpu_percent(server.pid, plan.idle_s),
        "rss_mb": rss_mb(server.pid),
    }


def _restart(place: Home) -> Metrics:
    """After a clean stop."""
    start = time.perf_counter()
    place.stop()
    stop_s = time.perf_counter() - start
    _, metrics = startup.start_and_produce(place, "wide-0")
    return {"stop_s": stop_s, **metrics}
