"""A consumer of topics as a member of a group (classic protocol, range and cooperative-sticky).

`poll` is where everything happens: it joins, takes what is assigned, finds where to read on, and
gives records. Between two calls only heartbeats are sent: who does not poll within the rebalance
time-out loses its place. `commit` says how far the records that `poll` gave have been dealt with.
How a member joins is in `group_member.py`.
Invariants: what is owned changes only within `poll`, and `on_revoked` is called before another
member may own it, unless it was lost already; a partition is read on from its committed offset.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator
from suwi.client.group_member import GroupMember, GroupSettings, Joined
from suwi.client.group_offsets import Membership, commit_once, fetch_once
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.reader import Fetched, Reader
from suwi.model.errors import BrokerError, OffsetOutOfRange
from suwi.model.ids import Offset, TopicPartition

__all__ = ["Fetched", "GroupConsumer", "GroupSettings"]

_T = TypeVar("_T")

OnRevoked: TypeAlias = Callable[[Sequence[TopicPartition]], Awaitable[None]]


class GroupConsumer:
    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Iterable[str],
        settings: GroupSettings | None = None,
        *,
        on_revoked: OnRevoked | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        """`on_revoked` may commit; it must not poll."""
        self.settings = settings or GroupSettings()
        self.positions: dict[TopicPartition, Offset] = {}
        """Of what is owned, where the next record will come from."""
        self._cluster = cluster
        self._on_revoked = on_revoked
        self._news = asyncio.Event()
        self._coordinator = coordinator or Coordinator(cluster, group)
        self._member = GroupMember(
            cluster, self._coordinator, topics, self.settings, self._news.set
        )
        self._unplaced: dict[TopicPartition, None] = {}
        """What is owned, too, but not read before its committed offset is known."""
        self._joining: asyncio.Task[Joined] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._seeking: asyncio.Task[dict[TopicPartition, Offset]] | None = None
        self._reader: Reader | None = None
        self._reading: asyncio.Task[list[Fetched]] | None = None

    async def __aenter__(self) -> "GroupConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted([*self.positions, *self._unplaced])

    @property
    def membership(self) -> Membership:
        return self._member.membership

    @property
    def is_stable(self) -> bool:
        """Whether it is a member of a generation, and knows of no rebalance."""
        member = self._member
        return member.has_generation and not member.must_join and self._joining is None

    def subscribe(self, topics: Iterable[str]) -> None:
        """From the next rebalance on, which this begins."""
        self._member.subscribe(topics)

    async def poll(self, timeout_s: float = 0.5) -> list[Fetched]:
        """What has come of any partition, with or without records; nothing after the time-out.

        Raises `BrokerError` and OSError. Unless the member was fenced, polling again goes on.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            self._news.clear()
            fetched = await self._advance()
            left_s = end_s - loop.time()
            if fetched or left_s <= 0:
                return fetched
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def commit(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Commit these offsets, or the positions of all that is owned.

        Raises `BrokerError`: with code 27 a rebalance goes on, and `poll` comes first; with 22, 25
        and 82 others go on with these partitions. OSError: it is not known whether it is committed.
        """
        membership = self.membership
        wanted = dict(self.positions if offsets is None else offsets)
        if not wanted:
            return
        coordinator = self._coordinator
        try:
            await coordinator.ask(lambda: commit_once(coordinator, wanted, membership))
        except BrokerError as error:
            # During a rebalance the generation may be over without anything being lost.
            if membership == self.membership and self._joining is None:
                self._member.heed(error)
            raise

    async def close(self, *, leave: bool | None = None) -> None:
        """Stop, and leave the group unless the member is static."""
        if self._joining is not None and not self._joining.done():
            await _cancel(self._joining)
            await self._coordinator.close()  # Nothing is answered before that JoinGroup is.
        for task in (self._joining, self._seeking, self._beating):
            await _cancel(task)
        await self._stop_reading()
        if self.settings.instance_id is None if leave is None else leave:
            await self._member.leave()
        await self._coordinator.close()

    # -- the group -------------------------------------------------------------------------------

    async def _advance(self) -> list[Fetched]:
        """Everything that can be done without waiting for the group or for records."""
        member = self._member
        if member.is_lost:
            member.is_lost = False
            await self._drop(self.assignment)
        if member.fatal is not None:
            raise member.fatal
        if member.must_join and self._joining is None:
            await self._begin_to_join()
        if self._joining is not None and self._joining.done():
            joining, self._joining = self._joining, None
            member.must_join |= joining.exception() is not None
            await self._take(joining.result())
        if self._beating is not None and self._beating.done():
            beating, self._beating = self._beating, None
            beating.result()
        if self._seeking is not None and self._seeking.done():
            seeking, self._seeking = self._seeking, None
            await self._place(seeking.result())
        if self._unplaced and self._seeking is None and self._joining is None:
            self._seeking = self._start(self._seek(list(self._unplaced)))
        return await self._read()

    async def _begin_to_join(self) -> None:
        await _cancel(self._beating)
        await _cancel(self._seeking)
        self._beating = self._seeking = None
        if not self._member.is_cooperative:
            await self._give_up(self.assignment)
        owned = self.assignment if self._member.has_generation else []
        self._joining = self._start(self._join(owned))

    async def _join(self, owned: Sequence[TopicPartition]) -> Joined:
        joined = await self._member.join(owned)
        self._beating = self._start(self._member.beat())
        return joined

    async def _take(self, joined: Joined) -> None:
        if self.membership.generation != joined.generation:
            return  # Lost again already.
        revoked = [each for each in self.assignment if each not in joined.assignment]
        await self._give_up(revoked)
        if revoked:
            self._member.rejoin()  # KIP-429: what was given up can be assigned to others now.
        owned = self.assignment
        self._unplaced |= dict.fromkeys(each for each in joined.assignment if each not in owned)

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        if partitions and self._on_revoked is not None:
            await self._on_revoked(partitions)
        await self._drop(partitions)

    async def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        if partitions:
            await self._stop_reading()
        for partition in partitions:
            self.positions.pop(partition, None)
            self._unplaced.pop(partition, None)

    # -- where to read on ------------------------------------------------------------------------

    async def _seek(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        coordinator = self._coordinator
        found = await coordinator.ask(lambda: fetch_once(coordinator, partitions, stable_only=True))
        missing = [partition for partition in partitions if partition not in found]
        if missing and self.settings.offset_reset == "none":
            raise OffsetOutOfRange(f"the group has no offset of {missing[0]}")
        return {**found, **await self._reset(missing)}

    async def _reset(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        if not partitions:
            return {}
        time = EARLIEST if self.settings.offset_reset == "earliest" else LATEST
        committed_only = self.settings.read.committed_only
        times = dict.fromkeys(partitions, time)
        found = await list_offsets(self._cluster, times, committed_only=committed_only)
        return {partition: found[partition].offset for partition in partitions}

    async def _place(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        await self._stop_reading()
        for partition, offset in offsets.items():
            if partition in self._unplaced:
                del self._unplaced[partition]
                self.positions[partition] = offset

    async def _reset_positions(self) -> None:
        """Of partitions that have not, or no longer, what lies at our position."""
        starts = await list_offsets(self._cluster, dict.fromkeys(self.positions, EARLIEST))
        ends = await list_offsets(self._cluster, dict.fromkeys(self.positions, LATEST))
        outside = [
            each
            for each, position in self.positions.items()
            if not starts[each].offset <= position <= ends[each].offset
        ]
        self.positions |= await self._reset(outside)

    # -- reading ---------------------------------------------------------------------------------

    async def _read(self) -> list[Fetched]:
        if self._reading is None:
            if self.positions:
                read = self.settings.read
                self._reader = self._reader or Reader(self._cluster, self.positions, read)
                self._reading = self._start(self._reader.read())
            return []
        if not self._reading.done():
            return []
        reading, self._reading = self._reading, None
        try:
            fetched = reading.result()
        except Exception as error:
            await self._stop_reading()  # The next reader goes on from what was given.
            if not isinstance(error, OffsetOutOfRange) or self.settings.offset_reset == "none":
                raise
            await self._reset_positions()
            return []
        for each in fetched:
            self.positions[each.partition] = each.next_offset
        return fetched

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        await _cancel(reading)
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)  # owner: `poll`, which takes its result
        task.add_done_callback(lambda _: self._news.set())
        return task


async def _cancel(task: asyncio.Task[Any] | None) -> None:
    """Let it end; what it raises is not wanted any more."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
