"""End to end at low load: from the send to the arrival at a waiting consumer.

Without the mock cluster: there an empty fetch waits for its whole time, half a second.
The bound is a loop that only forwards each record: the share of machine and clients.
"""

from collections.abc import Callable

from bench.clients import Metrics, run_client
from bench.clients.java import JavaClient
from bench.measure import Figure, percentile, take_turns
from bench.rig import Rig, Run
from bench.servers import BOUND, Server, bound

RAW_JOB = "end to end latency, raw sockets, acks=all"
CLIENT_JOB = "end to end latency, librdkafka, acks=all"
JAVA_JOB = "end to end latency, Java clients, acks=all"
SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
_RECORD_BYTES = 100
_PAUSE_S = 0.002
_WARM_UP = 200


def measure(rig: Rig) -> list[Figure]:
    def race(job: str, make_run: Callable[[Server], Run]) -> list[Figure]:
        return take_turns(job, rig.for_each_broker(make_run), rig.plan.repetitions)

    def relay() -> Metrics:
        with bound("relay", rig.work_dir / "relay") as server:
            return _ping(rig, server)

    raw = rig.for_each_broker(lambda server: lambda: _ping(rig, server))
    if rig.mock is not None:
        raw[BOUND] = relay
    figures = [
        *take_turns(RAW_JOB, raw, rig.plan.repetitions),
        *race(CLIENT_JOB, lambda server: lambda: _librdkafka(rig, server)),
    ]
    if (java := rig.java) is not None:
        figures += race(JAVA_JOB, lambda server: lambda: _java(rig, java, server))
    return figures


def _options(rig: Rig, server: Server) -> dict[str, object]:
    topic = rig.new_topic()
    if server.is_broker:
        server.make_topic(topic)
    return {
        **server.target,
        "checks": server.is_broker,
        "topic": topic,
        "record_bytes": _RECORD_BYTES,
        "records": rig.plan.latency_records,
        "warm_up": _WARM_UP,
        "pause_s": _PAUSE_S,
    }


def _ping(rig: Rig, server: Server) -> Metrics:
    return percentiles(run_client("ping", {**_options(rig, server), "acks": -1})["took_ms"])


def _librdkafka(rig: Rig, server: Server) -> Metrics:
    options = {**_options(rig, server), "work": "latency", "settings": {}}
    return percentiles(run_client("librdkafka", options)["took_ms"])


def _java(rig: Rig, java: JavaClient, server: Server) -> Metrics:
    """A send that is waited for, then a poll, one after the other."""
    topic = rig.new_topic()
    server.make_topic(topic)
    records = rig.plan.latency_records
    return percentiles(java.latencies_ms(server.address, topic, _WARM_UP, records, _RECORD_BYTES))


def percentiles(took_ms: list[float]) -> Metrics:
    return {name: percentile(took_ms, share) for name, share in SHARES.items()}
