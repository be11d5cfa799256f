"""`suwi lab`: scenarios of lost and duplicate records on a simulated cluster."""

import logging
import os
import re
import sys
import tempfile  # noqa: TID251 - the data of brokers that end with this command
import webbrowser
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import chain, count, zip_longest
from typing import Annotated

import typer
from rich.cells import cell_len, chop_cells
from rich.console import Console

from suwi.admin.failure import Failure
from suwi.cli.output import is_terminal, say, say_at_once, set_up_logging
from suwi.cli.session import guarded, is_input_a_terminal, local_command, read_text
from suwi.env import local_env
from suwi.lab import events, lab_consumer, lab_producer
from suwi.lab.child import run as play
from suwi.lab.commands import COMMANDS
from suwi.lab.event_text import event_text
from suwi.lab.events import Recording, RecordingError, Replicas
from suwi.lab.glossary import explained
from suwi.lab.library import ORDER, scenario_of, text_of
from suwi.lab.mutants import find
from suwi.lab.picture import WORDS, pictures
from suwi.lab.scenario import (
    EXAMPLE,
    RULES,
    Instead,
    Scenario,
    ScenarioError,
    differences,
    parse,
)
from suwi.lab.site import files_of, given_names, page_of, play_all, play_name
from suwi.lab.site_server import Pages, serving
from suwi.lab.stage import changes
from suwi.lab.text import LANGUAGES, Text
from suwi.model.broker_config import parse_broker_config

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_PROSE_WIDTH_MAX = 100
_LAST_EVENTS = 40
_LINK_DELAY_MS_MAX = 5000
_LABELS = {
    "en": {
        "step": "Step {} of {}",
        "instead": "Instead",
        "different": "The same schedule, and what is different:",
        "same": "The same schedule, and nothing is different.",
        "planted": "Planted for this run: {}.",
        "expected": "the file says:",
        "enter": "[Enter]",
        "done": "All that the scenario claims is true.",
        "wrong": "What happens is not what the file says. Differences: {}; see the lines with `!`.",
        "nothing": "The file claims nothing: copy the lines below each step under a line `----`.",
        "events": "{}: {} events, here {} to {}",
        "violated": "violated at {:g} s: {}",
    },
    "ko": {
        "step": "{}단계 / 전체 {}단계",
        "instead": "대신",
        "different": "같은 순서로 다시 실행했을 때 달라지는 것:",
        "same": "같은 순서로 다시 실행해도 달라지는 것이 없다.",
        "planted": "이번 실행에만 일부러 심은 동작: {}.",
        "expected": "파일에 적힌 내용:",
        "enter": "[Enter]",
        "done": "시나리오의 주장이 모두 확인되었다.",
        "wrong": "실제로 일어난 일이 파일과 {}번 다르다. `!`로 시작하는 줄을 보라.",
        "nothing": "파일에 주장이 없다. 각 단계 아래의 줄을 `----` 줄 밑에 옮겨 적으면 확인된다.",
        "events": "{}: 이벤트 {}개 중 {}번부터 {}번까지",
        "violated": "{:g}초에 위반: {}",
    },
}

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of `suwi lab list`, or the file of a scenario.")
]
_Language = Annotated[
    str | None, typer.Option("--lang", metavar="en|ko", help="Of the prose; as LANG if not given.")
]


@app.command("list")
@local_command
def list_scenarios(lang: _Language = None) -> None:
    """List the scenarios."""
    language, name_width = _language(lang), max(map(len, ORDER))
    width = Console(file=sys.stdout).width - name_width - 2
    for name in ORDER:
        title = wrapped(scenario_of(name).title.in_language(language), width)
        for label, line in zip_longest((name,), title, fillvalue=""):
            say(f"{label:{name_width}}  {line}")


@app.command("commands")
@local_command
def list_commands() -> None:
    """Show how a scenario is written: an example, its rules, all commands, settings of clients."""
    width = min(Console(file=sys.stdout).width, _PROSE_WIDTH_MAX) - 4
    say(EXAMPLE)
    say(RULES)
    for command in COMMANDS.values():
        say(command.usage)
        for line in wrapped(command.what, width):
            say(f"    {line}")
    for client, defaults in (
        ("a producer", lab_producer.DEFAULTS),
        ("a consumer", lab_consumer.DEFAULTS),
    ):
        say(f"\nSettings of {client}, with their defaults:")
        for key, value in defaults.items():
            say(f"    {key}={value}")


