"""Topics that were deleted while a broker was down, which deletes their data when it returns.

They are in entries of at most 1,000 topic ids: `deletions/ID` first, then `deletions/ID/1` and so
on, so that no entry becomes too large for a write while a broker is down for long.
"""

import json
from collections.abc import Mapping
from uuid import UUID

from suwi.metadata.store import Delete, Put
from suwi.model.ids import NodeId

DELETIONS = "deletions/"
SHARD_TOPICS = 1000

Shards = Mapping[int, frozenset[UUID]]
"""The topic ids of one broker, by the number of the entry. A number may be missing."""


def shard_of(key: str) -> tuple[NodeId, int]:
    """Which entry of which broker has this key."""
    node, _, shard = key.removeprefix(DELETIONS).partition("/")
    return NodeId(int(node)), int(shard or 0)


def decode_ids(value: bytes) -> frozenset[UUID]:
    return frozenset(map(UUID, json.loads(value)))


def put_deletion(node: NodeId, shards: Shards, topic_id: UUID) -> Put:
    """The entry with one more topic."""
    shard = max(shards, default=0)
    if len(shards.get(shard, ())) >= SHARD_TOPICS:
        shard += 1
    ids = shards.get(shard, frozenset()) | {topic_id}
    return Put(_key(node, shard), json.dumps(sorted(map(str, ids))).encode())


def delete_deletions(node: NodeId, shards: Shards) -> list[Delete]:
    return [Delete(_key(node, shard)) for shard in sorted(shards)]


def _key(node: NodeId, shard: int) -> str:
    return f"{DELETIONS}{node}/{shard}" if shard else f"{DELETIONS}{node}"
