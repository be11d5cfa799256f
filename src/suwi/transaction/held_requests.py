"""Requests that came while the markers of a transaction were being written.

They are decided again when the transaction has ended, which is sooner than the client would ask
again (KAFKA-18654), or refused after a short time. Invariant: a held request has an armed timer.
"""

from typing import Any, Final, NamedTuple

from suwi.coordinator.event import AnyCall, Event

HELD: Final = "held"
"""The kind of its timers; the transactional id follows."""
HELD_MS_MAX: Final = 500
HELD_MS_MAX_OF_BROKERS: Final = 100
"""Of a broker that asks for many transactions at once: the others wait with this one."""


class _Held(NamedTuple):
    call: AnyCall
    refusal: Any


class HeldRequests:
    def __init__(self) -> None:
        self._by_id: dict[str, list[_Held]] = {}
        self._until_ms: dict[str, int] = {}
        """When all that are held for an id are refused: with the least patient one."""

    def __len__(self) -> int:
        return len(self._by_id)

    def hold(
        self, transactional_id: str, refusal: Any, event: Event, ms_max: int = HELD_MS_MAX
    ) -> None:
        """Hold the call of the event. `refusal`: its response if the time is over."""
        assert event.call is not None
        until_ms = event.now_ms + ms_max
        self._by_id.setdefault(transactional_id, []).append(_Held(event.call, refusal))
        if until_ms < self._until_ms.get(transactional_id, until_ms + 1):
            self._until_ms[transactional_id] = until_ms
            event.arm((HELD, transactional_id), until_ms)

    def ended(self, transactional_id: str, event: Event) -> None:
        """The transaction ends with this event: they are released by the next."""
        if transactional_id in self._by_id:
            event.arm((HELD, transactional_id), event.now_ms)

    def refuse(self, transactional_id: str, event: Event) -> None:
        self._until_ms.pop(transactional_id, None)
        for held in self._by_id.pop(transactional_id, []):
            event.reply_to(held.call, held.refusal)

    def release(self, transactional_id: str, event: Event) -> AnyCall | None:
        """The call to be decided again. One in each event, so that the next is decided on what this
        one has changed."""
        self._until_ms.pop(transactional_id, None)
        waiting = self._by_id.pop(transactional_id, [])
        if len(waiting) > 1:
            self._by_id[transactional_id] = waiting[1:]
            event.arm((HELD, transactional_id), event.now_ms)
        return waiting[0].call if waiting else None

    def clear(self) -> None:
        self._by_id.clear()
        self._until_ms.clear()
