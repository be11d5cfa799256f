"""The documents name what is there: every file in the map, every link, nothing else."""

import re
from pathlib import Path

import pytest

from suwi.wire.versions import APIS
from tools.file_map import TARGET, file_map

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "suwi"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_file_map_is_what_the_docstrings_say() -> None:
    assert TARGET.read_text() == file_map(), "write it anew with `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_in_documents_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    files = re.findall(r"`([a-z_]+/[a-z_/0-9]+\.py)`", text)
    places = (ROOT, PACKAGE)
    assert [file for file in files if not any((p / file).exists() for p in places)] == []


def test_apis_that_are_not_served_are_listed_by_name() -> None:
    apis = (PACKAGE / "broker" / "kafka_apis.py").read_text()
    served = set(re.findall(r"ApiKey\.([A-Z_]+)", apis))
    absent = {api.name for api in APIS.values() if api.key.name not in served and api.is_advertised}
    unsupported = (ROOT / "docs" / "unsupported.md").read_text()
    _, _, section = unsupported.partition("## APIs that are not served\n")
    listed, _, _ = section.partition("Not planned")
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+|\bHeartbeat\b", listed)) == absent