@app.command("show")
@local_command
def show(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="A scenario, its file, or a recording's file."),
    ],
    last: Annotated[
        int, typer.Option("--last", min=1, help="How many events of a recording.")
    ] = _LAST_EVENTS,
    lang: _Language = None,
) -> None:
    """Print a scenario without running it, or the last events of a recording.

    If an invariant was violated these are the events before that.
    """
    language, text = _language(lang), _text(name)
    if text.startswith("{"):
        _show_recording(_recording(name, text), last, language)
        return
    _scenario(name, text)
    for line in text.splitlines():
        if is_in_language(line, language):
            say(line)


@app.command("run")
@local_command
def run(
    name: _Name,
    step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each step.")] = False,
    record: Annotated[
        str | None, typer.Option("--record", metavar="FILE", help="Write what happens, as JSON.")
    ] = None,
    lang: _Language = None,
) -> int:
    """Play a scenario, show what each step changes, and then what avoids the harm.

    Every change that the file claims is compared with what happens; if one is different the exit
    code is 1.

    \b
    suwi lab run kip-101 --lang ko
    """
    return _run(name, _Printer(_language(lang), waits=step), record)


@app.command("export")
@local_command
def export(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Made if it does not exist.")],
) -> int:
    """Play all scenarios and write them as a web site, in English and Korean.

    It opens from disk: DIR/index.html. If anything is not as a scenario says, the pages show it
    and the exit code is 1.
    """
    _silence_brokers()
    _make_directory(directory)
    played = []
    for name in ORDER:
        say_at_once(name)
        played.append(play_all(name))
    for path, text in files_of(played):
        _write(os.path.join(directory, path), (text,))
    wrong = [one.name for one in played if one.wrong]
    for name in wrong:
        say(f"{name}: what happens is not what the file says")
    say(f"wrote {os.path.join(directory, 'index.html')}: {len(played)} scenarios")
    return 1 if wrong else 0


@app.command("serve")
def serve(
    recordings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECORDING]…", help="Files of --record, to be played, too."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Default: 9481, or another if it is taken."
        ),
    ] = None,
    open_: Annotated[
        bool, typer.Option("--open", show_default=False, help="Open it in the web browser.")
    ] = False,
    link_delay: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Instead: three brokers for your own client, with links between them that take "
            "so long (500ms, 2s), and the console, live.",
        ),
    ] = None,
    lang: _Language = None,
) -> None:
    """Play scenarios and recordings in a web browser, event by event.

    It runs until Ctrl-C, for this machine only. A recording opens at its violation, if it has one.
    Two recordings are also shown beside each other, with the first event in which they differ.

    \b
    suwi lab serve --open
    suwi lab serve run.jsonl
    suwi lab serve --link-delay 500ms --open
    """
    language = _language(lang)
    if link_delay is not None:
        if recordings or port is not None:
            raise typer.BadParameter(
                "goes without recordings and --port", param_hint="--link-delay"
            )
        delay_ms = _milliseconds(link_delay)
        raise typer.Exit(guarded(partial(_serve_slowly, delay_ms, opens=open_), interrupted=0))

    def work() -> None:
        _silence_brokers()
        given: dict[str, Recording] = {}
        for path in recordings or ():
            given[_page_name(path, given)] = _recording(path, read_text(path, "RECORDING"))
        with serving(Pages(given), port) as server:
            address = f"http://127.0.0.1:{server.server_port}/"
            names = ("index", *map(play_name, given_names(given)))
            addresses = [address + page_of(name, language) for name in names]
            for each in addresses:
                say_at_once(each)
            if open_:
                webbrowser.open(addresses[-1])
            server.serve_forever()

    raise typer.Exit(guarded(work, interrupted=0))


def _milliseconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text, re.ASCII)
    delay_ms = 0.0 if found is None else float(found[1]) * (1 if found[2] == "ms" else 1000)
    if not 0 < delay_ms <= _LINK_DELAY_MS_MAX:
        raise typer.BadParameter(
            f"{text!r}: give a time up to 5s, as 500ms", param_hint="--link-delay"
        )
    return delay_ms


def _serve_slowly(link_delay_ms: float, *, opens: bool) -> None:
    # Loads the broker.
    from suwi.cli.breakable_brokers import run_breakable
    from suwi.cli.broker_process import ServeFailed

    set_up_logging("warning")
    with tempfile.TemporaryDirectory(prefix="suwi-lab-") as directory:
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": directory,
            "replica.lag.time.max.ms": "30000",  # As usual: not shorter than what is held.
        }
        config, console = parse_broker_config(settings).config, ("--open",) if opens else ()
        try:
            run_breakable(local_env(), config, 3, console, link_delay_ms=link_delay_ms)
        except ServeFailed as error:
            raise Failure(str(error)) from None


