"""A shared broker for tests that write only to their own topics, and the clients by name."""

from collections.abc import Iterator

import pytest

from tests.broker_process import BrokerProcess
from tests.clients.drivers import DRIVERS, Driver
from tests.raw_client import RawClient


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("clients") / "data") as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]()


@pytest.fixture
def raw(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as client:
        yield client
