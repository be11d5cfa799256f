"""Runs every scenario in `transcripts/` and compares the results.

`SUWI_REWRITE=1 pytest tests/replica/test_transcripts.py` writes the actual results into the files;
then `git diff` shows the changes.
"""

import os
from pathlib import Path

import pytest

from tests.replica.transcript import parse, play, render

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    blocks = parse(text)
    found = render(blocks, play(blocks))
    if os.environ.get("SUWI_REWRITE"):
        path.write_text(found)
    else:
        assert found == text
