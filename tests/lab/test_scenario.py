"""How a scenario is written, and what is said about mistakes in one."""

import re
from pathlib import Path

import pytest

from suwi.lab import child
from suwi.lab.clients import Clients
from suwi.lab.commands import COMMANDS, mistake_in
from suwi.lab.scenario import EXAMPLE, Scenario, ScenarioError, differences, parse
from suwi.lab.stage import Stage, changes, play
from suwi.lab.text import Text
from tests.lab.rewriting import rendered

HEAD = """---
title: Two replicas
title.ko: 복제본 두 개
set: replica.lag.time.max.ms=2000
---
"""
SCENARIO = (
    HEAD
    + """
# It is written to both.
#ko 둘 다에 쓰인다.
topic orders b1 b2
produce b1 acks=all "x"
----
orders: leader b1, epoch 0, in sync b1 b2
b1 end 0 -> 1, hw 0 -> 1
b2 end 0 -> 1, hw 0 -> 1
"x" is acknowledged at offset 0

instead
# With one replica.
- topic orders b1 b2
+ topic orders b1
----
step 1
- orders: leader b1, epoch 0, in sync b1 b2
- b2 end 0 -> 1, hw 0 -> 1
+ orders: leader b1, epoch 0, in sync b1
"""
)


def run(scenario: Scenario) -> list[list[str]]:
    return changes(child.run(scenario))


def test_head_prose_steps_and_what_is_done_instead_are_read() -> None:
    scenario = parse(SCENARIO)
    assert scenario.title == Text("Two replicas", "복제본 두 개")
    assert scenario.settings == {"replica.lag.time.max.ms": "2000"}
    (step,) = scenario.played
    assert step.prose == Text("It is written to both.", "둘 다에 쓰인다.")
    assert step.commands == ((9, "topic orders b1 b2"), (10, 'produce b1 acks=all "x"'))
    (instead,) = scenario.instead
    assert instead.prose.en == "With one replica."
    assert [command for _, command in scenario.variant(0).played[0].commands] == [
        "topic orders b1",
        'produce b1 acks=all "x"',
    ]


def test_what_happens_is_compared_with_the_file_and_with_what_happens_instead() -> None:
    scenario = parse(SCENARIO)
    found = run(scenario)
    assert rendered(scenario, found) == SCENARIO
    assert differences(found, run(scenario.variant(0))) == scenario.instead[0].expected


def test_spaces_at_the_end_of_lines_and_windows_line_ends_do_not_matter() -> None:
    for text in (SCENARIO.replace("\n", " \n"), SCENARIO.replace("\n", "\r\n")):
        assert parse(text).steps == parse(SCENARIO).steps


def test_prose_that_stands_alone_belongs_to_the_next_step() -> None:
    scenario = parse("# One.\n#ko 하나.\n\n# Two.\nlogs")
    assert [step.prose for step in scenario.played] == [Text("One. Two.", "하나.")]


