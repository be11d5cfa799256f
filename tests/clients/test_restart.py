"""What survives a restart, clean or not, and that a data directory has one broker."""

from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.wire.codec import encode_request
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess
from tests.clients.drivers import DRIVERS, EARLIEST, LATEST
from tests.raw_client import RawClient, fetch_fields

CLEAN_MARK = ".kafka_cleanshutdown"


@pytest.fixture(params=["stop", "kill"])
def stop(request: pytest.FixtureRequest) -> str:
    """How a broker is stopped: a method of BrokerProcess."""
    return request.param


def test_every_client_finds_its_records_after_a_restart(tmp_path: Path, stop: str) -> None:
    sent = [Record(key=b"%d" % n, value=b"value %d" % n) for n in range(50)]
    drivers = {name: make() for name, make in DRIVERS.items() if name != "kcat"}
    with BrokerProcess(tmp_path / "data") as broker:
        for name, driver in drivers.items():
            driver.produce(broker.address, name, sent, codec="zstd", idempotent=True)
        getattr(broker, stop)()
        assert (broker.data / CLEAN_MARK).exists() == (stop == "stop")
        broker.start()
        assert not (broker.data / CLEAN_MARK).exists()
        for driver in drivers.values():
            found = driver.consume(broker.address, dict.fromkeys(drivers, 50), offset=EARLIEST)
            for records in found.values():
                assert [(r.offset, r.key, r.value) for r in records] == [
                    (n, r.key, r.value) for n, r in enumerate(sent)
                ]
        for name, driver in drivers.items():
            assert driver.offset_at(broker.address, name, LATEST) == 50
            driver.produce(broker.address, name, [Record(value=b"after")])
            assert broker.stored_records(name)[-1][0::3] == (50, b"after")


def numbered(producer_id: int, sequence: int) -> bytes:
    record = Record(value=b"%d" % sequence)
    return bytes(
        build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    )


def new_producer_id(client: RawClient) -> int:
    fields = {"transactional_id": None, "transaction_timeout": 60_000}
    producer_id: int = client.ask(ApiKey.INIT_PRODUCER_ID, 2, fields).producer_id
    return producer_id


def test_producer_state_and_topics_survive_a_restart(tmp_path: Path, stop: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            topic_id = client.create_topic("t")
            producer_id = new_producer_id(client)
            for n in range(7):
                assert client.produce("t", numbered(producer_id, n)) == (0, n)
        getattr(broker, stop)()
        broker.start()
        with RawClient(broker.address) as client:
            # A retry of the last batch is recognised; Kafka's snapshots have only the last batch.
            assert client.produce(topic_id, numbered(producer_id, 6)) == (0, 6)
            gap = client.produce(topic_id, numbered(producer_id, 8))
            assert gap.error == ErrorCode.out_of_order_sequence_number
            assert client.produce(topic_id, numbered(producer_id, 7)) == (0, 7)
            assert new_producer_id(client) > producer_id
            assert client.fetch("t", 0).high_watermark == 8


def test_a_directory_has_one_broker_at_a_time(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        complaint = BrokerProcess(broker.data).refused_start()
        assert str(broker.data) in complaint
        assert "in use by another broker" in complaint
        assert "Traceback" not in complaint
        with RawClient(broker.address) as client:
            client.create_topic("t")
            assert client.produce("t", build_batch([Record(value=b"v")])) == (0, 0)


def test_sigterm_disconnects_waiting_clients_and_stops_the_broker(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data") as broker,
        RawClient(broker.address) as waiting,
        RawClient(broker.address) as idle,
    ):
        waiting.create_topic("t")
        fields = fetch_fields(12, "t", 0, max_wait_ms=2**31 - 1)
        waiting.send_request(ApiKey.FETCH, 12, encode_request(ApiKey.FETCH, 12, fields))
        idle.ask(ApiKey.API_VERSIONS, 0, {})
        assert "stopped cleanly" in broker.stop()
        assert (broker.data / CLEAN_MARK).exists()
        assert idle.is_closed_by_broker
        assert "Traceback" not in broker.log
