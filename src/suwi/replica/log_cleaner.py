"""The log cleaner: compacts the broker's logs one at a time, highest dirty ratio first.

The log manager calls `compact_dirtiest` until no log is due.
Invariant: a log that cannot be compacted, for example because a batch is damaged, is added to
`uncleanable` and skipped from then on; the other logs are still compacted.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from suwi.env import Env
from suwi.log.compaction import Cleaned, CleanerAborted, CleanerPlan, clean, plan_cleaner_run
from suwi.log.log_directories import LogDirectories
from suwi.log.partition_log import PartitionLog
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.model.errors import BrokerError, CorruptMessage, KafkaStorageError
from suwi.model.ids import TopicPartition
from suwi.replica.log_threads import IoThrottle, in_thread, run_in_threads
from suwi.replica.partition import Partition
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


class Uncleanable(NamedTuple):
    """A log that the cleaner skips, and the reason."""

    log: PartitionLog
    generation: int
    """Of the log: after a truncation, or when it was fetched anew, it is tried again."""
    reason: str


@dataclass(eq=False)
class LogCleaner:
    _env: Env
    _config: DynamicBrokerConfig
    _directories: LogDirectories
    _replicas: ReplicaManager
    _stopping: asyncio.Event
    _remove_later: Callable[[list[str], float], None]
    _unused: dict[TopicPartition, Partition] = field(default_factory=dict)
    """Logs that are not open and have a single segment: there is nothing to compact."""
    _deferred: set[TopicPartition] = field(default_factory=set)
    """Compaction failed for now; retried after all other due logs and a pause."""
    uncleanable: dict[TopicPartition, Uncleanable] = field(default_factory=dict)

    async def compact_dirtiest(self) -> bool:
        """Compact the dirtiest log; returns whether one was due, so that others may be too."""
        plan = await self._dirtiest()
        if plan is None:
            self._deferred.clear()
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
        throttle = IoThrottle(
            lambda: self._config.current.log_cleaner_io_max_bytes_per_second, self._stopping
        )
        try:
            is_done = await run_in_threads(steps, lambda: throttle.allows(done.io_bytes))
        except (CleanerAborted, KafkaStorageError) as error:
            log.warning("compaction deferred", extra=_fields(plan.log, error))
            self._deferred.add(plan.log.partition)
            return True
        except Exception as error:
            self._mark_uncleanable(plan.log, error)
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
            if partition.partition in self._deferred:
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
            if known is not None and (known.log, known.generation) == (
                partition_log,
                partition_log.generation,
            ):
                return None
            self.uncleanable.pop(tp, None)
            partition_log.check()
            if partition_log.damages:
                return None  # Merged segments would hide that records are missing.
        except (OSError, BrokerError):
            return None  # Offline, or not ready yet.
        try:
            return plan_cleaner_run(partition_log, partition.last_stable_offset, now_ms)
        except OSError as error:
            partition_log.directory.failed(error, partition_log.generation)
        except Exception as error:
            self._mark_uncleanable(partition_log, error)
        return None

    def _is_unused(self, partition: Partition) -> bool:
        """Whether the log has a single segment, found out without opening it."""
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

    # -- compacting ------------------------------------------------------------------------------

    async def _write_checkpoint(self, partition_log: PartitionLog) -> None:
        for directory in self._directories.usable():
            if directory.holds(partition_log.partition):
                try:
                    await in_thread(directory.checkpoints.cleaner_offsets_job())
                except OSError as error:
                    directory.state.failed(error)

    def _mark_uncleanable(self, partition_log: PartitionLog, error: Exception) -> None:
        self.uncleanable[partition_log.partition] = Uncleanable(
            partition_log, partition_log.generation, str(error)
        )
        if isinstance(error, CorruptMessage):
            partition_log.directory.found_damage(f"it cannot be compacted: {error}")
        # Records without a key, written before the topic was compacted, are not a bug.
        is_bug = not isinstance(error, BrokerError)
        log.log(
            logging.ERROR if is_bug else logging.WARNING,
            "log cannot be compacted",
            extra=_fields(partition_log, error),
            exc_info=error if is_bug else None,
        )


def _fields(partition_log: PartitionLog, error: Exception) -> dict[str, str]:
    return {"partition": str(partition_log.partition), "reason": str(error)}
