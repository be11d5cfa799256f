"""ConsumerGroupHeartbeat v0-v1 (KIP-848). v1: regular expressions, member ids made by clients."""

from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Pace, Slices, Steps, Token
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.env.slices import run_to_end
from suwi.group.consumer_messages import HeartbeatRequest, HeartbeatResponse
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.handlers.coordinator_requests import ask_shard
from suwi.handlers.errors import reply
from suwi.handlers.slices import SLICE_PARTITIONS, Sliced, SlicedItems
from suwi.model.errors import shortened
from suwi.model.ids import TopicId
from suwi.net.answers import Answer, Later, Reply
from suwi.net.dispatch import Request

_REGEX_FROM: Final = 1
_PARTITIONS_PER_ITEM: Final = 16


class ConsumerGroupHeartbeat:
    def __init__(self, groups: CoordinatorRuntime, is_enabled: Callable[[], bool]) -> None:
        """`is_enabled`: whether the cluster's group.version includes the protocol."""
        self._groups = groups
        self._is_enabled = is_enabled

    def __call__(self, request: Request) -> Answer:
        group_id = request.message.group_id

        def encode(response: HeartbeatResponse) -> Reply | Later:
            encoding = _encoding(request, response)
            try:
                next(encoding)
            except StopIteration as done:
                reply: Reply = done.value
                return reply
            return Later(request.connection.slices.run(encoding))

        def refuse(error: ErrorCode) -> Reply:
            return run_to_end(_encoding(request, HeartbeatResponse(error)))

        if not self._is_enabled():
            return refuse(ErrorCode.unsupported_version)
        if not group_id:
            return encode(HeartbeatResponse(ErrorCode.invalid_request, "GroupId can't be empty."))

        def decide(
            shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
        ) -> Slices:
            heartbeat = yield from _heartbeat(request)
            yield from shard.consumer_heartbeat(heartbeat, token, now_ms, decision)

        return ask_shard(self._groups, group_id, decide, encode, refuse, prolongs=True)


def _heartbeat(request: Request) -> Steps[HeartbeatRequest]:
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
        f"/{request.client_host}",
        must_bring_its_id=request.version >= _REGEX_FROM,
    )


def _owned(topics: Any) -> Steps[dict[TopicId, list[int]]]:
    pace = Pace()
    owned: dict[TopicId, list[int]] = {}
    for topic in topics:
        owned.setdefault(TopicId(topic.topic_id), []).extend(topic.partitions)
        if pace.is_over(2):
            yield
    return owned


def _encoding(request: Request, response: HeartbeatResponse) -> Sliced:
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
            "throttle_time": 0,
            "error_code": response.error,
            "error_message": shortened(response.message),
            "member_id": response.member_id,
            "member_epoch": response.member_epoch,
            "heartbeat_interval": response.heartbeat_interval_ms,
            "assignment": assignment,
        },
    )
