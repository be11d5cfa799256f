"""Tests work as well where a shell ignores SIGINT, as it does for `make test &`.

Most seeds of a test are slow.
"""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_collection_modifyitems

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


class FakeItem:
    """What the choice of seeds looks at."""

    def __init__(self, test: str, **params: int) -> None:
        self.nodeid = f"{test}[{params}]" if params else test
        self.callspec = SimpleNamespace(params=params)
        self.is_slow = False

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        assert mark.name == "slow"
        self.is_slow = True


@pytest.mark.parametrize(("seeds", "everyday"), [(2, 2), (3, 3), (12, 3), (150, 15)])
def test_a_few_seeds_of_a_test_are_for_every_day_and_the_others_are_slow(
    seeds: int, everyday: int
) -> None:
    items = [FakeItem("a", seed=seed, delay=delay) for delay in range(2) for seed in range(seeds)]
    others = [FakeItem("b"), *(FakeItem("c", delay=delay) for delay in range(5))]
    pytest_collection_modifyitems([*others, *items])  # type: ignore[list-item]
    assert [item for item in items if not item.is_slow] == [
        item for item in items if item.callspec.params["seed"] < everyday
    ]
    assert not any(item.is_slow for item in others)
