"""The log scrubber: reads the closed segments of all logs slowly, to find damage before readers do.

`run` makes one pass over all logs after another. A pass starts at a random partition, so that a
broker that is restarted often still reads all of them in time. `check_suspects` checks batches that
readers, consumers or followers, read again and again: they may have found them damaged.
Invariant: damage is noted only if two reads found it, and in a log that has not changed meanwhile.
"""

import asyncio
import logging
from contextlib import closing
from functools import partial

from suwi.env import Env, File
from suwi.env.problems import because
from suwi.env.tasks import wait_for_event
from suwi.log.batch_scan import scan_rows
from suwi.log.damage import Damage
from suwi.log.log_directories import LogDirectories
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import Segment
from suwi.log.segment_check import SegmentCheck, SegmentFile
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError, CorruptMessage
from suwi.model.ids import Offset
from suwi.replica.log_threads import IoThrottle, in_thread, run_in_threads
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


class _Changed(Exception):
    """The segment may have changed since the check began, or the broker is stopping."""


class LogScrubber:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        directories: LogDirectories,
        replicas: ReplicaManager,
        stopping: asyncio.Event,
    ) -> None:
        self._env = env
        self._bytes_per_s = config.log_scrubber_io_max_bytes_per_second
        self._interval_s = config.log_scrubber_interval_ms / 1000
        self._directories = directories
        self._replicas = replicas
        self._stopping = stopping
        self._throttle: IoThrottle | None = None
        self.scrubbed_bytes = 0
        self.damages_found = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            next_s = loop.time() + self._interval_s
            await self.scrub_all()
            await wait_for_event(self._stopping, next_s - loop.time())

    async def scrub_all(self) -> None:
        """Read every closed segment once."""
        partitions = list(self._replicas)
        first = self._env.random.below(len(partitions)) if partitions else 0
        for partition in partitions[first:] + partitions[:first]:
            if self._stopping.is_set():
                return
            try:
                await self._scrub(partition)
            except (OSError, BrokerError) as error:
                log.warning("scrubbing failed", extra=because(error, partition=partition.partition))
            await asyncio.sleep(0)

    async def _scrub(self, partition: Partition) -> None:
        if not await self._is_opened(partition):
            return
        partition_log, offset = partition.log_as_it_is, Offset(-1)
        while not partition.is_closed:
            closed = partition_log.segments()[:-1]
            segment = next((each for each in closed if each.base_offset > offset), None)
            if segment is None:
                return
            offset = segment.base_offset
            try:
                await self._scrub_segment(partition_log, segment)
            except _Changed:
                pass  # The next pass reads what is there then.

    async def _is_opened(self, partition: Partition) -> bool:
        """Open the log if it has closed segments."""
        if partition.is_closed:
            return False
        if not partition.is_open:
            found = self._directories.peek(partition.partition)
            if found is None or found.segments == 1:
                return False
            if not partition.replica_log.prepare():
                await partition.replica_log.wait_for_preparation()
        return partition.is_open and not partition.is_closed

    async def check_suspects(self) -> None:
        """Check the batches that readers read again and again; if one is damaged, its segment."""
        for directory in self._directories.usable():
            await asyncio.sleep(0)
            suspects = dict(directory.state.suspects)
            directory.state.suspects.clear()
            for tp, offset in suspects.items():
                try:
                    await self._check_suspect(self._replicas.replica_of(*tp), offset)
                except (OSError, BrokerError, _Changed):
                    continue  # Deleted or truncated meanwhile.

    async def _check_suspect(self, partition: Partition, offset: Offset) -> None:
        if not partition.is_open or partition.is_closed:
            return
        partition_log = partition.log_as_it_is
        end = partition_log.end_offset
        try:
            found = partition_log.read(offset, 1, end, whole_batch=True)
        except CorruptMessage:
            is_whole = False  # Not even its header can be read.
        else:
            if found is None:
                return
            with closing(await _open(partition_log, found.path)) as file:
                is_whole = await in_thread(
                    partial(_is_whole_batch, file, found.position, found.size_bytes)
                )
        if not is_whole and not partition.is_closed:
            segment = partition_log.segments(offset)[0]
            await self._scrub_segment(partition_log, segment, is_urgent=True)

    async def _scrub_segment(
        self, partition_log: PartitionLog, segment: Segment, *, is_urgent: bool = False
    ) -> None:
        """`is_urgent`: readers wait, so the limit on the bytes per second does not hold."""
        generation = partition_log.generation
        found = await self._check(partition_log, segment, generation, is_urgent)
        if found:
            # A transient error of the disk or the memory is not damage.
            again = await self._check(partition_log, segment, generation, is_urgent)
            found = [damage for damage in found if damage in again]
        for damage in found:
            if partition_log.add_damage(damage):
                self.damages_found += 1

    async def _check(
        self, partition_log: PartitionLog, segment: Segment, generation: int, is_urgent: bool
    ) -> list[Damage]:
        following = _following(partition_log, segment, generation)
        end_offset = following.base_offset if following is not None else partition_log.end_offset
        size_bytes = segment.size_bytes
        throttle = self._throttle or IoThrottle(lambda: self._bytes_per_s, self._stopping)
        self._throttle = throttle
        counted_bytes = 0

        async def may_go_on() -> bool:
            nonlocal counted_bytes
            self.scrubbed_bytes += check.checked_bytes - counted_bytes
            counted_bytes = check.checked_bytes
            if not is_urgent and not await throttle.allows(self.scrubbed_bytes):
                return False
            _following(partition_log, segment, generation)
            return not self._stopping.is_set()

        with closing(await _open(partition_log, segment.log_path)) as file:
            check = SegmentCheck(
                SegmentFile.of(partition_log, segment, size_bytes, end_offset, file)
            )
            if not await run_in_threads(check.checking(), may_go_on):
                raise _Changed
        if following is None or partition_log.may_have_gaps:
            return check.damages
        files, start = partition_log.files, partition_log.start_offset
        return check.damages + check.missing_after(files, following.log_path, start)


def _following(partition_log: PartitionLog, segment: Segment, generation: int) -> Segment | None:
    """The next segment, if there is one. Raises `_Changed` if the segment may have changed."""
    if partition_log.generation != generation:
        raise _Changed
    segments = partition_log.segments(segment.base_offset)
    if segments[0] is not segment:
        raise _Changed
    return segments[1] if len(segments) > 1 else None


async def _open(partition_log: PartitionLog, path: str) -> File:
    """A file of its own: the files that readers use stay in the cache of open files."""
    try:
        opened: File = await in_thread(partial(partition_log.files.disk.open, path))
    except FileNotFoundError:
        raise _Changed from None
    return opened


def _is_whole_batch(file: File, position: int, size_bytes: int) -> bool:
    try:
        rows = scan_rows(file, position, position + size_bytes)
        return next(rows, None) is not None
    except (CorruptMessage, OSError):
        return False
