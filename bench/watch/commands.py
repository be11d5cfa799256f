"""How a benchmark talks to a process that records: lines on standard input, answers with a mark.

`begin` and `end` enclose what is recorded; `end` is answered with it. Whatever else the process
prints goes by unread.
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
    """Until standard input ends; `others` takes the lines that are neither begin nor end."""
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
