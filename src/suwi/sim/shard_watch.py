"""Compares what coordinators hold in memory with a replay of their logs (hazard H0).

Now and then, and in the end, every replica's log is read from its simulated disk, past the code
under test, and replayed into a fresh machine: as it is, and as it would be with a first part or a
part in the middle of it compacted. What is persisted of the live state must be what that gives.
Timers exist on leaders only and belong to somebody (hazard G24).
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from suwi.coordinator.record import CoordinatorRecord
from suwi.coordinator.record_facts import RecordFacts
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_context import Status
from suwi.group.classic_group import ClassicGroup, ClassicState
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.records import GROUP_RECORDS
from suwi.log.partition_log import PartitionLog
from suwi.records.batch import batches
from suwi.records.record import iter_records
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import SimCluster, SimNode

_STEPS_BETWEEN = (100, 3000)
_APPLIED_WITHIN_S = 10.0
_SETTLED = (ClassicState.EMPTY, ClassicState.STABLE)
_TIMER_STATES = {
    "join": (ClassicState.PREPARING_REBALANCE,),
    # A member that has not synced is removed even after the leader has assigned.
    "sync": (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE),
}

_MEMBER_TIMERS = ("consumer-session", "consumer-rebalance")

_Record = tuple[int, bytes, bytes | None]
"""Offset, key and value."""


class ShardWatch:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.simulation.random.stream("shard watch")
        self._left = 0
        self.compared = 0
        """How often a replica's state was compared."""
        cluster.simulation.add_checker(self._after_step)

    def _after_step(self) -> None:
        self._left -= 1
        if self._left < 0:
            self._left = self._random.between(*_STEPS_BETWEEN)
            self.look()

    def look(self) -> int:
        """How many shards could be compared."""
        return sum(self._check(node, shard) for node, shard in self._shards())

    async def at_end(self) -> None:
        """All is healed: every replica has applied all there is, and is right."""
        behind: list[str] = []
        for _ in range(int(_APPLIED_WITHIN_S / 0.25)):
            behind = [
                f"{shard.partition.partition} on {node.name}, {shard.status.value}"
                for node, shard in self._shards()
                if not (self._check(node, shard) or _is_unused(shard))
            ]
            if not behind:
                return
            await asyncio.sleep(0.25)
        raise Broken(f"coordinators have not applied their logs: {behind}")

    def _shards(self) -> Iterator[tuple[SimNode, Shard]]:
        for node in self._cluster.nodes.values():
            if node.is_running and not node.is_frozen and node.broker is not None:
                for shard in node.broker.groups.runtime:
                    yield node, shard

    # -- one replica -----------------------------------------------------------------------------

    def _check(self, node: SimNode, shard: Shard) -> bool:
        """Whether it was at rest, so that it could be compared."""
        what = f"{shard.partition.partition} on {node.name}"
        if shard.status is Status.FAILED:
            return False  # Why was logged; it is loaded again.
        if shard.status is not Status.ACTIVE and len(shard._timers):
            raise Broken(f"{what} does not serve and has timers")
        log, reader = shard.partition.replica_log.log, shard._reader
        if (
            log is None
            or shard.partition.replica_log.ready_log is None
            or log.state.offline_because is not None
            or reader is None
            or reader.is_void(log)
        ):
            return False
        if shard.status is Status.FOLLOWING and shard._task is None:
            end = int(reader.applied)
        elif shard.status is Status.ACTIVE and not shard._queue:
            end = int(shard._next_offset)
            if shard.partition.is_leader and end != log.end_offset:
                raise Broken(f"{what} has replayed up to {end}; its log ends at {log.end_offset}")
            self._check_timers(what, shard)
        else:
            return False
        self._compare(what, shard, [r for r in self._records(node, log) if r[0] < end])
        return True

    def _records(self, node: SimNode, log: PartitionLog) -> Iterator[_Record]:
        for segment in log.segments():
            content = node.machine.disk.peek(segment.log_path)
            data = memoryview(bytes(content[: segment.size_bytes]))
            for position, header in batches(data):
                for record in iter_records(data[position:], header, with_headers=False):
                    yield record.offset, record.key or b"", record.value

    def _compare(self, what: str, shard: Shard, records: list[_Record]) -> None:
        self.compared += 1
        end = self._random.below(len(records) + 1)
        start = self._random.below(end + 1)
        for name, given in (
            ("", records),
            (f", compacted to {end}", _compacted(records, 0, end)),
            (f", compacted from {start} to {end}", _compacted(records, start, end)),
        ):
            fresh = shard._context.new_machine()
            _replay(fresh, given)
            difference = _difference(shard.machine, fresh)
            if difference is not None:
                raise Broken(f"{what} is not what its log{name} says: {difference}")

    def _check_timers(self, what: str, shard: Shard) -> None:
        for key in shard._timers._deadlines:
            assert isinstance(key, tuple)
            if len(key) < 2:
                continue
            groups = shard.machine.groups
            consumer = groups.consumer.get(key[1])
            if consumer is not None:
                if key[0] in _MEMBER_TIMERS and key[2] not in consumer.members:
                    raise Broken(f"{what} has a timer {key} of nobody")
                continue
            group = groups.classic.get(key[1])
            if group is None:
                raise Broken(f"{what} has a timer {key} without a group")
            if key[0] == "session":
                if key[2] not in group.members and key[2] not in group.pending_members:
                    raise Broken(f"{what} has a timer {key} of nobody")
            elif group.state not in _TIMER_STATES[key[0]]:
                raise Broken(f"{what} has a timer {key} of a group that is {group.state}")


