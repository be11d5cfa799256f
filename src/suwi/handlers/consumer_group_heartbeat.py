"""ConsumerGroupHeartbeat v0-v1 (KIP-848). v1: regular expressions, member ids made by clients."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call, Event
from suwi.env.slices import Pace, Slices
from suwi.group.consumer_group import HeartbeatRequest, HeartbeatResponse
from suwi.group.group_coordinator_shard import GroupCall, GroupCoordinatorShard, GroupRuntime
from suwi.handlers.coordinator_requests import CoordinatorHandler
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, SlicedItems
from suwi.model.errors import shortened
from suwi.model.ids import TopicId
from suwi.net.dispatch import Request
from suwi.security.acls import Operation, ResourceType

_REGEX_FROM: Final = 1
_PARTITIONS_PER_ITEM: Final = 16


class ConsumerGroupHeartbeat(CoordinatorHandler[GroupCoordinatorShard, HeartbeatResponse]):
    def __init__(self, groups: GroupRuntime, is_enabled: Callable[[], bool]) -> None:
        """`is_enabled`: whether the cluster's group.version includes the protocol."""
        super().__init__(groups)
        self._is_enabled = is_enabled

    def call_of(self, request: Request) -> GroupCall | ErrorCode:
        if not self._is_enabled():
            return ErrorCode.unsupported_version
        if request.refuses(Operation.READ, ResourceType.GROUP, request.message.group_id):
            return ErrorCode.group_authorization_failed
        if not request.message.group_id:
            return ErrorCode.invalid_request
        return Call(_heartbeat, request, request.message.group_id, prolongs=True)

    def error_response(self, request: Request, error: ErrorCode) -> HeartbeatResponse:
        is_nameless = error is ErrorCode.invalid_request and not request.message.group_id
        return HeartbeatResponse(error, "GroupId can't be empty." if is_nameless else None)

    def encode(self, request: Request, response: HeartbeatResponse) -> Sliced:
        assignment = None
        if response.assignment is not None:
            topics = SlicedItems(request, ("assignment", "topic_partitions"))
            in_slice = 0
            for topic_id, partitions in response.assignment.items():
                topics.add({"topic_id": topic_id, "partitions": sorted(partitions)})
                in_slice += 1 + len(partitions) // _PARTITIONS_PER_ITEM
                if in_slice >= SLICE_PARTITIONS:
                    in_slice = 0
                    topics.encode()
                    yield
            assignment = {"topic_partitions": topics.take()}
        return reply(
            request,
            {
                "error_code": response.error,
                "error_message": shortened(response.message),
                "member_id": response.member_id,
                "member_epoch": response.member_epoch,
                "heartbeat_interval": response.heartbeat_interval_ms,
                "assignment": assignment,
            },
        )


def _heartbeat(machine: GroupCoordinatorShard, request: Request, event: Event) -> Slices[None]:
    heartbeat = yield from _decode(request)
    hidden = yield from _first_hidden(request, heartbeat.topic_names or ())
    if hidden is None:
        yield from machine.consumer_heartbeat(heartbeat, event)
    else:
        message = f"{request.client.principal} has no right to describe on topic {hidden}"
        event.reply(HeartbeatResponse(ErrorCode.topic_authorization_failed, message))


def _first_hidden(request: Request, topics: Iterable[str]) -> Slices[str | None]:
    """The first topic that the client may not see."""
    pace = Pace()
    for name in topics:
        if request.refuses(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return name
        if pace.is_over(1 if request.authorizer is None else 5):
            yield
    return None


def _decode(request: Request) -> Slices[HeartbeatRequest]:
    asked = request.message
    names, owned = asked.subscribed_topic_names, asked.topic_partitions
    if owned is not None:
        owned = yield from _owned(owned)
    return HeartbeatRequest(
        asked.group_id,
        asked.member_id,
        asked.member_epoch,
        asked.instance_id,
        asked.rack_id,
        int(asked.rebalance_timeout.total_seconds() * 1000),
        None if names is None else tuple(names),
        asked.subscribed_topic_regex if request.version >= _REGEX_FROM else None,
        asked.server_assignor,
        owned,
        request.client_id or "",
        f"/{request.client.host}",
        must_bring_its_id=request.version >= _REGEX_FROM,
        may_see=_may_see(request),
    )


def _may_see(request: Request) -> Callable[[str], bool] | None:
    """Whether a topic that a regular expression matches is one for this client."""
    if request.authorizer is None:
        return None
    may, client = request.authorizer.may, request.client
    describe = Operation.DESCRIBE, ResourceType.TOPIC
    return lambda topic: may(client.principal, client.host, *describe, topic)


def _owned(topics: Any) -> Slices[dict[TopicId, list[int]]]:
    pace = Pace()
    owned: dict[TopicId, list[int]] = {}
    for topic in topics:
        owned.setdefault(TopicId(topic.topic_id), []).extend(topic.partitions)
        if pace.is_over(2):
            yield
    return owned
