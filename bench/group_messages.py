"""Requests of group members, in versions that Suwi and Apache Kafka both serve."""

from collections.abc import Mapping, Sequence

from bench.messages import read, request
from suwi.wire.versions import ApiKey

PROTOCOL = "range"
_SESSION_MS, _REBALANCE_MS = 30_000, 60_000


def find_coordinator(group: str) -> bytes:
    fields = {"key": group, "key_type": 0, "coordinator_keys": [group]}
    return request(ApiKey.FIND_COORDINATOR, fields)


def join(group: str, member_id: str, metadata: bytes) -> bytes:
    return request(
        ApiKey.JOIN_GROUP,
        {
            "group_id": group,
            "session_timeout": _SESSION_MS,
            "rebalance_timeout": _REBALANCE_MS,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": PROTOCOL, "metadata": metadata}],
        },
    )


def sync(group: str, member_id: str, generation: int, assignments: Mapping[str, bytes]) -> bytes:
    return request(
        ApiKey.SYNC_GROUP,
        {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocol_name": PROTOCOL,
            "assignments": [
                {"member_id": each, "assignment": given} for each, given in assignments.items()
            ],
        },
    )


def heartbeat(group: str, member_id: str, generation: int) -> bytes:
    return request(
        ApiKey.HEARTBEAT,
        {
            "group_id": group,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
        },
    )


def commit(group: str, topic: str, partitions: int, offset: int) -> bytes:
    """Of a group without members."""
    each = [
        {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for index in range(partitions)
    ]
    return request(
        ApiKey.OFFSET_COMMIT,
        {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": each}],
        },
    )


def commit_error(reply: bytes) -> int:
    """The first error of its partitions; 0 if there is none."""
    answer = read(ApiKey.OFFSET_COMMIT, reply)
    return next(
        (int(e.error_code) for topic in answer.topics for e in topic.partitions if e.error_code), 0
    )


def fetch_offsets(groups: Sequence[str]) -> bytes:
    """All offsets of each."""
    asked = [{"group_id": group, "topics": None} for group in groups]
    return request(ApiKey.OFFSET_FETCH, {"groups": asked, "require_stable": False})
