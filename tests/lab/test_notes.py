"""What the tutorial and the table of the notes name exists: scenarios, commands, and output."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from click import Context, Group

from suwi.cli.main import app
from suwi.lab.library import ORDER, text_of
from tests.cli.support import Suwi
from tests.test_docs import rows_of

DOCS = Path(__file__).parents[2] / "docs"
TABLE = DOCS / "notes-table.md"
TUTORIALS = {"en": DOCS / "tutorial.md", "ko": DOCS / "tutorial.ko.md"}


def parse(command: str) -> None:
    """Raises if there is no such command, or it has no such option."""
    _, *words = shlex.split(command)
    found, name = typer.main.get_command(app), "suwi"
    while isinstance(found, Group):
        name, found, words = found.resolve_command(Context(found), words)
        assert found is not None
    found.make_context(name, words)


def commands_in(text: str) -> list[str]:
    return re.findall(r"`(suwi [^`]+)`", text) + re.findall(r"^\$ (suwi .*)$", text, re.MULTILINE)


@pytest.mark.parametrize("row", rows_of(TABLE), ids=lambda row: row[1].strip()[:60])
def test_what_a_row_of_the_notes_names_exists(row: list[str]) -> None:
    _, what, where, _ = (cell.strip() for cell in row)
    assert what
    commands = commands_in(where)
    for command in commands:
        parse(command)
    names = set(re.findall(r"`([^`]+)`", where)) - set(commands)
    assert names - set(ORDER) == set()
    assert names or commands or "](" in where


@pytest.mark.parametrize("language", TUTORIALS)
def test_the_commands_of_the_tutorial_exist(language: str) -> None:
    for command in commands_in(TUTORIALS[language].read_text()):
        if "NAME" in command:
            continue
        parse(command)
        if command.startswith(("suwi lab run", "suwi lab show")):
            assert command.split()[3] in ORDER


def test_every_scenario_is_in_the_table_and_in_both_tutorials() -> None:
    for page in (TABLE, *TUTORIALS.values()):
        assert set(ORDER) - set(re.findall(r"[\w-]+", page.read_text())) == set()


def test_both_tutorials_have_the_same_chapters_and_examples() -> None:
    english, korean = (path.read_text() for path in TUTORIALS.values())
    assert len(re.findall("^## ", english, re.MULTILINE)) == len(
        re.findall("^## ", korean, re.MULTILINE)
    )
    scenarios = [re.findall(r"suwi lab run ([\w-]+)", text) for text in (english, korean)]
    assert scenarios[0] == scenarios[1]


def outputs() -> list[tuple[str, str, list[str]]]:
    """Of each example of the lab: the language, the scenario, and the lines that are shown."""
    return [
        (language, example.split()[3], [line for line in shown.splitlines() if line != "…"])
        for language, page in TUTORIALS.items()
        for block in re.findall(r"^```\n(\$.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for example, _, shown in (
            each.partition("\n") for each in re.split(r"^\$ ", block, flags=re.M)
        )
        if example.startswith("suwi lab run") and shown
    ]


def is_picture(lines: list[str]) -> bool:
    return any("║" in line for line in lines)


@pytest.mark.parametrize(("language", "name", "lines"), outputs())
def test_the_output_in_the_tutorial_is_what_the_scenario_asserts(
    language: str, name: str, lines: list[str]
) -> None:
    asserted = iter(text_of(name).splitlines())  # Each line is searched for after the one before.
    assert is_picture(lines) or [line for line in lines if line not in asserted] == []


def test_the_picture_in_the_tutorial_is_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for language, name, lines in outputs():
        if is_picture(lines):
            printed = Suwi("").ok("lab", "run", name, "--lang", language)
            assert "\n".join(lines) in printed
