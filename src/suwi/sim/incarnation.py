"""One life of one simulated process: from its start until it is killed.

Everything a process does runs in a context that names its incarnation (`current`), so that the
loop can drop the callbacks of a dead one and park those of a frozen one, and the network knows
which host is calling.
Invariant: once revoked, an incarnation changes nothing outside itself any more.
"""

from collections.abc import Callable
from contextvars import ContextVar


class Revoked(BaseException):
    """The process that makes this call is dead.

    Not an `Exception`: the code of a dead process can neither handle its death nor retry.
    """


class Incarnation:
    """Shared by everything that one life of a process may touch."""

    __slots__ = ("_on_revoke", "frozen", "host", "name", "revoked", "stalled_until")

    def __init__(self, host: str, life: int = 1) -> None:
        self.host = host
        self.name = f"{host}#{life}"
        self.revoked = False
        self.frozen = False
        self.stalled_until = 0.0
        self._on_revoke: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Incarnation {self.name}>"

    def check(self) -> None:
        if self.revoked:
            raise Revoked(f"{self.name} is dead")

    def on_revoke(self, callback: Callable[[], None]) -> None:
        self._on_revoke.append(callback)

    def revoke(self) -> None:
        if self.revoked:
            return
        self.revoked = True
        callbacks, self._on_revoke = self._on_revoke, []
        for callback in callbacks:
            callback()


current: ContextVar[Incarnation | None] = ContextVar("suwi_incarnation", default=None)
"""The incarnation that is running; None for the test itself, which never dies."""
