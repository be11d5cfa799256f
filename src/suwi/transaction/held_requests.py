"""Requests that came while the markers of a transaction were being written.

They are decided again when the transaction has ended, which is sooner than the client would ask
again (KAFKA-18654), or refused after a short time. Invariant: a held request has an armed timer.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from suwi.coordinator.decision import Decision, Token

HELD: Final = "held"
"""The kind of its timers; the transactional id follows."""
_HELD_MS_MAX: Final = 500


class Held(NamedTuple):
    token: Token
    again: Callable[[int, Decision], None]
    refusal: Any


class HeldRequests:
    def __init__(self) -> None:
        self._by_id: dict[str, list[Held]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def hold(self, transactional_id: str, held: Held, now_ms: int, decision: Decision) -> None:
        waiting = self._by_id.setdefault(transactional_id, [])
        waiting.append(held)
        if len(waiting) == 1:
            decision.arm((HELD, transactional_id), now_ms + _HELD_MS_MAX)

    def ended(self, transactional_id: str, now_ms: int, decision: Decision) -> None:
        """The transaction ends with this event: they are released by the next."""
        if transactional_id in self._by_id:
            decision.arm((HELD, transactional_id), now_ms)

    def refuse(self, transactional_id: str, decision: Decision) -> None:
        for held in self._by_id.pop(transactional_id, []):
            decision.reply(held.token, held.refusal)

    def release(self, transactional_id: str, now_ms: int, decision: Decision) -> None:
        """One in each event, so that the next is decided on what this one has changed."""
        waiting = self._by_id.pop(transactional_id, [])
        if len(waiting) > 1:
            self._by_id[transactional_id] = waiting[1:]
            decision.arm((HELD, transactional_id), now_ms)
        if waiting:
            waiting[0].again(now_ms, decision)

    def clear(self) -> None:
        self._by_id.clear()
