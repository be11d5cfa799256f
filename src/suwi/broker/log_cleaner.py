"""Compacting the logs of a broker, the dirtiest first, one at a time.

`compact_dirtiest` is called again and again by the housekeeping.
A log that cannot be compacted, because a batch in it is damaged, is left alone from then on and
named in `uncleanable`; the others go on.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from suwi.env import Env
from suwi.log.cleaner import Cleaned, CleanerAborted, clean
from suwi.log.cleaner_plan import CleanerPlan, plan_cleaner_run
from suwi.log.log_directories import LogDirectories
from suwi.log.partition_log import PartitionLog
from suwi.log.steps import Job, Steps
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.model.errors import BrokerError, KafkaStorageError
from suwi.model.ids import TopicPartition
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_WAIT_S_MIN = 0.001
_WAIT_S_MAX = 1.0  # Then the limit may be another one.


class Uncleanable(NamedTuple):
    """A log that is compacted no more, and why."""

    log: PartitionLog
    reason: str


class LogCleaner:
    def __init__(
        self,
        env: Env,
        config: DynamicBrokerConfig,
        directories: LogDirectories,
        replicas: ReplicaManager,
        *,
        stopping: asyncio.Event,
        remove_later: Callable[[list[str], float], None],
    ) -> None:
        self._env = env
        self._config = config
        self._directories = directories
        self._replicas = replicas
        self._stopping = stopping
        self._remove_later = remove_later
        self._unused: dict[TopicPartition, Partition] = {}
        """Logs that nobody has opened and that have but one segment: nothing to do there."""
        self._put_off: set[TopicPartition] = set()
        """Given up for now: first all others have their turn, and there is a pause."""
        self.uncleanable: dict[TopicPartition, Uncleanable] = {}

    async def compact_dirtiest(self) -> bool:
        """Compact the log that needs it most; whether there was one, and others may be due."""
        plan = await self._dirtiest()
        if plan is None:
            self._put_off.clear()
            return False
        done = Cleaned(plan.first_dirty, plan.first_dirty)
        delay_s = plan.log.config.file_delete_delay_ms / 1000
        steps = clean(
            plan,
            done,
            now_ms=self._env.clock.now_ms(),
            map_bytes_max=self._config.current.log_cleaner_dedupe_buffer_size,
            remove_later=lambda paths: self._remove_later(paths, delay_s),
        )
        try:
            is_done = await self._drive(steps, done)
        except (CleanerAborted, KafkaStorageError) as error:
            log.warning("compaction given up for now", extra=_fields(plan.log, error))
            self._put_off.add(plan.log.partition)
            return True
        except Exception as error:
            self._give_up(plan.log, error)
            return True
        if is_done:
            await self._write_checkpoint(plan.log)
            log.info(
                "log compacted",
                extra={
                    "partition": str(plan.log.partition),
                    "from": done.first_dirty,
                    "to": done.end,
                    "keys": done.keys,
                    "bytes_before": done.bytes_before,
                    "bytes_after": done.bytes_after,
                },
            )
        return is_done

    # -- choosing --------------------------------------------------------------------------------

    async def _dirtiest(self) -> CleanerPlan | None:
        now_ms = self._env.clock.now_ms()
        dirtiest: CleanerPlan | None = None
        for partition in self._replicas:
            if not partition.config.is_compacted or partition.is_closed:
                continue
            if partition.partition in self._put_off:
                continue
            plan = self._plan(partition, now_ms)
            if plan is None or not plan.is_due:
                pass
            elif dirtiest is None or plan.dirty_ratio > dirtiest.dirty_ratio:
                dirtiest = plan
            await asyncio.sleep(0)
        return dirtiest

    def _plan(self, partition: Partition, now_ms: int) -> CleanerPlan | None:
        tp = partition.partition
        try:
            if self._is_unused(partition):
                return None
            partition_log = partition.log
            known = self.uncleanable.get(tp)
            if known is not None and known.log is partition_log:
                return None
            self.uncleanable.pop(tp, None)  # The topic was deleted and made anew.
            partition_log.check()
        except (OSError, BrokerError):
            return None  # Out of use, or not ready yet.
        try:
            return plan_cleaner_run(partition_log, partition.last_stable_offset, now_ms)
        except OSError as error:
            partition_log.directory.failed(error, partition_log.generation)
        except Exception as error:
            self._give_up(partition_log, error)
        return None

    def _is_unused(self, partition: Partition) -> bool:
        """A log is not opened just to find that it has a single segment."""
        tp = partition.partition
        if partition.is_open:
            self._unused.pop(tp, None)
            return False
        if self._unused.get(tp) is partition:
            return True
        found = self._directories.peek(tp)
        if found is not None and found.segments > 1:
            return False
        self._unused[tp] = partition
        return True

    # -- doing it --------------------------------------------------------------------------------

    async def _drive(self, steps: Steps[None], done: Cleaned) -> bool:
        """Run the jobs in a thread, one after another; False where the broker stops meanwhile."""
        throttle = _Throttle(self._config, self._stopping)
        try:
            job = next(steps)
            while True:
                try:
                    result = await _in_thread(job)
                except BaseException as error:
                    job = steps.throw(error)
                    continue
                if await throttle.stops_before(done.io_bytes):
                    steps.close()
                    return False
                job = steps.send(result)
        except StopIteration:
            return True

    async def _write_checkpoint(self, partition_log: PartitionLog) -> None:
        for directory in self._directories.usable():
            if directory.holds(partition_log.partition):
                try:
                    await _in_thread(directory.cleaner_offsets_job())
                except OSError as error:
                    directory.state.failed(error)

    def _give_up(self, partition_log: PartitionLog, error: Exception) -> None:
        self.uncleanable[partition_log.partition] = Uncleanable(partition_log, str(error))
        # Records that a client wrote before the topic was compacted are no error of ours.
        is_ours = not isinstance(error, BrokerError)
        log.log(
            logging.ERROR if is_ours else logging.WARNING,
            "log cannot be compacted",
            extra=_fields(partition_log, error),
            exc_info=error if is_ours else None,
        )


class _Throttle:
    """Holds a round back as `log.cleaner.io.max.bytes.per.second` says at the time."""

    def __init__(self, config: DynamicBrokerConfig, stopping: asyncio.Event) -> None:
        self._config = config
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._seen_bytes = 0
        self._owed_bytes = 0.0
        self._at_s = self._loop.time()

    async def stops_before(self, io_bytes: int) -> bool:
        """Wait until `io_bytes` in all are allowed; whether the broker stops meanwhile."""
        self._owed_bytes += io_bytes - self._seen_bytes
        self._seen_bytes = io_bytes
        while not self._stopping.is_set():
            bytes_per_s = self._config.current.log_cleaner_io_max_bytes_per_second
            now_s = self._loop.time()
            self._owed_bytes = max(self._owed_bytes - (now_s - self._at_s) * bytes_per_s, 0.0)
            self._at_s = now_s
            wait_s = self._owed_bytes / bytes_per_s
            if wait_s < _WAIT_S_MIN:
                return False
            try:
                async with asyncio.timeout(min(wait_s, _WAIT_S_MAX)):
                    await self._stopping.wait()
            except TimeoutError:
                pass
        return True


async def _in_thread(job: Job) -> object:
    running = asyncio.get_running_loop().run_in_executor(None, job)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])  # It has files open: nobody may close them under it.
        if not running.cancelled():
            running.exception()  # Whatever it is, nobody waits for it any more.
        raise


def _fields(partition_log: PartitionLog, error: Exception) -> dict[str, str]:
    return {"partition": str(partition_log.partition), "reason": str(error)}
