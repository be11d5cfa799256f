"""One replica of a coordinator's shard: its role, and how its state follows the log.

Every replica applies the records below its own high watermark as it rises; a leader applies all
there is, and then serves (`Shard`). State that may differ from the log is dropped and loaded again.
Invariants: `applied` is the offset up to which the log has been replayed; a replica serves only as
a leader whose log is replayed and committed up to the end that it had when it was elected.
An exception in here fails this shard only (hazard G26).
"""

import asyncio
import contextlib
import enum
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple

from suwi.coordinator.event import M
from suwi.coordinator.log_reader import LogReader, until_committed
from suwi.coordinator.record import Codec
from suwi.coordinator.topics import NO_TOPICS, Topics
from suwi.env import Clock
from suwi.env.tasks import Tasks
from suwi.model.errors import BrokerError, CoordinatorNotAvailable, NotCoordinator
from suwi.model.ids import LeaderEpoch, TopicPartition
from suwi.replica.partition import Partition

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_RELOAD_S_MIN: Final = 1.0
_RELOAD_S_MAX: Final = 60.0
_ACTIVATIONS_MAX: Final = 20


class ShardContext(NamedTuple, Generic[M]):
    """What the shards of one coordinator share."""

    new_machine: Callable[[], M]
    codec: Codec
    clock: Clock
    tasks: Tasks
    commit_timeout_s: float
    isr_silence_s_max: float
    """This replica stops answering reads when a member of the ISR has not fetched for so long:
    another broker may lead by then. Followers stop fetching as soon as they know a new leader, and
    from then on replies may be out of date. So it is the time of a few fetches, much less than the
    session timeout. The price: while a member hangs, requests that need no append are not answered
    until it has left the ISR."""
    on_notice: Callable[[Any], None]
    on_failure: Callable[[TopicPartition, Exception], None]
    topics: Callable[[], Topics] = lambda: NO_TOPICS
    """Those of the newest metadata image."""


class Status(enum.Enum):
    FOLLOWING = "following"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    """Its records cannot be replayed. It is tried again after a while, and when its role
    changes."""
    CLOSED = "closed"


class Activation(NamedTuple):
    epoch: LeaderEpoch
    at_ms: int


