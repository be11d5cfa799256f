"""A broker process for the tests of a module, which must survive everything they send."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from suwi.records.builder import build_batch
from suwi.records.record import Record
from tests.broker_process import BrokerProcess, unique_name
from tests.raw_client import RawClient


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data: Path = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(data) as process:
        yield process


@pytest.fixture
def still_serves(broker: BrokerProcess) -> Iterator[None]:
    """After every test: the broker runs, serves Produce and Fetch, and has logged no bug."""
    yield
    name = unique_name("alive")
    with RawClient(broker.address) as client:
        client.create_topic(name)
        assert client.produce(name, build_batch([Record(value=b"alive")])) == (0, 0)
        assert b"alive" in client.fetch(name, 0).records
    assert "Traceback" not in broker.log


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client


@pytest.fixture
def topic(client: RawClient) -> str:
    """A new topic with one partition, for this test only."""
    name = unique_name("topic")
    client.create_topic(name)
    return name
