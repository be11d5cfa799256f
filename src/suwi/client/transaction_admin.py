"""Administration of transactions: list, describe and abort them.

`list_transactions` asks all brokers, since each knows the transactional ids that it coordinates;
`describe_transaction` asks the id's coordinator; `producers_of` and `write_abort_marker` ask the
leaders of partitions. `find_hanging` compares what is open in partitions with what coordinators
know, `find_stuck` what coordinators have decided with what partitions have been told.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster, Place
from suwi.client.coordinator import Coordinator, KeyType, asking
from suwi.client.errors import check, error_from
from suwi.client.identity import Identity
from suwi.client.routing import ask_all_brokers, ask_leaders, each_partition
from suwi.client.versioned_connection import VersionedConnection
from suwi.model.errors import BrokerError
from suwi.model.ids import (
    NodeId,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    by_topic,
)
from suwi.wire.versions import ApiKey

_NOT_OPEN = -1
_PREPARED = ("PrepareCommit", "PrepareAbort")


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: ProducerId
    state: str
    coordinator: NodeId


class TransactionList(NamedTuple):
    transactions: list[ListedTransaction]
    silent: dict[NodeId, str]
    """The brokers that did not respond, with the reason."""


class TransactionDescription(NamedTuple):
    transactional_id: str
    state: str
    producer: Identity
    timeout_ms: int
    started_ms: int | None
    """None if no transaction is open."""
    partitions: tuple[TopicPartition, ...]
    coordinator: NodeId


class PartitionProducer(NamedTuple):
    producer: Identity
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    open_from: Offset | None
    """The first offset of its open transaction, if it has one."""


class OpenTransaction(NamedTuple):
    partition: TopicPartition
    producer: PartitionProducer


class HangingTransactions(NamedTuple):
    transactions: list[OpenTransaction]
    unread: dict[TopicPartition, str]
    """The partitions that could not be read, with the reason."""


class StuckTransaction(NamedTuple):
    """A transaction that is decided, but that its coordinator cannot complete."""

    decided: TransactionDescription
    partition: TopicPartition | None
    """A partition without a marker; None if all partitions that could be read have one."""
    producer: PartitionProducer | None
    """The producer's state in the partition, if that could be read."""


