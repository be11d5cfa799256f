"""Apache Kafka's `kafka-features` against a broker of Suwi."""

import re

import pytest

from compat.kafka import ToolFailed
from compat.test_tools import kafka
from tests.broker_process import BrokerProcess

FEATURES = "org.apache.kafka.tools.FeatureCommand"


def levels(suwi: BrokerProcess) -> dict[str, tuple[str, str, str]]:
    line = (
        r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+"
        r"FinalizedVersionLevel: (\S+)\s+Epoch: \d+"
    )
    described = kafka(suwi, FEATURES, "describe")
    return {name: (low, high, now) for name, low, high, now in re.findall(line, described)}


def test_kafka_features_describes_downgrades_and_upgrades(suwi: BrokerProcess) -> None:
    assert levels(suwi) == {
        "group.version": ("0", "1", "1"),
        "transaction.version": ("0", "2", "2"),
        "suwi.acl.version": ("0", "1", "0"),
    }
    feature = ("--feature", "transaction.version=1")
    assert "can be downgraded to 1" in kafka(suwi, FEATURES, "downgrade", *feature, "--dry-run")
    assert levels(suwi)["transaction.version"] == ("0", "2", "2")
    kafka(suwi, FEATURES, "downgrade", *feature)
    assert levels(suwi)["transaction.version"] == ("0", "2", "1")
    with pytest.raises(ToolFailed, match="supports the levels 0 to 2"):
        kafka(suwi, FEATURES, "upgrade", "--feature", "transaction.version=3")
    kafka(suwi, FEATURES, "upgrade", "--feature", "transaction.version=2")
    assert levels(suwi)["transaction.version"] == ("0", "2", "2")
