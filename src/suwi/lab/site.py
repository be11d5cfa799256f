"""The lab as a site: for each scenario and language a page of its steps, and pages that play it.

`play_all` plays a scenario with what is done instead, `files_of` makes the files of the site. They
open from disk and ask for nothing outside; `suwi.lab.site_server` makes them when they are asked
for. The text is in the pages; `web/drawing.js` draws the recordings over the pictures of the
terminal.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files

from suwi.lab.child import run
from suwi.lab.events import Recording, Replicas, StepEnds, Violation, write
from suwi.lab.glossary import explained
from suwi.lab.library import ORDER, SUBJECTS, scenario_of
from suwi.lab.mutants import find
from suwi.lab.picture import pictures
from suwi.lab.play_page import SCRIPTS, Shown, body, words_of
from suwi.lab.scenario import Instead, Scenario, Step, differences
from suwi.lab.stage import changes
from suwi.lab.text import LANGUAGES, Text, by_language

ASSETS = ("drawing.css", "lab.css", "drawing.js", "page.js", "play.js")
_PICTURE_WIDTH = 72
_VIOLATION_CHARS_MAX = 200
_TEXTS = {
    "lab": Text("Suwi lab", "Suwi 실험실"),
    "title": Text(
        "How records are lost, duplicated and reordered",
        "메시지는 어떻게 유실되고, 중복되고, 순서가 바뀌는가",
    ),
    "lead": Text(
        "Each scenario was played on the production code of Suwi, a Kafka-compatible event log, in "
        "virtual time with the faults that it names. Every line with ✓ was compared with what "
        "happened. Beside each run stands the same run with the setting or step that avoids the "
        "harm.",
        "모든 시나리오는 카프카 호환 이벤트 로그인 Suwi의 실제 코드를 가상 시간에서 돌려, "
        "시나리오에 적힌 장애를 일으키며 실행한 것이다. ✓가 붙은 줄은 실제로 일어난 일과 비교해 "
        "확인했다. 옆에는 문제를 막는 설정이나 단계로 바꿔 같은 순서로 다시 실행한 결과가 있다.",
    ),
    "skip": Text("Skip to the steps", "단계로 건너뛰기"),
    "previous": Text("Previous", "이전"),
    "next": Text("Next", "다음"),
    "planted": Text(
        "Suwi and Kafka do not do this today. Planted for this run: {}.",
        "지금의 Suwi와 카프카는 이렇게 동작하지 않는다. 이번 실행에만 일부러 심은 동작: {}.",
    ),
    "try": Text("In a terminal:", "터미널에서:"),
    "happens": Text("As it happens", "일어난 일"),
    "instead": Text("Instead", "대신"),
    "beside": Text("Instead, beside it", "대신 (나란히 보기)"),
    "same": Text("Nothing is different in this step.", "이 단계에서는 달라지는 것이 없다."),
    "says": Text("The file says:", "파일에 적힌 내용:"),
    "went": Text("no longer:", "없어짐:"),
    "come": Text("new:", "새로 생김:"),
    "true": Text("as the scenario claims:", "시나리오의 주장대로:"),
    "file": Text("The file of this scenario", "이 시나리오의 파일"),
    "wrong": Text(
        "What happens is not what the file says, {} times: see the lines with ✗.",
        "실제로 일어난 일이 파일과 {}번 다르다. ✗가 붙은 줄을 보라.",
    ),
    "footer": Text(
        "{} scenarios, {} claims, all compared with what happened. suwi lab export",
        "suwi lab export로 만들었다. 시나리오 {}개, 확인한 주장 {}개.",
    ),
    "keys": Text("step", "단계 이동"),
    "play": Text("Play it, event by event.", "이벤트 하나씩 재생하기."),
    "play-step": Text("play", "재생"),
    "steps": Text("All steps of the scenario", "시나리오의 모든 단계"),
    "both": Text("Both, beside each other", "나란히 보기"),
    "recordings": Text("Recordings", "기록"),
    "events": Text("{} brokers, {} events.", "브로커 {}대, 이벤트 {}개."),
    "k-committed": Text("committed, as far as the replica knows", "커밋됨 (그 복제본이 아는 한)"),
    "k-uncommitted": Text("not yet", "아직 커밋되지 않음"),
    "k-new": Text("just written", "방금 쓰임"),
    "k-gone": Text("just removed", "방금 없어짐"),
    "k-hw": Text("HW, high watermark", "HW, 하이워터마크"),
    "k-lso": Text("LSO, last stable offset", "LSO, read_committed가 읽는 끝"),
    "k-end": Text("end of the log", "로그의 끝(LEO)"),
    "k-epochs": Text(
        "a colour for each leader epoch e0, e1, …", "리더에포크 e0, e1, …마다 다른 색"
    ),
}
_LABELS = {language: words_of(language) | texts for language, texts in by_language(_TEXTS).items()}
_LEGEND = ("k-committed", "k-uncommitted", "k-new", "k-gone", "k-hw", "k-lso", "k-end", "k-epochs")


@dataclass(frozen=True)
class Played:
    name: str
    scenario: Scenario
    runs: tuple[Recording, ...]
    """Its own, then one for each `instead`."""

    @property
    def wrong(self) -> int:
        """How many steps and alternatives are not as the file says."""
        found = [changes(each) for each in self.runs]
        steps = zip(self.scenario.played, found[0], strict=True)
        instead = zip(self.scenario.instead, found[1:], strict=True)
        return sum(step.expected not in (None, tuple(lines)) for step, lines in steps) + sum(
            section.expected not in (None, differences(found[0], lines))
            for section, lines in instead
        )

    @property
    def claims(self) -> int:
        return sum(len(step.expected or ()) for step in self.scenario.played) + sum(
            len(lines)
            for section in self.scenario.instead
            for lines in (section.expected or {}).values()
        )


def play_all(name: str) -> Played:
    scenario = scenario_of(name)
    variants = (scenario.variant(number) for number in range(len(scenario.instead)))
    return Played(name, scenario, tuple(run(each, name) for each in (scenario, *variants)))


def files_of(
    played: Iterable[Played], given: Mapping[str, Recording] | None = None
) -> Iterator[tuple[str, str]]:
    """Names and contents; `given`: other recordings, by the names of their pages."""
    ordered = sorted(played, key=lambda one: ORDER.index(one.name))
    yield from common_files(ordered, given or {})
    for one in ordered:
        yield from scenario_files(one, ordered)


def common_files(
    played: Sequence[Played], given: Mapping[str, Recording]
) -> Iterator[tuple[str, str]]:
    """The index and what is not of a scenario. Of `played` the runs are not needed."""
    for asset in ASSETS:
        yield asset, (files("suwi.lab") / "web" / asset).read_text(encoding="utf-8")
    for name, recording in given.items():
        yield f"recordings/{name}.js", _script(name, recording)
    for language in LANGUAGES:
        yield page_of("index", language), _index(played, given, language)
        yield from _given_play_pages(given, language)


def scenario_files(one: Played, played: Sequence[Played]) -> Iterator[tuple[str, str]]:
    """Of `played`, which it is one of, the runs are not needed."""
    for number, recording in enumerate(one.runs):
        name = _run_name(one, number)
        yield f"recordings/{name}.js", _script(name, recording)
    number = [each.name for each in played].index(one.name)
    near = (played[number - 1] if number else None, *played[number + 1 : number + 2], None)
    for language in LANGUAGES:
        page = _page(one, near[:2], language, _footer(played, language))
        yield page_of(one.name, language), page
        yield from _scenario_play_pages(one, language)


def page_of(name: str, language: str) -> str:
    return f"{name}{'' if language == 'en' else f'.{language}'}.html"


def _run_name(one: Played, number: int) -> str:
    return f"{one.name}.instead-{number}" if number else one.name


def _script(name: str, recording: Recording) -> str:
    """The events as an array. A page from disk may load a script, and may not fetch a file."""
    _, *events = write(recording)
    listed = ",\n".join(line.strip() for line in events)
    return f"(window.suwiRecordings ??= {{}})[{json.dumps(name)}] = [\n{listed}\n];\n"


# -- pages ----------------------------------------------------------------------------------------


def _document(
    name: str,
    title: str,
    language: str,
    scripts: Sequence[str],
    body: str,
    runs: Sequence[str] = (),
) -> str:
    labels = _LABELS[language]
    loaded = "".join(f'<script defer src="{escape(script)}"></script>\n' for script in scripts)
    other = next(each for each in LANGUAGES if each != language)
    named = {"en": "English", "ko": "한국어"}[other]
    words = escape(json.dumps(words_of(language), ensure_ascii=False))
    return f"""<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · {labels["lab"]}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="drawing.css">
