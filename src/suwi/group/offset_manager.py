"""The offsets of all groups of a shard: committed, fetched, deleted, expired. Pure.

Kafka's OffsetMetadataManager. Whether a commit is allowed is asked of the group before.
Invariant: nothing of a group is left once its last offset is gone.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from suwi.coordinator.event import RECORDS_PER_SLICE, Event
from suwi.coordinator.record import RecordFacts
from suwi.env.slices import Slices
from suwi.group.offset_records import OffsetCommitKey, OffsetCommitValue
from suwi.group.offsets import GroupOffsets, Partition, partition_of
from suwi.model.ids import NO_TIMESTAMP
from suwi.records.record import Marker, MarkerType

EXPIRED_PER_EVENT: Final = 200
"""The most offsets that expire in one event."""
EXPIRY_CHECKED_PER_EVENT: Final = 2_000
"""The number of groups and offsets that one event checks. A group is always checked as a whole."""


_CHECKED_PER_SLICE: Final = 1_000
_SETTLED_AT_ONCE: Final = 1_000


class OffsetToCommit(NamedTuple):
    topic: str
    partition: int
    value: OffsetCommitValue


class _Uncommitted(NamedTuple):
    end_offset: int
    group_id: str
    offsets: GroupOffsets
    partition: Partition


class OffsetManager:
    def __init__(self) -> None:
        self._by_group: dict[str, GroupOffsets] = {}
        self._uncommitted: deque[_Uncommitted] = deque()
        self._staged_by: dict[int, dict[str, None]] = {}
        """By producer id the groups that its open transaction has staged offsets for."""

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._by_group

    def groups(self) -> Iterable[str]:
        return self._by_group.keys()

    def of(self, group_id: str) -> GroupOffsets | None:
        return self._by_group.get(group_id)

    # -- requests --------------------------------------------------------------------------------

    def delete(self, group_id: str, partition: Partition, event: Event) -> bool:
        """Returns whether there was an offset. The deletion also removes what a transaction has
        staged before."""
        offsets = self._by_group.get(group_id)
        if offsets is None or not (offsets.has_latest(partition) or offsets.has_staged(partition)):
            return False
        event.append(OffsetCommitKey(group_id, *partition), None)
        return True

    def delete_all(self, group_id: str, event: Event) -> Slices[None]:
        """Partitions with an offset that a transaction has staged are kept (hazard G13)."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            return
        for number, (partition, _) in enumerate(offsets.latest(), 1):
            if not offsets.has_staged(partition):
                event.append(OffsetCommitKey(group_id, *partition), None)
            if number % _CHECKED_PER_SLICE == 0:
                yield

    def expire(
        self,
        group_id: str,
        counts_from: Callable[[str, OffsetCommitValue], int | None],
        retention_ms: int,
        event: Event,
    ) -> Slices[bool]:
        """Delete expired offsets. Returns whether the group has none left. `counts_from` returns
        the time from which the retention of an offset counts, or None if it must be kept."""
        offsets = self._by_group.get(group_id)
        if offsets is None:
            return True
        left = 0
        for number, (partition, value) in enumerate(offsets.latest(), 1):
            if number % _CHECKED_PER_SLICE == 0:
                yield
            since_ms = counts_from(partition[0], value)
            if since_ms is None:
                is_over = False
            elif value.expire_timestamp_ms != NO_TIMESTAMP:
                is_over = event.now_ms >= value.expire_timestamp_ms
            else:
                is_over = event.now_ms - since_ms >= retention_ms
            if is_over and not offsets.has_staged(partition):
                event.append(OffsetCommitKey(group_id, *partition), None)
            else:
                left += 1
        return not left and not offsets.has_staged()

    # -- replay ----------------------------------------------------------------------------------

    def replay(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, facts: RecordFacts
    ) -> None:
        offsets = self._by_group.get(key.group_id)
        if offsets is None:
            if value is None:
                return
            offsets = self._by_group[key.group_id] = GroupOffsets()
        partition = partition_of(key.topic, key.partition)
        producer_id = facts.producer_id if facts.is_transactional else None
        if producer_id is not None:
            self._staged_by.setdefault(producer_id, {})[key.group_id] = None
        offsets.replay(partition, value, facts.offset, producer_id, is_committed=facts.is_committed)
        if not facts.is_committed:
            self._uncommitted.append(
                _Uncommitted(facts.offset + 1, key.group_id, offsets, partition)
            )
        if value is None:
            self._drop_if_empty(key.group_id, offsets)

    def replaying_marker(self, marker: Marker, facts: RecordFacts) -> Slices[None]:
        for group_id in self._staged_by.pop(facts.producer_id, {}):
            offsets = self._by_group.get(group_id)
            if offsets is None:
                continue
            changed = offsets.replay_end(
                facts.producer_id,
                commits=marker.type is MarkerType.COMMIT,
                log_offset=facts.offset,
                is_committed=facts.is_committed,
            )
            for number, partition in enumerate(changed, 1):
                if partition is not None and not facts.is_committed:
                    self._uncommitted.append(
                        _Uncommitted(facts.offset + 1, group_id, offsets, partition)
                    )
                if number % RECORDS_PER_SLICE == 0:
                    yield
            self._drop_if_empty(group_id, offsets)

    def committed(self, end_offset: int) -> bool:
        """Returns whether there is more to settle."""
        uncommitted = self._uncommitted
        left = _SETTLED_AT_ONCE
        while uncommitted and uncommitted[0].end_offset <= end_offset:
            left -= 1
            if left < 0:
                return True
            _, group_id, offsets, partition = uncommitted.popleft()
            offsets.settle(partition, end_offset)
            self._drop_if_empty(group_id, offsets)
        return False

    def _drop_if_empty(self, group_id: str, offsets: GroupOffsets) -> None:
        if offsets.is_empty and self._by_group.get(group_id) is offsets:
            del self._by_group[group_id]

    def persisted(self) -> Iterator[tuple[str, GroupOffsets]]:
        """All offsets, for comparison with a replay (hazard H0)."""
        yield from self._by_group.items()
