"""Requests of group members, in versions that Suwi and Apache Kafka both serve."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.messages import CLIENT_ID, frame
from suwi.wire.codec import encode_request, read_response
from suwi.wire.headers import read_response_header, request_header
from suwi.wire.versions import ApiKey

_VERSIONS: Final = {
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.JOIN_GROUP: 7,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
    ApiKey.METADATA: 12,
}
PROTOCOL = "range"
_SESSION_MS, _REBALANCE_MS = 30_000, 60_000


def request(api: ApiKey, fields: dict[str, Any]) -> bytes:
    version = _VERSIONS[api]
    return frame(request_header(api, version, 0, CLIENT_ID) + encode_request(api, version, fields))


def read(api: ApiKey, reply: bytes) -> Any:
    version = _VERSIONS[api]
    _, body_at = read_response_header(api, version, reply)
    return read_response(api, version, reply, body_at)


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
