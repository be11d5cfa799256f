"""Compares what coordinators hold in memory with a replay of their logs (hazard H0).

Now and then, and in the end, every replica's log is read from its simulated disk, past the code
under test, and replayed into a fresh machine: as it is, and as it would be with a first part or a
part in the middle of it compacted. What is persisted of the live state must be what that gives.
Timers exist on leaders only, belong to somebody (hazard G24), and give no silent member more than
its session (hazard G27).
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from simulation.shard_log import LogRecord, compacted, read, replay
from simulation.shard_states import broken_timer, difference
from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import Status
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import SimCluster, SimNode
from suwi.transaction.transaction_coordinator_shard import TransactionCoordinatorShard
from suwi.transaction.transaction_metadata import AT_REST

_STEPS_BETWEEN = (100, 3000)
_APPLIED_WITHIN_S = 10.0


class ShardWatch:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._by_name = {node.name: node for node in cluster.nodes.values()}
        self._random = cluster.simulation.random.stream("shard watch")
        self._left = 0
        self._paused: dict[Shard[Any], None] = {}
        """Those that refused heartbeats in the step before."""
        self.compared = 0
        """How often a replica's state was compared."""
        cluster.simulation.add_checker(self._after_step)

    def _after_step(self) -> None:
        self._check_ends_of_pauses()
        self._left -= 1
        if self._left < 0:
            self._left = self._random.between(*_STEPS_BETWEEN)
            self.look()

    def _check_ends_of_pauses(self) -> None:
        """Now a session that was given too much time shows, and soon it would not any more. A
        pause begins and ends in a step of its own broker: the others are not looked at."""
        ran = self._cluster.simulation.loop.ran
        node = self._by_name.get(ran.host) if ran is not None else None
        if node is None:
            return
        for shard in _shards_on(node):
            if shard._timers.is_paused:
                self._paused[shard] = None
            elif shard in self._paused:
                del self._paused[shard]
                if shard.status is Status.ACTIVE:
                    self._check_timers(f"{shard.partition.partition} on {node.name}", shard)

    def look(self) -> int:
        """How many shards could be compared."""
        return sum(self._check(node, shard) for node, shard in self._shards())

    async def at_end(self) -> None:
        """All is healed: every replica has applied all there is, and is right; leaders serve, and
        no transaction is left open, or decided without its markers."""
        behind: list[str] = []
        for _ in range(int(_APPLIED_WITHIN_S / 0.25)):
            behind = [
                f"{shard.partition.partition} on {node.name}, {shard.status.value}"
                for node, shard in self._shards()
                if not (self._check(node, shard) or _is_unused(shard)) or _is_stuck(shard)
            ]
            if not behind:
                return
            await asyncio.sleep(0.25)
        raise Broken(f"coordinators have not applied their logs, or are stuck: {behind}")

    def _shards(self) -> Iterator[tuple[SimNode, Shard[Any]]]:
        for node in self._cluster.nodes.values():
            for shard in _shards_on(node):
                yield node, shard

    # -- one replica -----------------------------------------------------------------------------

    def _check(self, node: SimNode, shard: Shard[Any]) -> bool:
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
        elif shard.status is Status.ACTIVE and not (shard._queue or shard._is_closed):
            end = int(shard._next_offset)
            if shard.partition.is_leader and end != log.end_offset:
                raise Broken(f"{what} has replayed up to {end}; its log ends at {log.end_offset}")
            self._check_timers(what, shard)
        else:
            return False
        self._compare(what, shard, [r for r in read(node, log) if r.facts.offset < end])
        return True

    def _check_timers(self, what: str, shard: Shard[Any]) -> None:
        broken = broken_timer(shard.machine, shard._timers)
        if broken is not None:
            raise Broken(f"{what} {broken}")

    def _compare(self, what: str, shard: Shard[Any], records: list[LogRecord]) -> None:
        self.compared += 1
        end = self._random.below(len(records) + 1)
        start = self._random.below(end + 1)
        for name, given in (
            ("", records),
            (f", compacted to {end}", compacted(records, 0, end)),
            (f", compacted from {start} to {end}", compacted(records, start, end)),
        ):
            fresh = shard._context.new_machine()
            replay(fresh, shard._context.codec, given)
            wrong = difference(shard.machine, fresh)
            if wrong is not None:
                raise Broken(f"{what} is not what its log{name} says: {wrong}")


def _shards_on(node: SimNode) -> Iterator[Shard[Any]]:
    if node.is_running and not node.is_frozen and node.broker is not None:
        yield from node.broker.groups.runtime
        yield from node.broker.transactions.runtime


def _is_stuck(shard: Shard[Any]) -> bool:
    """Whether it leads and does not serve, or serves and has not ended its transactions."""
    if not shard.partition.is_leader or _is_unused(shard):
        return False
    if shard.status is not Status.ACTIVE:
        return True
    machine = shard.machine
    return isinstance(machine, TransactionCoordinatorShard) and any(
        metadata.state not in AT_REST for metadata in machine.transactions.values()
    )


def _is_unused(shard: Shard[Any]) -> bool:
    """Nothing was ever written to it: its log may not have been opened, or not opened again."""
    log = shard.partition.replica_log.log
    return log is None or log.end_offset == 0
