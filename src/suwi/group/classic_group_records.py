"""Records of classic groups, with Apache Kafka's schemas: GroupMetadata."""

from dataclasses import dataclass
from typing import Final

from suwi.coordinator.record import RecordType
from suwi.group.record_fields import INT16, INT32, INT64, read_bytes, read_int32, read_int64, sized
from suwi.model.ids import NO_TIMESTAMP
from suwi.wire.primitives import Reader, legacy_string

_GROUP_METADATA: Final = 2


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    group_id: str

    def encode(self) -> bytes:
        return INT16.pack(_GROUP_METADATA) + legacy_string(self.group_id)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes

    def encode(self) -> bytes:
        return b"".join(
            (
                legacy_string(self.member_id),
                legacy_string(self.instance_id),
                legacy_string(self.client_id),
                legacy_string(self.client_host),
                INT32.pack(self.rebalance_timeout_ms),
                INT32.pack(self.session_timeout_ms),
                sized(self.subscription, False),
                sized(self.assignment, False),
            )
        )


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]

    def encode(self) -> bytes:
        """In version 3, which Kafka writes, too: older readers do not know the tagged fields of
        version 4."""
        return b"".join(
            (
                b"\0\3",
                legacy_string(self.protocol_type),
                INT32.pack(self.generation),
                legacy_string(self.protocol),
                legacy_string(self.leader),
                INT64.pack(self.state_timestamp_ms),
                INT32.pack(len(self.members)),
                *(member.encode() for member in self.members),
            )
        )


def _read_group(reader: Reader, version: int) -> GroupMetadataValue:
    flexible = version >= 4
    protocol_type, generation = reader.string(flexible), read_int32(reader)
    protocol, leader = reader.nullable_string(flexible), reader.nullable_string(flexible)
    since_ms = read_int64(reader) if version >= 2 else NO_TIMESTAMP
    members = tuple(
        _read_member(reader, version, flexible) for _ in range(reader.count(flexible, 10))
    )
    if flexible:
        reader.skip_tags()
    return GroupMetadataValue(protocol_type, generation, protocol, leader, since_ms, members)


def _read_member(reader: Reader, version: int, flexible: bool) -> MemberMetadata:
    member_id = reader.string(flexible)
    instance_id = reader.nullable_string(flexible) if version >= 3 else None
    client_id, client_host = reader.string(flexible), reader.string(flexible)
    rebalance_ms = read_int32(reader) if version >= 1 else -1
    session_ms = read_int32(reader)
    subscription, assignment = read_bytes(reader, flexible), read_bytes(reader, flexible)
    if flexible:
        reader.skip_tags()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_ms if rebalance_ms < 0 else rebalance_ms,
        session_ms,
        subscription,
        assignment,
    )


CLASSIC_GROUP_RECORDS: Final = {
    _GROUP_METADATA: RecordType(
        lambda reader: GroupMetadataKey(reader.string(False)), _read_group, 4
    )
}
