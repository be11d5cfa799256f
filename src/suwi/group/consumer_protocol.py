"""The embedded protocol "consumer": what classic consumers send in JoinGroup, get from SyncGroup.

Versions 0–3 of ConsumerProtocolSubscription and ConsumerProtocolAssignment. A later version is read
as the last one known, as consumers do among each other. Malformed bytes raise `MalformedMessage`.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from suwi.group.classic_group import ClassicGroup
from suwi.wire.errors import MalformedMessage
from suwi.wire.primitives import Reader, legacy_string

PROTOCOL_TYPE: Final = "consumer"

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NULL_BYTES: Final = b"\xff\xff\xff\xff"
_T = TypeVar("_T")


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, Sequence[int]]
    rack_id: str | None


class EmbeddedAssignment(NamedTuple):
    partitions: Mapping[str, Sequence[int]]
    has_user_data: bool


def read_subscription(data: bytes) -> Subscription:
    return _read(data, _subscription)


def read_assignment(data: bytes) -> EmbeddedAssignment:
    return _read(data, _assignment)


def _read(data: bytes, decode: Callable[[Reader, int], _T]) -> _T:
    reader = Reader(memoryview(data))
    try:
        version: int = reader.unpack(_INT16)[0]
        if version < 0:
            raise MalformedMessage(f"version {version} of the protocol {PROTOCOL_TYPE}")
        return decode(reader, version)
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise MalformedMessage(f"malformed protocol {PROTOCOL_TYPE}: {error}") from error


def _subscription(reader: Reader, version: int) -> Subscription:
    topics = tuple(reader.string(False) for _ in range(reader.count(False, 2)))
    reader.nullable_bytes(False)
    owned = _partitions(reader) if version >= 1 else {}
    if version >= 2:
        reader.unpack(_INT32)
    rack_id = reader.nullable_string(False) if version >= 3 else None
    return Subscription(version, topics, owned, rack_id)


def _assignment(reader: Reader, _version: int) -> EmbeddedAssignment:
    partitions = _partitions(reader)
    return EmbeddedAssignment(partitions, bool(reader.nullable_bytes(False)))


def _partitions(reader: Reader) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for _ in range(reader.count(False, 6)):
        topic = reader.string(False)
        numbers = [reader.unpack(_INT32)[0] for _ in range(reader.count(False, 4))]
        found.setdefault(topic, []).extend(numbers)
    return found


def write_assignment(partitions: Mapping[str, Sequence[int]], version: int) -> bytes:
    """All versions up to 3 have the same fields."""
    out = [_INT16.pack(min(version, 3)), _INT32.pack(len(partitions))]
    for topic, numbers in partitions.items():
        out += (legacy_string(topic), _INT32.pack(len(numbers)))
        out.append(struct.pack(f">{len(numbers)}i", *numbers))
    return b"".join((*out, _NULL_BYTES))


def read_topics(data: bytes) -> frozenset[str] | None:
    """The topics of a subscription; None where it cannot be read."""
    try:
        return frozenset(read_subscription(data).topics)
    except MalformedMessage:
        return None


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
