"""Appends transaction markers to the partitions that this broker leads.

`append_all` serves WriteTxnMarkers, and the transaction coordinator for partitions of its own
broker. A partition of a coordinator is written by its shard only, so that markers are applied
before they are answered (hazard T13). A partition that cannot commit is not waited for long: the
other transactions of the request would wait with it. The next attempt waits for the same commit.
A marker that another client has sent may have left a coordinator epoch in the partition that is
higher than any coordinator's. That epoch does not fence coordinators: their markers could never be
written.
Invariant: an answer without error means that the marker is committed, or was already there.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env import Clock
from suwi.env.slices import in_slices
from suwi.metadata.store import Unavailable
from suwi.model.errors import BrokerError, InvalidRequest, InvalidTopic, error_of
from suwi.model.ids import TopicPartition
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.replica.partition_transactions import TxnMarker
from suwi.replica.replica_manager import ReplicaManager
from suwi.transaction.transaction_search import TransactionSearch

_READY_TIMEOUT_S: Final = 3.0
_COMMIT_TIMEOUT_S: Final = 3.0
_PER_SLICE: Final = 128
_APPENDED_PER_SLICE: Final = 16
"""About two milliseconds if each append takes a hundred microseconds."""
_FENCED: Final = ErrorCode.transaction_coordinator_fenced
# T23: a transaction coordinator does not expect these errors from a partition; it retries after
# NOT_LEADER_OR_FOLLOWER.
_TOLD: Final = {
    ErrorCode.coordinator_load_in_progress: ErrorCode.not_leader_or_follower,
    ErrorCode.coordinator_not_available: ErrorCode.not_leader_or_follower,
    ErrorCode.not_coordinator: ErrorCode.not_leader_or_follower,
}


Errors: TypeAlias = dict[TopicPartition, ErrorCode]
_Outcome: TypeAlias = "asyncio.Future[ErrorCode]"
"""What becomes of the marker of one partition."""


@dataclass(eq=False)
class TxnMarkers:
    _replicas: ReplicaManager
    _groups: CoordinatorRuntime[Any]
    _clock: Clock
    _search: Callable[[], TransactionSearch]
    _uncommitted: dict[tuple[TopicPartition, TxnMarker], _Outcome] = field(default_factory=dict)
    """The outcomes of markers that were appended, and not committed when the request had to be
    answered."""

    async def append_all(
        self, asked: Iterable[tuple[TxnMarker, Iterable[TopicPartition]]]
    ) -> list[Errors]:
        """Append all markers, then wait until each is committed or refused. Returns for each marker
        the error of each of its partitions."""
        markers = [
            (marker, [tp async for tp in in_slices(dict.fromkeys(partitions), _PER_SLICE)])
            async for marker, partitions in in_slices(asked, _PER_SLICE)
        ]
        results = await self._append_all(markers)
        fenced = [
            (marker, errors)
            async for (marker, _), errors in in_slices(
                zip(markers, results, strict=True), _PER_SLICE
            )
            if _FENCED in errors.values()
        ]
        if fenced:
            try:
                epoch_max = await self._search().newest_coordinator_epoch()
            except Unavailable:
                return results
            again = [
                (
                    marker._replace(coordinator_epoch_max=epoch_max),
                    [
                        tp
                        async for tp, code in in_slices(errors.items(), _PER_SLICE)
                        if code is _FENCED
                    ],
                )
                async for marker, errors in in_slices(fenced, _PER_SLICE)
            ]
            retried = zip(fenced, await self._append_all(again), strict=True)
            async for (_, errors), outcomes in in_slices(retried, _PER_SLICE):
                errors.update(outcomes)
        return results

    async def append_if(
        self, is_wanted: Callable[[], bool], marker: TxnMarker, tp: TopicPartition
    ) -> ErrorCode:
        """Append a marker if it is wanted, which is asked in the same step; otherwise wait until
        what the partition has is committed. `is_wanted` may raise a `BrokerError`."""
        await self.wait_until_ready([tp])
        until_s = asyncio.get_running_loop().time() + _COMMIT_TIMEOUT_S
        return await self._wait(tp, marker, self._append(tp, marker, is_wanted), until_s)

    async def _append_all(
        self, markers: list[tuple[TxnMarker, list[TopicPartition]]]
    ) -> list[Errors]:
        await self.wait_until_ready(tp for _, tps in markers for tp in tps)
        appended: list[dict[TopicPartition, _Outcome]] = []
        in_slice = 0
        for marker, partitions in markers:
            outcomes: dict[TopicPartition, _Outcome] = {}
            for tp in partitions:
                outcomes[tp] = self._append(tp, marker)
                in_slice += 1
                if in_slice % _APPENDED_PER_SLICE == 0:
                    await asyncio.sleep(0)
            appended.append(outcomes)
        until_s = asyncio.get_running_loop().time() + _COMMIT_TIMEOUT_S
        return [
            {
                tp: await self._wait(tp, marker, outcome, until_s)
                async for tp, outcome in in_slices(outcomes.items(), _PER_SLICE)
            }
            async for (marker, _), outcomes in in_slices(
                zip(markers, appended, strict=True), _PER_SLICE
            )
        ]

    async def wait_until_ready(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait, for a limited time, until the logs of the partitions that this broker leads can be
        used. `_append` refuses the others."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_READY_TIMEOUT_S):
                async for tp in in_slices(partitions, _PER_SLICE):
                    with suppress(BrokerError):
                        log = self._replicas.leader_of(tp.topic, tp.partition).replica_log
                        if not log.prepare():
                            await log.wait_for_preparation()

    async def _wait(
        self, tp: TopicPartition, marker: TxnMarker, outcome: _Outcome, until_s: float
    ) -> ErrorCode:
        try:
            async with asyncio.timeout_at(until_s):
                return outcome.result() if outcome.done() else await asyncio.shield(outcome)
        except TimeoutError:
            key = tp, marker
            if not outcome.done() and key not in self._uncommitted:
                self._uncommitted[key] = outcome
                outcome.add_done_callback(lambda _: self._uncommitted.pop(key))
            return ErrorCode.request_timed_out

    def _append(
        self, tp: TopicPartition, marker: TxnMarker, is_wanted: Callable[[], bool] = lambda: True
    ) -> _Outcome:
        """Append a marker, unless an earlier attempt has appended it and waits for the commit."""
        earlier = self._uncommitted.get((tp, marker))
        if earlier is not None and not earlier.done():
            return earlier
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        end_with = partial(_end, outcome)
        try:
            if marker.producer_id < 0 or marker.producer_epoch < 0:
                raise InvalidRequest("a marker needs a producer id and a producer epoch")
            if tp.topic == self._groups.topic:
                call = self._groups.shard_at(tp.partition).append_marker(marker, is_wanted)
                call.when_done(lambda call: end_with(call.error))
            elif tp.topic in INTERNAL_TOPICS:
                raise InvalidTopic(f"{tp.topic} cannot have transactions")
            else:
                partition = self._replicas.leader_of(tp.topic, tp.partition)
                end = None
                if is_wanted():
                    end = partition.transactions.append_marker(marker, self._clock.now_ms())
                if end is None:
                    # The marker that is there already may not be committed yet.
                    end = partition.log.end_offset
                partition.when_committed(end, end_with)
        except Exception as error:
            end_with(error)
        return outcome


def _end(outcome: _Outcome, error: Exception | None) -> None:
    code = ErrorCode.none if error is None else error_of(error)[0]
    if not outcome.done():
        outcome.set_result(_TOLD.get(code, code))
