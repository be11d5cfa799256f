"""The producers that a partition's leader remembers, idempotent and transactional."""

from typing import NamedTuple

from suwi.admin.topic_descriptions import existing_topic
from suwi.client.cluster import Cluster
from suwi.client.transaction_admin import list_transactions, producers_of
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition


class ProducerDescription(NamedTuple):
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    last_timestamp: int
    """Of its last batch; -1 if it has none."""
    start_offset: int | None
    """Where its open transaction begins, if it has one."""
    transactional_id: str | None
    """None: it has none, or the broker that coordinates it does not respond."""


async def describe_producers(cluster: Cluster, topic: str, index: int) -> list[ProducerDescription]:
    """Those with an open transaction first, then the last that wrote. Raises `Failure`."""
    (await existing_topic(cluster, topic)).partition(index)
    partition = TopicPartition(topic, PartitionIndex(index))
    found = (await producers_of(cluster, [partition]))[partition]
    if isinstance(found, BrokerError):
        raise found
    listed = (await list_transactions(cluster)).transactions if found else []
    names = {each.producer_id: each.transactional_id for each in listed}
    described = [
        ProducerDescription(
            *each.producer,
            each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp,
            each.open_from,
            names.get(each.producer.producer_id),
        )
        for each in found
    ]
    return sorted(described, key=lambda each: (each.start_offset is None, -each.last_timestamp))
