"""One broker for all tests; each test uses its own topics."""

from collections.abc import Iterator

import pytest

from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "data") as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture
def suwi(broker: BrokerProcess) -> Suwi:
    return Suwi(broker.address)


@pytest.fixture
def topic(suwi: Suwi) -> str:
    """A topic with one partition."""
    name = unique_name("topic")
    suwi.ok("topics", "create", name)
    return name
