"""JoinGroup v0-v9. v1: rebalance timeout. v4: member id required. v5: static members."""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.group.classic_group import JoinRequest, JoinResponse
from suwi.group.consumer_group_records import Protocol
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard
from suwi.handlers.coordinator_requests import CoordinatorHandler
from suwi.handlers.errors import reply
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_REBALANCE_TIMEOUT_FROM = 1
_MEMBER_ID_REQUIRED_FROM = 4
_INSTANCE_ID_FROM = 5
_NO_PROTOCOL_IS_NULL_FROM = 7
_REASON_FROM = 8
_SKIP_ASSIGNMENT_FROM = 9
_REASON_CHARACTERS_MAX = 255
_PROTOCOLS_MAX = 1_000
_NAME_BYTES_MAX = 32_767 - 1 - 36
"""A member id is made of a name and a UUID, and records have 16 bits for the length of a string."""


class JoinGroup(CoordinatorHandler[GroupCoordinatorShard, JoinResponse]):
    def call_of(self, request: Request) -> GroupCall | ErrorCode:
        asked = request.message
        if not asked.group_id:
            return ErrorCode.invalid_group_id
        if len(asked.protocols) > _PROTOCOLS_MAX:
            return ErrorCode.invalid_request
        join = _join_request(request)
        if len((join.instance_id or join.client_id).encode()) > _NAME_BYTES_MAX:
            return ErrorCode.invalid_request
        return Call(GroupCoordinatorShard.join, join, join.group_id)

    def error_response(self, request: Request, error: ErrorCode) -> JoinResponse:
        return JoinResponse(error, request.message.member_id)

    def encode(self, request: Request, response: JoinResponse) -> Reply:
        protocol = response.protocol
        if protocol is None and request.version < _NO_PROTOCOL_IS_NULL_FROM:
            protocol = ""
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in response.members
        ]
        return reply(
            request,
            {
                "error_code": response.error,
                "generation_id": response.generation,
                "protocol_type": response.protocol_type,
                "protocol_name": protocol,
                "leader": response.leader,
                "skip_assignment": response.skip_assignment,
                "member_id": response.member_id,
                "members": members,
            },
        )


def _join_request(request: Request) -> JoinRequest:
    asked, version = request.message, request.version
    session_ms = int(asked.session_timeout.total_seconds() * 1000)
    rebalance_ms = session_ms
    if version >= _REBALANCE_TIMEOUT_FROM:
        rebalance_ms = int(asked.rebalance_timeout.total_seconds() * 1000)
    reason = asked.reason or "" if version >= _REASON_FROM else ""
    return JoinRequest(
        asked.group_id,
        asked.member_id,
        asked.group_instance_id if version >= _INSTANCE_ID_FROM else None,
        asked.protocol_type,
        _protocols(asked),
        session_ms,
        rebalance_ms,
        request.client_id or "",
        f"/{request.client.host}",
        reason[:_REASON_CHARACTERS_MAX],
        must_know_its_id=version >= _MEMBER_ID_REQUIRED_FROM,
        can_skip_assignment=version >= _SKIP_ASSIGNMENT_FROM,
    )


def _protocols(asked: Any) -> tuple[Protocol, ...]:
    """Each name counts once, however often it was given."""
    by_name: dict[str, Protocol] = {}
    for protocol in asked.protocols:
        by_name.setdefault(protocol.name, Protocol(protocol.name, protocol.metadata))
    return tuple(by_name.values())