def _page_name(path: str, taken: Iterable[str]) -> str:
    """A name for the page of a recording, made of its file name, that no other page has."""
    stem = re.sub(r"[^\w-]+", "-", os.path.basename(path).partition(".")[0], flags=re.ASCII)
    used = {*ORDER, *taken}
    numbers = (f"{stem}-{number}" for number in count(2))
    return next(name for name in chain((stem,), numbers) if name not in used)


def _make_directory(path: str) -> None:
    """Fails before the scenarios are played, which takes a minute."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from None


def _silence_brokers() -> None:
    """Brokers of a scenario log what is shown anyway."""
    logging.getLogger("suwi").addHandler(logging.NullHandler())


def _run(name: str, printer: "_Printer", record: str | None) -> int:
    _silence_brokers()
    scenario = _scenario(name, _text(name))
    printer.head(scenario)
    try:
        recording = play(scenario, name)
        if record is not None:
            _write(record, events.write(recording))
        wrong = printer.steps(scenario, recording)
        for number, section in enumerate(scenario.instead):
            other = play(scenario.variant(number), name)
            wrong += printer.instead(section, recording, other)
    except ScenarioError as error:
        raise Failure(f"{name}, {error}") from None
    printer.end(scenario, wrong)
    return 1 if wrong else 0


def _text(name: str) -> str:
    if name in ORDER:
        return text_of(name)
    if not os.path.exists(name):
        near = get_close_matches(name, ORDER, 1)
        advice = f"did you mean {near[0]}?" if near else f"scenarios: {', '.join(ORDER)}"
        raise Failure(f"there is no scenario and no file {name}; {advice}")
    return read_text(name, "NAME")


def _scenario(name: str, text: str) -> Scenario:
    if text.startswith("{"):
        raise Failure(f"{name} is a recording: `suwi lab show {name}` prints it")
    try:
        return parse(text)
    except ScenarioError as error:
        raise Failure(f"{name}, {error}") from None


def is_in_language(line: str, language: str) -> bool:
    """Whether a line of a scenario's file is no prose of the other language."""
    is_korean = line.startswith(("#ko", "title.ko:", "summary.ko:"))
    is_english = not is_korean and line.startswith(("#", "title:", "summary:"))
    return not (is_english if language == "ko" else is_korean)


def _recording(name: str, text: str) -> Recording:
    try:
        return events.read(text.splitlines())
    except RecordingError as error:
        raise Failure(f"{name}, {error}") from None


def _write(path: str, lines: Iterable[str]) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123 - where the user says
            file.writelines(lines)
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}") from None


def _language(given: str | None) -> str:
    if given is not None and given not in LANGUAGES:
        raise typer.BadParameter(f"{given!r} is not one of en, ko", param_hint="--lang")
    places = (os.environ.get(key) for key in ("LC_ALL", "LC_MESSAGES", "LANG"))
    usual = next((place for place in places if place), "")
    return given or ("ko" if usual.startswith("ko") else "en")


