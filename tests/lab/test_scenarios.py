"""Every scenario of the package: what it asserts is true, and taking the harm out changes it.

`SUWI_REWRITE=1 pytest tests/lab/test_scenarios.py` writes what is found into the files.
"""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from suwi.lab.child import run
from suwi.lab.library import ORDER, scenario_of, text_of
from suwi.lab.scenario import ScenarioError, differences, parse
from suwi.lab.stage import changes
from tests.lab.played import play_all
from tests.lab.rewriting import rendered

FOLDER = Path(__file__).parents[2] / "src" / "suwi" / "lab" / "scenarios"
HARM = ("mutant:", "cut", "cut-store", "crash", "expire", "freeze", "hang", "kill", "power-off")
HARM += ("slow", "slow-store", "stop")
"""How a line with old behaviour or a fault begins."""


def harmful_lines() -> list[tuple[str, int]]:
    """Scenarios, with the index of such a line."""
    return [
        (name, index)
        for name in ORDER
        for index, line in enumerate(text_of(name).splitlines()[: scenario_of(name).body_end])
        if line.split(" ")[0] in HARM
    ]


def test_every_file_is_listed() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in FOLDER.glob("*.txt"))


@pytest.mark.parametrize("name", ORDER)
def test_what_a_scenario_asserts_is_true_also_with_what_is_done_instead(name: str) -> None:
    played = play_all(name)
    found, *variants = map(changes, played.runs)
    instead = [differences(found, variant) for variant in variants]
    text = rendered(played.scenario, found, instead)
    if os.environ.get("SUWI_REWRITE"):
        (FOLDER / f"{name}.txt").write_text(text)
    else:
        assert text == text_of(name)


@pytest.mark.parametrize("name", ORDER)
def test_without_the_harmful_setting_an_asserted_line_changes(name: str) -> None:
    """That it is the change which the file tells is asserted above."""
    assert any(section.expected for section in scenario_of(name).instead)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "index"), harmful_lines())
def test_without_any_one_fault_an_asserted_line_changes(name: str, index: int) -> None:
    scenario = scenario_of(name)
    lines = scenario.text.splitlines()[: scenario.body_end]
    if lines[index].startswith("mutant:"):
        del lines[index]
    else:
        # The time that the step takes stays the same.
        lines[index] = "wait 1s" if lines[index + 1].strip() in ("", "----") else "wait 0s"
    without = parse("\n".join(lines))
    with suppress(ScenarioError):  # It cannot be run: `until` what does not happen now.
        asserted = [list(step.expected or ()) for step in scenario.played]
        assert changes(run(without)) != asserted


@pytest.mark.parametrize("name", ORDER)
def test_a_scenario_has_prose_in_both_languages_and_asserts_every_step(name: str) -> None:
    scenario = scenario_of(name)
    texts = [scenario.title, scenario.summary]
    texts += [part.prose for part in (*scenario.played, *scenario.instead)]
    assert all(text.en and text.ko for text in texts)
    assert all(step.expected for step in scenario.played)
    assert all(section.expected is not None for section in scenario.instead)
