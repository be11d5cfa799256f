"""What all tests share: how hard hypothesis tries, how many seeds are for every day, until when
tests begin, garbage collection, signals, and that logging stays as it was.

`fast` is the same in every run of the same tests. In other runs it may not be: hypothesis also
tries the constants of all modules that are loaded. `thorough` looks for new failures:
HYPOTHESIS_PROFILE=thorough make test
"""

import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a busy machine is not a failure.
_PATIENT: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fast", max_examples=50, derandomize=True, database=None, **_PATIENT)
# For repeating with another Python what the fast one has looked for with the default Python.
settings.register_profile("few", max_examples=10, derandomize=True, database=None, **_PATIENT)
settings.register_profile("thorough", max_examples=2_000, print_blob=True, **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# A shell ignores SIGINT for a command in the background (`make test &`), and programs inherit
# that. A handler is not inherited: with one that does nothing, only this process ignores SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)


_FEW_SEEDS = 3
_OF_MANY = 10


@pytest.hookimpl(tryfirst=True)  # Before `-m` chooses.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first three seeds of a test, or a tenth of many, are in `make test`; the others are slow.

    A parameter has another name if each of its seeds is there for something of its own.
    """
    seeds: dict[str, dict[int, int]] = {}
    seeded = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "seed" in callspec.params:
            # The index that pytest has counts over all other parameters, too.
            of_test = seeds.setdefault(_test(item), {})
            seeded.append(
                (item, of_test, of_test.setdefault(callspec.params["seed"], len(of_test)))
            )
    for item, of_test, number in seeded:
        if number >= max(_FEW_SEEDS, len(of_test) // _OF_MANY):
            item.add_marker(pytest.mark.slow)


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


# Continuous integration has a limit, and tells it to those runs that may be cut short: seconds
# since 1970.
_BEGIN_UNTIL_S = float(os.environ.get("TESTS_BEGIN_UNTIL", "inf"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > _BEGIN_UNTIL_S:
        pytest.skip("no time is left for it")


gc.disable()  # Collecting the tests makes objects that stay.


def pytest_collection_finish() -> None:
    """What is imported stays: without this the garbage collector looks at all of it, many times."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def log_level_as_it_was() -> Iterator[None]:
    """A command that is tried here may set the level, and other tests look at what is logged."""
    root = logging.getLogger()
    level = root.level
    yield
    root.setLevel(level)
