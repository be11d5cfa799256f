"""The log of one partition of a stopped broker: finds all damage, and gives it up on request.

In the place of damaged or missing records `give_up` writes an empty batch, as compaction leaves
one: readers skip these offsets, all others stay as they are, and segments stay contiguous.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from suwi.env import Disk, File
from suwi.log import checkpoints, names
from suwi.log.batch_scan import first_header
from suwi.log.damage import Damage
from suwi.log.file_cache import FileCache, write_all
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.log.segment_check import NO_END, SegmentCheck, SegmentFile, index_reader
from suwi.log.sliced_work import run_steps
from suwi.model.ids import Offset, TopicPartition
from suwi.records.builder import build_batch

_COPIED_BYTES = 1 << 20
_OPEN_FILES = 4


@dataclass(eq=False, repr=False)
class LogRepair:
    _disk: Disk
    _dir: str
    _start: Offset
    may_have_gaps: bool = field(kw_only=True)
    recovery_point: Offset = field(kw_only=True)
    _epochs: LeaderEpochCache = field(init=False)

    def __post_init__(self) -> None:
        saved = checkpoints.read_epochs(self._disk, f"{self._dir}/{names.LEADER_EPOCHS}")
        self._epochs = LeaderEpochCache(saved)

    def find(self, on_checked: Callable[[int], None] = lambda _: None) -> list[Damage]:
        """All damage from the start offset on. Changes nothing. Raises OSError. `on_checked` gets
        the size of each segment that was checked."""
        files = FileCache(self._disk, _OPEN_FILES)
        bases = names.offsets_by_suffix(self._disk.list_dir(self._dir)).get(names.LOG, [])
        found: list[Damage] = []
        for base, end in pairwise([*bases, NO_END]):
            check = self._check(files, base, end)
            on_checked(check.segment.size_bytes)
            found += check.damages
            if end != NO_END and not self.may_have_gaps:
                found += check.missing_after(files, self._stem(end) + names.LOG, self._start)
        if found and found[-1].end == NO_END:
            # At the end of the last segment: what was not synced may be an unfinished write, which
            # the next start truncates.
            last = found.pop()._replace(end=self.recovery_point)
            found += [last] if last.first < last.end else []
        files.forget_dir(self._dir)
        return [damage for damage in found if damage.end > self._start]

    def _check(self, files: FileCache, base: Offset, end: Offset) -> SegmentCheck:
        stem = self._stem(base)
        file = files.get(stem + names.LOG)
        read_index = index_reader(self._disk, stem + names.OFFSET_INDEX)
        epochs = self._epochs
        check = SegmentCheck(
            SegmentFile(file, base, end, file.size(), read_index, epochs, epochs.latest_or_none)
        )
        run_steps(check.checking())
        return check

    def _stem(self, base: Offset) -> str:
        return f"{self._dir}/{names.offset_name(base)}"

    # -- giving up -----------------------------------------------------------------------------

    def give_up(self, damages: Iterable[Damage]) -> None:
        """Replace the damaged parts. Raises OSError; then a segment is as before or replaced."""
        for path, parts in groupby(damages, key=lambda damage: damage.path):
            self._rewrite(path, list(parts))
        self._disk.sync_dir(self._dir)

    def _rewrite(self, path: str, damages: list[Damage]) -> None:
        with (
            closing(self._disk.open(path)) as source,
            closing(self._disk.open(f"{path}.tmp", create=True)) as temporary,
        ):
            temporary.truncate(0)
            written = 0
            for piece in self._pieces(source, damages):
                write_all(temporary, piece, written)
                written += len(piece)
            temporary.sync()
        stem = path.removesuffix(names.LOG)
        for suffix in (names.OFFSET_INDEX, names.TIME_INDEX):  # The next start rebuilds them.
            if self._disk.exists(stem + suffix):
                self._disk.remove(stem + suffix)
        self._disk.rename(f"{path}.tmp", path)

    def _pieces(self, source: File, damages: list[Damage]) -> Iterator[bytes | bytearray]:
        position, size_bytes = 0, source.size()
        for damage in damages:
            start = damage.position if damage.is_in_file else size_bytes
            yield from _copied(source, position, start)
            if damage.first < damage.end:
                yield self._empty_batch(source, damage)
            position = damage.end_position if damage.is_in_file else size_bytes
        yield from _copied(source, position, size_bytes)

    def _empty_batch(self, source: File, damage: Damage) -> bytearray:
        epoch: int = self._epochs.epoch_at(damage.first)
        if epoch < 0:
            following = first_header(source, damage.end_position, source.size())
            epoch = following.partition_leader_epoch if following is not None else 0
        return build_batch(
            [], base_offset=damage.first, last_offset=damage.end - 1, leader_epoch=epoch
        )


def log_repairs(disk: Disk, data: str) -> Callable[[TopicPartition], LogRepair]:
    """Makes a `LogRepair` for each partition of a data directory, whose checkpoints it reads."""
    starts, cleaned, synced = (
        checkpoints.read_offsets(disk, f"{data}/{name}") or {}
        for name in (names.LOG_START_OFFSETS, names.CLEANER_OFFSETS, names.RECOVERY_POINTS)
    )

    def repair_of(partition: TopicPartition) -> LogRepair:
        return LogRepair(
            disk,
            f"{data}/{names.partition_dir_name(partition)}",
            starts.get(partition, Offset(0)),
            may_have_gaps=partition in cleaned,
            recovery_point=synced.get(partition, Offset(0)),
        )

    return repair_of


def _copied(source: File, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, _COPIED_BYTES):
        yield source.pread(min(_COPIED_BYTES, end - position), position)
