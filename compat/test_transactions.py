"""Transactions of Apache Kafka's own producer and tools, in both versions."""

import pytest

from compat.test_features import FEATURES, levels
from compat.test_tools import CONSUME, create, kafka
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
RECORDS = 3000


@pytest.fixture(params=[1, 2])
def version(suwi: BrokerProcess, request: pytest.FixtureRequest) -> int:
    """The cluster's transaction.version."""
    wanted: int = request.param
    current = int(levels(suwi)["transaction.version"][2])
    if wanted != current:
        direction = "upgrade" if wanted > current else "downgrade"
        kafka(suwi, FEATURES, direction, "--feature", f"transaction.version={wanted}")
    return wanted


def test_a_java_producer_commits(suwi: BrokerProcess, topic: str, version: int) -> None:
    create(suwi, topic)
    name = f"java-{version}"
    printed = kafka(
        suwi,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(RECORDS), "--record-size", "100"),
        *("--throughput", "-1", "--transactional-id", name, "--transaction-duration-ms", "50"),
    )
    assert f"{RECORDS} records sent" in printed
    read = kafka(
        suwi,
        CONSUME,
        *("--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--isolation-level", "read_committed", "--timeout-ms", "5000"),
    )
    assert f"Processed a total of {RECORDS} messages" in read
    assert name in kafka(suwi, TRANSACTIONS, "list")
    described = kafka(suwi, TRANSACTIONS, "describe", "--transactional-id", name)
    assert "CompleteCommit" in described
    found, *_ = Suwi(suwi.address).json("explain", topic, 0, 0)
    assert (found["transaction"], found["transactional_id"]) == ("committed", name)
