"""Notices problems that no request reports, and the end of those whose end no request notices.

`look` is called every few seconds: a write on each disk that was full, another attempt to open logs
that could not be opened, whether files can be opened, and whether the metadata found no space.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from suwi.env.problems import ProblemKind, Problems
from suwi.env.tasks import QUIET_MS
from suwi.log.directory_state import NO_DESCRIPTORS
from suwi.log.log_directories import LogDirectories
from suwi.metadata.store import MetadataStore
from suwi.model.errors import BrokerError
from suwi.replica.log_threads import in_sync_thread
from suwi.replica.replica_manager import ReplicaManager

PERIOD_MS = 2_000
_QUIET_MS = 30_000
"""Refusals come in bursts: after this long without one they are over."""

_SHARD_QUIET_MS = 120_000
"""A shard that failed is loaded again at least every minute."""
_OF_LOGS = (ProblemKind.LOG_UNREADABLE, ProblemKind.TOPIC_ID_UNREADABLE)


@dataclass(eq=False)
class ProblemWatch:
    _problems: Problems
    _directories: LogDirectories
    _replicas: ReplicaManager
    _store: MetadataStore
    _full_errors: int = 0

    async def look(self) -> None:
        """Called every PERIOD_MS."""
        self._look_at_store()
        await self._look_at_full_disks()
        self._look_at_descriptors()
        await self._look_at_logs()
        self._problems.resolve_quiet(ProblemKind.CONNECTIONS_REFUSED, _QUIET_MS)
        self._problems.resolve_quiet(ProblemKind.NO_DESCRIPTORS, _QUIET_MS)
        self._problems.resolve_quiet(ProblemKind.COORDINATOR_FAILED, _SHARD_QUIET_MS)
        self._problems.resolve_quiet(ProblemKind.TASK_FAILING, QUIET_MS)

    def _look_at_store(self) -> None:
        """An embedded store is in the first data directory, or beside it."""
        if self._store.full_errors > self._full_errors:
            self._full_errors = self._store.full_errors
            for directory in self._directories.usable()[:1]:
                directory.state.found_full()

    async def _look_at_full_disks(self) -> None:
        for directory in self._directories.usable():
            await asyncio.sleep(0)
            if not directory.state.is_full:
                continue
            with suppress(OSError):
                await in_sync_thread(directory.probe_space)
                directory.state.has_space()

    def _look_at_descriptors(self) -> None:
        for directory in self._directories.usable()[:1]:
            try:
                directory.read_identity()
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    directory.state.failed(error)

    async def _look_at_logs(self) -> None:
        """Try again to open logs that could not be opened, one at a time."""
        unreadable = {problem.place for problem in self._problems if problem.kind in _OF_LOGS}
        if not unreadable:
            return
        for partition in self._replicas:
            if str(partition.partition) not in unreadable:
                continue
            await asyncio.sleep(0)
            replica_log = partition.replica_log
            if replica_log.offline_because is not None:
                with suppress(BrokerError):
                    replica_log.prepare()
            elif replica_log.log is not None:
                directory = replica_log.log.directory
                if await in_sync_thread(directory.is_accessible):
                    directory.access_is_back()