<link rel="stylesheet" href="lab.css">
{loaded}</head>
<body data-words="{words}" data-runs="{escape(json.dumps(runs))}">
<header class="bar">
<a class="home" href="{page_of("index", language)}">{labels["lab"]}</a>
<a href="{page_of(name, other)}" lang="{other}" hreflang="{other}">{named}</a>
</header>
{body}
</body>
</html>
"""


def _footer(played: Sequence[Played], language: str) -> str:
    claims = sum(one.claims for one in played)
    return f"<footer>{escape(_LABELS[language]['footer'].format(len(played), claims))}</footer>"


def _index(played: Sequence[Played], given: Mapping[str, Recording], language: str) -> str:
    labels = _LABELS[language]
    own = "".join(_given_card(name, each, language) for name, each in given.items())
    if own:
        own = (
            f'<section><h2>{labels["recordings"]}</h2>\n<ul class="cards">\n{own}</ul></section>\n'
        )
    by_name = {one.name: one for one in played}
    sections = "".join(
        f"<section><h2>{escape(subject.in_language(language))}</h2>\n"
        f'<ul class="cards">\n{cards}</ul></section>\n'
        for subject, names in SUBJECTS.items()
        if (cards := "".join(_card(by_name[name], language) for name in names if name in by_name))
    )
    body = f"""<main>
