"""What transaction coordinators are known to get wrong: copiers in a simulated cluster notice it.

They have no transcript. Each has a fault script: two copiers, and what it takes to come to the
fault.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulation import transaction_workload
from simulation.seeded_run import Options
from suwi.client.partition_sender import ProducerSettings
from suwi.controller import configuration_control
from suwi.coordinator.event import Event
from suwi.coordinator.record import RecordFacts
from suwi.group.offset_manager import OffsetManager
from suwi.handlers.produce import ProduceVerification
from suwi.log.log_segments import LogSegments, LogSlice
from suwi.log.producer_state import ProducerStates
from suwi.log.txn_index import AbortedTxn
from suwi.model.ids import Offset
from suwi.records.record import Marker
from suwi.replica.partition_transactions import (
    NOT_VERIFIED,
    PartitionTransactions,
    VerificationGuard,
)
from suwi.transaction import transaction_coordinator_shard
from suwi.transaction.marker_appender import TxnMarkers
from suwi.transaction.transaction_coordinator_shard import TransactionCoordinatorShard
from suwi.transaction.transaction_metadata import AddPartitionsRequest, fenced
from suwi.transaction.transaction_records import TransactionLogValue
from suwi.transaction.transaction_search import SearchResult, TransactionSearch
from tests.sim.mutants.mutant import FAULT, ScriptedMutant

COPIERS = {
    "copiers": 2,
    "partitions": 2,
    "members": 0,
    "unclean_elections": False,
    "deletes": False,
    "churns": False,
}


_add_partitions = TransactionCoordinatorShard.add_partitions
_replay_offsets = OffsetManager.replay
_aborted_between = LogSegments.aborted_between
_append_marker = TxnMarkers._append
_check_guard = PartitionTransactions.check
_finish_verification = ProduceVerification.finish
_LATE_S = 0.1
_SLOW_S = 1.2
_IMPATIENT = ProducerSettings(delivery_timeout_s=1.0, request_timeout_s=0.5)
"""Its clients give up a batch, and abort, before a slow verification ends."""


def _script(*kinds: str, version: int = 2) -> Options:
    force = {**COPIERS, "transaction_version": version}
    return Options(force=force, kinds=kinds or ["kill"], trouble_s=6.0, long_cut=False)


_STRANGERS = Options(
    force={**COPIERS, "strangers": True}, kinds=["kill"], trouble_s=6.0, long_cut=False
)


def _forget_prepared(_shard: Any, _event: Event) -> None:
    pass


def _never_verify(*_: Any) -> VerificationGuard:
    return NOT_VERIFIED


def _accept_any_guard(
    transactions: PartitionTransactions,
    producer_id: int,
    epoch: int,
    sequence: int,
    guard: VerificationGuard | None,
) -> None:
    if guard is None:
        _check_guard(transactions, producer_id, epoch, sequence, guard)


async def _finish_late(verification: ProduceVerification) -> None:
    """Every other second; a correct broker does not mind."""
    await _finish_verification(verification)
    if int(asyncio.get_running_loop().time()) % 2:
        await asyncio.sleep(_SLOW_S)


def _accept_marker(*_: Any, **__: Any) -> bool:
    return True


def _append_again_later(markers: TxnMarkers, *marker: Any) -> Any:
    """A correct broker does not mind."""
    asyncio.get_running_loop().call_later(_LATE_S, _append_marker, markers, *marker)
    return _append_marker(markers, *marker)


def _fence_nobody(metadata: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    return replace(fenced(metadata, now_ms), producer_epoch=metadata.producer_epoch)


def _forget_completion(
    shard: TransactionCoordinatorShard, transactional_id: str, event: Event
) -> None:
    if shard._sending.pop(transactional_id, None) is not None:
        shard._held.ended(transactional_id, event)


def _begin_in_memory(
    shard: TransactionCoordinatorShard, request: AddPartitionsRequest, event: Event
) -> None:
    _add_partitions(shard, request, event)
    for record in event.records:
        shard.replay(record, RecordFacts(-1))
    event.records.clear()


def _replay_as_committed(manager: OffsetManager, key: Any, value: Any, facts: RecordFacts) -> None:
    _replay_offsets(manager, key, value, facts._replace(is_transactional=False))


def _acknowledge_only(
    manager: OffsetManager, _marker: Marker, facts: RecordFacts
) -> Iterator[None]:
    """The marker is answered; its offsets are applied by nobody."""
    return iter(())


def _watermark(_producers: ProducerStates, _start: Offset, high_watermark: Offset) -> Offset:
    return high_watermark


def _only_what_begins_here(
    segments: LogSegments, first: Offset, end: Offset, found: LogSlice | None
) -> list[AbortedTxn]:
    aborted = _aborted_between(segments, first, end, found)
    return [each for each in aborted if each.first_offset >= first]


async def _find_nobody(search: TransactionSearch, *_: Any) -> SearchResult:
    return SearchResult([], await search.newest_coordinator_epoch())


def _accept_configs(*_: Any, **__: Any) -> None:
    pass


def _mutant(
    name: str, what: str, target: Any, attribute: str, wrong: Any, options: Options
) -> ScriptedMutant:
    return ScriptedMutant(name, FAULT, what, ((target, attribute, wrong),), options=options)


MUTANTS = (
    ScriptedMutant(
        "prepared-transactions-are-forgotten",
        FAULT,
        "a new coordinator does not send the markers of transactions that were being ended",
        ((TransactionCoordinatorShard, "elected", _forget_prepared),),
        options=Options(force=COPIERS, kinds=["kill"], long_cut=False),
    ),
    _mutant(
        "no-verification",
        "T1: a batch opens a transaction in a partition without the coordinator's consent",
        *(ProduceVerification, "_begin_one", _never_verify),
        _script(),
    ),
    ScriptedMutant(
        "guards-are-not-compared",
        FAULT,
        "T2: a batch is verified, its transaction ends, and then it is appended",
        (
            (PartitionTransactions, "check", _accept_any_guard),
            (ProduceVerification, "finish", _finish_late),
            (transaction_workload, "_PRODUCER", _IMPATIENT),
        ),
        options=_script("reset", version=1),
    ),
    ScriptedMutant(
        "late-markers-are-accepted",
        FAULT,
        "T6: a marker that comes again, late, ends whatever transaction is open",
        (
            (ProducerStates, "check_marker", _accept_marker),
            (TxnMarkers, "_append", _append_again_later),
        ),
        options=_script("reset"),
    ),
    _mutant(
        "time-outs-fence-nobody",
        "T8: the producer whose transaction was aborted goes on with its epoch",
        *(transaction_coordinator_shard, "fenced", _fence_nobody),
        _script("reset", version=1),
    ),
    _mutant(
        "completion-is-forgotten",
        "T9, T10: after the last marker the transaction stays prepared",
        *(TransactionCoordinatorShard, "_complete", _forget_completion),
        _script(),
    ),
    _mutant(
        "begun-in-memory",
        "T12: that a transaction has begun, and where, is not persisted",
        *(TransactionCoordinatorShard, "add_partitions", _begin_in_memory),
        _script(),
    ),
    _mutant(
        "markers-without-offsets",
        "T13: a marker is acknowledged and its offsets are not applied",
        *(OffsetManager, "replaying_marker", _acknowledge_only),
        _script(),
    ),
    _mutant(
        "offsets-before-the-marker",
        "T14: offsets of an open transaction are visible",
        *(OffsetManager, "replay", _replay_as_committed),
        _script(),
    ),
    _mutant(
        "stable-up-to-the-watermark",
        "T18: the last stable offset is the high watermark",
        *(ProducerStates, "last_stable_offset", _watermark),
        _script(),
    ),
    _mutant(
        "aborted-before-the-fetch",
        "T19: transactions that began before the fetch offset are not listed as aborted",
        *(LogSegments, "aborted_between", _only_what_begins_here),
        _script(),
    ),
    _mutant(
        "strangers-end-transactions",
        "a client may end a transaction that a coordinator knows",
        *(TransactionSearch, "find", _find_nobody),
        _STRANGERS,
    ),
    _mutant(
        "strangers-configure-internal-topics",
        "a client may let the records of coordinators expire",
        *(configuration_control, "check_configs", _accept_configs),
        _STRANGERS,
    ),
)
