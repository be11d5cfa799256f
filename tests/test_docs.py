"""The documents name what is there: every file in the map, every link, nothing else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from suwi.wire.versions import APIS
from tools.file_map import TARGET, file_map

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "suwi"
GLOSSARY = ROOT / "docs" / "glossary.md"
HAZARDS = ROOT / "docs" / "hazards.md"
TRANSCRIPTS = ROOT / "tests" / "replica" / "transcripts"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_file_map_is_what_the_docstrings_say() -> None:
    assert TARGET.read_text() == file_map(), "regenerate it with `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_in_documents_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    files = re.findall(r"`([a-z_]+/[a-z_/0-9]+\.py)`", text)
    places = (ROOT, PACKAGE)
    assert [file for file in files if not any((p / file).exists() for p in places)] == []


def glossary_rows() -> list[str]:
    lines = GLOSSARY.read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| Kafka |")]


def names_in(path: Path) -> Iterator[str]:
    """Functions, classes, and methods and fields of classes as `Class.name`."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{member.name}"
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    yield f"{node.name}.{member.target.id}"


@pytest.mark.parametrize("row", glossary_rows(), ids=lambda row: row.split("|")[1].strip())
def test_what_the_glossary_names_exists_and_is_in_the_file_map(row: str) -> None:
    """A class or function belongs to the file that is named before it."""
    _, _, here, remark, _ = row.split("|")
    places = re.findall(r"`([\w/.]+)`", here) + re.findall(r"`([a-z_/]+\.py|[A-Z][\w.]+)`", remark)
    assert places[0].endswith(".py"), "every row names a file first"
    listed = TARGET.read_text()
    names: set[str] = set()
    for place in places:
        if place.endswith(".py"):
            assert f"- `{place}`:" in listed
            names = set(names_in(PACKAGE / place))
        else:
            assert place in names


_HAZARD = re.compile(r"[Hh]azards?[ _\n#]+((?:[GT]?\d+(?:, |–| and | to )?)+)")
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
            letter = part[0] if part[0] in "GT" else ""
            found |= {f"{letter}{n}" for n in range(numbers[0], numbers[-1] + 1)}
    return found


def hazard_rows() -> dict[str, str]:
    rows = re.findall(r"^\| ([GT]?\d+) \| (.*)$", HAZARDS.read_text(), re.MULTILINE)
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
