"""Partitions of a follower's fetch session that its next fetches need not read.

A follower fetches all its partitions in each request, and most have nothing new: to read and to
watch them again each time costs as much as the records of the others. One whose follower is in
sync, has every record and has been told everything is settled: it stays watched between the
fetches, and its first change ends that. All are read again after some seconds, as the time of a
follower's last fetch counts, too.
Invariant: a change after the read that settled a partition unsettles it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

from suwi.model.ids import NodeId
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.replica.partition import Partition
from suwi.wire.fetch_request import FetchPartition

Key: TypeAlias = tuple[str | UUID, int]
"""A topic's name or id, and a partition's index."""

_READ_AGAIN_S: Final = 5.0
_OF_LAG: Final = 1 / 6
"""They are read again within this part of replica.lag.time.max.ms."""
_UNWATCHED_AT_ONCE: Final = 4_000


class _Settled:
    """One partition. It is its own watcher, as there are thousands."""

    __slots__ = ("_all", "key", "partition")

    def __init__(self, settled: "SettledPartitions", key: Key, partition: Partition) -> None:
        self._all = settled
        self.key = key
        self.partition = partition

    def __call__(self) -> None:
        self._all.drop(self.key)
        if self._all.on_change is not None:
            self._all.on_change(self.key)


class SettledPartitions:
    """Those of one session."""

    def __init__(self) -> None:
        self.on_change: Callable[[Key], None] | None = None
        """Called when one is no longer settled: the fetch in progress reads it."""
        self._settled: dict[Key, _Settled] = {}
        self._broker_epoch = -1
        self._read_at_s = float("-inf")
        self._read_again_s = _READ_AGAIN_S
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._settled)

    def __contains__(self, key: Key) -> bool:
        return key in self._settled

    def must_read_all(self, broker_epoch: int, now_s: float) -> bool:
        """Whether a fetch reads all partitions: after a while, and for a follower that has been
        registered again."""
        is_due = now_s >= self._read_at_s + self._read_again_s
        if not is_due and broker_epoch == self._broker_epoch:
            return False
        self._broker_epoch, self._read_at_s = broker_epoch, now_s
        return True

    def settle(self, key: Key, partition: Partition, node: NodeId, asked: FetchPartition) -> bool:
        """Whether a partition is settled: it was read in this iteration of the event loop, and
        there was nothing to tell the follower."""
        replica_log, leader_state = partition.replica_log, partition.leader_state
        if (
            self._is_closed
            or leader_state is None
            or node not in leader_state.members
            or not asked.fetch_offset == replica_log.high_watermark == partition.log.end_offset
            # Their coordinators ask how long ago the followers have fetched.
            or partition.partition.topic in INTERNAL_TOPICS
            or partition.watched_by is not None
        ):
            return False
        self._read_again_s = min(_READ_AGAIN_S, replica_log.context.lag_s_max * _OF_LAG)
        settled = self._settled.get(key)
        if settled is None or settled.partition is not partition:
            self.drop(key)
            settled = self._settled[key] = _Settled(self, key, partition)
            partition.watch(settled, also_uncommitted=True)
        return True

    def drop(self, key: Key) -> None:
        settled = self._settled.pop(key, None)
        if settled is not None:
            settled.partition.unwatch(settled)

    def close(self) -> None:
        """The session has ended."""
        self._is_closed = True
        for _ in range(min(len(self._settled), _UNWATCHED_AT_ONCE)):
            _, settled = self._settled.popitem()
            settled.partition.unwatch(settled)
        if self._settled:
            asyncio.get_running_loop().call_soon(self.close)
