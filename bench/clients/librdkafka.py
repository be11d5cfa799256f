"""librdkafka by way of confluent-kafka, with its default settings unless a job says otherwise."""

import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.clients import Metrics, Options, client_main
from bench.measure import warm_page_cache
from bench.processes import Stopwatch

_CHUNK = 1_000
_IDLE_S_MAX = 30


def produce(options: Options) -> Metrics:
    """Send `records` values of `record_bytes` bytes, one call each, to partitions in turn."""
    topic, total = options["topic"], options["records"]
    value = b"x" * options["record_bytes"]
    producer = Producer({"bootstrap.servers": options["address"], **options["settings"]})
    producer.produce(topic, value, partition=0)  # connects and learns where to send
    assert producer.flush(_IDLE_S_MAX) == 0
    send, poll = producer.produce, producer.poll
    warm_page_cache(total * len(value) * 5 // 4)
    watch = Stopwatch(options["server_pids"])
    for number in range(total // _CHUNK):
        partition = number % options.get("partitions", 1)
        for _ in range(_CHUNK):
            try:
                send(topic, value, partition=partition)
            except BufferError:
                _wait_for_room(producer)
                send(topic, value, partition=partition)
        poll(0)
    assert producer.flush(_IDLE_S_MAX) == 0, "some records were not acknowledged"
    return _rates(watch, total // _CHUNK * _CHUNK, options["record_bytes"])


def _wait_for_room(producer: Producer) -> None:
    while len(producer) > 90_000:  # of 100,000, the default
        producer.poll(0.01)


def consume(options: Options) -> Metrics:
    """Read `records` records of partition 0 from its start, in lists of up to 10,000."""
    total = options["records"]
    consumer = Consumer(
        {
            "bootstrap.servers": options["address"],
            "group.id": "bench",
            "enable.auto.commit": False,
            **options["settings"],
        }
    )
    consumer.assign([TopicPartition(options["topic"], 0, 0)])
    first = consumer.consume(1, timeout=_IDLE_S_MAX)
    assert first, "nothing to consume"
    got = 0
    watch = Stopwatch(options["server_pids"])
    while got < total - 1:
        messages = consumer.consume(10_000, timeout=_IDLE_S_MAX)
        if not messages:
            raise RuntimeError(f"only {got} of {total} records arrived")
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
        got += len(messages)
    metrics = _rates(watch, got, options["record_bytes"])
    consumer.close()
    return metrics


def _rates(watch: Stopwatch, records: int, record_bytes: int) -> Metrics:
    metrics = watch.stop()
    wall_s = metrics["wall_s"]
    return {
        "records_per_s": records / wall_s,
        "mb_per_s": records * record_bytes / wall_s / 1e6,
        "server_cpu_s_per_million": metrics["server_cpu_s"] / records * 1e6,
        "server_busy": metrics["server_cpu_s"] / wall_s,
        **metrics,
    }


def latency(options: Options) -> Metrics:
    """From `produce` to the arrival at a waiting consumer, one record at a time."""
    address, topic = options["address"], options["topic"]
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, **options["settings"]})
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    )
    producer.produce(topic, b"first", partition=0)
    assert producer.flush(_IDLE_S_MAX) == 0
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(_IDLE_S_MAX) is not None
    value = b"x" * options["record_bytes"]
    took_ms = []
    for number in range(options["warm_up"] + options["records"]):
        time.sleep(options["pause_s"])  # by then the consumer's next fetch is waiting
        start = time.perf_counter()
        producer.produce(topic, value, partition=0)
        message = consumer.poll(_IDLE_S_MAX)
        took = time.perf_counter() - start
        assert message is not None
        assert message.error() is None
        if number >= options["warm_up"]:
            took_ms.append(took * 1000)
    assert producer.flush(_IDLE_S_MAX) == 0
    consumer.close()
    return {"took_ms": took_ms}


WORKS = {"produce": produce, "consume": consume, "latency": latency}

if __name__ == "__main__":
    client_main(lambda options: WORKS[options["work"]](options))
