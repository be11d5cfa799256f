"""Apache Kafka's Java producer and consumer, with their default settings.

The producer is driven by Apache's own `ProducerPerformance`. Its `ConsumerPerformance` needs a
consumer group; as long as Suwi serves none, a loop with `assign` replaces it.
"""

from pathlib import Path

from bench.clients import Metrics
from bench.clients.java import JavaClient
from bench.measure import Figure, take_turns, warm_page_cache
from bench.processes import Stopwatch
from bench.rig import Rig, Run
from bench.servers import Server

_WARM_UP_SHARE = 5  # a fifth of the records on top, not counted
_CONSUME_TIMES = 3
_PAYLOADS = 10


def produce_job(record_bytes: int) -> str:
    """Java's default for `batch.size` is 16 KB."""
    return f"Java produce, {record_bytes} B records, acks=all"


def consume_job(record_bytes: int) -> str:
    return f"Java consume with assign, {record_bytes} B records"


def measure(rig: Rig) -> list[Figure]:
    if rig.java is None:
        return []
    figures = []
    for record_bytes, records in rig.plan.java_records.items():
        figures += _produce(rig, rig.java, record_bytes, records)
        figures += _consume(rig, rig.java, record_bytes, records)
    return figures


def produce_once(
    server: Server, java: JavaClient, topic: str, payload: Path, record_bytes: int, records: int
) -> Metrics:
    warm_up = records // _WARM_UP_SHARE
    warm_page_cache((records + warm_up) * record_bytes * 5 // 4)
    watch = Stopwatch(server.pids)
    metrics = java.produce(server.address, topic, records, warm_up, payload)
    metrics["mb_per_s"] = metrics["records_per_s"] * record_bytes / 1e6
    return metrics | _server_side(watch, records + warm_up)


def payload_file(directory: Path, record_bytes: int) -> Path:
    """Values for ProducerPerformance to choose from; generating them would cost it more CPU."""
    path = directory / f"payload-{record_bytes}"
    path.write_text("\n".join(str(number) * record_bytes for number in range(_PAYLOADS)))
    return path


def _produce(rig: Rig, java: JavaClient, record_bytes: int, records: int) -> list[Figure]:
    payload = payload_file(rig.work_dir, record_bytes)

    def producer(server: Server) -> Run:
        def run() -> Metrics:
            topic = rig.new_topic()
            server.make_topic(topic)
            metrics = produce_once(server, java, topic, payload, record_bytes, records)
            server.drop_topic(topic)
            return metrics

        return run

    return take_turns(
        produce_job(record_bytes), rig.for_each_broker(producer), rig.plan.repetitions
    )


def _consume(rig: Rig, java: JavaClient, record_bytes: int, records: int) -> list[Figure]:
    topic = rig.new_topic()
    payload = payload_file(rig.work_dir, record_bytes)

    def consumer(server: Server) -> Run:
        def run() -> Metrics:
            watch = Stopwatch(server.pids)
            metrics = java.consume(server.address, topic, records, _CONSUME_TIMES)
            return metrics | _server_side(watch, int(metrics["records"]))

        return run

    for server in rig.servers.values():
        server.make_topic(topic)
        produce_once(server, java, topic, payload, record_bytes, records)
    with rig.bare_reader(topic) as bare:
        runs = rig.for_each_broker(consumer)
        if bare is not None:
            runs[bare.name] = consumer(bare)
        figures = take_turns(consume_job(record_bytes), runs, rig.plan.repetitions)
    for server in rig.servers.values():
        server.drop_topic(topic)
    return figures


def _server_side(watch: Stopwatch, records: int) -> Metrics:
    """The server's CPU while the load ran; the load itself reports its speed."""
    metrics = watch.stop()
    del metrics["client_busy"]  # of this process, which only waited
    return {
        "server_cpu_s_per_million": metrics["server_cpu_s"] / records * 1e6,
        "server_busy": metrics["server_cpu_s"] / metrics["wall_s"],
        **metrics,
    }
