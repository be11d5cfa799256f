"""The loss of an unclean election: records that a local replica truncated although they were or may
have been committed. `LossReports` reports it to the controller.
"""

import asyncio
import json
import logging
from collections import deque
from dataclasses import asdict, dataclass

from suwi.client.errors import error_from
from suwi.env.problems import because
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.log.leader_epoch_cache import LeaderEpochCache
from suwi.model.errors import BrokerError
from suwi.model.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from suwi.replica.peers import Peers
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

_QUEUED_MAX = 1000
_RETRY_S = 1.0
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class LostRange:
    epoch: LeaderEpoch
    first: Offset
    end: Offset
    """The first offset that is not lost."""


@dataclass(frozen=True, slots=True)
class Loss:
    partition: TopicPartition
    ranges: tuple[LostRange, ...]
    committed_below: Offset
    """The high watermark that the replica knew; above it records may have been committed."""

    def __str__(self) -> str:
        ranges = ", ".join(f"{r.first}-{r.end - 1} of epoch {r.epoch}" for r in self.ranges)
        return f"{self.partition}: {ranges}; high watermark was {self.committed_below}"


def lost_between(
    partition: TopicPartition,
    epochs: LeaderEpochCache,
    first: Offset,
    end: Offset,
    *,
    committed_below: Offset,
) -> Loss:
    """The records from `first` up to but excluding `end`, by leader epoch."""
    return Loss(partition, ranges_between(epochs, first, end), committed_below)


def ranges_between(epochs: LeaderEpochCache, first: Offset, end: Offset) -> tuple[LostRange, ...]:
    entries = epochs.entries()
    starts = [max(start, first) for _, start in entries[1:] if first < start < end]
    return tuple(
        LostRange(epochs.epoch_at(Offset(a)), Offset(a), Offset(b))
        for a, b in zip([first, *starts], [*starts, end], strict=True)
        if a < b
    )


class LossReports:
    """`add` queues a loss; reports are sent one by one, each until the controller accepts it."""

    def __init__(self, node_id: NodeId, peers: Peers, tasks: Tasks) -> None:
        self._node_id = node_id
        self._peers = peers
        self._tasks = tasks
        self._queue: deque[Loss] = deque(maxlen=_QUEUED_MAX)
        self._task: asyncio.Task[None] | None = None

    def add(self, loss: Loss) -> None:
        self._queue.append(loss)
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._send_all, name="loss reports", on_failure=RESTART)

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    async def _send_all(self) -> None:
        while self._queue:
            loss = self._queue[0]
            try:
                await self._send(loss)
            except (OSError, ValueError, KeyError, BrokerError) as error:
                log.info("loss report failed, retrying", extra=because(error, loss=loss))
                await asyncio.sleep(_RETRY_S)
            else:
                self._queue.popleft()

    async def _send(self, loss: Loss) -> None:
        report = {
            "partition": str(loss.partition),
            "broker": self._node_id,
            "ranges": [asdict(lost) for lost in loss.ranges],
            "committed_below": loss.committed_below,
        }
        async with asyncio.timeout(_TIMEOUT_S):
            connection = await self._peers.connect_to_controller()
            try:
                body = json.dumps(report).encode()
                response = await connection.send(ApiKey.REPORT_LOSS, 0, [body])
            finally:
                connection.abort()
        code = json.loads(bytes(response))["error"]
        if code:
            raise error_from(code)
