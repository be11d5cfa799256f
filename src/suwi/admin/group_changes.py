"""Deletion of groups and of their offsets, and why a broker refuses it."""

from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from suwi.admin.failure import Failure
from suwi.client.cluster import Cluster
from suwi.client.groups import delete_group, delete_offsets
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition

_REFUSALS = {
    ErrorCode.non_empty_group: "it has members; stop them first",
    ErrorCode.group_subscribed_to_topic: "its members are subscribed to the topic",
    ErrorCode.group_id_not_found: "there is no such group",
}


async def remove_group(cluster: Cluster, name: str) -> None:
    """Raises `Failure`, caused by the broker's error; OSError."""
    try:
        await delete_group(cluster, name)
    except BrokerError as error:
        raise Failure(f"group {name!r} was not deleted: {_refusal(error)}") from error


async def remove_offsets(
    cluster: Cluster, name: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, str | None]:
    """Why the offset of each was not deleted, or None."""
    results = await delete_offsets(cluster, name, partitions)
    return {place: None if error is None else _refusal(error) for place, error in results.items()}


def _refusal(error: BrokerError) -> str:
    return _REFUSALS.get(error.code) or error.message or error.code.name.replace("_", " ")
