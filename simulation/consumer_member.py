"""A member of the consumer protocol (KIP-848) in a simulation: heartbeats, and commits.

It has the face of `GroupConsumer`, but reads no records: what it owns moves on by itself.
Invariant: what is held is noted in the history before it is used, and no longer before the
coordinator is told, by a list of all that is owned.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from simulation.group_history import Held, Who
from simulation.noting_coordinator import NotingCoordinator
from suwi.client.cluster import Cluster
from suwi.client.group_offsets import Membership, commit_once, fetch_once
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, PartitionIndex, TopicId, TopicPartition
from suwi.sim.random import SimRandom
from suwi.wire.versions import ApiKey

_HEARTBEAT_S = 0.4
_TELL_ALL_S = 10.0
"""A heartbeat that timed out may be handled after the one that replaced it. What it is answered
nobody reads, and neither here nor in Kafka it is told again unless the member tells everything."""
_JOIN, _LEAVE, _LEAVE_STATIC = 0, -1, -2
_REJOIN = (
    ErrorCode.unknown_member_id,
    ErrorCode.fenced_member_epoch,
    ErrorCode.group_id_not_found,
)


class ConsumerMember:
    def __init__(
        self,
        cluster: Cluster,
        coordinator: NotingCoordinator,
        topics: Iterable[str],
        cluster_topics: Iterable[str],
        who: Membership,
        rebalance_timeout_s: float,
        random: SimRandom,
    ) -> None:
        self.membership = who._replace(generation=_JOIN)
        self._cluster = cluster
        self._coordinator = coordinator
        self._history = coordinator.history
        self._topics = tuple(topics)
        self._cluster_topics = tuple(cluster_topics)
        self._rebalance_timeout_ms = int(rebalance_timeout_s * 1000)
        self._random = random
        self._held: dict[TopicPartition, Held] = {}
        self._positions: dict[TopicPartition, Offset] = {}
        self._topic_ids: dict[TopicId, str] = {}
        self._assigned: set[TopicPartition] = set()
        self._must_tell_all = True
        self._next_s = self._revoke_s = self._told_s = 0.0

    # -- as a consumer ---------------------------------------------------------------------------

    @property
    def assignment(self) -> list[TopicPartition]:
        return sorted(self._held)

    @property
    def is_stable(self) -> bool:
        """Whether it is a member, has what it was assigned, and has told so."""
        is_told = self.membership.generation > 0 and not self._must_tell_all
        return is_told and self._assigned == set(self._held)

    def subscribe(self, topics: Iterable[str]) -> None:
        self._topics = tuple(topics)
        self._must_tell_all = True

    async def poll(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        revoked = [each for each in self._held if each not in self._assigned]
        if revoked and loop.time() >= self._revoke_s:
            self._release(revoked)
            self._must_tell_all = True
        if self._must_tell_all or loop.time() >= self._next_s:
            await self._beat()
        else:
            await asyncio.sleep(min(timeout_s, self._next_s - loop.time()))
        await self._seek()
        for partition, position in self._positions.items():
            self._positions[partition] = Offset(position + self._random.below(3))

    async def commit(self) -> None:
        """Whatever of it is owned; sometimes it is not known any more whether it is."""
        if not self._positions:
            return
        wanted, member = dict(self._positions), self.membership
        coordinator = self._coordinator
        try:
            await coordinator.ask(lambda: commit_once(coordinator, wanted, member))
        except BrokerError as error:
            self._heed(error.code)
            raise

    async def close(self) -> None:
        is_static = self.membership.instance_id is not None
        epoch = _LEAVE_STATIC if is_static and self._random.chance(0.5) else _LEAVE
        if self.membership.generation > 0:
            self._release(list(self._held))
            try:
                await self._send({**self._fields(), "member_epoch": epoch})
            except (BrokerError, OSError):
                pass
        await self._coordinator.close()

    # -- heartbeats ------------------------------------------------------------------------------

    async def _beat(self) -> None:
        fields, topics, now_s = self._fields(), self._topics, asyncio.get_running_loop().time()
        if self._must_tell_all or now_s >= self._told_s + _TELL_ALL_S:
            self._told_s = now_s
            fields |= {
                "rebalance_timeout": self._rebalance_timeout_ms,
                "subscribed_topic_names": topics,
                "topic_partitions": self._owned(),
            }
        self._must_tell_all = True  # Until the answer is dealt with.
        answer = await self._send(fields)
        if answer.error_code:
            self._heed(answer.error_code)
            raise self._coordinator.refused(answer.error_code, answer.error_message)
        self.membership = self.membership._replace(generation=answer.member_epoch)
        self._next_s = asyncio.get_running_loop().time() + _HEARTBEAT_S
        has_taken = False
        if answer.assignment is not None:
            has_taken = await self._reconcile(answer.assignment.topic_partitions)
        self._must_tell_all = has_taken or self._topics != topics

    async def _send(self, fields: dict[str, Any]) -> Any:
        return await self._coordinator.call(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, fields, timeout_s=2 * _HEARTBEAT_S
        )

    def _heed(self, code: int) -> None:
        if code in _REJOIN or code == ErrorCode.fenced_instance_id:
            self._release(list(self._held))
            self._assigned = set()
            self.membership = self.membership._replace(generation=_JOIN)
            self._must_tell_all = True

    async def _reconcile(self, topics: Iterable[Any]) -> bool:
        """Whether there is something new."""
        assigned = {
            TopicPartition(await self._name(TopicId(topic.topic_id)), PartitionIndex(index))
            for topic in topics
            for index in topic.partitions
        }
        taken = [each for each in sorted(assigned) if each not in self._held]
        who = self._who
        self._held |= {each: self._history.hold(who, str(each)) for each in taken}
        self._assigned = assigned
        # It may take a while, with heartbeats that say nothing of it (G17).
        self._revoke_s = asyncio.get_running_loop().time() + self._random.uniform(0, 1)
        return bool(taken)

    def _release(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._history.release(self._held.pop(partition))
            self._positions.pop(partition, None)

    @property
    def _who(self) -> Who:
        member_id, epoch, instance_id = self.membership
        return Who(self._coordinator.key, member_id, instance_id, epoch, is_consumer=True)

    def _fields(self) -> dict[str, Any]:
        return {
            "group_id": self._coordinator.key,
            "member_id": self.membership.member_id,
            "member_epoch": self.membership.generation,
            "instance_id": self.membership.instance_id,
            "topic_partitions": None,
        }

    def _owned(self) -> list[dict[str, Any]]:
        topics: dict[str, list[int]] = {}
        for partition in self.assignment:
            topics.setdefault(partition.topic, []).append(partition.partition)
        ids = {name: topic_id for topic_id, name in self._topic_ids.items()}
        return [
            {"topic_id": ids[topic], "partitions": partitions}
            for topic, partitions in topics.items()
        ]

    async def _name(self, topic_id: TopicId) -> str:
        if topic_id not in self._topic_ids:
            for name in self._cluster_topics:
                self._topic_ids[(await self._cluster.topic(name)).id] = name
        return self._topic_ids[topic_id]

    async def _seek(self) -> None:
        coordinator = self._coordinator
        new = [each for each in self.assignment if each not in self._positions]
        if new:
            found = await coordinator.ask(lambda: fetch_once(coordinator, new))
            for each in new:
                if each in self._held:
                    self._positions[each] = found.get(each, Offset(0))
