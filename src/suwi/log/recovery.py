"""Opening a partition's directory: what is there is checked, mended or cut to a valid prefix.

`open_log` is the one entrance. After a clean stop it reads names, sizes and the last index entries;
after an unclean one it checks every batch from the recovery point on.
Invariant: the log it returns is a prefix of what was written, and every batch it checked is whole.
"""

import logging
from dataclasses import dataclass

from suwi.log import checkpoints, names
from suwi.log.batch_scan import scan_batches
from suwi.log.directory_state import DirectoryState
from suwi.log.epochs import LeaderEpochs
from suwi.log.file_cache import FileCache
from suwi.log.partition_log import PartitionLog, mark_deleted
from suwi.log.producer_loading import load_producers, marker_at
from suwi.log.producers import Producers
from suwi.log.segment import Segment
from suwi.log.valid_prefix import ValidPrefix
from suwi.model.errors import CorruptMessage, InvalidRecord
from suwi.model.ids import LeaderEpoch, Offset, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader
from suwi.records.record import read_marker

log = logging.getLogger(__name__)

_LEFTOVERS = (names.DELETED, names.CLEANED, ".tmp")


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """What is known of a log before its directory is read."""

    now_ms: int
    clean: bool
    """Whether the last stop was clean: then no batch needs checking."""
    start_offset: Offset = Offset(0)
    recovery_point: Offset = Offset(0)
    leader_epoch_max: LeaderEpoch | None = None
    """The newest epoch the cluster knows; a batch of a later one cannot be real."""


def open_log(
    files: FileCache,
    directory: str,
    partition: TopicPartition,
    config: TopicConfig,
    state: DirectoryState,
    options: OpenOptions,
) -> PartitionLog:
    """Open or create a partition's log. Raises OSError."""
    files.disk.make_dirs(directory)
    segments = _find_segments(files, directory, config, options)
    saved_epochs = checkpoints.read_epochs(files.disk, f"{directory}/{names.LEADER_EPOCHS}")
    epochs = LeaderEpochs(saved_epochs)
    known_before = epochs.entries()
    if not options.clean or saved_epochs is None:
        first = 0 if saved_epochs is None else _first_to_recover(segments, options.recovery_point)
        Recovery(files, directory, config, options, epochs).run(segments, first)
    end = segments[-1].next_offset
    epochs.truncate_end(Offset(end + 1))
    if epochs.entries() != known_before or saved_epochs is None:
        checkpoints.write_epochs(files.disk, f"{directory}/{names.LEADER_EPOCHS}", epochs.entries())
    start = max(min(options.start_offset, end), segments[0].base_offset)
    return PartitionLog(
        files,
        directory,
        partition,
        config,
        state,
        segments=segments,
        producers=load_producers(files, directory, segments, start, end),
        epochs=epochs,
        start_offset=Offset(start),
        recovery_point=end if options.clean else Offset(min(options.recovery_point, end)),
    )


def _find_segments(
    files: FileCache, directory: str, config: TopicConfig, options: OpenOptions
) -> list[Segment]:
    disk = files.disk
    found = disk.list_dir(directory)
    for name in found:
        if name.endswith(_LEFTOVERS):
            disk.remove(f"{directory}/{name}")
    present = set(found)
    bases = [names.parse_offset_name(name, names.LOG) for name in found]
    segments = []
    for base in sorted(base for base in bases if base is not None):
        stem = names.offset_name(base)
        missing = [s for s in (names.OFFSET_INDEX, names.TIME_INDEX) if stem + s not in present]
        for suffix in missing:
            disk.open(f"{directory}/{stem}{suffix}", create=True).close()
        segment = Segment(
            files,
            directory,
            base,
            index_interval_bytes=config.index_interval_bytes,
            created_ms=options.now_ms,
        )
        sane = segment.offset_index.is_sane(segment.size_bytes) and segment.time_index.is_sane()
        if missing or not sane:
            _rebuild(segment)
        segments.append(segment)
    if not segments:
        segments.append(
            Segment(
                files,
                directory,
                options.start_offset,
                index_interval_bytes=config.index_interval_bytes,
                created_ms=options.now_ms,
                create=True,
            )
        )
    return segments