def test_every_command_is_run_by_the_stage_and_its_usage_is_correct() -> None:
    methods = (*dir(Stage), *dir(Clients))
    done = {name[3:].replace("_", "-") for name in methods if name.startswith("do_")}
    assert done == set(COMMANDS)
    assert [each.usage for each in COMMANDS.values() if mistake_in(each.usage)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "topic orders b1\n\nprodcue b1 x",
            "line 3: there is no command `prodcue`; did you mean `produce`?",
        ),
        ("topic orders", "line 1: `topic` is written like `topic orders b1 b2 b3"),
        ("kill b7", "line 1: `kill` is written like `kill b1`"),
        ("# nothing", "line 1: there is no command in it"),
        ("---\ntitel: x\n---\nlogs", "line 2: the head has `key: value`"),
        ("---\ntitle: x\nlogs", "line 3: the head has"),
        ("---\ntitle: x", "line 1: the head does not end"),
        ("---\nmutant: none\n---\nlogs", "line 2: no mutant is called none"),
        ("---\nset: acks\n---\nlogs", "line 2: a setting is KEY=VALUE"),
        ("---\nset: acks=x\n---\nlogs", "line 2: unknown configuration 'acks'"),
        ("----\nnothing changes", "line 1: there is no command before `----`"),
        ("logs\n---\nnothing", "line 2: `---` begins nothing here: what a step changes is below"),
        ("logs\n\ninstead\n- heal", "line 4: the line to replace is not there: heal"),
        ("logs\n\ninstead\nheal", "line 4: write `- LINE`"),
        ("logs\n\ninstead\n- logs\n+ heal\n----\nnothing", "line 7: write `step N`"),
        (
            "logs\n\ninstead\n- logs\n+ hael",
            "line 3: with this `instead`: there is no command `hael`",
        ),
        ("logs\n\nheal\n\ninstead\n- heal", "line 5: a step would be without a command"),
        ('topic orders b1\n\nproduce b1 acks=all "x', "line 3: a quotation mark is not closed"),
        ("topic orders b1 partitions=x", "line 1: `topic` is written like"),
        ("topic orders b1\nlatest b1 v99", "line 2: `latest` is written like"),
        ("---\nset: node.id=7\n---\nlogs", "line 2: each broker of the lab has its own node.id"),
        ("", "line 1: there is no command in it"),
        ("logs\n\ninstead\n- logs\n+ heal\n\nlogs", "line 7: steps come before"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'produce b1 acks=1 "x"',
            'line 1: `produce b1 acks=1 "x"` cannot be run: there is no topic',
        ),
        ("topic orders b1\nstart b1", "line 2: `start b1` cannot be run: b1 is running already"),
        ("kill b1\nkill b1", "line 2: `kill b1` cannot be run: b1 is not running"),
        ("kill b1\nread b1 orders", "line 2: `read b1 orders` cannot be run: "),
        ("topic orders b1\nsend p1 x", "line 2: `send p1 x` cannot be run: p1 was not started"),
        (
            "topic orders b1\nproducer p1 retrys=0",
            "there is no setting retrys; did you mean retries?",
        ),
        ("topic orders b1\nproducer p1 retries=no", "retries is a number, not no"),
        (
            "topic orders b1\nproducer p1 retries=0 enable.idempotence=true",
            "enable.idempotence=true excludes retries=0",
        ),
        ("topic orders b1 retention=1", "line 1: `topic orders b1 retention=1` cannot be run: INV"),
        ("topic orders b1 retention=1", "did you mean 'retention.ms'?"),
        ("topic orders b1\nconsumer c1 order group.id=g", "line 2: `consumer c1 order group.id=g`"),
        ("topic orders b1\nconsumer c1 order group.id=g", "cannot be run: there is no topic order"),
        ("topic orders b1\nconsumer c1 orders acks=all", "there is no setting acks"),
        ("topic orders b1\nconsumer c1 orders client.id=x", "there is no setting client.id"),
        ("topic orders b1\nconsumer c1 orders max.poll.records=1", "group.id is missing"),
        ("topic orders b1\nproducer p1\ncommit p1", "line 3: `commit p1` cannot be run: p1 has no"),
        ("topic orders b1\nuntil b1 hw 5", "line 2: `until b1 hw 5` cannot be run: it is not true"),
        ("topic orders b1\nfreeze b1\nread b1", "line 3: `read b1` cannot be run: it does not end"),
    ],
)
def test_a_command_that_cannot_be_run_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as error:
        play(parse(text))
    assert message in str(error.value)


def test_a_mutant_is_applied_in_a_process_of_its_own_and_violations_are_shown() -> None:
    head = "---\nmutant: truncate-to-watermark\n---\n"
    steps = """topic orders b1 b2
produce b1 acks=all "x"
until b1 hw 1

kill b1
kill b2
wait 4s

start b2
read b2
"""
    shown = run(parse(head + steps))[-1]
    assert any(line.startswith("violated: ") for line in shown)
    assert "b2 shows nothing" in shown
    assert 'b2 shows 0 "x"' in run(parse(steps))[-1]


def test_a_mistake_in_a_run_with_a_mutant_is_told_with_its_line() -> None:
    with pytest.raises(ScenarioError, match="line 5: `start b1` cannot be run"):
        run(parse("---\nmutant: truncate-to-watermark\n---\nlogs\nstart b1"))


def test_an_idempotent_producer_that_retries_writes_once_and_another_one_twice() -> None:
    steps = """topic orders b1 b2
producer p1 enable.idempotence={} request.timeout.ms=1000
cut b1 -> p1
send p1 "x"
wait 2s
heal
wait 3s

logs
"""
    assert 'b1 has 0 "x" (epoch 0)' in run(parse(steps.format("true")))[-1]
    assert 'b1 has 0 "x" (epoch 0), 1 "x" (epoch 0)' in run(parse(steps.format("false")))[-1]


def test_a_producer_with_the_same_transactional_id_fences_the_other() -> None:
    found = run(
        parse(
            """topic orders b1 b2
producer p1 transactional.id=pay
producer p2 transactional.id=pay
send p2 "x"

commit p2
send p1 "x"
"""
        )
    )
    assert 'p2: "x" is acknowledged at offset 0' in found[0]
    assert "p2: commit succeeds" in found[1]
    assert any(line.startswith('p1: "x" is refused: ') for line in found[1])


def test_the_example_of_the_documentation_is_true() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text()
    check_is_true(re.findall(r"```\n(---\n.*?)```", page, re.DOTALL)[0])


def test_the_example_that_the_command_prints_is_true() -> None:
    check_is_true(EXAMPLE)


def check_is_true(text: str) -> None:
    scenario = parse(text)
    found = run(scenario)
    assert rendered(scenario, found) == text
    assert differences(found, run(scenario.variant(0))) == scenario.instead[0].expected