class _Printer:
    def __init__(self, language: str, *, waits: bool = False) -> None:
        self._language = language
        self._labels = _LABELS[language]
        self._waits = waits
        self._width = Console(file=sys.stdout).width
        self._colour = is_terminal() and "NO_COLOR" not in os.environ
        self._explained: set[str] = set()

    def head(self, scenario: Scenario) -> None:
        self._prose(scenario.title)
        self._prose(scenario.summary)
        if scenario.mutant is not None:
            planted = find(scenario.mutant).told(self._language)
            self._line(self._labels["planted"].format(planted), "")
        say_at_once("")

    def steps(self, scenario: Scenario, recording: Recording) -> int:
        """How many steps are not as the file says."""
        wrong = 0
        steps = scenario.played
        pictures = list(self._pictures(recording))
        found = changes(recording)
        for number, (step, lines) in enumerate(zip(steps, found, strict=True), 1):
            self._rule(self._labels["step"].format(number, len(steps)))
            self._prose(step.prose)
            for _, command in step.commands:
                self._line(f"> {command}", "  ")
            wrong += self._compared(lines, step.expected)
            self._explain(lines)
            self._draw(pictures[number - 1], with_legend=number == 1)
            self._pause()
        return wrong

    def instead(self, section: Instead, before: Recording, after: Recording) -> int:
        self._rule(self._labels["instead"])
        self._prose(section.prose)
        for _, old, new in section.replaced:
            for line in (f"- {old}", *(f"+ {each}" for each in new)):
                self._line(line, "  ")
        different = differences(changes(before), changes(after))
        say(self._labels["different" if different else "same"])
        total = len(changes(before))
        pictures = list(self._pictures(after))
        for number, lines in different.items():
            say(self._labels["step"].format(number, total))
            for line in lines:
                self._line(line)
            self._explain(line[2:] for line in lines)
        self._draw(pictures[max(different) - 1] if different else ())
        wrong = 0
        if section.expected is not None and different != section.expected:
            wrong = 1
            say(f"  ! {self._labels['expected']}")
            for number, lines in section.expected.items():
                for line in (f"step {number}", *lines):
                    say(f"  ! {line}")
        self._pause()
        return wrong

    def end(self, scenario: Scenario, wrong: int) -> None:
        is_claiming = any(step.expected is not None for step in scenario.played)
        label = "wrong" if wrong else "done" if is_claiming else "nothing"
        say(self._labels[label].format(wrong))

    def _compared(self, found: Sequence[str], expected: Sequence[str] | None) -> int:
        for line in found:
            self._line(line)
        if expected is None or list(expected) == list(found):
            return 0
        say(f"  ! {self._labels['expected']}")
        for line in expected:
            say(f"  ! {line}")
        return 1

    def _explain(self, lines: Iterable[str]) -> None:
        """The words in them that were not in earlier ones."""
        for line in explained(lines, self._explained, self._language):
            self._line(f"· {line}", "      ")

    def _pictures(self, recording: Recording) -> Iterator[list[str]]:
        """At the end of each step, of the scenario's own topics."""
        replicas = Replicas()
        for event in recording.events:
            replicas.add(event)
            if isinstance(event, events.StepEnds):
                yield self.pictures_of(replicas)

    def event(self, event: events.Event) -> None:
        head = f"{event.at_s:10.4f}  {event.kind:12} "
        text = event_text(event, self._language)
        for number, line in enumerate(wrapped(text, self._width - len(head) - 2)):
            say(f"{'  '.rjust(len(head) + 2) if number else head}{line}")

    def violation(self, violation: events.Violation) -> None:
        self._line(self._labels["violated"].format(violation.at_s, violation.what), "")

    def pictures_of(self, replicas: Replicas, about: str = "") -> list[str]:
        return pictures(
            replicas,
            self._width - 2,
            about=about,
            colour=self._colour,
            language=self._language,
        )

    def _draw(self, lines: Sequence[str], *, with_legend: bool = False) -> None:
        if lines:
            say()
        for line in lines:
            say(f"  {line}")
        if lines and with_legend:
            say(f"    {WORDS[self._language]['legend']}")
        say_at_once("")

    def _rule(self, text: str) -> None:
        width = min(self._width, _PROSE_WIDTH_MAX)
        say(f"── {text} " + "─" * (width - cell_len(text) - 4))

    def _prose(self, text: Text) -> None:
        for line in wrapped(text.in_language(self._language), min(self._width, _PROSE_WIDTH_MAX)):
            say(line)

    def _line(self, text: str, indent: str = "    ") -> None:
        for number, line in enumerate(wrapped(text, self._width - len(indent) - 2)):
            say(f"{indent}{'  ' if number else ''}{line}")

    def _pause(self) -> None:
        if self._waits and is_input_a_terminal():
            say_at_once(self._labels["enter"])
            sys.stdin.readline()


def wrapped(text: str, width: int) -> list[str]:
    """Lines that are no wider than `width` on a terminal, where Korean letters take two columns."""
    lines: list[str] = []
    words = text.split(" ") if text else []
    for word in (part for each in words for part in chop_cells(each, width) or [each]):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _show_recording(recording: Recording, last: int, language: str) -> None:
    """The last events up to the first violation, if there is one, and the replicas then."""
    printer = _Printer(language)
    replicas = Replicas()
    kinds = [each.kind for each in recording.events]
    end = kinds.index("violation") + 1 if "violation" in kinds else len(kinds)
    first = max(0, end - last)
    say(_LABELS[language]["events"].format(recording.source, len(kinds), first + 1, end))
    for number, event in enumerate(recording.events[:end]):
        replicas.add(event)
        if number >= first:
            printer.event(event)
    say()
    violations = [each for each in recording.events if isinstance(each, events.Violation)]
    for line in printer.pictures_of(replicas, violations[0].what if violations else ""):
        say(line)
    for violation in violations:
        printer.violation(violation)