def _rebuild(segment: Segment) -> None:
    if segment.size_bytes:
        log.warning("index missing or damaged: rebuilt", extra={"segment": segment.path("")})
    try:
        segment.rebuild_indexes()
    except CorruptMessage as error:
        # Index what comes before; whether the rest may stay is not for an index to say.
        log.warning("batch unreadable", extra={"segment": segment.path(""), "reason": str(error)})


def _first_to_recover(segments: list[Segment], recovery_point: Offset) -> int:
    """The segment that holds the recovery point: all before it were synced."""
    first = 0
    for number, segment in enumerate(segments):
        if segment.base_offset <= recovery_point:
            first = number
    return first


class Recovery:
    """One pass over the batches after the recovery point, cutting at the first that is not valid."""

    def __init__(
        self,
        files: FileCache,
        directory: str,
        config: TopicConfig,
        options: OpenOptions,
        epochs: LeaderEpochs,
    ) -> None:
        self._files = files
        self._dir = directory
        self._config = config
        self._epoch_max = options.leader_epoch_max
        self._epochs = epochs
        self._known_epochs = frozenset(epoch for epoch, _ in epochs.entries())
        self._last_epoch = -1
        self._gaps = 0

    def run(self, segments: list[Segment], first: int) -> None:
        """Check `segments` from number `first` on; drop from the list what is not valid."""
        producers = load_producers(
            self._files,
            self._dir,
            segments[:first],
            segments[0].base_offset,
            segments[first].base_offset,
        )
        for number in range(first, len(segments)):
            segment = segments[number]
            is_last = number == len(segments) - 1
            whole = self._recover_segment(segment, producers, is_last=is_last)
            overlaps = not is_last and segments[number + 1].base_offset < segment.next_offset
            if not whole or overlaps:
                self._drop(segments, number + 1)
                return

    def _drop(self, segments: list[Segment], number: int) -> None:
        for segment in segments[number:]:
            log.warning("segment after a damaged one dropped", extra={"path": segment.path("")})
            for path in mark_deleted(self._files, segment):
                self._files.disk.remove(path)
        del segments[number:]

    def _recover_segment(self, segment: Segment, producers: Producers, *, is_last: bool) -> bool:
        """Cut the segment after its last valid batch and index it; whether all was valid."""
        size_bytes = segment.size_bytes
        path = segment.path(names.LOG)
        segment.size_bytes = self._valid_bytes(segment, is_last=is_last)
        if segment.size_bytes < size_bytes:
            log.warning(
                "log cut to a valid prefix",
                extra={"path": path, "kept": segment.size_bytes, "found": size_bytes},
            )
            self._files.get(path).truncate(segment.size_bytes)
        segment.txn_index.reset()

        def replay(position: int, header: BatchHeader) -> None:
            self._epochs.assign(
                LeaderEpoch(header.partition_leader_epoch), Offset(header.base_offset)
            )
            marker = marker_at(self._files, path, position, header)
            aborted = producers.replay(header, marker)
            if aborted is not None:
                segment.txn_index.append(aborted)

        segment.rebuild_indexes(replay)
        return segment.size_bytes == size_bytes

    def _valid_bytes(self, segment: Segment, *, is_last: bool) -> int:
        """How many bytes of the segment are valid batches that fit each other."""
        prefix = ValidPrefix(
            segment.base_offset, self._last_epoch, self._known_epochs, self._epoch_max
        )
        file = self._files.get(segment.path(names.LOG))
        try:
            for position, header, batch in scan_batches(file, 0, segment.size_bytes):
                if header.is_control:
                    read_marker(batch, header)
                if not prefix.accept(position, header):
                    break
        except (CorruptMessage, InvalidRecord):
            pass  # What is no batch ends the prefix.
        self._gaps += prefix.gaps
        if is_last and self._gaps == 1 and not self._config.is_compacted:
            prefix.doubt_last_gap()  # The one gap of a log that is never compacted.
        self._last_epoch = prefix.last_epoch
        return prefix.size_bytes
