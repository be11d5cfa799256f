"""Apache Kafka's `TransactionalMessageCopier`, of its system tests: consume, produce and commit."""

from pathlib import Path

import pytest
from confluent_kafka import Producer

from compat.directories import committed, create, read, wait_until
from compat.kafka import JavaProcess, run_java
from tests.broker_process import BrokerProcess

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
INPUT, OUTPUT, GROUP = "input", "output", "copiers"
RECORDS = 12_000
KILLS = 4


def fill(address: str) -> list[bytes]:
    values = [b"%d" % number for number in range(RECORDS)]
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for value in values:
        producer.produce(INPUT, value, partition=0)
    assert producer.flush(60) == 0
    return values


@pytest.mark.parametrize("assigned", [True, False], ids=["assigned", "in a group"])
def test_the_output_is_the_input_once_while_copier_and_broker_are_killed(
    tmp_path: Path, assigned: bool
) -> None:
    """It aborts one transaction in three, and each has several batches in flight."""
    with BrokerProcess(tmp_path / "data") as broker:
        for topic in (INPUT, OUTPUT):
            create(broker.address, topic)
        expected = fill(broker.address)
        arguments = [
            *("--broker-list", broker.address, "--input-topic", INPUT, "--input-partition", "0"),
            *("--output-topic", OUTPUT, "--consumer-group", GROUP, "--transactional-id", "copier"),
            *("--transaction-size", "20", "--enable-random-aborts", "--use-group-metadata"),
            *([] if assigned else ["--group-mode"]),
        ]
        for number in range(KILLS):
            before = max(committed(broker.address, GROUP, INPUT), 0)
            with JavaProcess(tmp_path / "copier.log", COPIER, *arguments) as copier:

                def has_copied(before: int = before) -> bool:
                    return committed(broker.address, GROUP, INPUT) >= before + 200

                wait_until(has_copied, "the copier to copy")
                if number % 2:
                    broker.kill()
                    broker.start()
                copier.kill()
        run_java(COPIER, *arguments, time_s=300)
        assert committed(broker.address, GROUP, INPUT) == RECORDS
        assert [record.value for record in read(broker.address, OUTPUT)] == expected
        assert len(read(broker.address, OUTPUT, "read_uncommitted")) > RECORDS
        broker.stop()