async def list_transactions(
    cluster: Cluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Iterable[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> TransactionList:
    """All transactional ids by name. If a broker does not respond, only those it coordinates are
    missing."""
    fields = {
        "state_filters": list(states),
        "producer_id_filters": list(producer_ids),
        "duration_filter": longer_than_ms,
        "transactional_id_pattern": pattern,
    }

    async def ask(link: VersionedConnection, node: NodeId) -> list[ListedTransaction]:
        answer = await link.call(ApiKey.LIST_TRANSACTIONS, fields)
        check(answer)
        return [
            ListedTransaction(each.transactional_id, each.producer_id, each.transaction_state, node)
            for each in answer.transaction_states
        ]

    answers, silent = await ask_all_brokers(cluster, ask)
    by_id = {each.transactional_id: each for told in answers.values() for each in told}
    return TransactionList([by_id[name] for name in sorted(by_id)], silent)


async def describe_transaction(
    cluster: Cluster, transactional_id: str
) -> TransactionDescription | None:
    """None if there is no such id. Raises a `BrokerError`, OSError."""

    async def ask(coordinator: Coordinator) -> TransactionDescription | None:
        fields = {"transactional_ids": [transactional_id]}
        answer = await coordinator.call(ApiKey.DESCRIBE_TRANSACTIONS, fields)
        (found,) = answer.transaction_states
        if found.error_code == ErrorCode.transactional_id_not_found:
            return None
        coordinator.check(found)
        return TransactionDescription(
            transactional_id,
            found.transaction_state,
            Identity(ProducerId(found.producer_id), ProducerEpoch(found.producer_epoch)),
            int(found.transaction_timeout.total_seconds() * 1000),
            _time_ms(found.transaction_start_time),
            tuple(
                TopicPartition(topic.topic, PartitionIndex(index))
                for topic in found.topics
                for index in topic.partitions
            ),
            coordinator.node,
        )

    return await asking(cluster, transactional_id, ask, KeyType.TRANSACTION)


def _time_ms(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


async def producers_of(
    cluster: Cluster, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, list[PartitionProducer] | BrokerError]:
    """The producers that the partitions' leaders know. Raises OSError."""

    async def ask(
        link: VersionedConnection, led: dict[TopicPartition, Place]
    ) -> dict[TopicPartition, list[PartitionProducer] | BrokerError]:
        answer = await link.call(ApiKey.DESCRIBE_PRODUCERS, {"topics": _topics(led)})
        return {
            partition: (
                error_from(found.error_code, found.error_message)
                if found.error_code
                else [_producer(each) for each in found.active_producers]
            )
            for partition, found in each_partition(answer.topics)
        }

    return await ask_leaders(cluster, partitions, ask)


def _producer(found: Any) -> PartitionProducer:
    begun = found.current_txn_start_offset
    return PartitionProducer(
        Identity(ProducerId(found.producer_id), ProducerEpoch(found.producer_epoch)),
        found.last_sequence,
        found.last_timestamp,
        found.coordinator_epoch,
        None if begun == _NOT_OPEN else Offset(begun),
    )


async def find_hanging(
    cluster: Cluster, partitions: Iterable[TopicPartition], silent_since_ms: int
) -> HangingTransactions:
    """Open transactions without a write since `silent_since_ms` that no coordinator knows. Raises a
    `BrokerError`, OSError; also if a broker does not list its transactions."""
    candidates: list[OpenTransaction] = []
    unread: dict[TopicPartition, str] = {}
    for partition, producers in sorted((await producers_of(cluster, partitions)).items()):
        if isinstance(producers, BrokerError):
            unread[partition] = str(producers)
            continue
        candidates += [
            OpenTransaction(partition, producer)
            for producer in producers
            if producer.open_from is not None and producer.last_timestamp <= silent_since_ms
        ]
    if not candidates:
        return HangingTransactions([], unread)
    ids = {candidate.producer.producer.producer_id: None for candidate in candidates}
    known, silent = await list_transactions(cluster, producer_ids=ids)
    for node, why in silent.items():
        raise BrokerError(f"broker {node} has not told of its transactions: {why}")
    coordinated: set[tuple[int, TopicPartition]] = set()
    for listed in known:
        described = await describe_transaction(cluster, listed.transactional_id)
        if described is not None:
            coordinated |= {(listed.producer_id, partition) for partition in described.partitions}
    hanging = [
        candidate
        for candidate in candidates
        if (candidate.producer.producer.producer_id, candidate.partition) not in coordinated
    ]
    return HangingTransactions(hanging, unread)


async def find_stuck(
    cluster: Cluster, readable: Collection[TopicPartition], begun_ms_ago: int
) -> tuple[list[StuckTransaction], dict[NodeId, str]]:
    """Transactions that are decided, but whose markers are not all written: begun so long ago that
    they cannot be on their way any more; and why brokers have not told of theirs. `readable`: the
    partitions that have a leader. Raises a `BrokerError`, OSError."""
    known, silent = await list_transactions(cluster, states=_PREPARED, longer_than_ms=begun_ms_ago)
    stuck: list[StuckTransaction] = []
    for listed in known:
        decided = await describe_transaction(cluster, listed.transactional_id)
        if decided is None or decided.state not in _PREPARED:
            continue
        told = await producers_of(cluster, [tp for tp in decided.partitions if tp in readable])
        found = []
        for partition in decided.partitions:
            producers = told.get(partition)
            if producers is None or isinstance(producers, BrokerError):
                found.append(StuckTransaction(decided, partition, None))
                continue
            found += [
                StuckTransaction(decided, partition, producer)
                for producer in producers
                if producer.producer.producer_id == decided.producer.producer_id
                and producer.open_from is not None
            ]
        stuck += found or [StuckTransaction(decided, None, None)]
    return stuck, silent


async def write_abort_marker(cluster: Cluster, transaction: OpenTransaction) -> None:
    """End a hanging transaction in one partition. Raises a `BrokerError`, OSError; InvalidTxnState
    if a coordinator knows it."""
    producer, partition = transaction.producer, transaction.partition
    marker = {
        "producer_id": producer.producer.producer_id,
        "producer_epoch": producer.producer.epoch,
        "transaction_result": False,
        "topics": _topics([partition]),
        # No coordinator has written yet if the transaction is the producer's first.
        "coordinator_epoch": max(producer.coordinator_epoch, 0),
        "transaction_version": 0,
    }

    async def ask(
        link: VersionedConnection, _: dict[TopicPartition, Place]
    ) -> dict[TopicPartition, BrokerError | None]:
        answer = await link.call(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
        code = answer.markers[0].topics[0].partitions[0].error_code
        return {partition: error_from(code) if code else None}

    error = (await ask_leaders(cluster, [partition], ask))[partition]
    if error is not None:
        raise error


def _topics(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics = by_topic(partitions).items()
    return [{"name": name, "partition_indexes": indexes} for name, indexes in topics]
