"""Between a member and its coordinator: what is asked and told is noted, and more is asked.

Besides what a member sends, `NotingCoordinator` now and then commits in between: before the
assignment of a generation is there (hazard G2), and in the name of the generation before (G1).
Neither may be accepted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from simulation.group_history import Beat, GroupHistory, Joined, OffsetRead, Synced, Who
from simulation.history import Outcome
from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition
from suwi.sim.random import SimRandom
from suwi.wire.consumer_protocol import decode_assignment
from suwi.wire.versions import ApiKey

_BY_NAME_AT_MOST = 9
_ANSWERED_FROM_MEMORY = (ApiKey.OFFSET_FETCH, ApiKey.CONSUMER_GROUP_HEARTBEAT)
_REFUSALS = (
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.fenced_instance_id,
    ErrorCode.group_id_not_found,
    ErrorCode.stale_member_epoch,
)
"""After these it is certain that nothing was stored."""


class NotingCoordinator(Coordinator):
    def __init__(
        self,
        cluster: Cluster,
        group: str,
        history: GroupHistory,
        random: SimRandom,
        meddles_with: TopicPartition | None = None,
        *,
        is_consumer: bool = False,
        is_deposed: Callable[[Address], bool] = lambda _: False,
    ) -> None:
        """`meddles_with`: a partition that commits are tried for which must be refused;
        `is_consumer`: the member is one of the consumer protocol; `is_deposed`: whether a newer
        coordinator serves than the one at that address."""
        super().__init__(cluster, group)
        self.history = self._history = history
        self._is_consumer = is_consumer
        self._is_deposed = is_deposed
        self._random = random
        self._meddles_with = meddles_with
        self._before: Who | None = None
        """Who it was in the generation before."""

    async def call(self, api: ApiKey, fields: Mapping[str, Any], **limits: Any) -> Any:
        history = self._history
        if api is ApiKey.OFFSET_COMMIT:
            return await self._commit(fields, limits)
        if api is ApiKey.SYNC_GROUP and fields["assignments"]:
            history.assigns(self.key, fields["generation_id"])
        sent = history.tick()
        answer = await super().call(api, fields, **limits)
        link = self._link if api in _ANSWERED_FROM_MEMORY else None
        if link is not None and self._is_deposed(link.address):
            # Another one serves, and its ISR may just have stopped to fetch from this one.
            return answer
        if api is ApiKey.OFFSET_FETCH:
            self._read(answer, sent)
        elif api is ApiKey.JOIN_GROUP and not answer.error_code:
            who = self._who(fields, answer.generation_id, answer.member_id)
            history.joins.append(Joined(who, sent, history.tick()))
            await self._meddle(who)
        elif api is ApiKey.SYNC_GROUP and not answer.error_code:
            who = self._who(fields, fields["generation_id"], fields["member_id"])
            partitions = decode_assignment(bytes(answer.assignment)).partitions
            history.syncs.append(Synced(who, tuple(map(str, partitions)), history.tick()))
            before, self._before = self._before, who
            if before is not None and before.generation < who.generation:
                await self._meddle(before)
        elif api is ApiKey.CONSUMER_GROUP_HEARTBEAT and not answer.error_code:
            await self._beaten(fields, answer.member_epoch, sent)
        return answer

    async def _beaten(self, fields: Mapping[str, Any], epoch: int, sent: int) -> None:
        if fields["member_epoch"] > 0:
            self._history.beats.append(Beat(fields["member_id"], sent))
        who = Who(self.key, fields["member_id"], fields["instance_id"], epoch, is_consumer=True)
        before, self._before = self._before, who
        if before is not None and 0 < before.generation < epoch:
            await self._meddle(before)

    def _who(self, fields: Mapping[str, Any], generation: int, member_id: str) -> Who:
        instance_id = fields["group_instance_id"]
        return Who(self.key, member_id, instance_id, generation, self._is_consumer)

    async def _commit(self, fields: Mapping[str, Any], limits: Mapping[str, Any]) -> Any:
        generation = fields["generation_id_or_member_epoch"]
        offsets = {
            f"{topic['name']}-{each['partition_index']}": each["committed_offset"]
            for topic in fields["topics"]
            for each in topic["partitions"]
        }
        commit = self._history.commit(self._who(fields, generation, fields["member_id"]), offsets)
        topics = [
            {
                **topic,
                "partitions": [
                    {**each, "committed_metadata": commit.id} for each in topic["partitions"]
                ],
            }
            for topic in fields["topics"]
        ]
        answer = await super().call(ApiKey.OFFSET_COMMIT, {**fields, "topics": topics}, **limits)
        codes = {each.error_code for topic in answer.topics for each in topic.partitions}
        if codes == {ErrorCode.none}:
            self._history.committed(commit, Outcome.DONE)
        elif codes <= set(_REFUSALS):
            self._history.committed(commit, Outcome.NOT_DONE)
        return answer

    async def _meddle(self, who: Who) -> None:
        partition = self._meddles_with
        if partition is None or not self._random.chance(0.3):
            return
        each = {
            "partition_index": partition.partition,
            "committed_offset": 0,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": self.key,
            "generation_id_or_member_epoch": who.generation,
            "member_id": who.member_id,
            "group_instance_id": who.instance_id,
            "retention_time": -1,
            "topics": [{"name": partition.topic, "partitions": [each]}],
        }
        try:
            await self._commit(fields, {"at_most": _BY_NAME_AT_MOST, "timeout_s": 1})
        except (BrokerError, OSError):
            pass

    def _read(self, answer: Any, sent: int) -> None:
        (found,) = getattr(answer, "groups", None) or (answer,)
        if getattr(found, "error_code", 0):
            return
        self._note_reads(found.topics, sent, self._history.tick())

    def _note_reads(self, topics: Sequence[Any], sent: int, answered: int) -> None:
        for topic in topics:
            for one in topic.partitions:
                if one.error_code:
                    continue
                value = None
                if one.committed_offset >= 0:
                    value = (one.committed_offset, one.metadata or "")
                name = f"{topic.name}-{one.partition_index}"
                read = OffsetRead(self.key, name, value, sent, answered)
                self._history.reads.append(read)
