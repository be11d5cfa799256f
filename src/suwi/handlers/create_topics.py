"""CreateTopics v2-v7. v4: -1 means the broker's default. v5: configs in the response.
v6: THROTTLING_QUOTA_EXCEEDED. v7: ids."""

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from suwi.controller.config_view import ConfigView
from suwi.controller.controller_election import ControllerElection
from suwi.handlers.authorization import refusal as refusal_of
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.describe_configs import setting_fields
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import SlicedItems, each_named, sliced
from suwi.metadata.image import NewTopic, Topic
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import (
    BrokerError,
    InvalidConfig,
    InvalidRequest,
    PolicyViolation,
    TopicAuthorizationFailed,
)
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.client_quota_manager import mutating
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType

_DEFAULT = -1
_QUOTA_ERROR_FROM = 6
# Applies to requests with several topics, as in Kafka: the response has all settings of each.
_PARTITIONS_PER_REQUEST_MAX = 10_000


@dataclass(eq=False)
class CreateTopics:
    _replicas: ReplicaManager
    _controller: ControllerElection
    _config: BrokerConfig
    _node_id: NodeId

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        partitions = 0
        async for topic in sliced(request, asked.topics):
            partitions += self._partitions(topic)
        is_too_large = len(asked.topics) > 1 and partitions > _PARTITIONS_PER_REQUEST_MAX
        answers = SlicedItems(request, ("topics",))
        creates_all = request.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        deadline_s = deadline_of(request)
        async for topic, times in each_named(request, asked.topics, attrgetter("name")):
            refusal: BrokerError | None = None
            if times > 1:
                refusal = InvalidRequest(f"topic {topic.name!r} is named more than once")
            elif is_too_large:
                refusal = PolicyViolation(
                    f"topics of one request have at most {_PARTITIONS_PER_REQUEST_MAX} partitions "
                    "together"
                )
            if not creates_all:
                refusal = refusal or refusal_of(
                    request, Operation.CREATE, ResourceType.TOPIC, topic.name
                )
            answer = await self._create(topic, refusal, request, deadline_s)
            may_see = request.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name)
            if not may_see and not answer["error_code"]:
                hidden = {"num_partitions": -1, "replication_factor": -1, "configs": ()}
                answer |= {**hidden, "topic_config_error_code": TopicAuthorizationFailed.code.value}
            await answers.put(answer, 1 + len(answer["configs"]))
        return answers.reply()

    def _partitions(self, asked: Any) -> int:
        return len(asked.assignments) or _or_default(
            asked.num_partitions, self._config.num_partitions
        )

    async def _create(
        self, asked: Any, refusal: BrokerError | None, request: Request, deadline_s: float
    ) -> dict[str, Any]:
        is_strict = request.version >= _QUOTA_ERROR_FROM
        try:
            if refusal is not None:
                raise refusal
            new = self._new_topic(asked)
            with mutating(request.quota, partial(self._partitions, asked), is_strict=is_strict):
                async with in_time(deadline_s):
                    topic = await self._controller.active.topics.create(
                        new, validate_only=request.message.validate_only
                    )
        except BrokerError as error:
            return {"name": asked.name, "topic_id": None, "configs": (), **error_fields(error)}
        return {
            "name": topic.name,
            "topic_id": topic.id,
            **error_fields(None),
            "num_partitions": len(topic.partitions),
            "replication_factor": len(topic.partitions[0].replicas),
            "configs": self._configs(topic),
        }

    def _new_topic(self, asked: Any) -> NewTopic:
        assignments = {a.partition_index: a.broker_ids for a in asked.assignments}
        if len(assignments) < len(asked.assignments):
            raise InvalidRequest("a partition is assigned twice")
        if assignments and (asked.num_partitions, asked.replication_factor) != (-1, -1):
            raise InvalidRequest("give either assignments or a number of partitions and replicas")
        configs = {config.name: config.value for config in asked.configs}
        if None in configs.values():
            raise InvalidConfig("a configuration cannot be null")
        return NewTopic(
            asked.name,
            _or_default(asked.num_partitions, self._config.num_partitions),
            _or_default(asked.replication_factor, self._config.default_replication_factor),
            configs,
            assignments,
        )

    def _configs(self, topic: Topic) -> list[dict[str, Any]]:
        view = ConfigView(self._replicas.image, self._config, self._node_id)
        return [setting_fields(setting) for setting in view.of_topic(topic)]


def _or_default(asked: int, default: int) -> int:
    return default if asked == _DEFAULT else asked
