"""Why a query ended, in one line, whether trying again may help, and how a command then ends.

Spark gives Python's errors as text, with tracebacks of two languages around them; ours are found in
it by the names of their classes. docs/pipeline.md lists the exit codes.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

from suwi.decoders.errors import CannotDecode


class Kind(Enum):
    PASSING = "may pass"
    BUSY = "the machine was too busy for Spark"
    LASTING = "something has to be changed first"
    DATA_LOST = "records are gone before they were read"


class Failure(NamedTuple):
    kind: Kind
    text: str


_OURS = re.compile(r"^(?:[\w.]*: )?suwi\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_SPARK = re.compile(r"\[([A-Z_.]+)\] ([^\n]+)")
_LASTING = {
    "AnotherDriver",
    "AnotherProcess",
    "BadConfig",
    "BadOffsets",
    "BadOption",
    "CannotRead",
    "CannotDecode",
    "CheckpointMismatch",
    "DeltaSinkError",
    "FilesGone",
    "OtherTable",
    "OutputsChanged",
    "RowsChanged",
    "RuleBroken",
    "SchemaMismatch",
    "TooManyTasks",
    "TransactionsLost",
    "UnsupportedTable",
}
_LENGTH_MAX = 500
_NO_SOCKET = "[CANNOT_OPEN_SOCKET]"
_NO_WORKER = "Python worker failed to connect back"


def failure_of(error: BaseException) -> Failure:
    """What went wrong, from an exception that a query ended with or that kept it from starting."""
    from py4j.protocol import Py4JNetworkError
    from pyspark.errors import AnalysisException

    text = str(error)
    if type(error).__name__ in _LASTING:
        return Failure(Kind.LASTING, _first_line(text))
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return Failure(Kind.LASTING, f"Spark's own process has ended: {_first_line(text)}")
    if _NO_SOCKET in text and "timed out" in text:
        return Failure(Kind.BUSY, "Spark did not send a result in time: the machine is busy")
    if _NO_WORKER in text:
        why = "a Python worker did not start within the 10 s that Spark allows"
        return Failure(Kind.BUSY, f"{why}: the machine is busy, or PYSPARK_PYTHON is wrong")
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1][0], ours[-1][1][:_LENGTH_MAX]
        if name in ("DataLoss", "VersionGone"):
            return Failure(Kind.DATA_LOST, message)
        return Failure(Kind.LASTING if name in _LASTING else Kind.PASSING, message)
    if isinstance(error, ValueError | ImportError | AttributeError | CannotDecode):
        return Failure(Kind.LASTING, _first_line(text) or type(error).__name__)
    if isinstance(error, AnalysisException):
        advice = ": use mode('append')" if "DATA_SOURCE_SAVE_MODE" in text else ""
        return Failure(Kind.LASTING, _first_line(text) + advice)
    python = _PYTHON.findall(text)
    if python:
        return Failure(Kind.PASSING, f"{python[-1][0]}: {python[-1][1]}")
    spark = _SPARK.search(text)
    return Failure(Kind.PASSING, spark[2] if spark else _first_line(text) or repr(error))


def reason(error: BaseException) -> str:
    """Why a query or a call of Spark failed, in one line: without the traces around it."""
    return failure_of(error).text


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:_LENGTH_MAX] if text.strip() else ""


DONE: Final = 0
"""All there was is processed, or the run was told to stop by SIGTERM."""
FAILED: Final = 1
"""It failed, and trying again did not help."""
REFUSED: Final = 3
"""The command would undo or repeat something; the text says how to do it anyway."""
DATA_LOST: Final = 4
"""Records are gone before they were read, and failOnDataLoss says to stop."""
INTERRUPTED: Final = 130
"""Ctrl-C."""


def of(failure: Failure) -> int:
    """The exit code after a failure that is not tried again."""
    return DATA_LOST if failure.kind is Kind.DATA_LOST else FAILED
