"""DeleteGroups v0-v2: groups without members, with all their offsets."""

from suwi.coordinator.event import Call
from suwi.coordinator.runtime import coordinator_error
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard, GroupRuntime
from suwi.handlers.coordinator_requests import hashing
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, SlicedItems
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class DeleteGroups:
    def __init__(self, groups: GroupRuntime) -> None:
        self._groups = groups

    async def __call__(self, request: Request) -> Reply:
        # A slice at once, so that the deletions of one shard are one append.
        deleted: dict[str, GroupCall] = {}
        in_slice = 0
        for name in request.message.groups_names:
            if name not in deleted:
                call = Call(GroupCoordinatorShard.delete_group, name, name)
                deleted[name] = self._groups.submit(call)
            in_slice += 1 + sum(1 for _ in hashing(name))
            if in_slice >= SLICE_PARTITIONS:
                in_slice = 0
                await request.next_slice()
        results = SlicedItems(request, ("results",))
        for number, (name, call) in enumerate(deleted.items(), 1):
            await call.done()
            code = call.response if call.error is None else coordinator_error(call.error)
            results.add({"group_id": name, "error_code": code})
            if number % SLICE_PARTITIONS == 0:
                results.encode()
                await request.next_slice()
        return reply(request, {"throttle_time": 0, "results": results.take()})
