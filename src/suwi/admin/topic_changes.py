"""Changes of topics: partitions and settings, deletion of old records, preferred leaders.

What a change would do is known before it is made: it is validated, or planned.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.reassignment import Tell, change_replication_factor
from suwi.admin.text import count_text
from suwi.admin.topic_descriptions import existing_topic
from suwi.client.admin import Admin, Resource, ResourceType
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, TopicPartition


class TopicChange(NamedTuple):
    """None: unchanged."""

    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str | None] = {}
    """A value of None unsets the key."""


async def alter_topic(
    cluster: Cluster, name: str, change: TopicChange, tell: Tell, *, dry_run: bool
) -> TopicInfo:
    """Returns the topic as it was. All changes are validated before any is made, so that an error
    leaves all unchanged."""
    topic, admin = await existing_topic(cluster, name), Admin(cluster)
    has = len(topic.partitions)
    if change.partitions is not None and change.partitions < has:
        raise Failure(f"{name} has {has} partitions: they can be added, never removed")
    if change.partitions == has:
        raise Failure(f"{name} has {count_text(has, 'partition')} already")
    for validate_only in (True,) if dry_run else (True, False):
        if change.partitions is not None:
            await admin.add_partitions(name, change.partitions, validate_only=validate_only)
        if change.configs:
            resource = Resource(ResourceType.TOPIC, name)
            await admin.alter_configs(resource, change.configs, validate_only=validate_only)
        if change.replication_factor is not None:
            await change_replication_factor(
                cluster, name, change.replication_factor, tell, dry_run=validate_only
            )
    return topic


# -- old records -----------------------------------------------------------------------------------


class RecordDeletion(NamedTuple):
    """The records of a partition before an offset."""

    partition: TopicPartition
    start: Offset
    before: Offset


async def plan_record_deletion(
    cluster: Cluster, name: str, index: int, before: int | None
) -> RecordDeletion:
    """Without an offset: all records that can be read now."""
    partition = TopicPartition(name, (await existing_topic(cluster, name)).partition(index).index)
    start = (await list_offsets(cluster, {partition: EARLIEST}))[partition].offset
    end = (await list_offsets(cluster, {partition: LATEST}))[partition].offset
    wanted = end if before is None else Offset(before)
    if not start < wanted <= end:
        has = f"it has offsets {start} to {end - 1}" if start < end else "it has no records"
        raise Failure(f"{partition} has no records to delete before offset {wanted}: {has}")
    return RecordDeletion(partition, start, wanted)


async def delete_records(cluster: Cluster, deletion: RecordDeletion) -> Offset:
    """Returns the first offset that the partition still has."""
    asked = {deletion.partition: deletion.before}
    low_watermark = (await Admin(cluster).delete_records(asked))[deletion.partition]
    if isinstance(low_watermark, BrokerError):
        raise low_watermark
    return low_watermark


# -- preferred leaders -----------------------------------------------------------------------------


class LeaderChange(NamedTuple):
    partition: TopicPartition
    leader: int
    preferred: int
    is_in_sync: bool
    """Whether the preferred leader can be elected."""


async def plan_preferred_leaders(cluster: Cluster, names: Sequence[str]) -> list[LeaderChange]:
    """The partitions that another broker leads than their first replica. Without names: of all
    topics. Raises `Failure` if there are none."""
    await cluster.refresh(names)
    topics = [await existing_topic(cluster, name) for name in names] or await cluster.topics()
    changes = [
        LeaderChange(
            TopicPartition(topic.name, each.index),
            each.leader,
            each.replicas[0],
            each.replicas[0] in each.isr,
        )
        for topic in topics
        for each in topic.partitions
        if each.leader != each.replicas[0]
    ]
    if not changes:
        raise Failure("every partition is led by its preferred leader already")
    return changes


async def elect_preferred_leaders(
    cluster: Cluster, changes: Sequence[LeaderChange]
) -> dict[TopicPartition, str | None]:
    """Why each was not elected, or None."""
    results = await Admin(cluster).elect_preferred_leaders([each.partition for each in changes])
    return {place: None if error is None else str(error) for place, error in results.items()}