<h1>{labels["title"]}</h1>
<p class="lead">{labels["lead"]}</p>
<div class="subjects">
{own}{sections}</div>
</main>
{_footer(played, language)}"""
    return _document("index", labels["title"], language, (), body)


def _given_card(name: str, recording: Recording, language: str) -> str:
    labels = _LABELS[language]
    violated = next((each.what for each in recording.events if isinstance(each, Violation)), "")
    link = page_of(play_name(name), language)
    return (
        f'<li><h3><a href="{link}">{escape(recording.source)}</a></h3>'
        f"<p>{labels['events'].format(recording.brokers, len(recording.events))}</p>"
        f"<p>{escape(violated[:_VIOLATION_CHARS_MAX])}</p><code>{escape(name)}</code></li>\n"
    )


def _card(one: Played, language: str) -> str:
    title, summary = (_prose(text, language) for text in (one.scenario.title, one.scenario.summary))
    link = page_of(one.name, language)
    return (
        f'<li><h3><a href="{link}">{title}</a></h3><p>{summary}</p><code>{one.name}</code></li>\n'
    )


def _page(one: Played, near: Sequence[Played | None], language: str, footer: str) -> str:
    labels, scenario = _LABELS[language], one.scenario
    title = scenario.title.in_language(language)
    subject = next((text for text, names in SUBJECTS.items() if one.name in names), Text())
    notes = _planted(scenario, language)
    if one.wrong:
        notes += f'<p class="note wrong">{labels["wrong"].format(one.wrong)}</p>\n'
    links = "<br>".join(
        f'{labels[key]}: <a href="{page_of(other.name, language)}">'
        f"{escape(other.scenario.title.in_language(language))}</a>"
        for key, other in zip(("previous", "next"), near, strict=True)
        if other is not None
    )
    body = f"""<a class="skip" href="#step-1">{labels["skip"]}</a>
