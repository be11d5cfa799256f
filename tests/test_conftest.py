"""Tests work as well where a shell ignores SIGINT, as it does for `make test &`."""

import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__)
_IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$0" "$@"')
_HANDLER = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"


def test_a_started_program_can_be_interrupted() -> None:
    command = [sys.executable, "-c", _HANDLER]
    assert subprocess.check_output(command, text=True).strip() == "default_int_handler"


def test_a_program_can_be_interrupted_if_the_tests_run_in_the_background() -> None:
    test = f"{_HERE}::{test_a_started_program_can_be_interrupted.__name__}"
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    run = subprocess.run(
        [*_IN_THE_BACKGROUND, *pytest],
        cwd=_HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
