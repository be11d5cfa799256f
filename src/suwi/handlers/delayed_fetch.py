"""A fetch that found too little: it waits, and looks again when one of its partitions has more."""

import asyncio

from suwi.handlers.fetch_job import Job
from suwi.net.answers import Outcome, Promise


class DelayedFetch:
    """It looks again whenever a partition has more, until it is enough or time is up. Without a
    task, and in the loop's next turn: what is appended in this one comes along."""

    __slots__ = ("_job", "_planned", "_timer", "_watched", "promise")

    def __init__(self, job: Job, patience_s: float) -> None:
        """The job has just looked, and there was too little."""
        self.promise = Promise(self._end)
        self._job = job
        self._planned: asyncio.Handle | None = None
        self._watched = job.watched()
        for partition in self._watched:
            partition.watch(self._ring, also_uncommitted=job.asked.replica_id >= 0)
        self._timer = asyncio.get_running_loop().call_later(patience_s, self._look, True)

    def _ring(self) -> None:
        if self._planned is None:
            self._planned = asyncio.get_running_loop().call_soon(self._look, False)

    def _look(self, is_late: bool) -> None:
        if self._planned is not None:
            self._planned.cancel()  # This one may be the last.
            self._planned = None
        outcome: Outcome
        try:
            look = self._job.look()
            if not is_late and not self._job.is_enough(look):
                return
            outcome = self._job.reply(look)
        except Exception as error:
            outcome = error
        self._end()
        self.promise.keep(outcome)

    def _end(self) -> None:
        self._timer.cancel()
        if self._planned is not None:
            self._planned.cancel()
        for partition in self._watched:
            partition.unwatch(self._ring)