<main>
<p class="subject">{escape(subject.in_language(language))}</p>
<h1>{escape(title)}</h1>
<p class="lead">{_prose(scenario.summary, language)}</p>
{notes}<p><a class="go" href="{page_of(play_name(one.name), language)}#step=1">{labels["play"]}</a>
{labels["try"]} <code>suwi lab run {one.name} --step</code></p>
{_choices(scenario, language)}
<ul class="legend">{_legend(language)}<li><kbd>←</kbd> <kbd>→</kbd> {labels["keys"]}</li></ul>
<ol class="steps">
{"".join(_steps(one, language))}</ol>
<details><summary>{labels["file"]}</summary><pre>{escape(scenario.text)}</pre></details>
<p>{links}</p>
</main>
{footer}"""
    runs = [f"recordings/{_run_name(one, number)}.js" for number in range(len(one.runs))]
    return _document(one.name, title, language, (*runs, "drawing.js", "page.js"), body)


def _planted(scenario: Scenario, language: str) -> str:
    if scenario.mutant is None:
        return ""
    planted = _LABELS[language]["planted"].format(find(scenario.mutant).told(language))
    return f'<p class="note">{escape(planted)}</p>\n'


def _legend(language: str) -> str:
    labels = _LABELS[language]
    return "".join(f'<li><i class="{key}"></i>{escape(labels[key])}</li>' for key in _LEGEND)


def play_name(run_name: str) -> str:
    return f"{run_name}.play"


@dataclass(frozen=True)
class _PlayPage:
    name: str
    label: str
    shown: tuple[Shown, ...]
    note: str = ""


def _scenario_play_pages(one: Played, language: str) -> Iterator[tuple[str, str]]:
    """Of each run, and of the first beside each of the others."""
    labels, several = _LABELS[language], len(one.runs) > 2
    first = Shown(one.name, one.runs[0], labels["happens"])
    planted = _planted(one.scenario, language)
    pages = [_PlayPage(one.name, first.label, (first,), planted)]
    for number, instead in enumerate(one.scenario.instead, 1):
        count = f" {number}" if several else ""
        other = Shown(_run_name(one, number), one.runs[number], labels["instead"] + count)
        note, both = f"<p>{_prose(instead.prose, language)}</p>\n", f"{labels['both']}{count}"
        pages.append(_PlayPage(other.run, other.label, (other,), note))
        beside = f"{one.name}.beside-{number}"
        pages.append(_PlayPage(beside, both, (first, other), note + planted))
    steps = f'<a href="{page_of(one.name, language)}">{labels["steps"]}</a>'
    title = one.scenario.title.in_language(language)
    top = f'<p class="subject">{steps}</p>\n<h1>{escape(title)}</h1>\n'
    for page in pages:
        head = top + _links(pages, page, language, "#step=1")
        yield page_of(play_name(page.name), language), _play_page(page, title, head, language)


def given_names(given: Mapping[str, Recording]) -> list[str]:
    """The names of the pages that play recordings: of each, and of two beside each other."""
    names = list(given)
    return [*names, f"{names[0]}.beside"] if len(names) == 2 else names


def _given_play_pages(given: Mapping[str, Recording], language: str) -> Iterator[tuple[str, str]]:
    shown = [Shown(name, recording, recording.source) for name, recording in given.items()]
    pages = [_PlayPage(each.run, each.label, (each,)) for each in shown]
    both = _LABELS[language]["both"]
    pages += [_PlayPage(name, both, tuple(shown)) for name in given_names(given)[len(shown) :]]
    for page in pages:
        title = " · ".join(each.label for each in page.shown)
        head = f"<h1>{escape(title)}</h1>\n" + _links(pages, page, language, "")
        yield page_of(play_name(page.name), language), _play_page(page, title, head, language)


def _links(pages: Sequence[_PlayPage], current: _PlayPage, language: str, fragment: str) -> str:
    links = "".join(
        f'<li><a href="{page_of(play_name(each.name), language)}{fragment}"'
        + (' aria-current="page"' if each == current else "")
        + f">{escape(each.label)}</a></li>\n"
        for each in pages
    )
    return f'<ul class="variants">\n{links}</ul>\n' if len(pages) > 1 else ""


def _play_page(page: _PlayPage, title: str, head: str, language: str) -> str:
    shown = page.shown if len(page.shown) > 1 else [replace(page.shown[0], label="")]
    runs = [each.run for each in shown]
    legend = f'<ul class="legend">{_legend(language)}</ul>\n'
    content = f'<main class="play">\n{head}{page.note}{body(shown, language)}{legend}</main>'
    scripts = (*(f"recordings/{each}.js" for each in runs), *SCRIPTS)
    return _document(play_name(page.name), title, language, scripts, content, runs)


def _choices(scenario: Scenario, language: str) -> str:
    """What each alternative replaces; one of them is beside the steps."""
    is_only = len(scenario.instead) == 1
    options = [
        _choice(number, each, language, is_only=is_only)
        for number, each in enumerate(scenario.instead, 1)
    ]
    if not options:
        return ""
    labels = _LABELS[language]
    return (
        f'<form class="runs"><fieldset><legend>{labels["beside"]}</legend>\n'
        f"{''.join(options)}</fieldset></form>"
    )


def _choice(number: int, instead: Instead, language: str, *, is_only: bool) -> str:
    replaced = "".join(
        f'<span class="old">- {escape(old)}</span>\n'
        + "".join(f'<span class="new-line">+ {escape(each)}</span>\n' for each in new)
        for _, old, new in instead.replaced
    )
    checked = " checked" if number == 1 else ""
    button = f'<input type="radio" name="beside" value="{number}"{checked}>' * (not is_only)
    return (
        f'<label class="choice">{button}'
        f"<span>{_prose(instead.prose, language)}</span></label>\n"
        f"<pre>{replaced}</pre>\n"
    )


def _prose(text: Text, language: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text.in_language(language), quote=False))


# -- steps ----------------------------------------------------------------------------------------


def _steps(one: Played, language: str) -> Iterator[str]:
    labels = _LABELS[language]
    steps = one.scenario.played
    found = [changes(each) for each in one.runs]
    drawn = [list(_drawn(each, language)) for each in one.runs]
    variants = [one.scenario.variant(number).played for number in range(len(one.scenario.instead))]
    known: set[str] = set()
    for index, step in enumerate(steps):
        number = index + 1
        words = explained((line for lines in found for line in lines[index]), known, language)
        picture = _picture(one.name, number, drawn[0][index])
        sides = _side(
            labels["happens"],
            "",
            _claims(found[0][index], step.expected, labels) + picture,
            _play_link(one.name, number, language),
        )
        for instead, section in enumerate(one.scenario.instead, 1):
            content = _commands(variants[instead - 1][index], labels, unlike=step)
            content += _differences(found[0][index], found[instead][index], labels)
            actual = differences([found[0][index]], [found[instead][index]]).get(1, ())
            expected = actual if section.expected is None else section.expected.get(number, ())
            if actual != expected:
                content += _says(expected, labels)
            content += _picture(_run_name(one, instead), number, drawn[instead][index])
            link = _play_link(_run_name(one, instead), number, language)
            sides += _side(labels["instead"], f' data-instead="{instead}"', content, link)
        yield (
            f'<li class="step" id="step-{number}" tabindex="-1">\n'
            f'<h2><a href="#step-{number}">{labels["step"].format(number, len(steps))}</a></h2>\n'
            f"<p>{_prose(step.prose, language)}</p>\n{_commands(step, labels)}"
            f'<div class="sides">\n{sides}</div>\n{_words(words)}</li>\n'
        )


def _words(words: Sequence[str]) -> str:
    """What words of the lines mean, at the step where they are first."""
    items = "".join(f"<li>{escape(each, quote=False)}</li>\n" for each in words)
    return f'<ul class="words">\n{items}</ul>\n' if items else ""


def _drawn(recording: Recording, language: str) -> Iterator[str]:
    replicas = Replicas()
    for event in recording.events:
        replicas.add(event)
        if isinstance(event, StepEnds):
            yield "\n".join(pictures(replicas, _PICTURE_WIDTH, language=language))


def _side(title: str, attributes: str, content: str, link: str) -> str:
    kind = " instead" if attributes else ""
    return f'<section class="side{kind}"{attributes}><h3>{title} {link}</h3>\n{content}</section>\n'


def _play_link(run_name: str, step: int, language: str) -> str:
    label = _LABELS[language]["play-step"]
    return f'<a href="{page_of(play_name(run_name), language)}#step={step}">{label}</a>'


def _picture(run_name: str, step: int, text: str) -> str:
    return (
        f'<div class="picture" data-run="{run_name}" data-step="{step}">'
        f"<pre>{escape(text)}</pre></div>\n"
    )


def _commands(step: Step, labels: dict[str, str], unlike: Step | None = None) -> str:
    """Those of an alternative only if they are unlike the step's."""
    commands = [command for _, command in step.commands]
    known = [command for _, command in unlike.commands] if unlike is not None else commands
    if unlike is not None and commands == known:
        return ""
    gone = [(each, "old", labels["went"]) for each in known if each not in commands]
    marked = [(each, "" if each in known else "new-line", "") for each in commands]
    return _list("commands", labels["commands"], gone + marked)


