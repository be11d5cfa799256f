"""What members of classic groups ask and are told, independent of the version on the wire."""

from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from suwi.group.classic_group import Protocol

NO_GENERATION = -1
UNKNOWN_MEMBER = ""


class JoinRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: tuple[Protocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str
    reason: str = ""
    must_know_its_id: bool = True
    """v4: whoever joins without an id is given one, and joins again with it (KIP-394)."""
    can_skip_assignment: bool = True
    """v9: a static leader that comes back can be told not to assign (KIP-814)."""


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResponse(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = UNKNOWN_MEMBER
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


class SyncRequest(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


class SyncResponse(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class LeavingMember(NamedTuple):
    member_id: str
    instance_id: str | None
    reason: str = ""


class LeaveRequest(NamedTuple):
    group_id: str
    members: Sequence[LeavingMember]
