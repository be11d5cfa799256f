"""A fetch of many partitions: looked at, and answered, a slice in each turn of the loop.

`LargeFetch` does what `fetch.py` does for few: one look at all partitions, then it waits until
there is enough, and looks again only at those that have changed meanwhile. What it tells of a
partition is of one moment, in which the records are pinned as well; of two partitions it may be of
two moments.
Invariant: every pin is released once, by the reply or, where there is none, here.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from suwi.handlers.fetch_job import Found, Job, Look, release_all
from suwi.handlers.fetch_sessions import TopicKey
from suwi.handlers.leader_hints import hinted_endpoints
from suwi.model.errors import BrokerError
from suwi.net.answers import Reply
from suwi.replica.partition import Partition
from suwi.wire.fetch_parts import FetchParts, merged
from suwi.wire.fetch_response import Chunk, FetchedPartition

SLICE_COST = 256
"""About two milliseconds: a partition costs 1, one whose records have to be found 8 more."""
_RECORDS_COST = 8

Watched = tuple[Partition, Callable[[], None]]


class LargeFetch:
    def __init__(self, job: Job, patience_s: float) -> None:
        self._job = job
        self._patience_s = patience_s
        self._look: Look = job.begin_look()
        self._found: dict[int, Found] = {}
        """By its place in the request. Of an answer that leaves out what has not changed, only what
        the client would hear of."""
        self._pins: dict[int, tuple[Chunk, Callable[[], None]]] = {}
        self._watched: list[Watched] = []
        self._changed: dict[int, None] = {}
        """The places of the partitions that have changed since they were looked at."""
        self._rung = asyncio.Event()
        self._is_late = False
        self._cost = 0

    async def answer(self) -> Reply:
        try:
            await self._look_at_all()
            if self._look.is_in_doubt:
                look = self._look
                self._forget()
                await self._job.make_sure(look)
                await self._look_at_all()
            elif not self._job.is_enough(self._look):
                await self._wait()
            return await self._reply()
        except BaseException:
            self._release()
            raise
        finally:
            self._unwatch()

    # -- looking -------------------------------------------------------------------------------

    async def _look_at_all(self) -> None:
        await self._look_at(range(len(self._job.partitions)))
        self._job.is_first_look = False

    async def _look_at(self, places: Iterable[int]) -> None:
        watches = self._job.is_first_look and self._patience_s > 0
        for place in places:
            if self._cost >= SLICE_COST:
                await self._give_way()
            self._look_at_one(place)
            if watches and not self._job.is_enough(self._look):
                self._watch(place)

    async def _give_way(self) -> None:
        self._cost = 0
        await asyncio.sleep(0)

    def _look_at_one(self, place: int) -> None:
        """No await in here: what is found is pinned before anybody can take it away."""
        self._cost += 1
        job = self._job
        key, asked = job.partitions[place]
        found = job.examine(self._look, key, asked)
        if found.slice is not None:
            self._cost += _RECORDS_COST
            try:
                self._pins[place] = found.slice.pin()
            except Exception as error:  # Its file cannot be opened.
                self._look.has_news = True
                self._look.size_bytes -= found.slice.size_bytes
                found = job.refuse(key, error)
        if self._is_to_be_told(found):
            self._found[place] = found
        else:
            self._found.pop(place, None)

    def _is_to_be_told(self, found: Found) -> bool:
        session = self._job.session
        return (
            session is None
            or self._job.is_full
            or found.slice is not None
            or found.is_behind
            or session.would_change(found.key, found.answer)
        )

    # -- waiting -------------------------------------------------------------------------------

    def _watch(self, place: int) -> None:
        """In the moment of the look: no change is missed."""
        with contextlib.suppress(BrokerError):  # Then it was refused, which is news.
            partition = self._job.partition(self._job.partitions[place][0])
            ring = partial(self._ring, place)
            partition.watch(ring, also_uncommitted=self._job.asked.replica_id >= 0)
            self._watched.append((partition, ring))

    def _unwatch(self) -> None:
        for partition, ring in self._watched:
            partition.unwatch(ring)
        self._watched.clear()

    def _ring(self, place: int) -> None:
        self._changed[place] = None
        self._rung.set()

    def _ring_late(self) -> None:
        self._is_late = True
        self._rung.set()

    async def _wait(self) -> None:
        late = asyncio.get_running_loop().call_later(self._patience_s, self._ring_late)
        try:
            while not (self._is_late or self._job.is_enough(self._look)):
                self._look_anew_later()
                await self._rung.wait()
                self._rung.clear()
                changed, self._changed = sorted(self._changed), {}
                await self._look_at(changed)
        finally:
            late.cancel()

    def _look_anew_later(self) -> None:
        """Too little was found: while it waits nothing is pinned, and it is looked at again."""
        self._changed |= dict.fromkeys(self._pins)
        self._release()
        self._look = self._job.begin_look()

    def _forget(self) -> None:
        self._release()
        self._found.clear()
        self._look = self._job.begin_look()

    def _release(self) -> None:
        pins, self._pins = self._pins, {}
        for _, release in pins.values():
            release()

    # -- answering -----------------------------------------------------------------------------

    async def _reply(self) -> Reply:
        job = self._job
        parts = FetchParts(job.version)
        slice_: dict[TopicKey, list[FetchedPartition]] = {}
        for place in sorted(self._found):
            if self._cost >= SLICE_COST:
                _encode(parts, slice_)
                slice_ = {}
                await self._give_way()
            self._tell(place, slice_)
        _encode(parts, slice_)
        chunks: list[Chunk] = [parts.start(job.session.id if job.session is not None else 0)]
        for topic in parts.topics():
            if self._cost >= SLICE_COST:
                await self._give_way()
            self._cost += 1
            chunks += topic
        hints = [found.answer.current_leader for found in self._found.values()]
        chunks.append(parts.end(hinted_endpoints(job.source.image, job.listener, hints)))
        releases = [release for _, release in self._pins.values()]
        return Reply(merged(chunks), partial(release_all, releases) if releases else None)

    def _tell(self, place: int, slice_: dict[TopicKey, list[FetchedPartition]]) -> None:
        self._cost += 1
        found, session = self._found[place], self._job.session
        key, answer = found.key, found.answer
        found.told()
        if session is not None:
            news = session.changed(key, answer, has_records=found.slice is not None)
            if not news and not self._job.is_full:
                return
        if found.slice is not None:
            answer = answer._replace(records=self._pins[place][0])
        slice_.setdefault(key[0], []).append(answer)


def _encode(parts: FetchParts, slice_: dict[TopicKey, list[FetchedPartition]]) -> None:
    for topic, partitions in slice_.items():
        parts.add(topic, partitions)
