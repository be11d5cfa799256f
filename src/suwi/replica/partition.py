"""One partition on this broker: what its leader appends, what is committed, and who waits for it.

Produce enters at `append`, readers at `read`, waiting at `committed` and `watch`.
Invariant: start offset <= last stable offset <= high watermark <= end offset.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from suwi.env import Clock
from suwi.log.partition_log import Appended, LogSlice, PartitionLog
from suwi.model.errors import (
    BrokerError,
    FencedLeaderEpoch,
    KafkaStorageError,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from suwi.model.ids import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import BatchHeader
from suwi.replica.intake import intake_of

log = logging.getLogger(__name__)

_ACKS_ALL = -1


class Partition:
    """A partition that this broker leads. Its log is opened at the first use."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        config: TopicConfig,
        open_log: Callable[[TopicConfig], PartitionLog],
        clock: Clock,
        *,
        leader: NodeId,
        leader_epoch: LeaderEpoch,
        on_append: Callable[["Partition"], None] = lambda _: None,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        self.intake = intake_of(config)
        self.leader = leader
        self.leader_epoch = leader_epoch
        self._open_log = open_log
        self._clock = clock
        self._on_append = on_append
        """Told once of a partition that has changed, and again after `touched` is reset."""
        self.touched = False
        self._log: PartitionLog | None = None
        self._high_watermark = Offset(0)
        self._commit_waiters: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._watchers: dict[Callable[[], None], None] = {}
        self._sync: asyncio.Task[None] | None = None
        self._closed: BrokerError | None = None

    # -- what it holds -------------------------------------------------------------------------

    @property
    def log(self) -> PartitionLog:
        if self._log is None:
            self._become_leader()
        assert self._log is not None
        return self._log

    @property
    def is_open(self) -> bool:
        """Whether its log has been used since the start."""
        return self._log is not None

    @property
    def is_closed(self) -> bool:
        """Whether this broker has ceased to lead it, or it was deleted."""
        return self._closed is not None

    def open(self) -> None:
        """Open the log now, rather than at the first use."""
        self._become_leader()

    def _become_leader(self) -> None:
        if self._closed is not None:
            raise self._closed
        try:
            self._log = self._open_log(self.config)
        except OSError as error:
            raise KafkaStorageError(f"{self.partition}: {error}") from error
        self._log.assign_epoch(self.leader_epoch, self._log.end_offset)
        # The only in-sync replica: all that it holds is committed.
        self._high_watermark = self._log.end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark if self._log is not None else self._first_high_watermark()

    def _first_high_watermark(self) -> Offset:
        self._become_leader()
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Below it every transaction is decided."""
        undecided = self.log.producers.first_open_txn_offset
        high_watermark = self._high_watermark
        return high_watermark if undecided is None else min(undecided, high_watermark)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.intake = intake_of(config)
        if self._log is not None:
            self._log.config = config

    def check_epoch(self, known_to_client: int) -> None:
        """Hazard 4: a client that knows another epoch may be talking to the wrong leader."""
        if known_to_client == NO_EPOCH or known_to_client == self.leader_epoch:
            return
        if known_to_client < self.leader_epoch:
            raise FencedLeaderEpoch(f"epoch {known_to_client} is over: {self.leader_epoch}")
        raise UnknownLeaderEpoch(f"epoch {known_to_client} is not known yet: {self.leader_epoch}")

    # -- writing -------------------------------------------------------------------------------

    def append(self, batch: memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Append a batch that `intake` accepted; changes it in place. Raises a `BrokerError`."""
        partition_log = self.log
        appended = partition_log.append_as_leader(batch, header, self.leader_epoch, now_ms)
        if not appended.is_duplicate:
            self._after_append(partition_log)
        return appended

    def _after_append(self, partition_log: PartitionLog) -> None:
        if not self.touched:
            self.touched = True
            self._on_append(self)
        end_offset = partition_log.end_offset
        flush_messages = self.config.flush_messages
        if self._sync is None and end_offset - partition_log.recovery_point >= flush_messages:
            self._sync = asyncio.get_running_loop().create_task(self._sync_until_done())
        if flush_messages > 1:
            self._advance(end_offset)

    def _committed_end(self, partition_log: PartitionLog) -> Offset:
        """What may be acknowledged: with a sync for each message, only what is on the disk."""
        if self.config.flush_messages == 1:
            return partition_log.recovery_point
        return partition_log.end_offset

    def _advance(self, high_watermark: Offset) -> None:
        if high_watermark <= self._high_watermark:
            return
        self._high_watermark = high_watermark
        waiters = self._commit_waiters
        while waiters and waiters[0][0] <= high_watermark:
            _, waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self._watchers:
            self._tell_watchers()

    def _tell_watchers(self) -> None:
        for watcher in list(self._watchers):
            watcher()

    async def _sync_until_done(self) -> None:
        """One sync serves all that wait; those who come meanwhile are served by the next."""
        loop = asyncio.get_running_loop()
        partition_log = self.log
        try:
            while self._closed is None:
                try:
                    job = partition_log.sync_job()
                except KafkaStorageError as error:
                    self._fail_waiters(error)
                    return
                if job is None:
                    return
                try:
                    await loop.run_in_executor(None, job.run)
                except OSError as error:
                    partition_log.sync_failed(job, error)
                    self._fail_waiters(KafkaStorageError(str(error)))
                    return
                partition_log.synced(job)
                self._advance(self._committed_end(partition_log))
                if self.config.flush_messages > 1:
                    return
        finally:
            self._sync = None

    def delete_before(self, offset: Offset) -> None:
        """Records below `offset`, which is committed, are gone for readers at once."""
        assert offset <= self.high_watermark
        self.log.advance_start(offset)
        self._tell_watchers()

    # -- waiting -------------------------------------------------------------------------------

    def is_committed(self, end_offset: Offset) -> bool:
        return end_offset <= self._high_watermark

    def must_wait(self, acks: int) -> bool:
        """Whether an answer waits for the commit: with acks=all, or a sync for each message."""
        return acks == _ACKS_ALL or self.config.flush_messages == 1

    def committed(self, end_offset: Offset) -> asyncio.Future[None]:
        """Done when everything below `end_offset` is committed; fails with a `BrokerError`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed is not None:
            waiter.set_exception(self._closed)
        elif self.is_committed(end_offset):
            waiter.set_result(None)
        else:
            self._commit_waiters.append((end_offset, waiter))
        return waiter

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher` whenever there is more to read, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._watchers.pop(watcher, None)

    def close(self, reason: BrokerError | None = None) -> None:
        """This broker is no longer the leader: nobody need wait here any more."""
        self._closed = reason or NotLeaderOrFollower(f"{self.partition} is led by another broker")
        self._fail_waiters(self._closed)
        self._tell_watchers()

    def _fail_waiters(self, error: BrokerError) -> None:
        waiters, self._commit_waiters = self._commit_waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, offset: Offset, bytes_max: int, *, committed_only: bool, whole_batch: bool
    ) -> LogSlice | None:
        """Batches below the high watermark, or below the last stable offset."""
        partition_log = self.log
        limit = self.last_stable_offset if committed_only else self._high_watermark
        return partition_log.read(offset, bytes_max, limit, whole_batch=whole_batch)
