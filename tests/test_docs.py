"""The documents name what is there: every file, function, link and hazard."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from suwi.wire.versions import APIS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "suwi"
GLOSSARY = ROOT / "docs" / "glossary.md"
WHERE = ROOT / "docs" / "where.md"
HAZARDS = ROOT / "docs" / "hazards.md"
TRANSCRIPTS = ROOT / "tests" / "replica" / "transcripts"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_in_documents_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    files = re.findall(r"`([a-z_]+/[a-z_/0-9]+\.py)`", text)
    places = (ROOT, PACKAGE)
    assert [file for file in files if not any((p / file).exists() for p in places)] == []


def rows_of(page: Path) -> list[list[str]]:
    """The cells of the rows of all tables of a page, without the heads."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    rows = [line for number, line in enumerate(lines) if number not in heads]
    return [line.strip("|").split("|") for line in rows if not line.startswith("|---")]


def names_in(path: Path) -> Iterator[str]:
    """Functions, classes, variables, and methods and fields of classes as `Class.name`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ClassDef):
            yield node.name
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{member.name}"
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    yield f"{node.name}.{member.target.id}"


def missing(places: list[str]) -> list[str]:
    """Files and names that do not exist. A name belongs to the file that is named before it."""
    found: list[str] = []
    names: set[str] = set()
    for place in places:
        if place.endswith(".py"):
            exists = (PACKAGE / place).exists()
            names = set(names_in(PACKAGE / place)) if exists else set()
        else:
            exists = place in names
        if not exists:
            found.append(place)
    return found


@pytest.mark.parametrize("row", rows_of(GLOSSARY), ids=lambda row: row[0].strip())
def test_what_the_glossary_names_exists(row: list[str]) -> None:
    _, here, remark = row
    places = re.findall(r"`([\w/.]+)`", here) + re.findall(r"`([a-z_/]+\.py|[A-Z][\w.]+)`", remark)
    assert places[0].endswith(".py"), "every row names a file first"
    assert missing(places) == []


@pytest.mark.parametrize("row", rows_of(WHERE), ids=lambda row: row[0].strip())
def test_where_something_is_changed_exists(row: list[str]) -> None:
    _, here = row
    places = re.findall(r"`([^`]+)`", here)
    assert places[0].endswith(".py"), "every row names a file first"
    assert missing(places) == []


def test_there_are_thirty_questions_on_one_page() -> None:
    assert len(rows_of(WHERE)) == 30


def test_what_does_not_exist_is_found() -> None:
    assert missing(["broker/broker.py", "Broker.start", "broker/nothing.py"]) == [
        "broker/nothing.py"
    ]
    assert missing(["log/segment.py", "Segment.append", "Broker.start"]) == ["Broker.start"]


_HAZARD = re.compile(r"[Hh]azards?[ _\n#]+((?:[GTZ]?\d+(?:, |–| and | to )?)+)")
_GROUP_HAZARD = re.compile(r"\b(G\d+)\b:")


def hazards_in(text: str) -> set[str]:
    """The numbers that a text refers to: `hazard 4`, `Hazards 1 and 3`, `Hazards G1–G7, G15`; also
    those in the names of tests: `test_g3_…`, `test_t8_…`."""
    found = set(_GROUP_HAZARD.findall(text))
    names = re.findall(r"\bdef test_([gt])(\d+)_", text)
    found |= {f"{letter.upper()}{number}" for letter, number in names}
    for listed in _HAZARD.findall(text):
        for part in filter(None, re.split(", | and ", listed)):
            numbers = [int(number) for number in re.findall(r"\d+", part)]
            letter = part[0] if part[0] in "GTZ" else ""
            found |= {f"{letter}{n}" for n in range(numbers[0], numbers[-1] + 1)}
    return found


def hazard_rows() -> dict[str, str]:
    rows = re.findall(r"^\| ([GTZ]?\d+) \| (.*)$", HAZARDS.read_text(), re.MULTILINE)
    assert len(dict(rows)) == len(rows), "every number once"
    return dict(rows)


def test_every_hazard_that_code_or_tests_refer_to_is_listed() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *TRANSCRIPTS.glob("*.txt")]
    used = set().union(*(hazards_in(path.read_text()) for path in files if path != Path(__file__)))
    assert used == set(hazard_rows())


@pytest.mark.parametrize(("number", "row"), hazard_rows().items())
def test_the_tests_of_a_hazard_refer_to_it(number: str, row: str) -> None:
    for file in re.findall(r"`(tests/[a-z_/]+\.py)`", row):
        assert number in hazards_in((ROOT / file).read_text())


def test_apis_that_are_not_served_are_listed_by_name() -> None:
    apis = (PACKAGE / "broker" / "kafka_apis.py").read_text()
    served = set(re.findall(r"ApiKey\.([A-Z_]+)", apis))
    absent = {api.name for api in APIS.values() if api.key.name not in served and api.is_advertised}
    unsupported = (ROOT / "docs" / "unsupported.md").read_text()
    _, _, section = unsupported.partition("## APIs that are not served\n")
    listed, _, _ = section.partition("Not planned")
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\bHeartbeat\b", listed)) == absent
