"""What members of consumer groups ask and are told, independent of the version on the wire."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.topics import Topic
from suwi.group.consumer_group import Target
from suwi.model.ids import TopicId

OwnedPartitions: TypeAlias = Mapping[TopicId, Sequence[int]]


class HeartbeatRequest(NamedTuple):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: OwnedPartitions | None = None
    client_id: str = ""
    client_host: str = ""
    must_bring_its_id: bool = True
    """v1: the client makes the member id (KIP-1082)."""

    @property
    def is_full(self) -> bool:
        """Sent when joining, and after an error: whatever the member knows may be outdated."""
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms != -1
            and (self.topic_names is not None or self.topic_regex is not None)
            and self.owned is not None
        )


class HeartbeatResponse(NamedTuple):
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Target | None = None
    """None: as it was."""


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assignment: Sequence[tuple[Topic, Sequence[int]]]
    target: Sequence[tuple[Topic, Sequence[int]]]
    uses_classic_protocol: bool


class DescribedGroup(NamedTuple):
    group_id: str
    state: str
    epoch: int
    assignment_epoch: int
    assignor: str
    members: Iterable[DescribedMember]
