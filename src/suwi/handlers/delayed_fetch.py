"""A fetch with less than min.bytes: it waits until enough is readable or max.wait has passed."""

import asyncio

from suwi.handlers.fetch_job import Job
from suwi.net.answers import Outcome, Promise


class DelayedFetch:
    """Reads again whenever a partition changes, until there is enough or the wait time is over.

    It needs no task. It reads in the next iteration of the event loop, so that one response carries
    everything that is appended in this one.
    """

    __slots__ = ("_job", "_planned", "_timer", "_watched", "promise")

    def __init__(self, job: Job, max_wait_s: float) -> None:
        """`job` has just read its partitions and found too little."""
        self.promise = Promise(self._end)
        self._job = job
        self._planned: asyncio.Handle | None = None
        self._watched = job.watched()
        for partition in self._watched:
            partition.watch(self._on_change, also_uncommitted=job.asked.replica_id >= 0)
        self._timer = asyncio.get_running_loop().call_later(max_wait_s, self._read, True)

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
                return
            outcome = self._job.reply(read_pass)
        except Exception as error:
            outcome = error
        self._end()
        self.promise.keep(outcome)

    def _end(self) -> None:
        self._timer.cancel()
        if self._planned is not None:
            self._planned.cancel()
        for partition in self._watched:
            partition.unwatch(self._on_change)
