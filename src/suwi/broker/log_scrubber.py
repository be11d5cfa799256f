"""The log scrubber: reads the closed segments of all logs slowly, to find damage before readers do.

`run` makes one pass over all logs after another. A pass starts at a random partition, so that a
broker that is restarted often still reads all of them in time.
Invariant: damage is noted only if two reads found it, and in a log that has not changed meanwhile.
"""

import asyncio
import logging

from suwi.broker.io_throttle import IoThrottle
from suwi.env import Env
from suwi.log.damage import Damage
from suwi.log.log_directories import LogDirectories
from suwi.log.neighbours import missing_between
from suwi.log.partition_log import PartitionLog
from suwi.log.segment import Segment
from suwi.log.segment_check import SegmentCheck, SegmentFile
from suwi.log.sync_threads import until_ended
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset
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
        self._throttle_from = 0
        self.scrubbed_bytes = 0
        self.damages_found = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            next_s = loop.time() + self._interval_s
            await self.scrub_all()
            try:
                async with asyncio.timeout_at(next_s):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    async def scrub_all(self) -> None:
        """Read every closed segment once."""
        self._throttle = IoThrottle(lambda: self._bytes_per_s, self._stopping)
        self._throttle_from = self.scrubbed_bytes
        partitions = list(self._replicas)
        first = self._env.random.below(len(partitions)) if partitions else 0
        for partition in partitions[first:] + partitions[:first]:
            if self._stopping.is_set():
                return
            try:
                await self._scrub(partition)
            except (OSError, BrokerError) as error:
                extra = {"partition": str(partition.partition), "reason": str(error)}
                log.warning("scrubbing failed", extra=extra)
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

    async def _scrub_segment(self, partition_log: PartitionLog, segment: Segment) -> None:
        generation = partition_log.generation
        found = await self._check(partition_log, segment, generation)
        if found:
            # A transient error of the disk or the memory is not damage.
            again = await self._check(partition_log, segment, generation)
            found = [damage for damage in found if damage in again]
        for damage in found:
            if damage.end > partition_log.start_offset and damage not in partition_log.damages:
                self.damages_found += 1
                partition_log.add_damage(damage)

    async def _check(
        self, partition_log: PartitionLog, segment: Segment, generation: int
    ) -> list[Damage]:
        following = _following(partition_log, segment, generation)
        files = partition_log.files
        file = files.pin(segment.log_path)
        try:
            check = SegmentCheck(SegmentFile.of(partition_log, segment, following, file))
            await self._run_jobs(partition_log, segment, generation, check)
        finally:
            files.unpin(file)
        is_short = not check.damages and check.found_end < following.base_offset
        if is_short and not partition_log.may_have_gaps:
            missing = missing_between(files, segment, following, partition_log.start_offset)
            return [missing] if missing is not None else []
        return check.damages

    async def _run_jobs(
        self, partition_log: PartitionLog, segment: Segment, generation: int, check: SegmentCheck
    ) -> None:
        assert self._throttle is not None
        steps, loop = check.checking(), asyncio.get_running_loop()
        try:
            job = next(steps)
            while True:
                before_bytes = check.checked_bytes
                result = await until_ended(loop.run_in_executor(None, job))
                self.scrubbed_bytes += check.checked_bytes - before_bytes
                read_bytes = self.scrubbed_bytes - self._throttle_from
                if await self._throttle.wait_or_stop(read_bytes):
                    raise _Changed
                _following(partition_log, segment, generation)
                job = steps.send(result)
        except StopIteration:
            pass
        finally:
            steps.close()


def _following(partition_log: PartitionLog, segment: Segment, generation: int) -> Segment:
    """The next segment. Raises `_Changed` if the segment may have changed."""
    if partition_log.generation != generation:
        raise _Changed
    segments = partition_log.segments(segment.base_offset)
    if segments[0] is not segment or len(segments) == 1:
        raise _Changed
    return segments[1]
