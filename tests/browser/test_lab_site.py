"""The exported site of the lab in a real browser, from disk."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from suwi.lab.events import Recording, Replicas, StepEnds
from suwi.lab.site import Played, files_of, play_all
from tests.browser.support import AXE, serious_violations, take_picture, watched_page

NAMES = ("kip-101", "in-sync-set-of-one", "zombie-producer")


@pytest.fixture(scope="module")
def played() -> list[Played]:
    """Played in another thread: in this one Playwright has its event loop."""
    with ThreadPoolExecutor(1) as thread:
        return list(thread.map(play_all, NAMES))


@pytest.fixture(scope="module")
def site(played: list[Played], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    for name, text in files_of(played):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    return directory


@pytest.fixture
def page(chromium: Browser, site: Path) -> Iterator[Page]:
    """At the index."""
    own, viewport = f"file://{site}/", {"width": 1280, "height": 900}
    with watched_page(chromium, own, viewport=viewport) as page:
        page.goto(f"{own}index.html")
        yield page


def go(page: Page, site: Path, name: str) -> None:
    page.goto(f"file://{site}/{name}")


def states(recording: Recording) -> list[dict[str, Any]]:
    """What the terminal's pictures are drawn from, after each step."""
    replicas = Replicas()
    found = []
    for event in recording.events:
        replicas.add(event)
        if isinstance(event, StepEnds):
            views = {
                f"{name} {broker}": {
                    key: value
                    for key, value in json.loads(json.dumps(asdict(view))).items()
                    if key != "leads"
                }
                for (name, broker), view in replicas.replicas.items()
            }
            leaders = {name: [leader, epoch] for name, (leader, epoch) in replicas.leaders.items()}
            in_sync = {name: list(replicas.in_sync[name]) for name in leaders}
            found.append([views, leaders, in_sync, sorted(replicas.down)])
    return found


_STATES = """run => suwiLab.moments(window.suwiRecordings[run]).slice(1).map(state => {
  const views = {}, leaders = {}, inSync = {};
  for (const [name, partition] of Object.entries(state.partitions)) {
    for (const [broker, view] of Object.entries(partition.replicas))
      views[`${name} ${broker}`] = view;
    if (partition.isLed) {
      leaders[name] = [partition.leader ?? null, partition.epoch];
      inSync[name] = partition.inSync;
    }
  }
  const down = Object.keys(state.down).filter(broker => state.down[broker]).map(Number);
  return [views, leaders, inSync, down];
})"""


def test_the_index_leads_to_a_scenario_in_either_language(page: Page) -> None:
    take_picture(page, "lab-index")
    page.click("text=한국어")
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    page.locator(".cards a").first.click()
    expect(page.locator("h1")).to_contain_text("KIP-101")
    page.click("text=English")
    expect(page.locator("h1")).to_contain_text("loses a committed record")


def test_the_script_adds_up_events_as_the_terminal_does(
    page: Page, site: Path, played: list[Played]
) -> None:
    for one in played:
        go(page, site, f"{one.name}.html")
        for number, recording in enumerate(one.runs):
            run = f"{one.name}.instead-{number}" if number else one.name
            assert page.evaluate(_STATES, run) == states(recording)


def test_every_step_has_a_picture_of_each_run_and_says_it_in_words(page: Page, site: Path) -> None:
    go(page, site, "kip-101.html")
    assert page.locator(".picture svg").count() == page.locator(".picture").count() == 10
    label = page.locator("#step-4 .picture svg").first.get_attribute("aria-label")
    assert label is not None
    assert "b2 leader: none; high watermark 0, end of the log 0" in label
    assert page.locator("#step-4 .side").first.locator(".cell.gone").count() == 1
    assert page.locator("#step-4 .instead [data-broker='2'] .cell.committed").count() == 1
    take_picture(page, "lab-kip-101")
    page.emulate_media(color_scheme="dark")
    go(page, site, "kip-101.ko.html")
    take_picture(page, "lab-kip-101-korean-dark")


def test_one_alternative_is_beside_the_run_at_a_time(page: Page, site: Path) -> None:
    go(page, site, "in-sync-set-of-one.html")
    second = page.locator("#step-4 [data-instead='2']")
    expect(second).to_be_hidden()
    page.locator("input[name=beside]").nth(1).check()
    expect(second).to_be_visible()
    expect(page.locator("#step-4 [data-instead='1']")).to_be_hidden()
    left, right = page.locator("#step-4 .side:visible").all()
    left_box, right_box = left.bounding_box(), right.bounding_box()
    assert left_box is not None
    assert right_box is not None
    assert left_box["y"] == right_box["y"]
    assert left_box["x"] < right_box["x"]
    take_picture(page, "lab-in-sync-set-of-one")


def test_a_step_leads_to_the_page_that_plays_it_from_there(page: Page, site: Path) -> None:
    go(page, site, "kip-101.html")
    page.locator("#step-3 .side:not(.instead) h3 a").click()
    expect(page.locator("#now")).to_contain_text("step 3: kill b1; kill b2; wait 4s")
    expect(page.locator(".seen svg")).to_be_visible()


def test_arrow_keys_step(page: Page, site: Path) -> None:
    go(page, site, "kip-101.html")
    for step in (1, 2, 3):
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#step-{step}")).to_be_focused()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-2")).to_be_focused()
    assert page.url.endswith("#step-2")


def test_a_narrow_screen_scrolls_in_one_direction_only(page: Page, site: Path) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    for name in ("index.html", "in-sync-set-of-one.ko.html", "kip-101.html"):
        go(page, site, name)
        take_picture(page, f"lab-narrow-{name}")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_without_script_the_pictures_of_the_terminal_are_there(
    chromium: Browser, site: Path
) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    go(page, site, "kip-101.html")
    expect(page.locator("#step-2 .picture pre").first).to_contain_text("b1 leader")
    context.close()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make setup")
@pytest.mark.parametrize("name", ["index.html", "kip-101.html", "zombie-producer.ko.html"])
def test_the_pages_are_accessible(chromium: Browser, site: Path, name: str) -> None:
    page = chromium.new_page()
    go(page, site, name)
    assert serious_violations(page) == []
    page.close()
