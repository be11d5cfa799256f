"""A fetch of many partitions: read and encoded one slice per iteration of the event loop.

`LargeFetch` does what `fetch.py` does for few partitions: it reads all partitions once, waits until
there is enough, and reads only the changed partitions again. The state and the pinned records of
one partition are consistent; two partitions may be read at different times.
Invariant: every pin is released exactly once, by the reply or, if there is none, by `LargeFetch`.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from suwi.handlers.fetch_job import NEWS_DELAY_S, Job, LogReadResult, ReadPass, release_all
from suwi.handlers.fetch_sessions import TopicKey
from suwi.handlers.leader_hints import hinted_endpoints
from suwi.model.errors import BrokerError
from suwi.net.answers import Reply
from suwi.replica.partition import Partition
from suwi.wire.fetch_parts import FetchParts, merged
from suwi.wire.fetch_response import Chunk, FetchedPartition
from suwi.wire.leaders import CurrentLeader

SLICE_COST = 256
"""About two milliseconds: a partition costs 1, one of a follower 4, and 8 more if it has
records."""
_FOLLOWER_COST = 4
_RECORDS_COST = 8
_UNWATCHED_AT_ONCE = 4_000
_NEWS_DELAY_S_PER_PARTITION = 100e-6
"""About four times what the next fetch costs: while thousands of logs are opened each has a high
watermark to tell, and must not cause a fetch of all partitions."""

WatchedPartition = tuple[Partition, Callable[[], None]]


class Patience:
    """Whether a fetch may wait; `end` makes one that waits respond with what there is."""

    def __init__(self) -> None:
        self.is_over = False
        self.on_end: Callable[[], None] = lambda: None

    def end(self) -> None:
        self.is_over = True
        self.on_end()


class LargeFetch:
    def __init__(self, job: Job, max_wait_s: float, patience: Patience) -> None:
        self._job = job
        self._patience = patience
        self._max_wait_s = max_wait_s
        self._pass: ReadPass = job.begin_pass()
        self._found: dict[int, LogReadResult] = {}
        """By position in the request. Without the partitions that an incremental response omits."""
        self._pins: dict[int, tuple[Chunk, Callable[[], None]]] = {}
        self._watched: list[WatchedPartition] = []
        self._changed: dict[int, None] = {}
        """The positions of the partitions that have changed since they were read."""
        self._wakeup = asyncio.Event()
        self._is_timed_out = False
        self._cost = 0

    async def answer(self) -> Reply:
        try:
            await self._read_all()
            if self._pass.needs_recheck:
                read_pass = self._pass
                self._reset()
                await self._job.recheck(read_pass)
                await self._read_all()
            elif not self._job.is_enough(self._pass):
                await self._wait()
            return await self._reply()
        except BaseException:
            self._release()
            raise
        finally:
            self._unwatch()

    # -- reading -------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        await self._read(range(len(self._job.partitions)))
        self._job.is_first_pass = False

    async def _read(self, positions: Iterable[int]) -> None:
        must_watch = self._job.is_first_pass and self._max_wait_s > 0
        for position in positions:
            if self._cost >= SLICE_COST:
                await self._yield_to_loop()
            self._read_one(position)
            if must_watch and not self._job.is_enough(self._pass):
                self._watch(position)

    async def _yield_to_loop(self) -> None:
        self._cost = 0
        await asyncio.sleep(0)

    def _read_one(self, position: int) -> None:
        """Must not await: the records are pinned before they can be deleted."""
        job = self._job
        self._cost += _FOLLOWER_COST if job.asked.replica_id >= 0 else 1
        key, asked = job.partitions[position]
        found = job.read_partition(self._pass, key, asked)
        if found.slice is not None:
            self._cost += _RECORDS_COST
            try:
                self._pins[position] = found.slice.pin()
            except Exception as error:  # the segment file cannot be opened
                self._pass.is_complete = True
                self._pass.size_bytes -= found.slice.size_bytes
                found = job.refuse(key, error)
        if self._is_in_response(found):
            self._found[position] = found
        else:
            self._found.pop(position, None)

    def _is_in_response(self, found: LogReadResult) -> bool:
        session, awaited = self._job.session, self._job.awaited
        if awaited and found.key in awaited:
            return False
        return (
            session is None
            or self._job.is_full
            or found.slice is not None
            or found.is_follower_behind
            or session.would_change(found.key, found.answer)
        )

    # -- waiting -------------------------------------------------------------------------------

    def _watch(self, position: int) -> None:
        """Called without an await after the read, so that no change is missed."""
        with contextlib.suppress(BrokerError):  # its error completes the fetch
            partition = self._job.partition(self._job.partitions[position][0])
            on_change = partial(self._on_change, position)
            partition.watch(on_change, also_uncommitted=self._job.asked.replica_id >= 0)
            self._watched.append((partition, on_change))

    def _unwatch(self) -> None:
        """Also in slices, but without an await: the client may have disconnected."""
        for partition, on_change in self._watched[-_UNWATCHED_AT_ONCE:]:
            partition.unwatch(on_change)
        del self._watched[-_UNWATCHED_AT_ONCE:]
        if self._watched:
            asyncio.get_running_loop().call_soon(self._unwatch)

    def _on_change(self, position: int) -> None:
        self._changed[position] = None
        self._wakeup.set()

    def _on_timeout(self) -> None:
        self._is_timed_out = True
        self._wakeup.set()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(self._max_wait_s, self._on_timeout)]
        self._patience.on_end = self._on_timeout
        self._is_timed_out = self._patience.is_over
        try:
            while not (self._is_timed_out or self._job.is_enough(self._pass)):
                if self._pass.has_news and len(timers) == 1:
                    timers.append(loop.call_later(self._news_delay_s(), self._on_timeout))
                self._begin_next_pass()
                await self._wakeup.wait()
                self._wakeup.clear()
                changed, self._changed = sorted(self._changed), {}
                await self._read(changed)
        finally:
            for timer in timers:
                timer.cancel()

    def _news_delay_s(self) -> float:
        if not self._job.awaited:
            return NEWS_DELAY_S
        return max(NEWS_DELAY_S, len(self._job.partitions) * _NEWS_DELAY_S_PER_PARTITION)

    def _begin_next_pass(self) -> None:
        """Too little was found: release the pins, and read those partitions again in a new pass."""
        self._changed |= dict.fromkeys(self._pins)
        self._release()
        self._pass = self._job.begin_pass()

    def _reset(self) -> None:
        self._release()
        self._found.clear()
        self._pass = self._job.begin_pass()

    def _release(self) -> None:
        pins, self._pins = self._pins, {}
        for _, release in pins.values():
            release()

    # -- responding ----------------------------------------------------------------------------

    async def _reply(self) -> Reply:
        job = self._job
        parts = FetchParts(job.version)
        slice_: dict[TopicKey, list[FetchedPartition]] = {}
        hints: set[CurrentLeader | None] = set()
        for position in sorted(self._found):
            if self._cost >= SLICE_COST:
                _encode(parts, slice_)
                slice_ = {}
                await self._yield_to_loop()
            self._add_to_response(position, slice_, hints)
        _encode(parts, slice_)
        chunks: list[Chunk] = [parts.start(job.session.id if job.session is not None else 0)]
        for topic in parts.topics():
            if self._cost >= SLICE_COST:
                await self._yield_to_loop()
            self._cost += 1
            chunks += topic
        chunks.append(parts.end(hinted_endpoints(job.source.image, job.listener, hints)))
        if len(chunks) > SLICE_COST:
            await self._yield_to_loop()
        releases = [release for _, release in self._pins.values()]
        return Reply(merged(chunks), partial(release_all, releases) if releases else None)

    def _add_to_response(
        self,
        position: int,
        slice_: dict[TopicKey, list[FetchedPartition]],
        hints: set[CurrentLeader | None],
    ) -> None:
        self._cost += 1
        found, session = self._found.pop(position), self._job.session
        key, answer = found.key, found.answer
        hints.add(answer.current_leader)
        found.record_sent()
        if session is not None:
            is_changed = session.changed(key, answer, has_records=found.slice is not None)
            if not is_changed and not self._job.is_full:
                return
        if found.slice is not None:
            answer = answer._replace(records=self._pins[position][0])
        slice_.setdefault(key[0], []).append(answer)


def _encode(parts: FetchParts, slice_: dict[TopicKey, list[FetchedPartition]]) -> None:
    for topic, partitions in slice_.items():
        parts.add(topic, partitions)
