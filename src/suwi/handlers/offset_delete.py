"""OffsetDelete v0: offsets of a group that is empty, or of topics that it does not read."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.coordinator.runtime import coordinator_error
from suwi.group.group_coordinator_shard import GroupCoordinatorShard, GroupRuntime
from suwi.group.offset_requests import OffsetDeleteRequest
from suwi.handlers.slices import SlicedResponse
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager


class OffsetDelete:
    def __init__(self, groups: GroupRuntime, replicas: ReplicaManager) -> None:
        self._groups = groups
        self._replicas = replicas

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        response = SlicedResponse(request)
        if not asked.group_id:
            return response.reply(error_code=ErrorCode.invalid_group_id)
        known = self._replicas.image.topics
        partitions: dict[tuple[str, int], None] = {}
        for topic in asked.topics:
            found = known.get(topic.name)
            count = len(found.partitions) if found is not None else 0
            for partition in topic.partitions:
                if 0 <= partition.partition_index < count:
                    partitions[topic.name, partition.partition_index] = None
                if response.count():
                    await request.next_slice()

        delete = OffsetDeleteRequest(asked.group_id, partitions)
        call = Call(GroupCoordinatorShard.delete_offsets, delete, asked.group_id)
        try:
            deleted = await self._groups.submit(call)
        except Exception as error:
            deleted = coordinator_error(error)
        if isinstance(deleted, ErrorCode):
            return response.reply(error_code=deleted)
        errors = dict(zip(partitions, deleted, strict=True))
        for topic in asked.topics:
            if response.begin_topic(name=topic.name):
                await request.next_slice()
            for partition in topic.partitions:
                index = partition.partition_index
                code = errors.get((topic.name, index), ErrorCode.unknown_topic_or_partition)
                if response.add({"partition_index": index, "error_code": code}):
                    await request.next_slice()
        return response.reply(error_code=ErrorCode.none)