def _compacted(records: list[_Record], start: int, end: int) -> list[_Record]:
    """Tombstones go with the first part only: in the middle they may hide what lies before."""
    newest = {key: offset for offset, key, _ in records[start:end]}
    return [
        each
        for number, each in enumerate(records)
        if not start <= number < end
        or (newest[each[1]] == each[0] and (each[2] is not None or start > 0))
    ]


def _is_unused(shard: Shard) -> bool:
    """Nothing was ever written to it: its log may not have been opened, or not opened again."""
    log = shard.partition.replica_log.log
    return log is None or log.end_offset == 0


def _replay(machine: GroupCoordinatorShard, records: list[_Record]) -> None:
    for offset, key, value in records:
        decoded: CoordinatorRecord | None = GROUP_RECORDS.decode(key, value)
        if decoded is not None:
            machine.replay(decoded, RecordFacts(offset))


def _difference(live: GroupCoordinatorShard, fresh: GroupCoordinatorShard) -> str | None:
    there, replayed = _offsets(live), _offsets(fresh)
    for place in {**there, **replayed}:
        if there.get(place) != replayed.get(place):
            return f"{place} is at {there.get(place)}, replayed {replayed.get(place)}"
    there_groups, replayed_groups = live.groups.classic, fresh.groups.classic
    for group_id in {**there_groups, **replayed_groups}:
        difference = _groups_differ(there_groups.get(group_id), replayed_groups.get(group_id))
        if difference is not None:
            return f"{group_id}: {difference}"
    consumers = {group.group_id: group for group in live.groups.consumer}
    replayed_consumers = {group.group_id: group for group in fresh.groups.consumer}
    if consumers != replayed_consumers:
        return f"the groups are {consumers}, replayed {replayed_consumers}"
    return None


def _offsets(machine: GroupCoordinatorShard) -> dict[tuple[str, Any], Any]:
    return {
        (group_id, partition): value
        for group_id, offsets in machine.offsets.persisted()
        for partition, value in offsets.latest()
    }


def _groups_differ(live: ClassicGroup | None, fresh: ClassicGroup | None) -> str | None:
    persisted = live.persisted if live is not None else None
    replayed = fresh.persisted if fresh is not None else None
    if persisted != replayed:
        return f"persisted is {persisted}, replayed {replayed}"
    if live is None or fresh is None or live.state not in _SETTLED:
        return None
    if _shape(live) != _shape(fresh):
        return f"the group is {_shape(live)}, replayed {_shape(fresh)}"
    return None


def _shape(group: ClassicGroup) -> dict[str, Any]:
    return {
        "state": group.state,
        "generation": group.generation,
        "type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader_id,
        "static": group.static,
        "members": {
            member.member_id: (
                member.instance_id,
                member.metadata_for(group.protocol or ""),
                member.assignment,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
            )
            for member in group.members.values()
        },
    }
