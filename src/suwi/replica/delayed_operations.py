"""Who waits for a partition: producers for their records to be committed, fetches for more to read.

All of it happens in the broker's loop; nobody is called twice for one wait. Who is called must not
change the partition there and then: it is in the middle of a change itself.
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
"""Called when the records are committed, or with the reason why they will not be."""
_END_OFFSET = itemgetter(0)


class DelayedOperations:
    __slots__ = ("_at_end", "_at_watermark", "_producers")

    def __init__(self) -> None:
        self._producers: deque[tuple[Offset, OnCommit]] = deque()
        """With the offset up to which all must be committed, the lowest first."""
        self._at_watermark: dict[Watcher, None] = {}
        self._at_end: dict[Watcher, None] = {}

    def add(self, end_offset: Offset, on_commit: OnCommit) -> None:
        producers = self._producers
        if not producers or producers[-1][0] <= end_offset:
            producers.append((end_offset, on_commit))
        else:
            # A duplicate waits for the batch that came first, which lies below later ones.
            at = bisect_right(producers, end_offset, key=_END_OFFSET)
            producers.insert(at, (end_offset, on_commit))

    def watch(self, watcher: Watcher, *, also_uncommitted: bool) -> None:
        (self._at_end if also_uncommitted else self._at_watermark)[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._at_watermark.pop(watcher, None)
        self._at_end.pop(watcher, None)

    def committed(self, high_watermark: Offset) -> None:
        """Everything below is committed now."""
        producers = self._producers
        while producers and producers[0][0] <= high_watermark:
            _, on_commit = producers.popleft()
            _tell(on_commit, None)
        if self._at_watermark or self._at_end:
            self.notify_all()

    def notify_all(self) -> None:
        """There is something else to read, or another answer to give."""
        self.notify_readers()
        self.notify_followers()

    def notify_readers(self) -> None:
        if self._at_watermark:
            for watcher in list(self._at_watermark):
                watcher()

    def notify_followers(self) -> None:
        """There is more that need not be committed yet."""
        if self._at_end:
            for watcher in list(self._at_end):
                watcher()

    def fail(self, error: BrokerError) -> None:
        """What producers wait for will not come."""
        producers, self._producers = self._producers, deque()
        for _, on_commit in producers:
            _tell(on_commit, error)


def _tell(on_commit: OnCommit, error: BrokerError | None) -> None:
    """What goes wrong for one who waits is no concern of the partition, nor of the others."""
    try:
        on_commit(error)
    except Exception:
        log.exception("a commit could not be answered")
