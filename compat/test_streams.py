"""Kafka Streams on Suwi: the word count of its examples, at least once and exactly once."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer

from compat.directories import read
from compat.kafka import JavaProcess
from compat.test_groups import CONSUMER_GROUPS
from compat.test_tools import CONSUME, PRODUCE, TOPICS, create, kafka
from suwi.testing import Cluster
from tests.broker_process import BrokerProcess

WORD_COUNT = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
RESET = "org.apache.kafka.tools.StreamsResetter"
INPUT, OUTPUT, APPLICATION = (
    "streams-plaintext-input",
    "streams-wordcount-output",
    "streams-wordcount",
)
LINES = ["all streams lead to kafka", "hello kafka streams", "join kafka summit"]
COUNTS = {
    **dict.fromkeys("all lead to hello join summit".split(), 1),
    "streams": 2,
    "kafka": 3,
}
_COUNTED_S = 120


@contextmanager
def word_count(address: str, directory: Path, **settings: str) -> Iterator[JavaProcess]:
    properties = directory / "streams.properties"
    lines = {
        "bootstrap.servers": address,
        "state.dir": str(directory / "state"),
        "commit.interval.ms": "200",
        "num.stream.threads": "2",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    with JavaProcess(directory / "streams.log", WORD_COUNT, str(properties)) as running:
        yield running


def write(suwi: BrokerProcess, lines: list[str]) -> None:
    kafka(suwi, PRODUCE, "--topic", INPUT, stdin="".join(f"{line}\n" for line in lines))


def counts(suwi: BrokerProcess) -> dict[str, int]:
    """The last count of each word."""
    printed = kafka(
        suwi,
        CONSUME,
        *("--topic", OUTPUT, "--partition", "0", "--offset", "earliest", "--timeout-ms", "3000"),
        *("--formatter-property", "print.key=true"),
        *("--formatter-property", "key.deserializer=" + _DESERIALIZER.format("String")),
        *("--formatter-property", "value.deserializer=" + _DESERIALIZER.format("Long")),
    )
    return {word: int(count) for word, count in re.findall(r"^(\w+)\t(\d+)$", printed, re.M)}


_DESERIALIZER = "org.apache.kafka.common.serialization.{}Deserializer"


def until_counted(suwi: BrokerProcess, expected: dict[str, int], running: JavaProcess) -> None:
    limit = time.monotonic() + _COUNTED_S
    while (found := counts(suwi)) != expected:
        running.check()
        assert time.monotonic() < limit, found


def test_word_count_goes_on_after_a_restart_and_is_reset(
    suwi: BrokerProcess, tmp_path: Path
) -> None:
    create(suwi, INPUT, "--partitions", "2")
    create(suwi, OUTPUT)
    write(suwi, LINES)
    with word_count(suwi.address, tmp_path) as running:
        until_counted(suwi, COUNTS, running)
    write(suwi, ["kafka again"])
    with word_count(suwi.address, tmp_path) as running:
        until_counted(suwi, {**COUNTS, "kafka": 4, "again": 1}, running)
    described = kafka(suwi, CONSUMER_GROUPS, "--describe", "--group", APPLICATION)
    assert re.search(rf"^{APPLICATION}\s+{INPUT}\s+\d+\s+\d+\s+\d+\s+0\s", described, re.M)
    internal = _internal_topics(suwi)
    assert any(topic.endswith("-repartition") for topic in internal)
    assert any(topic.endswith("-changelog") for topic in internal)

    reset = kafka(
        suwi,
        RESET,
        *("--application-id", APPLICATION, "--input-topics", INPUT, "--force"),
    )
    assert "Done" in reset or "Deleting" in reset
    assert not _internal_topics(suwi)
    described = kafka(suwi, CONSUMER_GROUPS, "--describe", "--group", APPLICATION)
    assert re.search(rf"^{APPLICATION}\s+{INPUT}\s+\d+\s+0\s+\d+\s+[1-9]", described, re.M)


def _internal_topics(suwi: BrokerProcess) -> list[str]:
    listed = kafka(suwi, TOPICS, "--list").splitlines()
    return [each for each in listed if each.startswith(APPLICATION + "-") and each != OUTPUT]


# -- exactly once ----------------------------------------------------------------------------------

WORDS = ("all", "streams", "lead", "to", "kafka")
ROUNDS = 4
LINES_PER_ROUND = 100


def send_lines(cluster: Cluster, first: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True}
    )
    for number in range(first, first + LINES_PER_ROUND):
        words = " ".join(WORDS[: number % len(WORDS) + 1])
        producer.produce(INPUT, words, partition=number % 2)
    assert producer.flush(_COUNTED_S) == 0


def emitted(cluster: Cluster) -> dict[str, list[int]]:
    """Every count of each word, in order, as `read_committed` sees it."""
    found: dict[str, list[int]] = {}
    for record in read(cluster.bootstrap_servers, OUTPUT):
        word = (record.key or b"").decode()
        found.setdefault(word, []).append(int.from_bytes(record.value or b""))
    return found


def test_word_count_is_exactly_once_while_brokers_and_the_application_are_killed(
    tmp_path: Path,
) -> None:
    """Each count of a word is emitted once: 1, 2, 3, without a gap and without a repetition."""
    settings = {
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    }
    exactly_once = {
        "processing_guarantee": "exactly_once_v2",
        "replication_factor": "3",
        "session_timeout_ms": "6000",
        "heartbeat_interval_ms": "2000",
    }
    expected: Counter[str] = Counter()
    with Cluster(brokers=3, settings=settings) as cluster:
        cluster.create_topic(INPUT, 2, replication_factor=3)
        cluster.create_topic(OUTPUT, 1, replication_factor=3)
        for number in range(ROUNDS):
            victim = cluster.brokers[number % 3]
            with word_count(cluster.bootstrap_servers, tmp_path, **exactly_once) as running:
                send_lines(cluster, number * LINES_PER_ROUND)
                until_emitted(cluster, sum(expected.values()) + 1, running)
                cluster.kill(victim)
                for line in range(LINES_PER_ROUND):
                    expected.update(WORDS[: line % len(WORDS) + 1])
                if number % 2:
                    # Also the application, perhaps in the middle of a transaction.
                    running.kill()
                else:
                    until_emitted(cluster, sum(expected.values()), running)
            cluster.restart(victim)
            cluster.wait_until_healthy()
        with word_count(cluster.bootstrap_servers, tmp_path, **exactly_once) as running:
            until_emitted(cluster, sum(expected.values()), running)
        assert emitted(cluster) == {word: list(range(1, expected[word] + 1)) for word in WORDS}


def until_emitted(cluster: Cluster, count: int, running: JavaProcess) -> None:
    limit = time.monotonic() + 2 * _COUNTED_S
    while (found := sum(map(len, emitted(cluster).values()))) < count:
        running.check()
        assert time.monotonic() < limit, f"{found} of {count}"
        time.sleep(0.5)
