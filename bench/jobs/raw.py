"""Produce and fetch without a client library: the capacity of a broker for one connection.

Apache Kafka answers a request before it reads the next of the same connection, so the pipelining
of this load does not help it; its other threads are idle.
"""

from bench.clients import Metrics, run_client
from bench.clients.drain import FETCH_BYTES
from bench.measure import Figure, take_turns
from bench.messages import batch_of
from bench.plan import KIB, MIB
from bench.rig import Rig, Run
from bench.servers import BOUND, Server, bound

_ACKS_ALL = -1
_PIECES = 256  # MiB of log that are fetched
_BATCH_BYTES = 16 * KIB


def batch_name(batch_bytes: int) -> str:
    return "1 MB" if batch_bytes > 512 * KIB else f"{batch_bytes // KIB} KB"


def produce_job(batch_bytes: int) -> str:
    return f"raw produce, {batch_name(batch_bytes)} batches, acks=all"


FETCH_JOB = "raw fetch from page cache, 1 MB each"


def measure_produce(rig: Rig) -> list[Figure]:
    figures = []
    for batch_bytes, requests in rig.plan.raw_requests.items():
        figures += _race(rig, batch_bytes, requests)
    return figures


def _race(rig: Rig, batch_bytes: int, requests: int) -> list[Figure]:
    def producer(server: Server) -> Run:
        return lambda: _produce_once(server, rig.new_topic(), batch_bytes, requests)

    def produce_to_bound() -> Metrics:
        with bound("append", rig.work_dir / "bound", batch_bytes=batch_bytes) as server:
            return produce(server, "bound", batch_bytes, requests)

    runs = rig.for_each_broker(producer)
    if rig.mock is not None:
        runs[BOUND] = produce_to_bound
    return take_turns(produce_job(batch_bytes), runs, rig.plan.repetitions)


def _produce_once(server: Server, topic: str, batch_bytes: int, requests: int) -> Metrics:
    """Produce into a new topic, which is deleted afterwards."""
    server.make_topic(topic)
    metrics = produce(server, topic, batch_bytes, requests)
    server.drop_topic(topic)
    return metrics


def produce(server: Server, topic: str, batch_bytes: int, requests: int) -> Metrics:
    return run_client(
        "replay",
        {
            **server.target,
            "topic": topic,
            "batch_bytes": batch_bytes,
            "acks": _ACKS_ALL,
            "requests": requests,
            "checks": server.is_broker,
        },
    )


def measure_fetch(rig: Rig) -> list[Figure]:
    topic = rig.new_topic()

    def fetcher(server: Server) -> Run:
        load(server, topic, _PIECES, _BATCH_BYTES)
        return lambda: fetch(server, topic, _PIECES, _BATCH_BYTES, rig.plan.fetches)

    def fetch_from_bound() -> Metrics:
        with bound("send", rig.work_dir / "bound", topic=topic) as server:
            return fetch(server, topic, 1, MIB, rig.plan.fetches)

    runs = rig.for_each_broker(fetcher)
    if rig.mock is not None:
        runs[BOUND] = fetch_from_bound
    figures = take_turns(FETCH_JOB, runs, rig.plan.repetitions)
    for server in rig.servers.values():
        server.drop_topic(topic)
    return figures


def load(server: Server, topic: str, pieces: int, batch_bytes: int = _BATCH_BYTES) -> None:
    """A topic of this many MiB, to be fetched."""
    server.make_topic(topic)
    # `replay` sends one more at the start.
    produce(server, topic, batch_bytes, pieces * MIB // batch_bytes - 1)


def fetch(server: Server, topic: str, pieces: int, batch_bytes: int, fetches: int) -> Metrics:
    return run_client(
        "drain",
        {
            **server.target,
            "topic": topic,
            "pieces": pieces,
            "piece_records": FETCH_BYTES // batch_bytes * batch_of(batch_bytes)[1],
            "fetches": fetches,
            "checks": server.is_broker,
        },
    )
