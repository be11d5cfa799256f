"""Recordings in a real browser, from `suwi lab serve`: played by keys, time line and address."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from suwi.lab.events import Violation, read
from suwi.lab.library import scenario_of
from tests.browser.support import AXE, serious_violations, take_picture, watched_page
from tests.testing.clients import until

ROOT = Path(__file__).parents[2]
MUTANT = "truncate-to-watermark"


class Opened(NamedTuple):
    directory: Path
    """Where the command ran."""
    address: str
    """What the web browser was given."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A seed fails, and the line that the simulation then prints is pasted into a shell."""
    directory = tmp_path_factory.mktemp("seeds")
    browser, given = directory / "browser", directory / "given"
    browser.write_text(f'#!/bin/sh\necho "$1" > {given}.new && mv {given}.new {given}\n')
    browser.chmod(0o700)
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "BROWSER": str(browser),
        "LANG": "C.UTF-8",
    }
    failing = ["python", "-m", "simulation", "--seeds", "30", "--mutant", MUTANT]
    failed = subprocess.run(
        failing, cwd=directory, env=environ, check=False, capture_output=True, text=True
    )
    (line,) = re.findall(r"^in a browser: (.*)$", failed.stdout, re.MULTILINE)
    shell = ["bash", "-c", line]
    with subprocess.Popen(shell, cwd=directory, env=environ, start_new_session=True) as process:
        try:
            until(lambda: given.exists() or process.poll() is not None, timeout_s=120)
            yield Opened(directory, given.read_text().strip())
        finally:
            os.killpg(process.pid, signal.SIGTERM)


@pytest.fixture(scope="module")
def lab(opened: Opened) -> str:
    return opened.address.rpartition("/")[0]


@pytest.fixture
def page(chromium: Browser, lab: str) -> Iterator[Page]:
    viewport = {"width": 1280, "height": 1160}
    with watched_page(chromium, lab, viewport=viewport, base_url=lab) as page:
        yield page


def play_until(page: Page, text: str) -> None:
    """Press the right arrow until the moment is told so."""
    moment = page.locator("#moment")
    for _ in range(400):
        page.keyboard.press("ArrowRight")
        if text in (moment.get_attribute("aria-valuetext") or ""):
            return
    told = moment.get_attribute("aria-valuetext")
    pytest.fail(f"{text!r} does not come, the last moment is {told!r}")


def cells(page: Page, broker: int, kind: str = "") -> list[str]:
    """The values of a replica's records."""
    return page.locator(f"[data-broker='{broker}'] .cell{kind} .value").all_text_contents()


def chips(page: Page, kind: str) -> list[str]:
    return page.locator(f".controller {kind}.chip").all_inner_texts()


def test_kip_101_is_played_by_keys(page: Page) -> None:
    page.goto("/kip-101.play.html#step=2")
    expect(page.locator(".now-step")).to_contain_text('Both have "x"')
    play_until(page, "b1 orders-0: appends [0-0 epoch 0]")
    assert (cells(page, 1, ".uncommitted.new"), cells(page, 2)) == (["x"], [])
    play_until(page, "b2 orders-0: gets ")
    expect(page.locator(".message.answer.now")).to_contain_text("records, HW 0")
    play_until(page, "b2 orders-0: fetches from 1")
    expect(page.locator(".message.asks.now")).to_contain_text("fetch from 1")
    play_until(page, "b1 orders-0: hw 1")
    assert (cells(page, 1, ".committed"), cells(page, 2, ".uncommitted")) == (["x"], ["x"])
    take_picture(page, "lab-play-kip-101-committed")
    play_until(page, "b1: the process ends")
    expect(page.locator("[data-broker='1'] .role")).to_have_text("down")
    play_until(page, "b2 orders-0: truncated to 0")
    assert cells(page, 2, ".gone") == ["x"]
    play_until(page, "recovery lost")
    expect(page.locator(".harm .violation")).to_contain_text("violated: orders-0 on b2")
    take_picture(page, "lab-play-kip-101-lost")
    play_until(page, "b2 shows nothing")
    expect(page.locator(".clients")).to_contain_text("b2 shows nothing")


def test_an_in_sync_set_of_one_is_played_by_keys(page: Page) -> None:
    page.goto("/in-sync-set-of-one.play.html#step=2")
    play_until(page, "proposes in sync b1")
    assert (chips(page, "del"), chips(page, "ins")) == (["b2", "b3"], [])
    expect(page.locator("[data-broker='2'] .lag")).to_contain_text("behind for 1")
    expect(page.locator(".message.cut")).to_have_count(2)
    expect(page.locator(".clients")).to_contain_text('"a" acks=all waits')
    take_picture(page, "lab-play-in-sync-set-of-one")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#now")).to_have_text("orders-0: in sync b1 (epoch 0)")
    assert (chips(page, "span"), chips(page, "del")) == (["b1"], [])
    play_until(page, "client: acknowledged at 0")
    expect(page.locator(".clients")).to_contain_text('"a" acks=all ✓ offset 0')
    play_until(page, "unclean election")
    expect(page.locator(".harm .loss")).to_contain_text("reported: ")


def test_a_zombie_producer_is_played_beside_what_fences_it(page: Page) -> None:
    page.goto("/zombie-producer.beside-1.play.html#step=1")
    left, right = page.locator(".panel").all()
    expect(left.locator("h2").first).to_have_text("As it happens")
    expect(page.locator("#now")).to_contain_text("The runs part here. Only in “As it happens”:")
    play_until(page, "INVALID_PRODUCER_EPOCH")
    expect(page.locator("#now")).to_contain_text("Only in “Instead”:")
    expect(right.locator(".clients .refused")).to_contain_text("✗ INVALID_PRODUCER_EPOCH")
    expect(right.locator(".memory").first).to_be_visible()
    take_picture(page, "lab-play-zombie-producer")
    page.locator("[data-go=last]").click()
    expect(left.locator(".clients section", has_text="p1")).to_contain_text("✓ offset 1")
    assert cells(page, 1)[:2] == ["7 paid", "7 paid"]


