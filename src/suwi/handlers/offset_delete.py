"""OffsetDelete v0: offsets of a group that is empty, or of topics that it does not read."""

from typing import Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.coordinator.runtime import coordinator_error
from suwi.group.group_coordinator_shard import GroupCoordinatorShard, GroupRuntime
from suwi.group.offset_requests import OffsetDeleteRequest
from suwi.handlers.slices import SlicedResponse
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType

_REFUSED: Final = ErrorCode.topic_authorization_failed
_UNKNOWN: Final = ErrorCode.unknown_topic_or_partition


async def offset_delete(groups: GroupRuntime, replicas: ReplicaManager, request: Request) -> Reply:
    asked = request.message
    response = SlicedResponse(request)
    if not asked.group_id:
        return response.reply(error_code=ErrorCode.invalid_group_id)
    known = replicas.image.topics
    partitions: dict[tuple[str, int], None] = {}
    refused: set[str] = set()
    for topic in asked.topics:
        if response.count():
            await request.next_slice()
        if request.refuses(Operation.READ, ResourceType.TOPIC, topic.name):
            refused.add(topic.name)
            continue
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
        deleted = await groups.submit(call)
    except Exception as error:
        deleted = coordinator_error(error)
    if isinstance(deleted, ErrorCode):
        return response.reply(error_code=deleted)
    errors = dict(zip(partitions, deleted, strict=True))
    for topic in asked.topics:
        await response.put_topic(name=topic.name)
        otherwise = _REFUSED if topic.name in refused else _UNKNOWN
        for partition in topic.partitions:
            index = partition.partition_index
            code = errors.get((topic.name, index), otherwise)
            await response.put({"partition_index": index, "error_code": code})
    return response.reply(error_code=ErrorCode.none)
