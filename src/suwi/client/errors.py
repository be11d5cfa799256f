"""The exceptions of the client: Kafka's error codes, and connection errors.

`error_from` converts the error code of a response to the exception of `model.errors` that has it,
`check` raises it.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.client.addresses import Address
from suwi.model.errors import BrokerError
from suwi.wire.errors import MalformedResponse


class Unreachable(ConnectionError):
    """No known broker can be reached."""

    def __init__(self, tried: Sequence[tuple[Address, Exception]]) -> None:
        super().__init__("; ".join(f"{address}: {reason(error)}" for address, error in tried))
        self.tried = tuple(tried)


def error_from(code: int, message: str | None = None) -> BrokerError:
    """The exception for an error code. Its text is the broker's message, or the code's name."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return BrokerError(message or f"unknown error code {code}")
    return _class_of(known)(message or known.name.replace("_", " "))


def check(answer: Any) -> None:
    """Raise the error of a response, or of a part of it, if it has one."""
    if answer.error_code:
        raise error_from(answer.error_code, getattr(answer, "error_message", None))


@cache
def _class_of(code: ErrorCode) -> type[BrokerError]:
    for declared in BrokerError.__subclasses__():
        if declared.code is code:
            return declared
    name = "".join(word.capitalize() for word in code.name.split("_"))
    return type(name, (BrokerError,), {"code": code})


def is_transient(error: Exception) -> bool:
    """Whether a retry, perhaps at another broker, may succeed."""
    if isinstance(error, BrokerError):
        return error.code.retriable
    return isinstance(error, OSError | MalformedResponse)


def reason(error: Exception) -> str:
    """The text of an error, without errno and address."""
    if isinstance(error, TimeoutError) and not error.args:
        return "no response in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
