"""Runs every scenario in `transcripts/` and compares the results; its recording is small.

`SUWI_REWRITE=1 pytest tests/replica/test_transcripts.py` writes the actual results into the files;
then `git diff` shows the changes.
"""

import os
from pathlib import Path

import pytest

from suwi.lab.events import write
from suwi.lab.scenario import parse
from suwi.lab.stage import changes, play
from tests.lab.rewriting import rendered

RECORDING_BYTES_MAX = 300_000
TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text()
    scenario = parse(text)
    recording = play(scenario)
    found = rendered(scenario, changes(recording))
    if os.environ.get("SUWI_REWRITE"):
        path.write_text(found)
    else:
        assert found == text
    assert sum(len(line.encode()) for line in write(recording)) < RECORDING_BYTES_MAX
