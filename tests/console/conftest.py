"""One broker and one console for all tests; each test uses its own topics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi
from tests.console.support import Browser, ConsoleThread

UNUSED_PORT = 1


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("console") / "data"
    with BrokerProcess(data, "log.cleaner.backoff.ms=500") as process:
        yield process
        assert "Traceback" not in process.log


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the place of the built front end."""
    directory = tmp_path_factory.mktemp("static")
    (directory / "assets").mkdir()
    (directory / "index.html").write_text("<!doctype html><title>Suwi</title>")
    (directory / "assets" / "main.js").write_text("export {};")
    return directory


@pytest.fixture(scope="session")
def console(broker: BrokerProcess, static: Path) -> Iterator[ConsoleThread]:
    with ConsoleThread(static, local=broker.address, away=f"127.0.0.1:{UNUSED_PORT}") as console:
        yield console


@pytest.fixture(scope="session")
def changing_console(broker: BrokerProcess, static: Path) -> Iterator[ConsoleThread]:
    with ConsoleThread(
        static, allow_changes=True, local=broker.address, away=f"127.0.0.1:{UNUSED_PORT}"
    ) as console:
        yield console


@pytest.fixture
def editor(changing_console: ConsoleThread) -> Browser:
    """A browser whose console may change something."""
    return Browser(changing_console).log_in(changing_console)


@pytest.fixture
def browser(console: ConsoleThread) -> Browser:
    return Browser(console).log_in(console)


@pytest.fixture
def stranger(console: ConsoleThread) -> Browser:
    """Without a session."""
    return Browser(console)


@pytest.fixture
def suwi(broker: BrokerProcess) -> Suwi:
    return Suwi(broker.address)


@pytest.fixture
def topic(suwi: Suwi) -> str:
    """A topic with two partitions."""
    name = unique_name("topic")
    suwi.ok("topics", "create", name, "--partitions", 2)
    return name
