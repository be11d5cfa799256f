"""Java clients of earlier releases: each reads other versions of the APIs."""

import re
from pathlib import Path

import pytest

from compat.kafka import fetched_jars, run_java
from tests.broker_process import BrokerProcess

CLIENT = str(Path(__file__).with_name("OlderClient.java"))
POM = Path(__file__).with_name("older-clients.xml")
RECORDS = 50


# 2.1 is the oldest that Kafka 4 serves. 3.3 to 3.7 fail at features that may have the version 0.
@pytest.mark.parametrize("version", ["2.1.1", "2.8.2", "3.3.2", "3.7.2", "3.9.1"])
def test_a_client_of_an_earlier_release_writes_and_reads_in_a_group(
    suwi: BrokerProcess, topic: str, version: str
) -> None:
    jars = fetched_jars(POM, version, f"clients-{version}")
    told = run_java(CLIENT, suwi.address, topic, str(RECORDS), time_s=180, jars=jars)
    values = [f"{kind}{i}" for kind in ("plain", "transactional") for i in range(RECORDS)]
    assert re.findall(r"^read (\w+)$", told, re.M) == values
    assert re.findall(r"^committed (\d+)$", told, re.M) == [str(2 * RECORDS + 1)]
