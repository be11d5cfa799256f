"""librdkafka's producer and consumer as an application uses them, from Python."""

from bench.clients import Metrics, run_client
from bench.measure import Figure, take_turns
from bench.rig import Rig, Run
from bench.servers import Server

# By default librdkafka stops fetching for a second whenever 100,000 records or 64 MB wait to be
# consumed: that second would be measured, the more often the faster the broker is.
_CONSUMER_SETTINGS: dict[str, object] = {"fetch.queue.backoff.ms": 1}
_SMALL_BATCHES: dict[str, object] = {"batch.size": 16_384}


def produce_job(record_bytes: int) -> str:
    return f"librdkafka produce, {record_bytes} B records, acks=all"


BATCHES_JOB = "librdkafka produce, 100 B records in 16 KB batches, acks=all"


def consume_job(record_bytes: int) -> str:
    return f"librdkafka consume, {record_bytes} B records"


def measure(rig: Rig) -> list[Figure]:
    figures = []
    for record_bytes, records in rig.plan.records.items():
        job, settings = (
            (produce_job(record_bytes), {}) if record_bytes > 100 else (BATCHES_JOB, _SMALL_BATCHES)
        )
        figures += _race(rig, job, record_bytes, records, settings)
        figures += _consume(rig, record_bytes, records)
    return figures


def _race(
    rig: Rig, job: str, record_bytes: int, records: int, settings: dict[str, object]
) -> list[Figure]:
    def producer(server: Server) -> Run:
        return lambda: _produce_once(rig, server, record_bytes, records, settings)

    runs = rig.for_each_broker(producer)
    if rig.mock is not None:
        runs[rig.mock.name] = producer(rig.mock)
    return take_turns(job, runs, rig.plan.repetitions)


def _produce_once(
    rig: Rig, server: Server, record_bytes: int, records: int, settings: dict[str, object]
) -> Metrics:
    topic = rig.new_topic()
    server.make_topic(topic)
    metrics = _produce(server, topic, record_bytes, records, settings)
    server.drop_topic(topic)
    return metrics


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


def _consume(rig: Rig, record_bytes: int, records: int) -> list[Figure]:
    """Without the mock cluster, which keeps no more than 5 MiB of a partition."""
    topic = rig.new_topic()

    def consumer(server: Server) -> Run:
        options = {
            **server.target,
            "work": "consume",
            "topic": topic,
            "record_bytes": record_bytes,
            "records": records,
            "settings": _CONSUMER_SETTINGS,
        }
        return lambda: run_client("librdkafka", options)

    for server in rig.servers.values():
        server.make_topic(topic)
        _produce(server, topic, record_bytes, records, {})
    with rig.bare_reader(topic) as bare:
        runs = rig.for_each_broker(consumer)
        if bare is not None:
            runs[bare.name] = consumer(bare)
        figures = take_turns(consume_job(record_bytes), runs, rig.plan.repetitions)
    for server in rig.servers.values():
        server.drop_topic(topic)
    return figures
