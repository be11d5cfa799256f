"""Transactions that hang.

They are open in a partition and no coordinator ends them, or decided and without their markers.
"""

from collections.abc import Mapping
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.topic_descriptions import existing_topic
from suwi.client.cluster import Cluster
from suwi.client.transaction_admin import (
    OpenTransaction,
    StuckTransaction,
    find_hanging,
    find_stuck,
    producers_of,
    write_abort_marker,
)
from suwi.model.errors import BrokerError, InvalidTxnState
from suwi.model.ids import NO_NODE, NodeId, PartitionIndex, TopicPartition


class HangingTransaction(NamedTuple):
    topic: str | None
    partition: int | None
    start_offset: int | None
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None
    last_timestamp: int | None
    transactional_id: str | None
    state: str | None
    reason: str


class HangingReport(NamedTuple):
    found: list[HangingTransaction]
    unread: Mapping[TopicPartition, str]
    """The partitions that could not be read, and why."""
    silent: Mapping[NodeId, str]
    """The coordinators that do not respond, and why."""


async def find_hanging_transactions(
    cluster: Cluster, topic: str | None, partition: int | None, *, silent_ms: int, now_ms: int
) -> HangingReport:
    """Those without a write for `silent_ms`; of all topics, of one, or of one of its partitions."""
    topics = await cluster.topics() if topic is None else [await existing_topic(cluster, topic)]
    if partition is not None:
        topics[0].partition(partition)
    led = {
        TopicPartition(info.name, each.index): each.leader != NO_NODE
        for info in topics
        for each in info.partitions
        if partition in (None, each.index)
    }
    readable = [tp for tp, has_leader in led.items() if has_leader]
    hanging, unread = await find_hanging(cluster, readable, now_ms - silent_ms)
    unread |= {tp: "it has no leader" for tp, has_leader in led.items() if not has_leader}
    stuck, silent = await find_stuck(cluster, readable, silent_ms)
    found = [_hanging(each) for each in hanging] + [
        _stuck(each, unread)
        for each in stuck
        if each.partition in led or (each.partition is None and topic is None)
    ]
    return HangingReport(found, unread, silent)


def _hanging(found: OpenTransaction) -> HangingTransaction:
    producer = found.producer
    return HangingTransaction(
        *found.partition,
        producer.open_from,
        *producer.producer,
        producer.coordinator_epoch,
        producer.last_timestamp,
        None,
        None,
        "no coordinator knows it: suwi transactions abort ends it",
    )


def _stuck(found: StuckTransaction, unread: Mapping[TopicPartition, str]) -> HangingTransaction:
    """It is decided, and ends when each of its partitions has a marker."""
    decided, partition, producer = found
    if partition is None:
        reason = "its coordinator has not completed it"
    elif producer is None:
        reason = unread.get(partition, "the partition could not be read")
    else:
        reason = "its marker is not written"
    return HangingTransaction(
        partition.topic if partition is not None else None,
        partition.partition if partition is not None else None,
        producer.open_from if producer is not None else None,
        *decided.producer,
        producer.coordinator_epoch if producer is not None else None,
        producer.last_timestamp if producer is not None else None,
        decided.transactional_id,
        decided.state,
        reason,
    )


async def find_open_transaction(
    cluster: Cluster, topic: str, index: int, start_offset: int
) -> OpenTransaction:
    """The transaction that begins at this offset of a partition. Raises `Failure`."""
    (await existing_topic(cluster, topic)).partition(index)
    partition = TopicPartition(topic, PartitionIndex(index))
    producers = (await producers_of(cluster, [partition]))[partition]
    if isinstance(producers, BrokerError):
        raise producers
    found = [producer for producer in producers if producer.open_from == start_offset]
    if not found:
        raise Failure(f"no open transaction of {partition} begins at offset {start_offset}")
    return OpenTransaction(partition, found[0])


async def abort_hanging_transaction(cluster: Cluster, transaction: OpenTransaction) -> None:
    """End a transaction in one partition. Raises `Failure`."""
    try:
        await write_abort_marker(cluster, transaction)
    except InvalidTxnState:
        raise Failure(
            f"the transaction of {transaction.partition} that begins at offset "
            f"{transaction.producer.open_from} does not hang: a coordinator knows it, and ends it; "
            "see suwi transactions list"
        ) from None
