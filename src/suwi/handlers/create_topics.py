"""CreateTopics v2-v7. v4: -1 means the broker's default. v5: configs in the response. v7: ids."""

from typing import Any

from suwi.controller.config_view import ConfigView
from suwi.controller.controller_election import ControllerElection
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.describe_configs import setting_fields
from suwi.handlers.errors import error_fields, reply
from suwi.handlers.slices import SlicedItems, sliced, times_named
from suwi.metadata.image import NewTopic, Topic
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError, InvalidConfig, InvalidRequest, PolicyViolation
from suwi.model.ids import NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager

_DEFAULT = -1
_ANSWERED = 0  # in place of how often a topic is named
# Applies to requests with several topics, as in Kafka: the response has all settings of each.
_PARTITIONS_PER_REQUEST_MAX = 10_000


class CreateTopics:
    def __init__(
        self,
        replicas: ReplicaManager,
        controller: ControllerElection,
        config: BrokerConfig,
        node_id: NodeId,
    ) -> None:
        self._replicas = replicas
        self._controller = controller
        self._config = config
        self._node_id = node_id

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        times = await times_named(request, (topic.name for topic in asked.topics))
        partitions = 0
        async for topic in sliced(request, asked.topics):
            partitions += self._partitions(topic)
        is_too_large = len(asked.topics) > 1 and partitions > _PARTITIONS_PER_REQUEST_MAX
        answers = SlicedItems(request, ("topics",))
        deadline_s = deadline_of(request)
        for topic in asked.topics:
            refusal: BrokerError | None = None
            if times[topic.name] > 1:
                times[topic.name] = _ANSWERED
                refusal = InvalidRequest(f"topic {topic.name!r} is named more than once")
            elif times[topic.name] == _ANSWERED:
                continue
            elif is_too_large:
                refusal = PolicyViolation(
                    f"topics of one request have at most {_PARTITIONS_PER_REQUEST_MAX} partitions "
                    "together"
                )
            answer = await self._create(topic, refusal, asked.validate_only, deadline_s)
            await answers.put(answer, 1 + len(answer["configs"]))
        return reply(request, {"throttle_time": 0, "topics": answers.take()})

    def _partitions(self, asked: Any) -> int:
        return len(asked.assignments) or _or_default(
            asked.num_partitions, self._config.num_partitions
        )

    async def _create(
        self, asked: Any, refusal: BrokerError | None, validate_only: bool, deadline_s: float
    ) -> dict[str, Any]:
        try:
            if refusal is not None:
                raise refusal
            new = self._new_topic(asked)
            async with in_time(deadline_s):
                topic = await self._controller.active.topics.create(
                    new, validate_only=validate_only
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
