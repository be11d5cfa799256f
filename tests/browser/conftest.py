"""A real browser, and the built console in it, on a broker with some topics and groups.

Needs Debian's `chromium`, or the one that CHROMIUM names, and built pages; skipped otherwise.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from suwi.console.server import STATIC
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.console.support import ConsoleThread

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
PATIENCE_MS = 120_000
SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A directory for pictures of every page."""
expect.set_options(timeout=PATIENCE_MS)  # Otherwise five seconds.


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    if not Path(STATIC, "index.html").exists():
        pytest.skip("the pages of the console are not built: make setup")
    with BrokerProcess(tmp_path_factory.mktemp("browser") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def empty_broker(
    broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """A cluster without topics, groups and transactions."""
    with BrokerProcess(tmp_path_factory.mktemp("empty") / "data") as process:
        yield process


@pytest.fixture(scope="session")
def console(broker: BrokerProcess, empty_broker: BrokerProcess) -> Iterator[ConsoleThread]:
    clusters = {"local": broker.address, "empty": empty_broker.address, "away": "127.0.0.1:1"}
    with ConsoleThread(Path(STATIC), **clusters) as console:
        yield console


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM:
        pytest.skip("there is no chromium: apt install chromium, or set CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser, console: ConsoleThread) -> Iterator[Page]:
    """A page with a session; what it complains about, and requests to others, fail the test."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, locale="en-US")
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    own = f"http://127.0.0.1:{console.port}/"
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type == "error" and "Failed to load resource" not in message.text
            else None
        ),
    )
    page.on(
        "request",
        lambda request: None if request.url.startswith(own) else complaints.append(request.url),
    )
    page.goto(console.address)
    page.wait_for_selector("nav")
    yield page
    context.close()
    assert complaints == []


class SuwiProcess(Suwi):
    """Every command is a process: in this one Playwright has its event loop."""

    def ok(self, *arguments: object, stdin: bytes = b"") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()


@pytest.fixture(scope="session")
def suwi(broker: BrokerProcess) -> SuwiProcess:
    return SuwiProcess(broker.address)