class ShardReplica(Generic[M]):
    def __init__(self, partition: Partition, context: ShardContext[M]) -> None:
        self.partition = partition
        self.status = Status.FOLLOWING
        self.epoch = LeaderEpoch(-1)
        self.machine: M = context.new_machine()
        self.loads = 0
        """How often the whole log was read."""
        self.activations: deque[Activation] = deque(maxlen=_ACTIVATIONS_MAX)
        """When this replica began to serve, the newest last."""
        self._context = context
        self._reader: LogReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._reload: asyncio.TimerHandle | None = None
        self._reload_s = _RELOAD_S_MIN
        """How long the shard stays out of service after its next failure."""
        self._active_since_s = 0.0
        self._role_changed = asyncio.Event()

    def _stop_serving(self, error: BrokerError) -> None:
        """Calls that wait fail with the error."""
        raise NotImplementedError

    def _activate(self) -> None:
        """Begin to serve, if the partition still leads. Nothing was awaited since the end of the
        log was reached."""
        raise NotImplementedError

    # -- roles -----------------------------------------------------------------------------------

    def lead(self, epoch: LeaderEpoch) -> None:
        """The partition is led here from `epoch` on; again, if it was out of service meanwhile."""
        goes_on = epoch == self.epoch and self.status is not Status.FOLLOWING
        if epoch < self.epoch or goes_on or self.status is Status.CLOSED:
            return
        self._stop_serving(NotCoordinator(f"{self.partition.partition} has a new leader epoch"))
        self.epoch = epoch
        self.status = Status.LOADING
        self._role_changed.set()
        self._wake()

    def follow(self, epoch: LeaderEpoch) -> None:
        """Another broker leads, or nobody does."""
        if epoch < self.epoch or self.status is Status.CLOSED:
            return
        self.epoch = epoch
        self._stop_serving(NotCoordinator(f"{self.partition.partition} is led by another broker"))
        self.status = Status.FOLLOWING
        self._role_changed.set()
        self._wake()

    def close(self) -> None:
        """Deleted or moved away, or the broker stops."""
        self._stop_serving(NotCoordinator(f"{self.partition.partition} is gone"))
        self.status = Status.CLOSED
        self.partition.unwatch(self._wake)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._reload is not None:
            self._reload.cancel()

    def _reset(self) -> None:
        """Forget everything; the log is read again from its start."""
        self.machine = self._context.new_machine()
        self._reader = None

    def _fail(self, error: Exception) -> None:
        """A record that cannot be replayed, or a bug: this shard is out of service for a while. The
        time doubles with each failure up to a maximum, until the shard has served that long without
        one."""
        self._context.on_failure(self.partition.partition, error)
        loop = asyncio.get_running_loop()
        if self.status is Status.ACTIVE and loop.time() - self._active_since_s >= _RELOAD_S_MAX:
            self._reload_s = _RELOAD_S_MIN
        self._stop_serving(CoordinatorNotAvailable("the coordinator has failed"))
        self._reset()
        self.status = Status.FAILED
        if self._reload is not None:
            self._reload.cancel()
        self._reload = loop.call_later(self._reload_s, self._resume_if_failed)
        self._reload_s = min(2 * self._reload_s, _RELOAD_S_MAX)

    def _resume_if_failed(self) -> None:
        """G10: loading is retried, unless its role has changed since."""
        if self.status is Status.FAILED:
            self._resume()

    def _resume(self) -> None:
        leads = self.partition.is_leader and self.partition.leader_epoch == self.epoch
        self.status = Status.LOADING if leads else Status.FOLLOWING
        self._wake()

    # -- applying the log ------------------------------------------------------------------------

    def _wake(self) -> None:
        """There may be more to apply."""
        if self._task is None and self.status in (Status.FOLLOWING, Status.LOADING):
            if self.status is Status.FOLLOWING and not self._lags():
                if self.partition.replica_log.ready_log is None:
                    # If nothing is appended any more, no high watermark wakes the shard.
                    self.partition.replica_log.when_ready(self._wake)
                return
            self._task = self._context.tasks.start(
                self._apply, name="coordinator replay", on_failure=self._apply_failed
            )

    def _lags(self) -> bool:
        partition = self.partition
        if partition.replica_log.ready_log is None:
            return False
        reader = self._reader
        return reader is None or reader.lags_behind(partition.watermark_as_it_is)

    def _apply_failed(self, error: Exception) -> None:
        self._task = None
        if self.status is not Status.CLOSED:
            self._fail(error)

    async def _apply(self) -> None:
        """Replay what is committed; as a leader all there is, and begin to serve."""
        reason = ""
        while self.status in (Status.FOLLOWING, Status.LOADING):
            status, epoch = self.status, self.epoch
            self._role_changed.clear()
            try:
                done = await self._apply_once(status is Status.LOADING)
            except BrokerError as error:
                # The log cannot be used now. The replica is told, and a new role or a retry
                # follows.
                if str(error) != reason:
                    reason = str(error)
                    log.warning("coordinator waits for its log", extra=self._fields(error))
                await self._wait_for_a_role()
                continue
            if (status, epoch) != (self.status, self.epoch):
                continue
            if status is Status.LOADING and done:
                self._activate()
                if self.status is Status.LOADING:
                    await self._wait_for_a_role()  # Its partition no longer leads.
            elif done and not self._lags():
                self._reload_s = _RELOAD_S_MIN
                break
        self._task = None

    async def _wait_for_a_role(self) -> None:
        """Waits for a change of role since this attempt began, or for a while before the next
        attempt."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._role_changed.wait(), _RETRY_S)

    async def _apply_once(self, leads: bool) -> bool:
        """Whether everything has been replayed that was in the log when this began."""
        partition = self.partition
        if not partition.replica_log.prepare():
            await partition.replica_log.wait_for_preparation()
            return False
        partition_log = partition.log
        if self._reader is None or self._reader.is_void(partition_log):
            self._reset()
            self.loads += 1
            self._reader = LogReader(partition_log, self._context.codec)
        reader, machine = self._reader, self.machine
        end = partition_log.end_offset if leads else partition.high_watermark
        if leads:
            log.info("coordinator loading", extra={**self._fields(None), "from": reader.applied})
        committed = partition.high_watermark
        await reader.replay(machine, end, committed, lambda: machine is self.machine)
        if leads and machine is self.machine:
            await until_committed(partition, end)
            while machine.committed(end):  # noqa: ASYNC110 (each call is a slice)
                await asyncio.sleep(0)
        return machine is self.machine and reader.applied >= end

    def _fields(self, reason: object) -> dict[str, Any]:
        fields: dict[str, Any] = {"partition": str(self.partition.partition)}
        if reason is not None:
            fields["reason"] = str(reason)
        return fields
