"""Plays a scenario in a process of its own, with its mutant: `python -m suwi.lab.child`.

The scenario is read from stdin; its recording is written to stdout. A mutant patches classes of its
whole process, which therefore does nothing else.
"""

import json
import subprocess
import sys
from contextlib import nullcontext

from suwi.lab.events import Recording, read, write
from suwi.lab.mutants import find
from suwi.lab.scenario import Scenario, ScenarioError, parse
from suwi.lab.stage import play

_MISTAKE = "mistake"


def run(scenario: Scenario, source: str = "scenario") -> Recording:
    """Play it here, or in a child if it has a mutant."""
    if scenario.mutant is None:
        return play(scenario, source)
    ended = subprocess.run(
        [sys.executable, "-m", "suwi.lab.child", source],
        input=scenario.text.encode(),
        capture_output=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"the scenario failed in its own process: {ended.stderr.decode()}")
    lines = ended.stdout.decode().splitlines()
    first = json.loads(lines[0])
    if first["kind"] == _MISTAKE:
        raise ScenarioError(first["line"], first["message"])
    return read(lines)


def main() -> None:
    scenario = parse(sys.stdin.buffer.read().decode())
    with find(scenario.mutant).applied() if scenario.mutant else nullcontext():
        try:
            lines = list(write(play(scenario, sys.argv[1])))
        except ScenarioError as error:
            mistake = {"kind": _MISTAKE, "line": error.line, "message": error.message}
            lines = [json.dumps(mistake)]
    sys.stdout.buffer.write("".join(lines).encode())


if __name__ == "__main__":
    main()
