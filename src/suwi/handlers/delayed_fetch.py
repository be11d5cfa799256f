"""A fetch with less than min.bytes: it waits until enough is readable or max.wait has passed.

If all there is to tell a follower is a high watermark, it waits for records for a moment.
"""

import asyncio

from suwi.handlers.fetch_job import NEWS_DELAY_S, Job
from suwi.net.answers import Outcome, Promise


class DelayedFetch:
    """Reads again whenever a partition changes, until there is enough or the wait time is over.

    It needs no task. It reads in the next iteration of the event loop, so that one response carries
    everything that is appended in this one.
    """

    __slots__ = ("_has_news", "_job", "_planned", "_timer", "_watched", "promise")

    def __init__(self, job: Job, max_wait_s: float, *, has_news: bool = False) -> None:
        """`job` has just read its partitions and found too little."""
        self.promise = Promise(self._end)
        self._job = job
        self._planned: asyncio.Handle | None = None
        self._watched = job.watched()
        for partition in self._watched:
            partition.watch(self._on_change, also_uncommitted=job.asked.replica_id >= 0)
        self._has_news = has_news
        wait_s = min(max_wait_s, NEWS_DELAY_S) if has_news else max_wait_s
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._read, True)

    def _on_change(self) -> None:
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_soon(self._read, False)

    def _read(self, is_timed_out: bool) -> None:
        if self._planned is not None:
            self._planned.cancel()  # this read may complete the fetch
            self._planned = None
        outcome: Outcome
        try:
            read_pass = self._job.read()
            if not is_timed_out and not self._job.is_enough(read_pass):
                if read_pass.has_news and not self._has_news:
                    self._respond_soon()
                return
            outcome = self._job.reply(read_pass)
        except Exception as error:
            outcome = error
        self._end()
        self.promise.keep(outcome)

    def _respond_soon(self) -> None:
        self._has_news = True
        loop = asyncio.get_running_loop()
        if self._timer.when() > loop.time() + NEWS_DELAY_S:
            self._timer.cancel()
            self._timer = loop.call_later(NEWS_DELAY_S, self._read, True)

    def _end(self) -> None:
        self._timer.cancel()
        if self._planned is not None:
            self._planned.cancel()
        for partition in self._watched:
            partition.unwatch(self._on_change)