def test_it_opens_at_the_violation_and_shift_goes_from_mark_to_mark(page: Page) -> None:
    page.goto("/kip-101.play.html")
    expect(page.locator("#now")).to_have_text("orders-0 on b2: recovery lost [0-0 epoch 0]")
    page.keyboard.press("Shift+ArrowLeft")
    expect(page.locator("#now")).to_contain_text("b2 orders-0: truncated to 0")
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator("#now")).to_contain_text("recovery lost")


def test_the_address_names_the_moment_in_both_languages(page: Page) -> None:
    page.goto("/kip-101.play.html#step=3")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#now")).to_have_text("b1: the process ends")
    page.wait_for_url(re.compile(r"#event=\d+$"))
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#now")).to_have_text("b1: the process ends")
    page.click("text=한국어")
    expect(page.locator("#now")).to_have_text("b1: 프로세스가 종료된다")
    page.locator(".near a").first.click()
    expect(page.locator("#now")).not_to_have_text("b1: 프로세스가 종료된다")


def test_the_time_line_is_dragged(page: Page) -> None:
    page.goto("/kip-101.play.html#event=1")
    box = page.locator("#moment").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 9, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=5)
    middle = page.locator("#count").inner_text()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    last = page.locator("#count").inner_text()
    count = int(last.split()[2])
    assert last.startswith(f"{count} of {count} ")
    assert abs(int(middle.split()[0]) - count / 2) <= 2


def test_it_plays_by_itself_until_it_is_paused(page: Page) -> None:
    page.goto("/kip-101.play.html#step=1")
    before = page.locator("#count").inner_text()
    button = page.locator("[data-go=play]")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#count")).not_to_have_text(before)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")


def test_every_moment_is_told_in_words(page: Page) -> None:
    page.goto("/kip-101.play.html#step=2")
    play_until(page, "b1 orders-0: follower b2 has 1")
    told = page.locator("#now").inner_text()
    value = page.locator("#moment").get_attribute("aria-valuetext")
    assert value is not None
    assert value.endswith(told)
    label = page.locator(".seen svg").get_attribute("aria-label")
    assert label is not None
    assert label.startswith(
        'orders-0: leader b1, epoch 0, in sync b1 b2. b1 leader: 0 "x" epoch 0;'
    )
    assert "caught up" in label
    expect(page.locator("#now")).to_have_attribute("role", "status")


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("scenario", ["kip-101", "in-sync-set-of-one", "zombie-producer"])
def test_those_who_do_not_see_the_picture_are_told_every_step_of_the_tutorial(
    page: Page, scenario: str, language: str
) -> None:
    suffix = "" if language == "en" else f".{language}"
    page.goto(f"/{scenario}.play{suffix}.html#event=1")
    status, picture = page.locator("#now"), page.locator(".seen svg")
    moments, steps = int(page.locator("#moment").get_attribute("max") or 0), 0
    for _ in range(moments):
        page.keyboard.press("ArrowRight")
        told = status.inner_text()
        assert told
        if status.get_attribute("class") == "prose":
            steps += 1
            assert page.locator(".now-step p").inner_text() in told
        if picture.count():
            assert (picture.get_attribute("aria-label") or "").startswith("orders-0: ")
    assert steps == len(scenario_of(scenario).played)
    assert page.evaluate("() => document.querySelector('#moment').value") == str(moments)


def test_the_line_that_a_failing_seed_prints_opens_the_bug_beside_the_right_code(
    page: Page, opened: Opened
) -> None:
    page.goto(opened.address)
    expect(page.locator(".panel")).to_have_count(2)
    expect(page.locator(".parting")).to_be_visible()


def test_a_failing_seed_opens_at_its_violation_with_the_partition_that_it_names(
    page: Page, opened: Opened
) -> None:
    page.goto("/run.play.html")
    recording = read((opened.directory / "run.jsonl").read_text().splitlines())
    (violation,) = [each for each in recording.events if isinstance(each, Violation)]
    first = violation.what.splitlines()[0]
    expect(page.locator("#now")).to_contain_text(first)
    expect(page.locator("[data-broker]").first).to_be_visible()
    take_picture(page, "lab-play-seed")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#now")).not_to_contain_text(first)


def test_a_seed_with_a_bug_is_beside_the_right_code_until_they_part(page: Page) -> None:
    page.goto("/run.beside.play.html#event=1")
    left, right = page.locator(".panel .seen").all()
    assert left.inner_html() == right.inner_html()
    page.locator("[data-go=last]").click()
    expect(left.locator(".harm .violation")).to_be_visible()
    expect(right.locator(".harm .violation")).to_have_count(0)
    expect(page.locator(".parting")).to_be_visible()
    take_picture(page, "lab-play-seed-beside")


def test_a_narrow_screen_scrolls_in_one_direction_only(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    for name in ("in-sync-set-of-one.play.ko", "kip-101.beside-1.play", "run.play"):
        page.goto(f"/{name}.html{'' if name == 'run.play' else '#step=3'}")
        expect(page.locator(".seen svg").first).to_be_visible()
        take_picture(page, f"lab-play-narrow-{name}")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: make setup")
@pytest.mark.parametrize(
    "name", ["kip-101.play.html", "zombie-producer.beside-1.play.ko.html#step=3"]
)
def test_the_pages_are_accessible(page: Page, name: str) -> None:
    page.goto(f"/{name}")
    expect(page.locator(".seen svg").first).to_be_visible()
    assert serious_violations(page) == []
