"""Members of one classic group, each on a connection of its own: they join, sync and beat.

Prints how long it took from the first JoinGroup to the last SyncGroup reply of one generation with
all of them: when the group is formed (`form_s`), and when its leader joins again (`rebalance_s`).
"""

import asyncio
import struct
import time

from kio.schema.errors import ErrorCode

from bench import group_messages as messages
from bench.clients import Metrics, Options, client_main
from bench.processes import Stopwatch
from suwi.wire.versions import ApiKey

_METADATA = b"\0\1" + struct.pack(">i", 1) + b"\0\6orders" + bytes(8)
_PATIENCE_S = 120
_SIZE = struct.Struct(">i")


class Member:
    def __init__(self, group: "Group") -> None:
        self.member_id = ""
        self.generation = -1
        self._group = group
        self._beats: asyncio.Task[None] | None = None
        self._must_join = asyncio.Event()

    async def connect(self, host: str, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection(host, port)

    async def _ask(self, request: bytes) -> bytes:
        self._writer.write(request)
        (size,) = _SIZE.unpack(await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def join(self) -> None:
        """Until it has an assignment; heartbeats follow."""
        self._must_join.clear()
        while True:
            request = messages.join(self._group.name, self.member_id, _METADATA)
            joined = messages.read(ApiKey.JOIN_GROUP, await self._ask(request))
            self.member_id = joined.member_id
            if joined.error_code is ErrorCode.member_id_required:
                continue
            assert not joined.error_code, joined
            assigned = {each.member_id: b"\0\1" + bytes(8) for each in joined.members}
            request = messages.sync(
                self._group.name, self.member_id, joined.generation_id, assigned
            )
            synced = messages.read(ApiKey.SYNC_GROUP, await self._ask(request))
            if synced.error_code is ErrorCode.rebalance_in_progress:
                continue
            assert not synced.error_code, synced
            break
        self.generation = joined.generation_id
        self._beats = asyncio.create_task(self._beat())
        self._group.synced(self, is_leader=joined.leader == self.member_id)

    async def _beat(self) -> None:
        request = messages.heartbeat(self._group.name, self.member_id, self.generation)
        while True:
            try:
                async with asyncio.timeout(self._group.heartbeat_s):
                    await self._must_join.wait()
            except TimeoutError:
                pass
            else:
                await self.join()
                return
            if self._group.has_ended:
                return
            answer = messages.read(ApiKey.HEARTBEAT, await self._ask(request))
            if answer.error_code is ErrorCode.rebalance_in_progress:
                await self.join()
                return
            assert not answer.error_code, answer

    async def rejoin(self) -> None:
        """Not while a heartbeat is in flight: its answer would be taken for that of the join."""
        assert self._beats is not None
        beats = self._beats
        self._must_join.set()
        await beats


class Group:
    def __init__(self, name: str, heartbeat_s: float, size: int) -> None:
        self.name = name
        self.heartbeat_s = heartbeat_s
        self.has_ended = False
        self.leader: Member | None = None
        self.members = [Member(self) for _ in range(size)]
        self._all = asyncio.Event()

    def synced(self, member: Member, *, is_leader: bool) -> None:
        if is_leader:
            self.leader = member
        generations = {each.generation for each in self.members}
        if len(generations) == 1:
            self._all.set()

    async def all_synced(self) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await self._all.wait()
        self._all.clear()


async def _rebalance(options: Options) -> Metrics:
    group = Group(options["group"], options["heartbeat_s"], options["members"])
    host, _, port = options["address"].rpartition(":")
    for member in group.members:
        await member.connect(host, int(port))
    watch, start = Stopwatch(options["server_pids"]), time.perf_counter()
    joining = [asyncio.create_task(member.join()) for member in group.members]
    await group.all_synced()
    form_s = time.perf_counter() - start
    await asyncio.gather(*joining)
    await asyncio.sleep(1)
    assert group.leader is not None
    start = time.perf_counter()
    again = asyncio.create_task(group.leader.rejoin())
    await group.all_synced()
    rebalance_s = time.perf_counter() - start
    await again
    group.has_ended = True
    return {"form_s": form_s, "rebalance_s": rebalance_s, **watch.stop()}


def members(options: Options) -> Metrics:
    return asyncio.run(_rebalance(options))


if __name__ == "__main__":
    client_main(members)
