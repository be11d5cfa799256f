"""Kafka Streams on Suwi: the word count of its examples, without exactly-once."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.kafka import JavaProcess
from compat.test_groups import CONSUMER_GROUPS
from compat.test_tools import CONSUME, PRODUCE, TOPICS, create, kafka
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
def word_count(suwi: BrokerProcess, directory: Path) -> Iterator[JavaProcess]:
    properties = directory / "streams.properties"
    lines = {
        "bootstrap.servers": suwi.address,
        "state.dir": str(directory / "state"),
        "commit.interval.ms": "200",
        "num.stream.threads": "2",
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
    with word_count(suwi, tmp_path) as running:
        until_counted(suwi, COUNTS, running)
    write(suwi, ["kafka again"])
    with word_count(suwi, tmp_path) as running:
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
