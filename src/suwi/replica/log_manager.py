"""Periodic work on the logs: checkpoints, flushes of closed segments, retention, compaction.

Only partitions that were written to are examined every second; idle partitions cost nothing. Slow
work runs in a thread, on files that no longer change. `stop` waits for running work and flushes
every log.
Invariant: an unexpected error in one partition is counted, and the other partitions are processed
as usual. A failure of a checkpoint task as a whole stops the broker; retention, producer expiry
and compaction are restarted.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from suwi.env import Disk, Env
from suwi.env.problems import because
from suwi.env.slices import in_slices
from suwi.env.tasks import RESTART, STOP_BROKER, OnFailure, Tasks, wait_for_event
from suwi.log.log_directories import LogDirectories
from suwi.log.log_directory import LogDirectory
from suwi.log.log_segments import remove_files
from suwi.metadata.dynamic_broker_config import DynamicBrokerConfig
from suwi.metadata.store import MetadataStore
from suwi.model.config_kinds import INT64_MAX
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, TopicPartition
from suwi.replica.damaged_replicas import DamagedReplicas
from suwi.replica.log_cleaner import LogCleaner
from suwi.replica.log_scrubber import LogScrubber
from suwi.replica.log_sync import sync_log
from suwi.replica.log_threads import in_sync_thread
from suwi.replica.partition import Partition
from suwi.replica.problem_watch import PERIOD_MS, ProblemWatch
from suwi.replica.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

_RETENTION_FIRST_AFTER_S = 30.0
_FINAL_SYNCS_AT_ONCE = 64
_LOOKED_AT_AT_ONCE = 1_000
_CONFIG_CHECK_S = 1.0
_DAMAGED_MS = 1000
_SYNC = "log flush"
_RETENTION = "log retention"
_PRODUCER_EXPIRY = "producer expiry"


class DeferredDeletion:
    """Deletes files and directories after a delay, in threads.

    The delay is for readers that still have them open. Files left over when the broker stops are
    found by their names at the next start.
    """

    def __init__(self, disk: Disk, tasks: Tasks) -> None:
        self._disk = disk
        self._tasks = tasks
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()

    def delete_files(self, paths: list[str], delay_s: float) -> None:
        self._start(partial(remove_files, self._disk, paths), delay_s)

    def delete_dir(self, path: str, delay_s: float) -> None:
        self._start(partial(self._disk.remove_tree, path), delay_s)

    async def stop(self) -> None:
        """Wait for the running deletions; start no others."""
        self._stopping.set()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self, delete: Callable[[], None], delay_s: float) -> None:
        async def work() -> None:
            if await wait_for_event(self._stopping, delay_s):
                return
            try:
                await asyncio.get_running_loop().run_in_executor(None, delete)
            except OSError as error:
                log.warning("deletion failed", extra={"reason": str(error)})

        task = self._tasks.start(work, name="deferred deletion", on_failure=lambda _: None)
        self._running.add(task)
        task.add_done_callback(self._running.discard)


class LogManager:
    def __init__(
        self,
        env: Env,
        config: DynamicBrokerConfig,
        directories: LogDirectories,
        replicas: ReplicaManager,
        deletion: DeferredDeletion,
        store: MetadataStore,
        tasks: Tasks,
    ) -> None:
        self._env = env
        self._config = config
        self._directories = directories
        self._replicas = replicas
        self._deletion = deletion
        self._watch = ProblemWatch(tasks.problems, directories, replicas, store)
        self._tasks = tasks
        self._stopping = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self._unsynced: dict[TopicPartition, Partition] = {}
        self._last_sync_s: dict[TopicPartition, float] = {}
        self._moved: dict[TopicPartition, Partition] = {}
        """Partitions whose high watermark may differ from the checkpoint."""
        self.log_cleaner = LogCleaner(
            env, config, directories, replicas, self._stopping, deletion.delete_files
        )
        self.log_scrubber = LogScrubber(env, config.static, directories, replicas, self._stopping)

    def start(self) -> None:
        config = self._config.static
        every = self._start_every
        every(
            config.log_flush_scheduler_interval_ms, self._sync_dirty_partitions, _SYNC, STOP_BROKER
        )
        every(
            config.replica_high_watermark_checkpoint_interval_ms,
            self._write_high_watermarks,
            "high watermark checkpoint",
            STOP_BROKER,
        )
        every(
            config.log_flush_offset_checkpoint_interval_ms,
            self._write_recovery_points,
            "recovery point checkpoint",
            STOP_BROKER,
        )
        every(
            config.log_flush_start_offset_checkpoint_interval_ms,
            self._write_start_offsets,
            "log start offset checkpoint",
            STOP_BROKER,
        )
        every(
            config.producer_id_expiration_check_interval_ms,
            self._expire_producers,
            _PRODUCER_EXPIRY,
            RESTART,
        )
        damaged = DamagedReplicas(NodeId(config.node_id), self._directories, self._replicas)
        every(_DAMAGED_MS, damaged.step_all, "damaged replicas", RESTART)
        retention_ms = config.log_retention_check_interval_ms
        first_s = min(retention_ms / 1000, _RETENTION_FIRST_AFTER_S)
        every(retention_ms, self.retain, _RETENTION, RESTART, first_s)
        every(PERIOD_MS, self._watch.look, "problem watch", RESTART)
        if config.log_cleaner_enable:
            self._running.append(
                self._tasks.start(self._keep_compacting, name="log cleaner", on_failure=RESTART)
            )
        if config.log_scrubber_io_max_bytes_per_second > 0:
            self._running.append(
                self._tasks.start(self.log_scrubber.run, name="log scrubber", on_failure=RESTART)
            )
            check = self.log_scrubber.check_suspects
            every(_DAMAGED_MS, check, "check of suspect batches", RESTART)

    def _start_every(
        self,
        period_ms: int,
        work: Callable[[], Awaitable[None]],
        name: str,
        on_failure: OnFailure,
        first_s: float | None = None,
    ) -> None:
        period_s = period_ms / 1000
        run = partial(self._every, period_s, work, period_s if first_s is None else first_s)
        self._running.append(self._tasks.start(run, name=name, on_failure=on_failure))

    async def _every(
        self, period_s: float, work: Callable[[], Awaitable[None]], wait_s: float
    ) -> None:
        while not await wait_for_event(self._stopping, wait_s):
            wait_s = period_s
            await self._run_logging_errors(work)

    async def _run_logging_errors(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (OSError, BrokerError) as error:
            log.warning("log maintenance failed", extra={"reason": str(error)})

    # -- checkpoints and syncs -------------------------------------------------------------------

    async def _sync_dirty_partitions(self) -> None:
        for partition in self._replicas.take_dirty_partitions():
            self._unsynced[partition.partition] = partition
            self._moved[partition.partition] = partition
        unsynced = list(self._unsynced.items())
        async for tp, partition in in_slices(unsynced, _LOOKED_AT_AT_ONCE):
            try:
                if not partition.is_closed and partition.log_as_it_is.durability.is_unsynced:
                    await self._sync_if_due(partition)
                    if not _is_synced_until_next_append(partition):
                        continue
            except BrokerError as error:
                # Its log directory is offline; partitions in other directories are still synced.
                if not partition.is_closed:  # Else it was deleted meanwhile.
                    log.warning("log flush failed", extra=because(error, partition=tp))
            except Exception as error:
                self._tasks.count(_SYNC, error)  # Retried after the partition's next append.
            del self._unsynced[tp]
            self._last_sync_s.pop(tp, None)

    async def _sync_if_due(self, partition: Partition) -> None:
        """Sync closed segments at once, the active segment according to `flush.ms`."""
        now_s = asyncio.get_running_loop().time()
        tp, partition_log = partition.partition, partition.log_as_it_is
        last_s = self._last_sync_s.setdefault(tp, now_s)
        if (now_s - last_s) * 1000 >= partition.config.flush_ms:
            await sync_log(partition_log, partition_log.end_offset)
        elif partition_log.recovery_point < partition_log.active.base_offset:
            await sync_log(partition_log, partition_log.active.base_offset)
        else:
            return
        self._last_sync_s[tp] = now_s

    async def _write_high_watermarks(self) -> None:
        if not self._moved:
            return
        moved, self._moved = self._moved, {}
        for directory in self._directories.usable():
            # Read the values for each directory anew: while another directory's checkpoint was
            # written, a high watermark may have been lowered by a truncation, or a topic deleted
            # and created again with the same name.
            here = [
                (tp, partition.watermark_as_it_is)
                for tp, partition in moved.items()
                if directory.holds(tp)
                and self._replicas.is_current(partition)
                and partition.is_open
            ]
            await self._in_thread(directory, directory.checkpoints.high_watermarks_job(here))

    async def _write_recovery_points(self) -> None:
        for directory in self._directories.usable():
            if directory.checkpoints.recovery_points_moved:
                await self._in_thread(directory, directory.checkpoints.recovery_points_job())

    async def _write_start_offsets(self) -> None:
        logs = [partition.log_as_it_is for partition in self._replicas if partition.is_open]
        moved = [partition_log for partition_log in logs if partition_log.start_moved]
        if moved:
            for partition_log in moved:
                partition_log.start_moved = False
            for directory in self._directories.usable():
                await self._in_thread(directory, directory.checkpoints.start_offsets_job())

    async def _in_thread(self, directory: LogDirectory, job: Callable[[], None]) -> None:
        try:
            await in_sync_thread(job)
        except OSError as error:
            directory.state.failed(error)

    async def _expire_producers(self) -> None:
        now_ms = self._env.clock.now_ms()
        for partition in self._replicas:
            if partition.is_open:
                try:
                    partition.log_as_it_is.producers.expire(
                        now_ms, self._config.static.producer_id_expiration_ms
                    )
                except Exception as error:
                    self._tasks.count(_PRODUCER_EXPIRY, error)
                await asyncio.sleep(0)

    # -- retention and compaction ----------------------------------------------------------------

    async def retain(self) -> None:
        """Delete segments that exceed the retention time or size, partition by partition."""
        for partition in self._replicas:
            try:
                await self._retain_one(partition)
            except Exception as error:
                self._tasks.count(_RETENTION, error)
            await asyncio.sleep(0)

    def _may_have_expired(self, partition: Partition) -> bool:
        """Whether retention has to open the log; an unused one only if too old or too large."""
        if partition.is_closed:
            return False
        if partition.is_open:
            return True
        found = self._directories.peek(partition.partition)
        if found is None:
            return False
        config = partition.config
        age_ms = self._env.clock.now_ms() - found.oldest_ms
        return (config.retention_ms >= 0 and age_ms > config.retention_ms) or (
            0 <= config.retention_bytes < found.size_bytes
        )

    async def _retain_one(self, partition: Partition) -> None:
        deleted_paths: list[str] = []
        try:
            if not self._may_have_expired(partition):
                return
            for _ in partition.replica_log.retaining(self._env.clock.now_ms(), deleted_paths):
                await asyncio.sleep(0)
                if partition.is_closed:
                    break
        except (OSError, BrokerError) as error:
            log.warning("retention failed", extra=because(error, partition=partition.partition))
        if deleted_paths:
            self._deletion.delete_files(deleted_paths, partition.config.file_delete_delay_ms / 1000)

    async def _keep_compacting(self) -> None:
        """Like `_every`, but notices a changed period while it waits."""
        waited_s = 0.0
        while True:
            backoff_s = max(self._config.current.log_cleaner_backoff_ms, 1) / 1000
            wait_s = min(backoff_s - waited_s, _CONFIG_CHECK_S)
            if wait_s > 0:
                if await wait_for_event(self._stopping, wait_s):
                    return
                waited_s += wait_s
                continue
            waited_s = 0.0
            await self._run_logging_errors(self._compact)

    async def _compact(self) -> None:
        """Compact until no log is due."""
        while not self._stopping.is_set() and await self.log_cleaner.compact_dirtiest():
            pass

    # -- stopping --------------------------------------------------------------------------------

    async def stop(self) -> bool:
        """Wait for running work, then flush every log; returns whether that succeeded."""
        self._stopping.set()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._deletion.stop()
        for partition in self._replicas:
            with suppress(BrokerError):
                await partition.replica_log.wait_for_preparation()
        opened = [partition for partition in self._replicas if partition.is_open]
        clean = True
        for first in range(0, len(opened), _FINAL_SYNCS_AT_ONCE):
            some = opened[first : first + _FINAL_SYNCS_AT_ONCE]
            clean &= all(await asyncio.gather(*map(self._close_log, some)))
        self._moved |= {partition.partition: partition for partition in opened}
        await self._write_high_watermarks()
        return clean

    async def _close_log(self, partition: Partition) -> bool:
        try:
            partition_log = partition.log_as_it_is
            partition_log.finish()
            await sync_log(partition_log, partition_log.end_offset)
        except (OSError, BrokerError) as error:
            log.error("unclean shutdown", extra=because(error, partition=partition.partition))
            return False
        return True


def _is_synced_until_next_append(partition: Partition) -> bool:
    """Whether there is nothing to sync before the next append or configuration change, each of
    which marks the partition as dirty again."""
    return (
        partition.config.flush_ms == INT64_MAX
        and partition.log_as_it_is.recovery_point >= partition.log_as_it_is.active.base_offset
    )
