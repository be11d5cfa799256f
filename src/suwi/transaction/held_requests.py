"""Requests that came while the markers of a transaction were being written.

They are decided again when the transaction has ended, which is sooner than the client would ask
again (KAFKA-18654), or refused after a short time. Invariant: a held request has an armed timer.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from suwi.coordinator.decision import Decision, Token

HELD: Final = "held"
"""The kind of its timers; the transactional id follows."""
HELD_MS_MAX: Final = 500
HELD_MS_MAX_OF_BROKERS: Final = 100
"""Of a broker that asks for many transactions at once: the others wait with this one."""


class Held(NamedTuple):
    token: Token
    again: Callable[[int, Decision], None]
    refusal: Any
    ms_max: int = HELD_MS_MAX


class HeldRequests:
    def __init__(self) -> None:
        self._by_id: dict[str, list[Held]] = {}
        self._until_ms: dict[str, int] = {}
        """When all that are held for an id are refused: with the least patient one."""

    def __len__(self) -> int:
        return len(self._by_id)

    def hold(self, transactional_id: str, held: Held, now_ms: int, decision: Decision) -> None:
        until_ms = now_ms + held.ms_max
        self._by_id.setdefault(transactional_id, []).append(held)
        if until_ms < self._until_ms.get(transactional_id, until_ms + 1):
            self._until_ms[transactional_id] = until_ms
            decision.arm((HELD, transactional_id), until_ms)

    def ended(self, transactional_id: str, now_ms: int, decision: Decision) -> None:
        """The transaction ends with this event: they are released by the next."""
        if transactional_id in self._by_id:
            decision.arm((HELD, transactional_id), now_ms)

    def refuse(self, transactional_id: str, decision: Decision) -> None:
        self._until_ms.pop(transactional_id, None)
        for held in self._by_id.pop(transactional_id, []):
            decision.reply(held.token, held.refusal)

    def release(self, transactional_id: str, now_ms: int, decision: Decision) -> None:
        """One in each event, so that the next is decided on what this one has changed."""
        self._until_ms.pop(transactional_id, None)
        waiting = self._by_id.pop(transactional_id, [])
        if len(waiting) > 1:
            self._by_id[transactional_id] = waiting[1:]
            decision.arm((HELD, transactional_id), now_ms)
        if waiting:
            waiting[0].again(now_ms, decision)

    def clear(self) -> None:
        self._by_id.clear()
        self._until_ms.clear()
