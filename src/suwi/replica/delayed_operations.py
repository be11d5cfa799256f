"""Operations that wait for a partition: produces for a commit, fetches for more data, deletions of
records for the replicas' log start offsets.

Everything runs in the broker's event loop. A produce callback is called once. Callbacks must not
change the partition: they are called in the middle of a change to it.
All produces of a partition share one timer, which is set for the earliest deadline and not reset
when a produce completes: a timer for each would cost a tenth of a produce.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter

from suwi.model.errors import BrokerError, RequestTimedOut
from suwi.model.ids import Offset

log = logging.getLogger(__name__)

Watcher = Callable[[], None]
OnCommit = Callable[[BrokerError | None], None]
"""Called with None when the records are committed, else with the error why they will not be."""
_END_OFFSET = itemgetter(0)


@dataclass(slots=True, eq=False)
class DelayedOperations:
    _producers: deque[tuple[Offset, OnCommit, float]] = field(default_factory=deque)
    """Each with the offset up to which everything must be committed, lowest offset first, and its
    deadline."""
    _sweep: asyncio.TimerHandle | None = None
    _sweep_at_s: float = inf
    """Not later than the earliest deadline."""
    _at_watermark: dict[Watcher, None] = field(default_factory=dict)
    _at_end: dict[Watcher, None] = field(default_factory=dict)
    _at_low_watermark: dict[Watcher, None] = field(default_factory=dict)

    def add(self, end_offset: Offset, on_commit: OnCommit, timeout_s: float = inf) -> None:
        deadline_s = inf
        if timeout_s < inf:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            if deadline_s < self._sweep_at_s:
                self._sweep_at(deadline_s)
        producers = self._producers
        if not producers or producers[-1][0] <= end_offset:
            producers.append((end_offset, on_commit, deadline_s))
        else:
            # A duplicate waits for the original batch, which is below later batches.
            at = bisect_right(producers, end_offset, key=_END_OFFSET)
            producers.insert(at, (end_offset, on_commit, deadline_s))

    def watch(self, watcher: Watcher, *, also_uncommitted: bool) -> None:
        (self._at_end if also_uncommitted else self._at_watermark)[watcher] = None

    def watch_low_watermark(self, watcher: Watcher) -> None:
        self._at_low_watermark[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._at_watermark.pop(watcher, None)
        self._at_end.pop(watcher, None)
        self._at_low_watermark.pop(watcher, None)

    def committed(self, high_watermark: Offset) -> None:
        """The high watermark has advanced to `high_watermark`."""
        producers = self._producers
        while producers and producers[0][0] <= high_watermark:
            _, on_commit, _ = producers.popleft()
            _complete(on_commit, None)
        if self._at_watermark or self._at_end:
            self.notify_all()

    def notify_all(self) -> None:
        """Data, offsets or the role changed: everything that waits checks again."""
        if self._at_watermark:
            for watcher in list(self._at_watermark):
                watcher()
        self.notify_followers()
        self.notify_low_watermark()

    def notify_low_watermark(self) -> None:
        """A replica's log start offset has changed, or which replicas count."""
        if self._at_low_watermark:
            for watcher in list(self._at_low_watermark):
                watcher()

    def notify_followers(self) -> None:
        """Records were appended that may not be committed yet."""
        if self._at_end:
            for watcher in list(self._at_end):
                watcher()

    def fail(self, error: BrokerError) -> None:
        """Complete all delayed produces with an error."""
        producers, self._producers = self._producers, deque()
        self._sweep_at(inf)
        for _, on_commit, _ in producers:
            _complete(on_commit, error)

    # -- deadlines -----------------------------------------------------------------------------

    def _sweep_at(self, deadline_s: float) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._sweep_at_s = deadline_s
        if deadline_s < inf:
            self._sweep = asyncio.get_running_loop().call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        # A loop may call up to its clock's resolution before the time.
        now_s = max(self._sweep_at_s, asyncio.get_running_loop().time())
        overdue = [on_commit for _, on_commit, at_s in self._producers if at_s <= now_s]
        if overdue:
            self._producers = deque(each for each in self._producers if each[2] > now_s)
        self._sweep_at(min((each[2] for each in self._producers), default=inf))
        for on_commit in overdue:
            _complete(on_commit, RequestTimedOut("the batch was not committed in time"))


def _complete(on_commit: OnCommit, error: BrokerError | None) -> None:
    """An exception in one callback must not affect the partition or the other callbacks."""
    try:
        on_commit(error)
    except Exception:
        log.exception("commit callback failed")
