"""The requests of a shard without a reply yet, replies and notices that wait for a commit.

Invariant: a request gets one reply, or one error.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from suwi.coordinator.event import AnyCall
from suwi.model.errors import BrokerError, RequestTimedOut
from suwi.model.ids import Offset


class _Waiting(NamedTuple):
    end_offset: Offset
    until_s: float
    replies: list[tuple[AnyCall, Any]]


@dataclass(slots=True, eq=False)
class PendingReplies:
    _commit_timeout_s: float
    _on_notice: Callable[[Any], None]
    _notices: deque[tuple[Offset, list[Any]]] = field(default_factory=deque)
    """Those that wait until all below that offset is committed."""
    _calls: dict[AnyCall, None] = field(default_factory=dict)
    """All requests without a reply."""
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _timeout: asyncio.TimerHandle | None = None

    def add(self, call: AnyCall) -> None:
        self._calls[call] = None

    def deliver_at(self, end_offset: Offset, replies: list[tuple[AnyCall, Any]]) -> None:
        """Deliver the replies when all records below `end_offset` are committed."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._commit_timeout_s
        self._waiting.append(_Waiting(end_offset, until_s, replies))
        if self._timeout is None:
            self._timeout = loop.call_at(until_s, self._time_out)

    def notify_at(self, end_offset: Offset, notices: list[Any]) -> None:
        self._notices.append((end_offset, notices))

    def notify(self, committed_end: Offset) -> None:
        while self._notices and self._notices[0][0] <= committed_end:
            for notice in self._notices.popleft()[1]:
                self._on_notice(notice)

    def committed(self, end_offset: Offset) -> None:
        self.notify(end_offset)
        while self._waiting and self._waiting[0].end_offset <= end_offset:
            self.deliver(self._waiting.popleft().replies)

    def deliver(self, replies: Iterable[tuple[AnyCall, Any]]) -> None:
        for call, response in replies:
            if call in self._calls:
                del self._calls[call]
                call.resolve(response)

    def refuse(self, replies: Iterable[tuple[AnyCall, Any]], error: BrokerError) -> None:
        for call, _ in replies:
            if call in self._calls:
                del self._calls[call]
                call.fail(error)

    def fail_all(self, error: BrokerError) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
        self._waiting.clear()
        self._notices.clear()
        calls, self._calls = self._calls, {}
        for call in calls:
            call.fail(error)

    def _time_out(self) -> None:
        """The records may still be committed, but the request does not wait longer."""
        self._timeout = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while self._waiting and self._waiting[0].until_s <= now_s:
            replies = self._waiting.popleft().replies
            self.refuse(replies, RequestTimedOut("the write was not committed in time"))
        if self._waiting:
            self._timeout = loop.call_at(self._waiting[0].until_s, self._time_out)
