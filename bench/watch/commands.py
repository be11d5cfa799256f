"""How a benchmark controls a recording process: lines on standard input, marked answers.

`begin` and `end` enclose what is recorded; `end` is answered with it. Other output of the process
is ignored.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, Protocol

MARK = "@bench "


class Records(Protocol):
    def begin(self) -> None: ...
    def end(self) -> dict[str, Any]: ...


def answer(content: object) -> None:
    sys.stdout.write(MARK + json.dumps(content) + "\n")
    sys.stdout.flush()


def obey(recorder: Records, others: Callable[[str], object] | None = None) -> None:
    """Runs until standard input ends; `others` gets the lines that are neither begin nor end."""
    for line in sys.stdin:
        match line.strip():
            case "begin":
                recorder.begin()
                answer(None)
            case "end":
                answer(recorder.end())
            case other:
                assert others is not None, other
                answer(others(other))
