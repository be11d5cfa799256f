"""What members of classic consumer groups tell each other: only the topics are read here.

The bytes belong to the clients (Kafka's ConsumerProtocolSubscription); anything may be in them.
"""

import struct

from suwi.group.classic_group import ClassicGroup
from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader

CONSUMER_PROTOCOL_TYPE = "consumer"
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def read_topics(subscription: bytes) -> frozenset[str] | None:
    """None where it cannot be read."""
    try:
        reader = Reader(memoryview(subscription))
        (version,) = reader.unpack(_INT16)
        if version < 0:
            return None
        (count,) = reader.unpack(_INT32)
        return frozenset(reader.string(False) for _ in range(count))
    except (MalformedMessage, IndexError, struct.error, UnicodeDecodeError):
        return None


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member wants; None where that is not known (hazard G12)."""
    if not group.members:
        return frozenset()
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE or group.protocol is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        wanted = read_topics(member.metadata_for(group.protocol))
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)
