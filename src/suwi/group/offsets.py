"""How far each group has read: offsets that are committed, on their way, or part of a transaction.

`GroupOffsets` belongs to one group. A commit is visible to readers when its record is committed:
until then the value before it is answered (`settle` is told how far the log is committed). Offsets
staged in a transaction are visible when its marker is, and make a partition unstable until then.
Invariant: of two commits the one whose record has the higher offset in the log wins (T14); a
deletion counts as one, because compaction keeps its record and no earlier one of that partition.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from suwi.group.offset_records import OffsetCommitValue
from suwi.model.ids import TopicId

Partition: TypeAlias = tuple[str, int]
_SHARED_PARTITIONS: Final = 16_384


@lru_cache(maxsize=_SHARED_PARTITIONS)
def partition_of(topic: str, index: int) -> Partition:
    """One shared object for all groups that read the partition, which saves a third of an offset's
    memory."""
    return topic, index


class _Pending(NamedTuple):
    """A value whose record is in the log and not committed yet."""

    end_offset: int
    value: OffsetCommitValue | None


class _Known(NamedTuple):
    """A value and the offset of its record. It is flat, because there may be a million, and each
    object costs memory and time of the garbage collector."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: TopicId
    log_offset: int

    @property
    def value(self) -> OffsetCommitValue:
        return OffsetCommitValue(*self[:-1])


class GroupOffsets:
    __slots__ = ("_committed", "_pending", "_staged")

    def __init__(self) -> None:
        self._committed: dict[Partition, _Known] = {}
        self._pending: dict[Partition, list[_Pending]] = {}
        self._staged: dict[int, dict[Partition, _Known]] = {}
        """By producer id what its open transaction would commit."""

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def is_empty(self) -> bool:
        return not (self._committed or self._pending or self._staged)

    # -- looking ---------------------------------------------------------------------------------

    def get(self, partition: Partition) -> OffsetCommitValue | None:
        """The committed offset whose record is committed in the log."""
        pending = self._pending.get(partition)
        if pending:
            return pending[0].value
        known = self._committed.get(partition)
        return known.value if known is not None else None

    def is_unstable(self, partition: Partition) -> bool:
        """Whether an open transaction or an uncommitted record may still change it."""
        return partition in self._pending or self.has_staged(partition)

    def partitions(self) -> list[Partition]:
        """Those that have an offset now."""
        return [each for each in self.known_partitions() if self.get(each) is not None]

    def known_partitions(self) -> list[Partition]:
        """Those that have an offset now, and some that had or will have one."""
        pending = [each for each in self._pending if each not in self._committed]
        return [*self._committed, *pending]

    def latest(self) -> Iterator[tuple[Partition, OffsetCommitValue]]:
        """Offsets including those whose records are not committed yet. Decisions are based on
        these."""
        for partition, known in self._committed.items():
            yield partition, known.value

    def latest_or_staged(self) -> Iterator[Partition]:
        """Each once."""
        yield from self._committed
        seen: set[Partition] = set()
        for staged in self._staged.values():
            for partition in staged:
                if partition not in self._committed and partition not in seen:
                    seen.add(partition)
                    yield partition

    def has_latest(self, partition: Partition) -> bool:
        return partition in self._committed

    def has_staged(self, partition: Partition | None = None) -> bool:
        """Whether a transaction is open, for this partition or for any."""
        if partition is None:
            return any(self._staged.values())
        return any(partition in staged for staged in self._staged.values())

    # -- replay ----------------------------------------------------------------------------------

    def replay(
        self,
        partition: Partition,
        value: OffsetCommitValue | None,
        log_offset: int,
        producer_id: int | None = None,
        *,
        is_committed: bool = True,
    ) -> None:
        """Apply a record of the log. `producer_id`: of the open transaction that it belongs to. If
        the record is not committed yet, readers get the previous value until `settle`."""
        if producer_id is not None:
            staged = self._staged.setdefault(producer_id, {})
            if value is None:
                staged.pop(partition, None)
            else:
                staged[partition] = _Known(*value, log_offset)
            return
        self._set(partition, value, log_offset, None if is_committed else log_offset + 1)

    def replay_end(
        self, producer_id: int, *, commits: bool, log_offset: int, is_committed: bool = True
    ) -> Iterator[Partition | None]:
        """A transaction has ended with the marker at `log_offset`. Yields the partitions that it
        changed, and None for each that it did not change."""
        staged = self._staged.pop(producer_id, None)
        if staged is None or not commits:
            return
        for partition, known in staged.items():
            current = self._committed.get(partition)
            if current is None or current.log_offset < known.log_offset:
                end_offset = None if is_committed else log_offset + 1
                self._set(partition, known.value, known.log_offset, end_offset)
                yield partition
            else:
                yield None

    def _set(
        self,
        partition: Partition,
        value: OffsetCommitValue | None,
        log_offset: int,
        uncommitted_end: int | None,
    ) -> None:
        if uncommitted_end is not None:
            before = self._committed.get(partition)
            shown = before.value if before is not None else None
            self._pending.setdefault(partition, []).append(_Pending(uncommitted_end, shown))
        if value is None:
            self._committed.pop(partition, None)
            self._drop_staged(partition)
        else:
            self._committed[partition] = _Known(*value, log_offset)

    def _drop_staged(self, partition: Partition) -> None:
        for producer_id, staged in list(self._staged.items()):
            if staged.pop(partition, None) is not None and not staged:
                del self._staged[producer_id]

    def settle(self, partition: Partition, committed_end: int) -> None:
        """All records below `committed_end` are committed."""
        pending = self._pending.get(partition)
        if pending is None:
            return
        if pending[-1].end_offset <= committed_end:
            del self._pending[partition]
        else:
            self._pending[partition] = [e for e in pending if e.end_offset > committed_end]
