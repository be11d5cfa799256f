"""Where `google-re2` is not installed, Python's `re` stands in for it."""

import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from suwi.group.regular_expressions import compile_regex

HAS_RE2 = find_spec("re2") is not None


class StandIn(ModuleType):
    error = re.error

    class Options:
        log_errors = True

    @staticmethod
    def compile(regex: str, _options: Any) -> Any:
        return SimpleNamespace(fullmatch=re.compile(regex).fullmatch, programsize=len(regex))


@pytest.fixture(autouse=True)
def regular_expressions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not HAS_RE2:
        monkeypatch.setitem(sys.modules, "re2", StandIn("re2"))
    compile_regex.cache_clear()
    yield
    compile_regex.cache_clear()
