"""End to end at low load: from the send to the arrival at a consumer that waits.

Without the mock cluster: it lets a fetch that found nothing wait for its whole time, half a second.
"""

import itertools
from collections.abc import Callable

from bench.clients import Metrics, run_client
from bench.measure import Figure, percentile, take_turns
from bench.plan import Plan
from bench.servers import SUWI, Server

CLIENT_JOB = "end to end latency, librdkafka, acks=all"
RAW_JOB = "end to end latency, raw sockets, acks=all"
SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
_RECORD_BYTES = 100
_PAUSE_S = 0.002
_WARM_UP = 100
_topic_numbers = itertools.count()


def measure(plan: Plan, suwi: Server) -> list[Figure]:
    return [
        *take_turns(RAW_JOB, {SUWI: _pings(plan, suwi)}, plan.latency_rounds, warm_ups=0),
        *take_turns(CLIENT_JOB, {SUWI: _clients(plan, suwi)}, plan.latency_rounds, warm_ups=0),
    ]


def _options(plan: Plan, server: Server) -> dict[str, object]:
    topic = f"latency-{next(_topic_numbers)}"
    server.make_topic(topic)
    return {
        **server.target,
        "topic": topic,
        "record_bytes": _RECORD_BYTES,
        "records": plan.latency_records,
        "warm_up": _WARM_UP,
        "pause_s": _PAUSE_S,
    }


def _pings(plan: Plan, server: Server) -> Callable[[], Metrics]:
    def run() -> Metrics:
        took = run_client("ping", {**_options(plan, server), "acks": -1})
        acknowledged = _percentiles(took["acknowledged_ms"])
        return _percentiles(took["took_ms"]) | {
            f"acknowledged_{name}": value for name, value in acknowledged.items()
        }

    return run


def _clients(plan: Plan, server: Server) -> Callable[[], Metrics]:
    def run() -> Metrics:
        options = {**_options(plan, server), "work": "latency", "settings": {}}
        return _percentiles(run_client("librdkafka", options)["took_ms"])

    return run


def _percentiles(took_ms: list[float]) -> Metrics:
    return {name: percentile(took_ms, share) for name, share in SHARES.items()}
