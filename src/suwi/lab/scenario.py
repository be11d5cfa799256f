"""A scenario: a text file with commands to a simulated cluster, and what each step must change.

`EXAMPLE` is one, `RULES` says how one is written; `suwi lab commands` prints both.
`parse` reads one and raises `ScenarioError`, which names the line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from suwi.lab.commands import mistake_in
from suwi.lab.mutants import MUTANTS
from suwi.lab.text import Text
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import BadConfig

RESULT = "----"
INSTEAD = "instead"
HEAD = "---"
_OWN_SETTINGS = ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dir", "log.dirs")
_KEYS = ("title", "title.ko", "summary", "summary.ko", "mutant", "set")
EXAMPLE = """---
title: A write is refused
title.ko: 쓰기가 거절된다
set: replica.lag.time.max.ms=2000
---

# b2 is cut off, and leaves the in-sync set.
#ko b2가 끊겨 ISR에서 제외된다.
topic orders b1 b2 min.insync.replicas=2
cut b1 <-> b2
until in-sync b1
----
orders: leader b1, epoch 0, in sync b1

produce b1 acks=all "x"
----
"x" is refused by b1: NOT_ENOUGH_REPLICAS

instead
# With a lower minimum it is written, with a single copy.
#ko 하한을 낮추면 복제본 하나만으로 쓰인다.
- topic orders b1 b2 min.insync.replicas=2
+ topic orders b1 b2 min.insync.replicas=1
----
step 2
- "x" is refused by b1: NOT_ENOUGH_REPLICAS
+ b1 end 0 -> 1, hw 0 -> 1
+ "x" is acknowledged at offset 0
"""
RULES = """Steps are separated by empty lines: prose (# English, #ko Korean), commands, and
below a line ---- what they change. A step without ---- asserts nothing. Write
the commands, run the file, and copy what it prints for each step below a ----.

`instead` plays all of it again with lines replaced, and lists by step what is
then different; without ---- it asserts nothing, with nothing below it that
nothing is different. A `-` without `+` leaves a line out.

The head between --- may be left out. Its keys: title, title.ko, summary,
summary.ko, mutant (old behaviour to plant) and set (a setting of all brokers;
may be repeated).

Brokers are b1 to b4; b4 is the controller. Producers are p1 to p4, consumers c1
to c4. Time does not pass between commands; after the last one of a step the
cluster runs for a second, unless that was `until` or `wait`.
"""


class ScenarioError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Step:
    """A block of the file. One that has only prose has no commands."""

    line: int
    prose: Text
    commands: tuple[tuple[int, str], ...]
    """With their lines."""
    expected: tuple[str, ...] | None
    """None: nothing is asserted."""
    expected_lines: tuple[int, int]
    """The lines of the file that assert, as a range."""


@dataclass(frozen=True)
class Instead:
    line: int
    prose: Text
    replaced: tuple[tuple[int, str, tuple[str, ...]], ...]
    """A line of the file, where it is replaced, and by what."""
    expected: Mapping[int, tuple[str, ...]] | None
    """By the number of the step, the lines with `- ` and `+ `. None: nothing is asserted."""
    expected_lines: tuple[int, int]


@dataclass(frozen=True)
class Scenario:
    text: str
    """The file."""
    title: Text
    summary: Text
    mutant: str | None
    settings: Mapping[str, str]
    steps: tuple[Step, ...]
    instead: tuple[Instead, ...]
    body_end: int = field(default=0)
    """How many lines of the file come before the first `instead`."""

    @property
    def played(self) -> list[Step]:
        """Those with commands, numbered from 1. Prose that stands alone belongs to the next."""
        found: list[Step] = []
        before = Text()
        for step in self.steps:
            prose = before + step.prose
            before = Text() if step.commands else prose
            if step.commands:
                found.append(replace(step, prose=prose))
        return found

    def variant(self, number: int) -> "Scenario":
        """The scenario with the lines of one `instead` replaced. It asserts nothing itself."""
        instead = self.instead[number]
        lines = self.text.splitlines()[: self.body_end]
        for at, old, new in instead.replaced:
            found = [index for index, line in enumerate(lines) if line.strip() == old]
            if len(found) != 1:
                often = "not there" if not found else f"there {len(found)} times"
                raise ScenarioError(at, f"the line to replace is {often}: {old}")
            lines[found[0] : found[0] + 1] = new
        return parse("\n".join(lines))


def parse(text: str) -> Scenario:
    lines = [line.rstrip() for line in text.splitlines()]
    head, first = _head(lines)
    steps: list[Step] = []
    instead: list[Instead] = []
    body_end = len(lines)
    for start, block in _blocks(lines, first):
        commands = [line.strip() for line in block if not line.startswith("#")]
        if commands and commands[0] == INSTEAD:
            body_end = min(body_end, start)
            instead.append(_instead(start, block))
        elif instead:
            raise ScenarioError(start + 1, "steps come before the first `instead`")
        else:
            steps.append(_step(start, block))
    scenario = Scenario(
        text,
        Text(*(_one(head, f"title{suffix}") for suffix in ("", ".ko"))),
        Text(*(_one(head, f"summary{suffix}") for suffix in ("", ".ko"))),
        _one(head, "mutant") or None,
        dict(_setting(line, value) for line, value in head.get("set", ())),
        tuple(steps),
        tuple(instead),
        body_end,
    )
    if not scenario.played:
        raise ScenarioError(
            max(1, len(lines)), "there is no command in it; `suwi lab commands` lists them"
        )
    for number in range(len(instead)):
        _check_variant(scenario, number)
    return scenario


def _check_variant(scenario: Scenario, number: int) -> None:
    """Mistakes are told with the line of the `instead`, not with that of the text it makes."""
    line = scenario.instead[number].line
    try:
        variant = scenario.variant(number)
    except ScenarioError as error:
        if error.line in [at for at, _, _ in scenario.instead[number].replaced]:
            raise
        raise ScenarioError(line, f"with this `instead`: {error.message}") from None
    if len(variant.played) != len(scenario.played):
        raise ScenarioError(line, "a step would be without a command: put `wait 1s` there")


def differences(
    before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]
) -> dict[int, tuple[str, ...]]:
    """What an `instead` must assert: by step, the lines that are gone and those that are new."""
    found: dict[int, tuple[str, ...]] = {}
    for number, (old, new) in enumerate(zip(before, after, strict=True), 1):
        gone = [f"- {line}" for line in old if line not in new]
        come = [f"+ {line}" for line in new if line not in old]
        if gone or come:
            found[number] = (*gone, *come)
    return found


# -- parts of the file ----------------------------------------------------------------------------


def _head(lines: Sequence[str]) -> tuple[dict[str, list[tuple[int, str]]], int]:
    """The values of each key with their lines, and the first line after the head."""
    head: dict[str, list[tuple[int, str]]] = {}
    if not lines or lines[0] != HEAD:
        return head, 0
    for number, line in enumerate(lines[1:], 2):
        if line == HEAD:
            return head, number
        key, colon, value = line.partition(":")
        if not colon or key not in _KEYS:
            raise ScenarioError(
                number, f"the head has `key: value`, with one of {', '.join(_KEYS)}"
            )
        if key == "mutant" and value.strip() not in MUTANTS:
            raise ScenarioError(
                number, f"no mutant is called {value.strip()}; there are {', '.join(MUTANTS)}"
            )
        if key in head and key != "set":
            raise ScenarioError(number, f"{key} is there twice")
        head.setdefault(key, []).append((number, value.strip()))
    raise ScenarioError(1, f"the head does not end: it needs a second line `{HEAD}`")


def _one(head: Mapping[str, list[tuple[int, str]]], key: str) -> str:
    return head[key][0][1] if key in head else ""


def _setting(line: int, value: str) -> tuple[str, str]:
    key, equals, text = value.partition("=")
    if not equals:
        raise ScenarioError(line, f"a setting is KEY=VALUE, not `{value}`")
    key, text = key.strip(), text.strip()
    if key in _OWN_SETTINGS:
        raise ScenarioError(line, f"each broker of the lab has its own {key}")
    try:
        parse_broker_config({"log.dirs": "/data", key: text})
    except BadConfig as error:
        raise ScenarioError(line, str(error)) from None
    return key, text


def _blocks(lines: Sequence[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """The parts between empty lines, each with the index of its first line."""
    block: list[str] = []
    for index in range(first, len(lines) + 1):
        line = lines[index] if index < len(lines) else ""
        if line.strip():
            block.append(line)
        elif block:
            yield index - len(block), block
            block = []


def _prose(block: Sequence[str]) -> Text:
    korean = [line[3:].strip() for line in block if line.startswith("#ko")]
    english = [line[1:].strip() for line in block if line[:1] == "#" and line[:3] != "#ko"]
    return Text(" ".join(english), " ".join(korean))


def _split(start: int, block: list[str]) -> tuple[list[tuple[int, str]], int | None]:
    """The lines before `----` without prose, and the index of the line after it in the file."""
    result = block.index(RESULT) if RESULT in block else None
    before = [
        (start + index + 1, line.strip())
        for index, line in enumerate(block[:result])
        if not line.startswith("#")
    ]
    return before, None if result is None else start + result + 1


def _step(start: int, block: list[str]) -> Step:
    commands, results = _split(start, block)
    for line, command in commands:
        mistake = mistake_in(command)
        if mistake is not None:
            raise ScenarioError(line, mistake)
    if results is None:
        return Step(start + 1, _prose(block), tuple(commands), None, (0, 0))
    if not commands:
        raise ScenarioError(results, f"there is no command before `{RESULT}`")
    end = start + len(block)
    expected = tuple(line.strip() for line in block[results - start :])
    return Step(
        start + 1, _prose(block[: results - start]), tuple(commands), expected, (results, end)
    )


def _instead(start: int, block: list[str]) -> Instead:
    commands, results = _split(start, block)
    replaced: list[tuple[int, str, tuple[str, ...]]] = []
    for line, text in commands[1:]:
        mark, _, rest = text.partition(" ")
        if mark == "-":
            replaced.append((line, rest.strip(), ()))
        elif mark == "+" and replaced:
            at, old, new = replaced[-1]
            replaced[-1] = (at, old, (*new, rest.strip()))
        else:
            raise ScenarioError(
                line, "write `- LINE` for what is replaced, then `+ LINE` for what comes there"
            )
    if not replaced:
        raise ScenarioError(
            start + 1, "`instead` replaces at least one line: `- LINE`, then `+ LINE`"
        )
    end = start + len(block)
    if results is None:
        return Instead(start + 1, _prose(block), tuple(replaced), None, (end, end))
    expected: dict[int, tuple[str, ...]] = {}
    step = 0
    for line, text in enumerate(block[results - start :], results + 1):
        word, _, rest = text.strip().partition(" ")
        if word == "step" and rest.isdigit():
            step = int(rest)
            expected[step] = ()
        elif word in ("-", "+") and step:
            expected[step] += (text.strip(),)
        else:
            raise ScenarioError(
                line, "write `step N`, then `- LINE` and `+ LINE` for what is different there"
            )
    return Instead(start + 1, _prose(block), tuple(replaced), expected, (results, end))
