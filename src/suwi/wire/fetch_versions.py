"""The differences between the versions of Fetch, v4-v18, in requests and responses.

v5: log start offset. v7: sessions (KIP-227). v9: leader epoch. v11: racks. v12: compact fields,
last fetched epoch. v13: topic ids. v15: the replica's state is a tag. v16: node endpoints.
v17 and v18 add tags that only a KRaft quorum uses; they are skipped.
"""

from typing import Final
from uuid import UUID

from suwi.wire.primitives import Reader, string

SESSIONS_FROM: Final = 7
RACKS_FROM: Final = 11
FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
REPLICA_STATE_FROM: Final = 15
ENDPOINTS_FROM: Final = 16


def encode_topic_key(version: int, name: str | None, topic_id: UUID | None) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic_id.bytes  # type: ignore[union-attr]  # v13 has ids only
    return string(name, version >= FLEXIBLE_FROM)


def decode_topic_key(version: int, reader: Reader) -> tuple[str | None, UUID | None]:
    if version >= TOPIC_IDS_FROM:
        return None, reader.uuid()
    return reader.string(version >= FLEXIBLE_FROM), None
