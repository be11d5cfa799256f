"""What the coordinator reads of the protocol "consumer", which classic members use."""

from typing import Final

from suwi.group.classic_group import ClassicGroup
from suwi.wire.consumer_protocol import decode_assignment, decode_subscription
from suwi.wire.errors import MalformedMessage

PROTOCOL_TYPE: Final = "consumer"


def read_topics(data: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None where it cannot be read."""
    try:
        return frozenset(decode_subscription(data).topics)
    except MalformedMessage:
        return None


def is_revoking(subscription: bytes, assignment: bytes) -> bool:
    """Whether a cooperative member was to give up partitions, and then to join again."""
    try:
        kept = decode_assignment(assignment).partitions
        return not set(decode_subscription(subscription).owned).issubset(kept)
    except MalformedMessage:
        return False


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member wants; None where that is not known (hazard G12)."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE or group.protocol is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        wanted = read_topics(member.metadata_for(group.protocol))
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)
