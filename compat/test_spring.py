"""Spring for Apache Kafka: a listener that reads, processes and writes in transactions."""

from pathlib import Path

from compat.directories import read
from compat.kafka import fetched_jars, run_java
from tests.broker_process import BrokerProcess

APPLICATION = str(Path(__file__).with_name("SpringListener.java"))
POM = Path(__file__).with_name("spring.xml")
RECORDS = 60


def test_each_record_is_processed_once_or_is_a_dead_letter(suwi: BrokerProcess, topic: str) -> None:
    jars = fetched_jars(POM, "", "spring")
    told = run_java(APPLICATION, suwi.address, topic, str(RECORDS), time_s=300, jars=jars)
    assert "all were processed" in told
    failed = {number for number in range(RECORDS) if number % 10 == 9}
    done = [record.value.decode() for record in read(suwi.address, f"{topic}-out")]
    dead = [record.value.decode() for record in read(suwi.address, f"{topic}-dead")]
    assert sorted(done) == sorted(f"order {i} done" for i in range(RECORDS) if i not in failed)
    assert sorted(dead) == sorted(f"order {i}" for i in failed)