def _claims(found: Sequence[str], expected: Sequence[str] | None, labels: dict[str, str]) -> str:
    kind = "" if expected is None else "true" if list(expected) == list(found) else "false"
    told = labels["true"] if kind == "true" else ""
    shown = _list(
        "changes", labels["changes"], ((line, f"{kind} {_tone(line)}", told) for line in found)
    )
    return shown + (_says(expected, labels) if kind == "false" and expected is not None else "")


def _differences(before: Sequence[str], after: Sequence[str], labels: dict[str, str]) -> str:
    if list(before) == list(after):
        return f"<p>{labels['same']}</p>\n"
    lines = [(line, "went", labels["went"]) for line in before if line not in after]
    for line in after:
        new = line not in before
        lines.append((line, f"come {_tone(line)}" if new else "same", labels["come"] * new))
    return _list("changes", labels["changes"], lines)


def _says(expected: Sequence[str], labels: dict[str, str]) -> str:
    return f"<p>{labels['says']}</p>\n" + _list(
        "changes", labels["says"], ((line, "false", "") for line in expected)
    )


def _tone(line: str) -> str:
    return "violated" if line.startswith("violated: ") else ""


def _list(name: str, label: str, lines: Iterable[tuple[str, str, str]]) -> str:
    """Lines with their class and what a screen reader says before them."""
    items = "".join(
        f'<li class="{kind.strip()}">'
        + (f'<span class="said">{said} </span>' if said else "")
        + f"{escape(line)}</li>\n"
        for line, kind, said in lines
    )
    return f'<ul class="{name}" aria-label="{label}">\n{items}</ul>\n'
