"""The examples in docs/cli.md show the actual output."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.cli.support import COMMAND, Suwi

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"

# The parts that differ between runs: times, ids, and sizes that depend on times.
_VARIES = [
    (r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME"),
    (r"\b17\d{11}\b", "TIME"),
    (r"(TopicId +)\S{22}", r"\1ID"),
    (r"(size: |position:? |has |torn, )\d+", r"\1N"),
    (r"\d+ B\b", "N B"),
]


def examples() -> Iterator[tuple[str, str]]:
    """Each command of the page with the output shown under it."""
    for block in re.findall(r"^```\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            yield command, output


def without_varying_parts(text: str) -> str:
    for pattern, word in _VARIES:
        text = re.sub(pattern, word, text)
    return text


def run_in_shell(command: str, suwi: Suwi, directory: Path) -> str:
    program = directory / "suwi"
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    environment = suwi.environment()
    environment["PATH"] = f"{directory}{os.pathsep}{environment['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.stdout


def test_the_examples_of_the_tour_are_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(tmp_path / "suwi-data") as broker:
        suwi = Suwi(broker.address)
        for command, shown in examples():
            words = shlex.split(command)
            if words[0] == "suwi":
                said = suwi(*words[1:]).output
            else:
                said = run_in_shell(command, suwi, tmp_path)
            assert without_varying_parts(said) == without_varying_parts(shown), command
