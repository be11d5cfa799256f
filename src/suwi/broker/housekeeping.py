"""What a broker does by itself: checkpoints, syncs of finished segments, retention, removal.

Only partitions that were written to are looked at every second; the rest costs nothing.
Everything slow runs in a thread, on files that no longer change.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from suwi.env import Env
from suwi.log.log_directories import LogDirectories
from suwi.log.partition_log import PartitionLog
from suwi.log.retention import apply_retention
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, TopicPartition
from suwi.replica.partition import Partition
from suwi.replica.replicas import Replicas

log = logging.getLogger(__name__)

_TICK_S = 1.0
_RETENTION_FIRST_AFTER_S = 30.0


class Housekeeping:
    def __init__(
        self, env: Env, config: BrokerConfig, directories: LogDirectories, replicas: Replicas
    ) -> None:
        self._env = env
        self._config = config
        self._directories = directories
        self._replicas = replicas
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsynced: dict[TopicPartition, Partition] = {}
        self._last_sync_s: dict[TopicPartition, float] = {}
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._recovery_points_moved = False

    def start(self) -> None:
        config = self._config
        self._spawn(self._every(_TICK_S, self._tick))
        self._spawn(
            self._every(
                config.replica_high_watermark_checkpoint_interval_ms / 1000,
                self.write_high_watermarks,
            )
        )
        self._spawn(
            self._every(
                config.log_flush_offset_checkpoint_interval_ms / 1000, self._write_recovery_points
            )
        )
        self._spawn(
            self._every(
                config.producer_id_expiration_check_interval_ms / 1000, self._expire_producers
            )
        )
        self._spawn(self._retain())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("housekeeping failed", exc_info=task.exception())

    async def _every(self, period_s: float, work: Any) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except (OSError, BrokerError) as error:
                log.warning("housekeeping failed", extra={"reason": str(error)})

    # -- checkpoints and syncs -------------------------------------------------------------------

    async def _tick(self) -> None:
        for partition in self._replicas.take_touched():
            self._unsynced[partition.partition] = partition
            self._high_watermarks[partition.partition] = partition.high_watermark
        for tp, partition in list(self._unsynced.items()):
            if not partition.is_open or not partition.log.unsynced:
                del self._unsynced[tp]
                continue
            await self._sync_if_due(partition)

    async def _sync_if_due(self, partition: Partition) -> None:
        """A finished segment is synced at once; the active one as `flush.ms` says."""
        now_s = asyncio.get_running_loop().time()
        tp, partition_log = partition.partition, partition.log
        last_s = self._last_sync_s.setdefault(tp, now_s)
        if (now_s - last_s) * 1000 >= partition.config.flush_ms:
            await self.sync(partition_log, partition_log.end_offset)
        elif partition_log.recovery_point < partition_log.active.base_offset:
            await self.sync(partition_log, partition_log.active.base_offset)
        else:
            return
        self._last_sync_s[tp] = now_s

    async def sync(self, partition_log: PartitionLog, up_to: Offset) -> None:
        job = partition_log.sync_job(up_to)
        if job is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(None, job.run)
        except OSError as error:
            partition_log.sync_failed(job, error)
            return
        partition_log.synced(job)
        self._recovery_points_moved = True

    async def write_high_watermarks(self) -> None:
        if self._high_watermarks:
            moved, self._high_watermarks = self._high_watermarks, {}
            for directory in self._directories.usable():
                directory.write_high_watermarks(
                    (tp, offset) for tp, offset in moved.items() if directory.holds(tp)
                )

    async def _write_recovery_points(self) -> None:
        if self._recovery_points_moved:
            self._recovery_points_moved = False
            for directory in self._directories.usable():
                directory.write_recovery_points()

    async def _expire_producers(self) -> None:
        now_ms = self._env.clock.now_ms()
        for partition in self._replicas:
            if partition.is_open:
                partition.log.producers.expire(now_ms, self._config.producer_id_expiration_ms)
                await asyncio.sleep(0)

    # -- retention and removal -------------------------------------------------------------------

    async def _retain(self) -> None:
        period_s = self._config.log_retention_check_interval_ms / 1000
        await asyncio.sleep(min(period_s, _RETENTION_FIRST_AFTER_S))
        while True:
            await self.retain()
            await asyncio.sleep(period_s)

    async def retain(self) -> None:
        """Remove what is too old or too much, partition by partition."""
        moved = False
        for partition in self._replicas:
            config = partition.config
            if "delete" in config.cleanup_policy and (
                config.retention_ms >= 0 or config.retention_bytes >= 0
            ):
                moved |= self._retain_one(partition)
                await asyncio.sleep(0)
        if moved:
            for directory in self._directories.usable():
                directory.write_start_offsets()

    def _retain_one(self, partition: Partition) -> bool:
        try:
            paths = apply_retention(
                partition.log, partition.high_watermark, self._env.clock.now_ms()
            )
        except (OSError, BrokerError) as error:
            log.warning(
                "retention failed",
                extra={"partition": str(partition.partition), "reason": str(error)},
            )
            return False
        if paths:
            self._spawn(self._remove_files(paths, partition.config.file_delete_delay_ms / 1000))
        return bool(paths)

    async def _remove_files(self, paths: list[str], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        disk = self._env.disk

        def remove() -> None:
            for path in paths:
                if disk.exists(path):
                    disk.remove(path)

        await asyncio.get_running_loop().run_in_executor(None, remove)

    def remove_dir(self, path: str, delay_s: float) -> None:
        """Remove a deleted partition's directory after a while, in a thread."""
        self._spawn(self._remove_dir(path, delay_s))

    async def _remove_dir(self, path: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await asyncio.get_running_loop().run_in_executor(None, self._env.disk.remove_tree, path)
