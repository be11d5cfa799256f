"""Operations that wait for a partition: produces for a commit, fetches for more data.

Everything runs in the broker's event loop. A produce callback is called once. Callbacks must not
change the partition: they are called in the middle of a change to it.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from suwi.model.errors import BrokerError
from suwi.model.ids import Offset

log = logging.getLogger(__name__)

Watcher = Callable[[], None]
OnCommit = Callable[[BrokerError | None], None]
"""Called with None when the records are committed, else with the error why they will not be."""
_END_OFFSET = itemgetter(0)


class DelayedOperations:
    __slots__ = ("_at_end", "_at_watermark", "_producers")

    def __init__(self) -> None:
        self._producers: deque[tuple[Offset, OnCommit]] = deque()
        """Each with the offset up to which everything must be committed, lowest offset first."""
        self._at_watermark: dict[Watcher, None] = {}
        self._at_end: dict[Watcher, None] = {}

    def add(self, end_offset: Offset, on_commit: OnCommit) -> None:
        producers = self._producers
        if not producers or producers[-1][0] <= end_offset:
            producers.append((end_offset, on_commit))
        else:
            # A duplicate waits for the original batch, which is below later batches.
            at = bisect_right(producers, end_offset, key=_END_OFFSET)
            producers.insert(at, (end_offset, on_commit))

    def watch(self, watcher: Watcher, *, also_uncommitted: bool) -> None:
        (self._at_end if also_uncommitted else self._at_watermark)[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._at_watermark.pop(watcher, None)
        self._at_end.pop(watcher, None)

    def committed(self, high_watermark: Offset) -> None:
        """The high watermark has advanced to `high_watermark`."""
        producers = self._producers
        while producers and producers[0][0] <= high_watermark:
            _, on_commit = producers.popleft()
            _complete(on_commit, None)
        if self._at_watermark or self._at_end:
            self.notify_all()

    def notify_all(self) -> None:
        """Data, offsets or the role changed: every delayed fetch checks again."""
        self.notify_readers()
        self.notify_followers()

    def notify_readers(self) -> None:
        if self._at_watermark:
            for watcher in list(self._at_watermark):
                watcher()

    def notify_followers(self) -> None:
        """Records were appended that may not be committed yet."""
        if self._at_end:
            for watcher in list(self._at_end):
                watcher()

    def fail(self, error: BrokerError) -> None:
        """Complete all delayed produces with an error."""
        producers, self._producers = self._producers, deque()
        for _, on_commit in producers:
            _complete(on_commit, error)


def _complete(on_commit: OnCommit, error: BrokerError | None) -> None:
    """An exception in one callback must not affect the partition or the other callbacks."""
    try:
        on_commit(error)
    except Exception:
        log.exception("commit callback failed")
