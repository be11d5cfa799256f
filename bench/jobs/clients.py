"""librdkafka's producer and consumer as an application uses them."""

import itertools
from collections.abc import Callable

from bench.clients import Metrics, run_client
from bench.measure import Figure, take_turns
from bench.plan import Plan
from bench.servers import MOCK, SUWI, Server

# acks=all is librdkafka's default.
SETTINGS: dict[str, dict[str, object]] = {"acks=all": {}, "acks=1": {"acks": 1}}
# By default librdkafka stops fetching for a second whenever 100,000 records wait to be consumed;
# with small records one would measure that second.
CONSUMER_SETTINGS: dict[str, object] = {"queued.min.messages": 1_000_000}
_topic_numbers = itertools.count()


def produce_job(record_bytes: int, settings: str) -> str:
    return f"librdkafka produce, {record_bytes} B records, {settings}"


def consume_job(record_bytes: int) -> str:
    return f"librdkafka consume, {record_bytes} B records"


def measure(plan: Plan, suwi: Server, mock: Server) -> list[Figure]:
    figures = []
    for record_bytes, records in plan.records.items():
        for name, settings in SETTINGS.items():
            job = produce_job(record_bytes, name)
            runs = {
                SUWI: _producer(suwi, record_bytes, records, settings),
                MOCK: _producer(mock, record_bytes, records, settings),
            }
            figures += take_turns(job, runs, plan.repetitions)
        figures += _consume(plan, suwi, record_bytes, records)
    return figures


def _produce(
    server: Server, topic: str, record_bytes: int, records: int, settings: dict[str, object]
) -> Metrics:
    return run_client(
        "librdkafka",
        {
            **server.target,
            "work": "produce",
            "topic": topic,
            "record_bytes": record_bytes,
            "records": records,
            "settings": settings,
        },
    )


def _producer(
    server: Server, record_bytes: int, records: int, settings: dict[str, object]
) -> Callable[[], Metrics]:
    def run() -> Metrics:
        topic = f"client-{next(_topic_numbers)}"
        server.make_topic(topic)
        metrics = _produce(server, topic, record_bytes, records, settings)
        server.drop_topic(topic)
        return metrics

    return run


def _consume(plan: Plan, suwi: Server, record_bytes: int, records: int) -> list[Figure]:
    """Without the mock cluster, which keeps no more than 5 MiB of a partition."""
    topic = f"client-{next(_topic_numbers)}"
    suwi.make_topic(topic)
    _produce(suwi, topic, record_bytes, records, {})
    options = {
        **suwi.target,
        "work": "consume",
        "topic": topic,
        "record_bytes": record_bytes,
        "records": records,
        "settings": CONSUMER_SETTINGS,
    }
    runs = {SUWI: lambda: run_client("librdkafka", options)}
    figures = take_turns(consume_job(record_bytes), runs, plan.repetitions)
    suwi.drop_topic(topic)
    return figures
