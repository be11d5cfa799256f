"""A consumer of topics as a member of a group (classic protocol, range and cooperative-sticky).

`poll` does all the work: it joins the group, takes its assignment, finds where to continue, and
returns records. Between two calls only heartbeats are sent; a member that does not poll within the
rebalance timeout is removed. `commit` stores how far the records of `poll` have been processed.
Invariants: the assignment changes only within `poll`; `on_revoked` is called before another member
may own the partitions, unless they were lost already; a partition is read from its committed offset
on; `membership` has a generation exactly while the member may commit in it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from suwi.client.assignors import ASSIGNORS
from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator
from suwi.client.errors import error_from, is_transient
from suwi.client.fetching import ReadSettings
from suwi.client.group_offsets import Membership, commit_once, fetch_once
from suwi.client.groups import describe_classic_group
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.reader import Fetched, Reader
from suwi.client.retry import Retry
from suwi.env.tasks import cancel_and_wait, wait_for_event
from suwi.model.errors import BrokerError, OffsetOutOfRange
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.wire.consumer_protocol import (
    NO_GENERATION,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import ApiKey

_T = TypeVar("_T")

OnRevoked: TypeAlias = Callable[[Sequence[TopicPartition]], Awaitable[None]]

_PROTOCOL_TYPE = "consumer"
_REPLY_S = 5
"""How long an answer may take beyond the time that the coordinator waits for other members."""
_GONE = (ErrorCode.illegal_generation, ErrorCode.unknown_member_id)
_NO_TOPIC = (
    ErrorCode.invalid_topic_exception,
    ErrorCode.topic_authorization_failed,
    ErrorCode.unknown_topic_or_partition,
)
_JOIN_AGAIN = (*_GONE, ErrorCode.rebalance_in_progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    assignors: tuple[str, ...] = ("range", "cooperative-sticky")
    """The first that all members have is used. With any that is not cooperative, everything is
    given up before each rebalance."""
    instance_id: str | None = None
    """With one the member is static: it may come back within its session and keep its place."""
    session_timeout_s: float = 45
    rebalance_timeout_s: float = 300
    heartbeat_s: float = 3
    offset_reset: Literal["earliest", "latest", "none"] = "latest"
    """Where to begin without a committed offset; `none` is an error."""
    topic_check_s: float = 30
    """How often the group's leader looks for new partitions. While a topic does not exist it looks
    with each heartbeat: the broker that was asked may not have heard of the topic yet."""
    read: ReadSettings = field(default_factory=ReadSettings)


class Joined(NamedTuple):
    generation: int
    assignment: tuple[TopicPartition, ...]


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
        self.settings = settings = settings or GroupSettings()
        self.membership = Membership(instance_id=settings.instance_id)
        self.positions: dict[TopicPartition, Offset] = {}
        """The next offset of each owned partition."""
        self._unplaced: dict[TopicPartition, None] = {}
        """Owned partitions whose committed offset is not known yet."""
        self._cluster = cluster
        self._coordinator = coordinator or Coordinator(cluster, group)
        self._topics = tuple(dict.fromkeys(topics))
        self._on_revoked = on_revoked
        self._assignors = [ASSIGNORS[name] for name in settings.assignors]
        self._counts: dict[str, int] | None = None
        """If it leads the group: how many partitions the topics of all members had."""
        self._must_join = True
        self._is_lost = False
        """The group continued without this member: it owns nothing any more."""
        self._fatal: BrokerError | None = None
        self._news = asyncio.Event()
        """Wakes `poll`."""
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
    def is_stable(self) -> bool:
        """Whether it is a member of a generation, and knows of no rebalance."""
        return self._has_generation and not self._must_join and self._joining is None

    @property
    def _has_generation(self) -> bool:
        return self.membership.generation != NO_GENERATION

    def subscribe(self, topics: Iterable[str]) -> None:
        """Change the topics, which starts a rebalance."""
        self._topics = tuple(dict.fromkeys(topics))
        self._rejoin()

    async def poll(self, timeout_s: float = 0.5) -> list[Fetched]:
        """What has come of any partition, with or without records; nothing after the timeout.

        Raises `BrokerError` and OSError. Unless the member was fenced, `poll` may be called again.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            self._news.clear()
            fetched = await self._advance()
            left_s = end_s - loop.time()
            if fetched or left_s <= 0:
                return fetched
            await wait_for_event(self._news, left_s)

    async def commit(self, offsets: Mapping[TopicPartition, Offset] | None = None) -> None:
        """Commit these offsets, or the positions of all owned partitions.

        Raises `BrokerError`: after REBALANCE_IN_PROGRESS call `poll` first; after other errors of
        the membership these partitions belong to others. After OSError the outcome is unknown.
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
                self._heed(error)
            raise

    async def close(self, *, leave: bool | None = None) -> None:
        """Stop, and leave the group unless the member is static."""
        if self._joining is not None and not self._joining.done():
            await cancel_and_wait(self._joining)
            await self._coordinator.close()  # Nothing is answered before that JoinGroup is.
        await cancel_and_wait(self._joining, self._seeking, self._beating)
        await self._stop_reading()
        if self.settings.instance_id is None if leave is None else leave:
            await self._leave()
        await self._coordinator.close()

    async def _advance(self) -> list[Fetched]:
        """Do everything that does not wait for the group or for records."""
        if self._is_lost:
            self._is_lost = False
            await self._drop(self.assignment)
        if self._fatal is not None:
            raise self._fatal
        if self._must_join and self._joining is None:
            await self._begin_to_join()
        if self._joining is not None and self._joining.done():
            joining, self._joining = self._joining, None
            self._must_join |= joining.exception() is not None
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

    # -- the assignment --------------------------------------------------------------------------

    async def _begin_to_join(self) -> None:
        await cancel_and_wait(self._beating, self._seeking)
        self._beating = self._seeking = None
        if not all(assignor.is_cooperative for assignor in self._assignors):
            await self._give_up(self.assignment)
        owned = self.assignment if self._has_generation else []
        self._joining = self._start(self._join(owned))

    async def _take(self, joined: Joined) -> None:
        if self.membership.generation != joined.generation:
            return  # Lost again already.
        revoked = [each for each in self.assignment if each not in joined.assignment]
        await self._give_up(revoked)
        if revoked:
            self._rejoin()  # KIP-429: what was given up can be assigned to others now.
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

    # -- the membership --------------------------------------------------------------------------

    def _rejoin(self) -> None:
        self._must_join = True
        self._news.set()

    def _heed(self, error: BrokerError) -> None:
        """Note what an error says about the membership."""
        if error.code is ErrorCode.fenced_instance_id:
            self._fatal, self._is_lost = error, True
        elif error.code in _GONE:
            is_known = error.code is ErrorCode.illegal_generation
            member_id = self.membership.member_id if is_known else ""
            self.membership = Membership(member_id, NO_GENERATION, self.settings.instance_id)
            self._is_lost = self._must_join = True
        elif error.code is ErrorCode.rebalance_in_progress:
            self._must_join = True
        self._news.set()

    async def _join(self, owned: Sequence[TopicPartition]) -> Joined:
        """Join until there is an assignment. Raises errors that a retry does not help against, and
        OSError after the retry timeout."""
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            self._must_join = False
            try:
                joined = await self._join_once(owned)
                self.membership = self.membership._replace(generation=joined.generation)
                self._beating = self._start(self._beat())
                return joined
            except (BrokerError, OSError, MalformedResponse) as error:
                if isinstance(error, BrokerError):
                    self._heed(error)
                    owned = () if self._is_lost else owned
                    may_pass = error.code in _JOIN_AGAIN or is_transient(error)
                    if self._fatal is not None or not may_pass:
                        raise
                await retry.pause_or_raise(error)

    async def _join_once(self, owned: Sequence[TopicPartition]) -> Joined:
        joined = await self._join_group(owned)
        assigned: Mapping[str, Sequence[TopicPartition]] = {}
        self._counts = None
        if joined.leader == joined.member_id:
            subscriptions = _subscriptions(joined.members)
            topics = sorted({topic for wants in subscriptions.values() for topic in wants.topics})
            self._counts = counts = await self._count_partitions(topics)
            if not getattr(joined, "skip_assignment", False):
                assigned = ASSIGNORS[joined.protocol_name].assign(subscriptions, counts)
            elif await self._is_outdated(counts):
                self._rejoin()
        synced = await self._call(
            ApiKey.SYNC_GROUP,
            generation_id=joined.generation_id,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=[
                {"member_id": member_id, "assignment": encode_assignment(partitions)}
                for member_id, partitions in assigned.items()
            ],
        )
        self._coordinator.check(synced)
        assignment = decode_assignment(bytes(synced.assignment)).partitions
        return Joined(joined.generation_id, assignment)

    async def _is_outdated(self, counts: Mapping[str, int]) -> bool:
        """KIP-814: a static leader that is back finds an assignment. It may have been made before
        partitions were added, and nobody watched the topics meanwhile."""
        group = await describe_classic_group(self._coordinator)
        if group is None:
            return False
        assigned = {partition for member in group.members for partition in member.partitions}
        wanted = {TopicPartition(t, PartitionIndex(i)) for t in counts for i in range(counts[t])}
        return not wanted <= assigned

    async def _join_group(self, owned: Sequence[TopicPartition]) -> Any:
        generation = self.membership.generation if owned else NO_GENERATION
        rack = self.settings.read.rack or None
        wants = encode_subscription(Subscription(self._topics, tuple(owned), generation, rack))
        fields: dict[str, Any] = {
            "session_timeout": int(self.settings.session_timeout_s * 1000),
            "rebalance_timeout": int(self.settings.rebalance_timeout_s * 1000),
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [{"name": each.name, "metadata": wants} for each in self._assignors],
            "reason": None,
        }
        joined = await self._call(ApiKey.JOIN_GROUP, **fields)
        if joined.error_code is ErrorCode.member_id_required:
            self.membership = self.membership._replace(member_id=joined.member_id)
            joined = await self._call(ApiKey.JOIN_GROUP, **fields)
        self._coordinator.check(joined)
        self.membership = self.membership._replace(member_id=joined.member_id)
        return joined

    async def _call(self, api: ApiKey, *, timeout_s: float | None = None, **fields: Any) -> Any:
        """By default with the timeout of a request that is answered when all members have sent
        theirs."""
        member_id, _, instance_id = self.membership
        member = {"member_id": member_id, "group_instance_id": instance_id}
        return await self._coordinator.call(
            api,
            {"group_id": self._coordinator.key, **member, **fields},
            timeout_s=timeout_s or self.settings.rebalance_timeout_s + _REPLY_S,
        )

    async def _count_partitions(self, topics: Sequence[str]) -> dict[str, int]:
        """A topic that does not exist, or may not be seen, has none. Raises any other error of one:
        with its partitions left out members would be told that they have nothing to read."""
        errors = await self._cluster.refresh(topics)
        for topic, code in errors.items():
            if code not in _NO_TOPIC:
                raise error_from(code, f"topic {topic!r}: {code.name.replace('_', ' ')}")
        return {
            topic: 0 if topic in errors else len((await self._cluster.topic(topic)).partitions)
            for topic in topics
        }

    async def _beat(self) -> None:
        """Send heartbeats while there is a generation, also when the member is about to rejoin."""
        loop = asyncio.get_running_loop()
        checked_s = loop.time()
        while self._has_generation and self._fatal is None:
            await asyncio.sleep(self.settings.heartbeat_s)
            try:
                answer = await self._call(
                    ApiKey.HEARTBEAT,
                    generation_id=self.membership.generation,
                    timeout_s=self.settings.session_timeout_s / 2,
                )
                self._coordinator.check(answer)
                if self._lacks_topic or loop.time() - checked_s >= self.settings.topic_check_s:
                    checked_s = loop.time()
                    await self._check_topics()
            except BrokerError as error:
                self._heed(error)
            except (OSError, MalformedResponse):
                pass  # The next one looks for the coordinator again.

    @property
    def _lacks_topic(self) -> bool:
        """Whether it leads the group and assigned nothing of a topic."""
        return self._counts is not None and 0 in self._counts.values()

    async def _check_topics(self) -> None:
        """If it leads the group: rejoin when a topic has more partitions."""
        counts = self._counts
        if counts is not None and await self._count_partitions(list(counts)) != counts:
            self._rejoin()

    async def _leave(self) -> None:
        """Errors are ignored: the session ends by itself."""
        if not self.membership.member_id or self._fatal is not None:
            return
        member_id, _, instance_id = self.membership
        member = {"member_id": member_id, "group_instance_id": instance_id, "reason": "closed"}
        group_id = self._coordinator.key
        fields = {"group_id": group_id, "member_id": member_id, "members": [member]}
        try:
            await self._coordinator.call(ApiKey.LEAVE_GROUP, fields, timeout_s=_REPLY_S)
        except (BrokerError, OSError, MalformedResponse):
            pass

    # -- positions -------------------------------------------------------------------------------

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
        """Reset the positions that are outside of their partitions' logs."""
        starts = await list_offsets(self._cluster, dict.fromkeys(self.positions, EARLIEST))
        ends = await list_offsets(self._cluster, dict.fromkeys(self.positions, LATEST))
        outside = [
            each
            for each, position in self.positions.items()
            if not starts[each].offset <= position <= ends[each].offset
        ]
        self.positions |= await self._reset(outside)

    # -- records ---------------------------------------------------------------------------------

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
            await self._stop_reading()  # The next reader begins at `positions`.
            if not isinstance(error, OffsetOutOfRange) or self.settings.offset_reset == "none":
                raise
            await self._reset_positions()
            return []
        for each in fetched:
            self.positions[each.partition] = each.next_offset
        return fetched

    async def _stop_reading(self) -> None:
        reading, self._reading = self._reading, None
        await cancel_and_wait(reading)
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.get_running_loop().create_task(work)  # owner: `poll`, which takes its result
        task.add_done_callback(lambda _: self._news.set())
        return task


def _subscriptions(members: Iterable[Any]) -> dict[str, Subscription]:
    """By member id, static members first."""

    def by_name(member: Any) -> tuple[bool, str]:
        instance_id = getattr(member, "group_instance_id", None)
        return instance_id is None, instance_id or member.member_id

    return {
        member.member_id: decode_subscription(bytes(member.metadata))
        for member in sorted(members, key=by_name)
    }
