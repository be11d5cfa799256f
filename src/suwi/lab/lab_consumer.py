"""A consumer of a scenario, on a machine of its own, with the settings and defaults of Kafka's.

`poll`, `process` and `commit` are what its application does, one call at a time; `loop` does them
again and again. As in the Java client heartbeats are sent in the background, auto-commit happens
in `poll` and commits what the polls before have returned, and a consumer that does not poll within
max.poll.interval.ms leaves its group.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.assignors import ASSIGNORS
from suwi.client.fetching import ReadSettings
from suwi.client.group_consumer import GroupConsumer, GroupSettings, Joined
from suwi.client.group_offsets import Membership
from suwi.client.retry import Retry
from suwi.client.settings import ClientSettings
from suwi.env.tasks import cancel_and_wait
from suwi.lab.client_settings import Settings, machine_of
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, PartitionIndex, TopicPartition, by_topic
from suwi.sim.cluster import SimCluster
from suwi.wire.versions import ApiKey

_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2
_GONE = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)


class ConsumerProtocolConsumer(GroupConsumer):
    """A member of a group with group.protocol=consumer (KIP-848): the coordinator assigns.

    What it reads, and where it continues, is `GroupConsumer`'s. A join is a heartbeat that says
    all: what it subscribes to and what it owns. Other heartbeats say only that it lives. What an
    answer assigns is taken, or given up, in `poll`, and then told.
    """

    _assigned: Sequence[TopicPartition] = ()
    """What the coordinator has last assigned to it."""
    _heartbeat_s = 5.0

    async def _begin_to_join(self) -> None:
        await cancel_and_wait(self._beating)
        self._beating = None
        self._joining = self._start(self._join(self.assignment))

    async def _join(self, owned: Sequence[TopicPartition]) -> Joined:
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            self._must_join = False
            try:
                await self._heartbeat(
                    self.membership.generation if self._has_generation else _JOIN,
                    rebalance_timeout=int(self.settings.rebalance_timeout_s * 1000),
                    subscribed_topic_names=self._topics,
                    topic_partitions=await self._with_ids(owned),
                )
                self._beating = self._start(self._beat())
                return Joined(self.membership.generation, tuple(self._assigned))
            except (BrokerError, OSError) as error:
                if self._is_lost:
                    owned = ()
                await retry.pause_or_raise(error)

    async def _take(self, joined: Joined) -> None:
        before = self.assignment
        await super()._take(joined)
        if self.assignment != before:
            self._rejoin()

    async def _beat(self) -> None:
        while self._has_generation and not self._must_join:
            await asyncio.sleep(self._heartbeat_s)
            try:
                await self._heartbeat(self.membership.generation)
                if sorted(self._assigned) != self.assignment:
                    self._rejoin()
            except (BrokerError, OSError):
                pass  # The next one looks for the coordinator again.

    async def _leave(self) -> None:
        is_static = self.settings.instance_id is not None
        try:
            await self._heartbeat(_LEAVE_STATIC if is_static else _LEAVE)
        except (BrokerError, OSError):
            pass  # The session ends by itself.

    async def _heartbeat(self, epoch: int, **says: Any) -> None:
        """Raises `BrokerError`, OSError."""
        fields: Mapping[str, Any] = {
            "group_id": self._coordinator.key,
            "member_id": self.membership.member_id,
            "member_epoch": epoch,
            "instance_id": self.settings.instance_id,
            "topic_partitions": None,
            **says,
        }
        answer = await self._coordinator.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, fields)
        try:
            self._coordinator.check(answer)
        except BrokerError as error:
            if error.code in _GONE:
                self.membership = self.membership._replace(generation=-1)
                self._assigned = ()
                self._is_lost = True
                self._rejoin()
            raise
        self._heartbeat_s = answer.heartbeat_interval.total_seconds()
        self.membership = self.membership._replace(generation=answer.member_epoch)
        if answer.assignment is not None:
            names = {(await self._cluster.topic(name)).id: name for name in self._topics}
            self._assigned = [
                TopicPartition(names[topic.topic_id], PartitionIndex(index))
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            ]

    async def _with_ids(self, partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
        return [
            {"topic_id": (await self._cluster.topic(topic)).id, "partitions": indexes}
            for topic, indexes in by_topic(partitions).items()
        ]


DEFAULTS = {
    "auto.commit.interval.ms": "5000",
    "auto.offset.reset": "latest",
    "enable.auto.commit": "true",
    "group.id": "",
    "group.instance.id": "",
    "group.protocol": "classic",
    "heartbeat.interval.ms": "3000",
    "isolation.level": "read_uncommitted",
    "max.poll.interval.ms": "300000",
    "max.poll.records": "500",
    "partition.assignment.strategy": "range,cooperative-sticky",
    "session.timeout.ms": "45000",
}
POLL_S = 5.0
"""How long `poll` waits for records."""
_LOOP_S = 0.5


class Received(NamedTuple):
    partition: TopicPartition
    offset: int
    value: str


class LabConsumer:
    def __init__(
        self,
        cluster: SimCluster,
        name: str,
        topics: Sequence[str],
        given: Mapping[str, str],
        report: Callable[[str], None],
        on_processed: Callable[[str, Sequence[Received]], None],
    ) -> None:
        """`report` is told what it does by itself. Raises `ValueError` for bad settings."""
        self.name = name
        self.settings = settings = Settings(DEFAULTS, given)
        if not settings["group.id"]:
            raise ValueError("group.id is missing")
        for assignor in settings["partition.assignment.strategy"].split(","):
            if assignor not in ASSIGNORS:
                raise ValueError(
                    f"there is no assignor {assignor}; there are {', '.join(ASSIGNORS)}"
                )
        self.machine = machine_of(cluster, name)
        self.machine.start()
        self.unprocessed: list[Received] = []
        """What polls have returned."""
        self.is_hanging = True
        """It does not poll by itself."""
        self.positions: dict[TopicPartition, Offset] = {}
        """After what polls have returned."""
        self.processed: dict[TopicPartition, Offset] = {}
        """After what was processed."""
        self._topics = topics
        self._report = report
        self._on_processed = on_processed
        self._client = cluster.client(
            name, ClientSettings(client_id=name, connect_timeout_s=2, request_timeout_s=10)
        )
        self._buffer: list[Received] = []
        """What was fetched and not returned by a poll."""
        self._looping: asyncio.Task[None] | None = None
        self._starts = 0
        self._is_out = False
        self.group = self._new_member()
        now_s = asyncio.get_running_loop().time()
        self._polled_s = now_s
        self._commit_s = now_s + settings.seconds("auto.commit.interval.ms")
        self.machine.spawn(self._watch_interval())

    @property
    def reading(self) -> list[TopicPartition]:
        """What it reads now: it owns it, knows where to continue, and polls."""
        can_read = self.machine.is_running and not self.is_hanging
        return list(self.group.positions) if can_read else []

    async def poll(self, timeout_s: float = POLL_S) -> list[Received]:
        """Raises `BrokerError`, OSError."""
        return await self.machine.spawn(self._poll(timeout_s))

    def process(self, count: int | None = None) -> list[Received]:
        """The next ones, by default all, are processed."""
        done = self.unprocessed[:count]
        del self.unprocessed[: len(done)]
        self.processed |= {each.partition: Offset(each.offset + 1) for each in done}
        if done:
            self._on_processed(self.name, done)
        return done

    async def commit(self, *, processed: bool) -> None:
        """`processed`: only what was processed; else all that polls have returned, as commitSync()
        without arguments does. Raises `BrokerError`, OSError."""
        offsets = self.processed if processed else self.positions
        await self.machine.spawn(self.group.commit(dict(offsets)))

    def loop(self) -> None:
        self.is_hanging = False
        if self._looping is None or self._looping.done():
            self._looping = self.machine.spawn(self._loop())

    async def close(self) -> None:
        """Commit if that is automatic, and leave the group unless the member is static."""
        self.is_hanging = True
        await self.machine.spawn(self._close())
        self.machine.kill()

    # -- the client ------------------------------------------------------------------------------

    def _new_member(self) -> GroupConsumer:
        settings = self.settings
        is_classic = settings["group.protocol"] == "classic"
        reset: Any = settings["auto.offset.reset"]
        self._starts += 1
        options = GroupSettings(
            assignors=tuple(settings["partition.assignment.strategy"].split(",")),
            instance_id=settings["group.instance.id"] or None,
            session_timeout_s=settings.seconds("session.timeout.ms"),
            rebalance_timeout_s=settings.seconds("max.poll.interval.ms"),
            heartbeat_s=settings.seconds("heartbeat.interval.ms"),
            offset_reset=reset,
            read=ReadSettings(committed_only=settings["isolation.level"] == "read_committed"),
        )
        make = GroupConsumer if is_classic else ConsumerProtocolConsumer
        group = make(
            self._client, settings["group.id"], self._topics, options, on_revoked=self._on_revoked
        )
        if not is_classic:  # KIP-1082: the client chooses the id.
            member_id = f"{self.machine.incarnation.name}-{self._starts}"
            group.membership = Membership(member_id, instance_id=options.instance_id)
        return group

    async def _poll(self, timeout_s: float) -> list[Received]:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        if self._is_out:
            self._is_out = False
            self.group = self._new_member()
        while True:
            self._polled_s = loop.time()
            await self._auto_commit()
            for fetched in await self.group.poll(0 if self._buffer else _LOOP_S):
                self._buffer += [
                    Received(fetched.partition, record.offset, (record.value or b"").decode())
                    for record in fetched.records
                ]
            self._forget_all_but(self.group.assignment)
            if self._buffer or loop.time() >= end_s:
                break
        most = int(self.settings["max.poll.records"])
        returned, self._buffer = self._buffer[:most], self._buffer[most:]
        self.positions |= {each.partition: Offset(each.offset + 1) for each in returned}
        self.unprocessed += returned
        return returned

    def _forget_all_but(self, owned: Sequence[TopicPartition]) -> None:
        self._buffer = [each for each in self._buffer if each.partition in owned]
        for offsets in (self.positions, self.processed):
            for partition in [each for each in offsets if each not in owned]:
                del offsets[partition]

    async def _auto_commit(self, *, now: bool = False) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self.settings.is_on("enable.auto.commit") or (now_s < self._commit_s and not now):
            return
        self._commit_s = now_s + self.settings.seconds("auto.commit.interval.ms")
        try:
            await self.group.commit(dict(self.positions))
        except (BrokerError, OSError):
            pass  # The next one commits more.

    async def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        await self._auto_commit(now=True)
        self._forget_all_but([each for each in self.group.assignment if each not in partitions])

    async def _loop(self) -> None:
        while not self.is_hanging:
            try:
                await self._poll(_LOOP_S)
                self.process()
                if not self.settings.is_on("enable.auto.commit"):
                    await self.group.commit(dict(self.positions))
            except (BrokerError, OSError):
                # For example it is not a member any more: the next poll finds out.
                await asyncio.sleep(_LOOP_S)

    async def _watch_interval(self) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self.settings.seconds("max.poll.interval.ms")
        while True:
            left_s = self._polled_s + interval_s - loop.time()
            await asyncio.sleep(1.0 if self._is_out else max(0.0, left_s))
            if loop.time() - self._polled_s >= interval_s and not self._is_out:
                self._is_out = True
                if self.group.assignment:
                    self._report(f"{self.name} leaves the group: no poll for {interval_s:g} s")
                await self.group.close()

    async def _close(self) -> None:
        await self._auto_commit(now=True)
        await self.group.close()
