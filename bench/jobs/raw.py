"""Produce and fetch without a client library: what the broker itself can do on one core."""

import itertools
from collections.abc import Callable
from pathlib import Path

from bench.clients import Metrics, run_client
from bench.clients.drain import FETCH_BYTES
from bench.measure import Figure, take_turns
from bench.messages import batch_of
from bench.plan import KIB, MIB, Plan
from bench.servers import BOUND, MOCK, SUWI, Server, bound

ACKS = {"all": -1, "1": 1}
_PIECES = 256  # MiB of log that fetches go over
_BATCH_BYTES = 16 * KIB
# The mock cluster keeps no more than 5 MiB of a partition, and answers with one batch at a time.
_PIECES_OF_MOCK = 4
_BATCH_BYTES_OF_MOCK = MIB
_topic_numbers = itertools.count()


def batch_name(batch_bytes: int) -> str:
    return "1 MB" if batch_bytes > 512 * KIB else f"{batch_bytes // KIB} KB"


def produce_job(batch_bytes: int, acks: str) -> str:
    return f"raw produce, {batch_name(batch_bytes)} batches, acks={acks}"


FETCH_JOB = "raw fetch from page cache, 1 MB each"


def measure_produce(plan: Plan, suwi: Server, mock: Server, work_dir: Path) -> list[Figure]:
    figures = []
    for batch_bytes, requests in plan.raw_requests.items():
        for acks in plan.raw_acks:
            runs: dict[str, Callable[[], Metrics]] = {
                SUWI: _producer(suwi, batch_bytes, acks, requests),
                MOCK: _producer(mock, batch_bytes, acks, requests),
                BOUND: _bound_producer(work_dir, batch_bytes, requests),
            }
            figures += take_turns(produce_job(batch_bytes, acks), runs, plan.repetitions)
    return figures


def produce_once(server: Server, batch_bytes: int, acks: str, requests: int) -> Metrics:
    """Produce into a new topic, which goes again afterwards."""
    topic = f"raw-{next(_topic_numbers)}"
    server.make_topic(topic)
    metrics = run_client(
        "replay",
        {
            **server.target,
            "topic": topic,
            "batch_bytes": batch_bytes,
            "acks": ACKS[acks],
            "requests": requests,
            "checks": server.name == SUWI,
        },
    )
    server.drop_topic(topic)
    return metrics


def _producer(server: Server, batch_bytes: int, acks: str, requests: int) -> Callable[[], Metrics]:
    return lambda: produce_once(server, batch_bytes, acks, requests)


def _bound_producer(work_dir: Path, batch_bytes: int, requests: int) -> Callable[[], Metrics]:
    def run() -> Metrics:
        path = work_dir / "bound"
        with bound("append", path, batch_bytes=batch_bytes) as server:
            return run_client(
                "replay",
                {
                    **server.target,
                    "topic": "bound",
                    "batch_bytes": batch_bytes,
                    "acks": -1,
                    "requests": requests,
                    "checks": False,
                },
            )

    return run


def measure_fetch(plan: Plan, suwi: Server, mock: Server, work_dir: Path) -> list[Figure]:
    topic = f"raw-{next(_topic_numbers)}"
    runs: dict[str, Callable[[], Metrics]] = {}
    for server, pieces, batch_bytes in (
        (suwi, _PIECES, _BATCH_BYTES),
        (mock, _PIECES_OF_MOCK, _BATCH_BYTES_OF_MOCK),
    ):
        server.make_topic(topic)
        _load(server, topic, pieces, batch_bytes)
        runs[server.name] = _fetcher(server, topic, pieces, batch_bytes, plan.fetches)

    def fetch_from_bound() -> Metrics:
        with bound("send", work_dir / "bound", topic=topic) as server:
            return _fetcher(server, topic, 1, MIB, plan.fetches)()

    runs[BOUND] = fetch_from_bound
    figures = take_turns(FETCH_JOB, runs, plan.repetitions)
    suwi.drop_topic(topic)
    return figures


def _load(server: Server, topic: str, pieces: int, batch_bytes: int) -> None:
    run_client(
        "replay",
        {
            **server.target,
            "topic": topic,
            "batch_bytes": batch_bytes,
            "acks": -1,
            "requests": pieces * MIB // batch_bytes - 1,  # `replay` sends one more, to begin with
            "checks": server.name == SUWI,
        },
    )


def _fetcher(
    server: Server, topic: str, pieces: int, batch_bytes: int, fetches: int
) -> Callable[[], Metrics]:
    options = {
        **server.target,
        "topic": topic,
        "pieces": pieces,
        "piece_records": FETCH_BYTES // batch_bytes * batch_of(batch_bytes)[1],
        "fetches": fetches,
        "checks": server.name == SUWI,
    }
    return lambda: run_client("drain", options)
