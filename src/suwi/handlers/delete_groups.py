"""DeleteGroups v0-v2: groups without members, with all their offsets."""

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.coordinator.runtime import coordinator_error
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard, GroupRuntime
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.slices import SLICE_PARTITIONS, SlicedItems
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.security.acls import Operation, ResourceType


async def delete_groups(groups: GroupRuntime, request: Request) -> Reply:
    # A slice at once, so that the deletions of one shard are one append.
    deleted: dict[str, GroupCall | None] = {}
    in_slice = 0
    for name in request.message.groups_names:
        if request.refuses(Operation.DELETE, ResourceType.GROUP, name):
            deleted[name] = None
        elif name not in deleted:
            call = Call(GroupCoordinatorShard.delete_group, name, name)
            deleted[name] = groups.submit(call)
        in_slice += 1 + sum(1 for _ in hashing(name))
        if in_slice >= SLICE_PARTITIONS:
            in_slice = 0
            await request.next_slice()
    results = SlicedItems(request, ("results",))
    for name, begun in deleted.items():
        code = ErrorCode.group_authorization_failed
        if begun is not None:
            await begun.done()
            code = begun.response if begun.error is None else coordinator_error(begun.error)
        await results.put({"group_id": name, "error_code": code})
    return results.reply()
