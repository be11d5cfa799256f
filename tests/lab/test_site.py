"""The exported site: every scenario in both languages, small, and nothing from outside."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from suwi.lab.child import run
from suwi.lab.event_text import event_text
from suwi.lab.library import ORDER
from suwi.lab.scenario import parse
from suwi.lab.site import Played, files_of, given_names
from suwi.lab.stage import changes
from suwi.lab.text import LANGUAGES
from tests.cli.support import Suwi
from tests.lab.played import play_all

RECORDING_BYTES_MAX = 300_000


class Page(HTMLParser):
    """The text, ids, links, and what is open, of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.pictures: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found[key] for key in ("href", "src") if key in found]
        if "data-run" in found:
            self.pictures.append((found["data-run"], found["data-step"]))
        if tag not in ("br", "meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))


def file_of(name: str, language: str) -> str:
    return f"{name}.html" if language == "en" else f"{name}.{language}.html"


def test_every_scenario_has_one_subject() -> None:
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("name", ORDER)
def test_a_scenario_is_there_in_both_languages_with_its_recordings(name: str) -> None:
    one = play_all(name)
    assert one.wrong == 0
    found = dict(files_of([one]))
    runs = [name, *(f"{name}.instead-{n}" for n in range(1, len(one.runs)))]
    sizes = [len(found[f"recordings/{each}.js"].encode()) for each in runs]
    assert max(sizes) <= RECORDING_BYTES_MAX
    for language in LANGUAGES:
        page = Page(found[file_of(name, language)])
        assert page.open == []
        assert [i for i in page.ids if i.startswith("step-")] == [
            f"step-{n}" for n in range(1, len(one.scenario.played) + 1)
        ]
        texts = [one.scenario.title, one.scenario.summary]
        texts += [part.prose for part in (*one.scenario.played, *one.scenario.instead)]
        shown = [t.in_language(language).replace("`", "") for t in texts]
        assert [text for text in shown if text not in page.text] == []
        for recording in one.runs:
            lines = [line for step in changes(recording) for line in step]
            assert [line for line in lines if line not in page.text] == []
        steps = range(1, len(one.scenario.played) + 1)
        assert page.pictures == [(each, str(step)) for step in steps for each in runs]
        assert name in Page(found[file_of("index", language)]).text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_run_has_a_page_that_plays_it_and_one_beside_the_first(language: str) -> None:
    one = play_all("in-sync-set-of-one")
    found = dict(files_of([one]))
    steps = Page(found[file_of(one.name, language)])
    runs = [one.name, f"{one.name}.instead-1", f"{one.name}.instead-2"]
    beside = [f"{one.name}.beside-1", f"{one.name}.beside-2"]
    for name in (*runs, *beside):
        text = found[file_of(f"{name}.play", language)]
        page = Page(text)
        assert page.open == []
        assert file_of(one.name, language) in page.links
        shown = [link for link in page.links if link.startswith("recordings/")]
        assert len(shown) == (2 if name in beside else 1)
        said = re.findall(r"data-said=\"(.*?)\">(.*?)</script>", text)
        assert [f"recordings/{each}.js" for each, _ in said] == shown
        for each, lines in said:
            recording = one.runs[runs.index(each)]
            told = [event_text(event, language) for event in recording.events]
            assert json.loads(lines) == told
    for each in runs:
        assert f"{file_of(f'{each}.play', language)}#step=4" in steps.links


def test_recordings_of_users_are_in_the_index_and_two_are_beside_each_other() -> None:
    one = play_all("kip-101")
    given = {"wrong": one.runs[0], "right": one.runs[1]}
    found = dict(files_of([], given))
    index = Page(found["index.html"])
    assert "recovery lost [0-0 epoch 0]" in index.text
    assert [link for link in index.links if ".play." in link] == [
        "wrong.play.html",
        "right.play.html",
    ]
    assert given_names(given) == ["wrong", "right", "wrong.beside"]
    both = Page(found["wrong.beside.play.ko.html"])
    assert {"recordings/wrong.js", "recordings/right.js"} <= set(both.links)
    assert "wrong.beside.play.html" not in dict(files_of([], {"wrong": one.runs[0]}))


def test_links_lead_to_files_of_the_site_and_nothing_is_outside() -> None:
    found = dict(files_of([play_all(name) for name in ORDER[:3]]))
    for name, text in found.items():
        assert (
            re.findall(r"(?:https?:|url\(|@import|fetch\()(?!//www\.w3\.org/2000/svg)", text) == []
        )
        if name.endswith(".html"):
            page = Page(text)
            local = [link.partition("#")[0] for link in page.links if not link.startswith("data:")]
            assert [link for link in local if link and link not in found] == []


def test_neighbours_are_linked() -> None:
    first, second = (play_all(name) for name in ORDER[:2])
    found = dict(files_of([first, second]))
    assert f"{second.name}.html" in Page(found[f"{first.name}.html"]).links
    assert f"{first.name}.ko.html" in Page(found[f"{second.name}.ko.html"]).links


def test_a_claim_that_is_not_true_is_shown() -> None:
    one = play_all("lost-acknowledgement")
    wrong = Played(one.name, one.scenario, (one.runs[1], one.runs[0]))
    assert wrong.wrong == 3
    page = dict(files_of([wrong]))["lost-acknowledgement.html"]
    assert "What happens is not what the file says, 3 times" in page
    assert '<li class="false">b1 shows 0 &quot;x&quot;, 1 &quot;x&quot;</li>' in page


def test_values_of_records_are_text() -> None:
    scenario = parse('topic orders b1\nproduce b1 acks=all "<b>"')
    for path, text in files_of([Played(ORDER[0], scenario, (run(scenario),))]):
        if path.endswith(".html"):
            assert "<b>" not in text
            assert path.startswith("index") or "&lt;b&gt;" in text or "\\u003cb>" in text


def test_the_command_writes_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suwi.cli.lab.ORDER", ORDER[:1])
    said = Suwi("").ok("lab", "export", tmp_path / "site")
    assert said.endswith(f"wrote {tmp_path}/site/index.html: 1 scenarios\n")
    assert (tmp_path / "site" / f"{ORDER[0]}.ko.html").exists()
    (tmp_path / "file").touch()
    assert "cannot write" in Suwi("").refusal("lab", "export", tmp_path / "file")
