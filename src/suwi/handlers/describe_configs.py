"""DescribeConfigs v1-v4. Every key with its value and where that comes from; v3: what it means."""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.config_admin import Resource
from suwi.controller.config_view import ConfigView, Setting
from suwi.controller.topic_names import check_topic_name
from suwi.handlers.config_fields import described_fields
from suwi.handlers.errors import error_of, reply
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError, InvalidRequest, UnknownTopicOrPartition
from suwi.model.ids import NodeId
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replicas import Replicas


class DescribeConfigs:
    def __init__(self, replicas: Replicas, config: BrokerConfig, node_id: NodeId) -> None:
        self._replicas = replicas
        self._config = config
        self._node_id = node_id

    def __call__(self, request: Request) -> Answer:
        asked = request.message
        synonyms = asked.include_synonyms
        documentation = getattr(asked, "include_documentation", False)
        times_named = Counter((r.resource_type, r.resource_name) for r in asked.resources)
        results = []
        for resource in asked.resources:
            error, message, settings = ErrorCode.none, None, list[Setting]()
            try:
                # A few bytes ask for many kilobytes.
                if times_named[resource.resource_type, resource.resource_name] > 1:
                    raise InvalidRequest(f"{resource.resource_name!r} is named more than once")
                settings = self._settings(resource)
            except BrokerError as problem:
                error, message = error_of(problem)
            wanted = resource.configuration_keys
            results.append(
                {
                    "error_code": error,
                    "error_message": message,
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                    "configs": [
                        described_fields(setting, synonyms=synonyms, documentation=documentation)
                        for setting in settings
                        if wanted is None or setting.name in wanted
                    ],
                }
            )
        return reply(request, {"throttle_time": 0, "results": results})

    def _settings(self, resource: Any) -> list[Setting]:
        image, name = self._replicas.image, resource.resource_name
        view = ConfigView(image, self._config, self._node_id)
        if resource.resource_type == Resource.TOPIC:
            check_topic_name(name)
            topic = image.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            return view.of_topic(topic)
        if resource.resource_type == Resource.BROKER:
            if name == "":
                return view.of_all_brokers()
            if name != str(self._node_id):
                raise InvalidRequest(f"this is broker {self._node_id}, not {name!r}")
            return view.of_broker()
        raise InvalidRequest(f"resource type {resource.resource_type} has no configuration here")
