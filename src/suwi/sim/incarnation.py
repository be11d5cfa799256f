"""One incarnation of a simulated process: from its start until it is killed.

All code of a process runs in a context that names its incarnation (`current`), so that the
loop can drop the callbacks of a killed one and hold those of a frozen one, and the network knows
which host is calling.
Invariant: a revoked incarnation changes nothing outside itself.
"""

from collections.abc import Callable
from contextvars import ContextVar


class Revoked(BaseException):
    """The process that makes this call has been killed.

    Not an `Exception`: the code of a killed process can neither handle this nor retry.
    """


class Incarnation:
    """Shared by everything that one incarnation of a process may change."""

    __slots__ = ("_on_revoke", "frozen", "host", "name", "revoked", "stalled_until")

    def __init__(self, host: str, number: int = 1) -> None:
        self.host = host
        self.name = f"{host}#{number}"
        self.revoked = False
        self.frozen = False
        self.stalled_until = 0.0
        self._on_revoke: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Incarnation {self.name}>"

    def check(self) -> None:
        if self.revoked:
            raise Revoked(f"{self.name} has been killed")

    def on_revoke(self, callback: Callable[[], None], *, first: bool = False) -> None:
        self._on_revoke.insert(0 if first else len(self._on_revoke), callback)

    def revoke(self) -> None:
        if self.revoked:
            return
        self.revoked = True
        callbacks, self._on_revoke = self._on_revoke, []
        for callback in callbacks:
            callback()


current: ContextVar[Incarnation | None] = ContextVar("suwi_incarnation", default=None)
"""The incarnation that is running; None for the test itself, which is never killed."""
