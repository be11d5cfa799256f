"""What the tests of all pages need: to go somewhere, to look, and to judge accessibility."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, Page

from tests.browser.conftest import PATIENCE_MS, SCREENSHOTS

AXE = Path(__file__).parents[2] / "console/node_modules/axe-core/axe.min.js"


@contextmanager
def watched_page(
    chromium: Browser, own: str, *, may_be_refused: bool = False, **options: Any
) -> Iterator[Page]:
    """A page of a new context. What the browser complains about, and requests to addresses that do
    not begin with `own`, fail the test. `may_be_refused`: the server may refuse a request."""
    tolerated = "Failed to load resource" if may_be_refused else None
    context = chromium.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text)
            if message.type == "error" and not (tolerated and tolerated in message.text)
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((own, "data:")) else complaints.append(request.url)
        ),
    )
    yield page
    context.close()
    assert complaints == []


def go(page: Page, *path: str, cluster: str = "local", query: str = "") -> None:
    """Open a page of the console by its address, and wait until it is loaded."""
    parts = "/".join(quote(part, safe="") for part in (cluster, *path))
    page.evaluate("hash => { location.hash = hash }", f"#/{parts}{query}")
    page.wait_for_function("() => !document.querySelector('[data-state=loading]')")


def tile(page: Page, name: str) -> str:
    return page.locator(f"[data-tile='{name}'] .number").inner_text()


def cells(page: Page, row: object) -> list[str]:
    """The cells of a table's row."""
    return page.locator(f"tr[data-row='{row}'] td").all_inner_texts()


def take_picture(page: Page, name: str, *, is_whole: bool = True) -> None:
    if SCREENSHOTS:
        page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=is_whole)


def serious_violations(page: Page) -> list[Any]:
    """What axe-core finds, in both color schemes."""
    found = []
    page.evaluate(AXE.read_text())  # the page's policy allows no script of others
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        result = page.evaluate("() => axe.run(document)")
        found += [
            (scheme, v["id"], [node["html"][:200] for node in v["nodes"]])
            for v in result["violations"]
            if v["impact"] in ("serious", "critical")
        ]
    return found
