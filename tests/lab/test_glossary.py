"""The words of asserted lines, explained."""

import re

from suwi.lab.glossary import TERMS, explained
from suwi.lab.library import ORDER, scenario_of
from suwi.lab.scenario import parse
from tests.replica.test_transcripts import TRANSCRIPTS


def lines_of_all_scenarios() -> list[str]:
    scenarios = [*map(scenario_of, ORDER), *(parse(path.read_text()) for path in TRANSCRIPTS)]
    steps = [line for each in scenarios for step in each.played for line in step.expected or ()]
    sections = [section for each in scenarios for section in each.instead]
    changed = [
        line[2:] for each in sections for lines in (each.expected or {}).values() for line in lines
    ]
    return steps + changed


def test_a_word_is_explained_once_in_the_language_of_the_user() -> None:
    known: set[str] = set()
    lines = ["b1 end 0 -> 1, hw 0 -> 1", '"x" is acknowledged at offset 0']
    words = [line.partition(":")[0] for line in explained(lines, known, "en")]
    assert words == ["end", "hw", "is acknowledged"]
    assert explained(lines, known, "en") == []
    assert explained(["b1 shows nothing"], known, "ko") == ["shows: 컨슈머가 그 브로커에서 읽는 것"]


def test_every_word_that_is_explained_is_in_a_scenario() -> None:
    lines = lines_of_all_scenarios()
    unused = [w for w, (p, _) in TERMS.items() if not any(re.search(p, line) for line in lines)]
    assert unused == []
    assert all(text.en and text.ko for _, text in TERMS.values())
