"""DeleteRecords is answered soon after every live replica has the new log start.

Whoever waits for it must be woken by a fetch, by a replica that is no longer live, by anything that
raises the low watermark. Looked at every tenth of a second, from outside of the waiting request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from suwi.handlers import delete_records
from suwi.model.errors import BrokerError
from suwi.replica.partition import Partition
from suwi.sim.checkers.facts import Broken
from suwi.sim.cluster import SimCluster
from suwi.sim.incarnation import Incarnation, current

_LOOK_S = 0.1
_ANSWERED_WITHIN_S = 0.3


@dataclass(slots=True, eq=False)
class _Waiting:
    partition: Partition
    offset: int
    process: Incarnation | None
    due_since_s: float | None = None
    """Since when every live replica has the new log start."""


class DeletionWatch:
    def __init__(self, cluster: SimCluster) -> None:
        self._loop = cluster.simulation.loop
        self._waiting: dict[_Waiting, None] = {}
        self._next_look_s = 0.0
        cluster.simulation.add_checker(self._after_step)

    @contextmanager
    def tapped(self) -> Iterator[None]:
        """While it is entered, requests that wait are known."""
        original: Any = delete_records._wait_for_replicas

        async def wait(partition: Partition, offset: int, *given: Any) -> None:
            waiting = _Waiting(partition, offset, current.get())
            self._waiting[waiting] = None
            try:
                await original(partition, offset, *given)
            finally:
                self._waiting.pop(waiting, None)

        with patch.object(delete_records, "_wait_for_replicas", wait):
            yield

    def _after_step(self) -> None:
        now_s = self._loop.time()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + _LOOK_S
        for waiting in list(self._waiting):
            self._look_at(waiting, now_s)

    def _look_at(self, waiting: _Waiting, now_s: float) -> None:
        process, partition = waiting.process, waiting.partition
        if process is None or process.revoked:
            del self._waiting[waiting]
        elif process.frozen or process.stalled_until > now_s or not _is_due(waiting):
            waiting.due_since_s = None
        elif waiting.due_since_s is None:
            waiting.due_since_s = now_s
        elif now_s - waiting.due_since_s > _ANSWERED_WITHIN_S:
            raise Broken(
                f"DeleteRecords of {partition.partition} below {waiting.offset} is not answered by "
                f"{process.name}, though every live replica has the new log start"
            )


def _is_due(waiting: _Waiting) -> bool:
    partition = waiting.partition
    try:
        return partition.is_leader and partition.low_watermark >= waiting.offset
    except (BrokerError, OSError):
        return False  # It is offline.
