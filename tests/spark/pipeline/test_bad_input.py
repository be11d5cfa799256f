"""Each message that the tables of bad input in docs/pipeline.md quote is one of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
_OF_SPARK = "cannot be written in the"
_CODE = re.compile(r"`` (.+?) ``|`([^`]+)`")
_FILLED = re.compile(r"\{\w+(?:!r)?\}|…")
"""What `format` fills in, and what is left out."""
_LETTERS_MIN = 13
_AROUND = " :'`)"


def messages() -> Iterator[str]:
    """Reasons are plain text; what is said of a job is quoted."""
    text = (ROOT / "docs/pipeline.md").read_text()
    records, jobs = (
        text.partition("## Bad input")[2]
        .partition("## Commands")[0]
        .split("What is wrong with a job")
    )
    for line in records.splitlines():
        if line.startswith("| ") and not line.startswith("| record"):
            yield line.strip("| ").rpartition(" | ")[2]
    for line in jobs.splitlines():
        if line.startswith("| ") and not line.startswith("| what"):
            quoted = [a or b for a, b in _CODE.findall(line.strip("| ").partition(" | ")[2])]
            yield from (one for one in quoted if " " in one and _OF_SPARK not in one)


def texts_of_the_code() -> set[str]:
    """Without what is filled in: each part around that by itself."""
    folders = [ROOT / "src/suwi" / name for name in ("spark", "decoders", "client", "model")]
    found: set[str] = set()
    for path in (path for folder in folders for path in folder.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        found.update(n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is str)
    stripped = (part.strip(_AROUND) for text in found for part in _FILLED.split(text))
    return {text for text in stripped if len(text) >= _LETTERS_MIN}


TEXTS = texts_of_the_code()


def is_said(fragment: str) -> bool:
    """It is in a text of the code, or such a text is a good part of it."""
    return any(
        fragment in text or (text in fragment and 5 * len(text) >= len(fragment)) for text in TEXTS
    )


@pytest.mark.parametrize("message", list(messages()))
def test_what_the_table_of_bad_input_quotes_is_in_the_code(message: str) -> None:
    fragments = [one.strip(_AROUND) for one in message.split("…")]
    for fragment in fragments:
        assert len(fragment) < _LETTERS_MIN or is_said(fragment), fragment
