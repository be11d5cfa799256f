"""DescribeConfigs v1-v4. Every key with its value and its source. v3: documentation of the key."""

from collections import Counter
from typing import Any, Final

from suwi.controller.config_view import ConfigView, Setting
from suwi.controller.configuration_control import Resource
from suwi.handlers.authorization import check
from suwi.handlers.errors import error_fields
from suwi.handlers.image_replies import SLICE_UNITS, ImageReplies, Pieces, Steps
from suwi.handlers.metadata import find_topic
from suwi.handlers.slices import counting
from suwi.metadata.image import ClusterImage
from suwi.model.broker_config import BrokerConfig
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.model.ids import NodeId
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.wire.codec import encode_items, encode_response

_KEYS_AT_ONCE: Final = 2_000
_TYPES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "password": 9,
}
_RESOURCE_UNITS: Final = 2  # cost of a resource without its settings; see `image_replies.Steps`


class DescribeConfigs:
    def __init__(self, replicas: ReplicaManager, config: BrokerConfig, node_id: NodeId) -> None:
        self._replicas = replicas
        self._config = config
        self._node_id = node_id
        self._replies = ImageReplies()

    def __call__(self, request: Request) -> Answer:
        key, image = self._replies.key(request), self._replicas.image
        return self._replies.cached(key, image) or self._replies.build(
            request, key, image, self._encode(request, image)
        )

    def _encode(self, request: Request, image: ClusterImage) -> Steps:
        asked = request.message
        view = ConfigView(image, self._config, self._node_id)
        times_named: Counter[tuple[int, str]] = Counter()
        for _ in counting(
            times_named, ((r.resource_type, r.resource_name) for r in asked.resources)
        ):
            yield SLICE_UNITS
        pieces = Pieces()
        for resource in asked.resources:
            error, settings = error_fields(None), list[Setting]()
            try:
                # Each repetition costs a few bytes in the request and kilobytes in the response.
                if times_named[resource.resource_type, resource.resource_name] > 1:
                    raise InvalidRequest(f"{resource.resource_name!r} is named more than once")
                check_resource(request, Operation.DESCRIBE_CONFIGS, resource)
                settings = self._settings(resource, view, image)
            except BrokerError as problem:
                error = error_fields(problem)
            keys = resource.configuration_keys
            wanted = set[str]()
            for first in range(0, len(keys or ()), _KEYS_AT_ONCE):
                if first:
                    yield SLICE_UNITS
                wanted.update(keys[first : first + _KEYS_AT_ONCE])
            result = {
                **error,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [
                    _described_fields(
                        setting,
                        synonyms=asked.include_synonyms,
                        documentation=getattr(asked, "include_documentation", False),
                    )
                    for setting in settings
                    if not keys or setting.name in wanted  # no keys: all, as in Kafka
                ],
            }
            pieces.add(encode_items(request.api_key, request.version, ("results",), [result]))
            yield _RESOURCE_UNITS + len(settings)
        fields = {"results": pieces.all()}
        return encode_response(request.api_key, request.version, fields)

    def _settings(self, resource: Any, view: ConfigView, image: ClusterImage) -> list[Setting]:
        name = resource.resource_name
        if resource.resource_type == Resource.TOPIC:
            return view.of_topic(find_topic(name, image))
        if resource.resource_type == Resource.BROKER:
            if name == "":
                return view.of_all_brokers()
            if name != str(self._node_id):
                raise InvalidRequest(f"this is broker {self._node_id}, not {name!r}")
            return view.of_broker()
        if resource.resource_type == Resource.GROUP:
            if not name:
                raise InvalidRequest("the name of a group is missing")
            return view.of_group(image.group_configs.get(name, {}))
        raise InvalidRequest(f"resource type {resource.resource_type} has no configuration here")


def check_resource(request: Request, operation: Operation, resource: Any) -> None:
    """Raises the error of a client that may not see or change the settings of a resource."""
    name = resource.resource_name
    if resource.resource_type == Resource.TOPIC:
        check(request, operation, ResourceType.TOPIC, name)
    elif resource.resource_type == Resource.GROUP:
        check(request, operation, ResourceType.GROUP, name)
    else:
        check(request, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def setting_fields(setting: Setting) -> dict[str, Any]:
    """The fields of a setting that every response has, also that of CreateTopics."""
    return {
        "name": setting.name,
        "value": None if setting.is_sensitive else setting.value,
        "read_only": setting.is_read_only,
        "config_source": setting.source,
        "is_sensitive": setting.is_sensitive,
    }


def _described_fields(setting: Setting, *, synonyms: bool, documentation: bool) -> dict[str, Any]:
    """With synonyms, type and documentation."""
    return {
        **setting_fields(setting),
        "synonyms": [
            {
                "name": found.name,
                "value": None if setting.is_sensitive else found.value,
                "source": found.source,
            }
            for found in setting.chain
            if synonyms and found.value is not None
        ],
        "config_type": _TYPES[setting.key.kind.name],
        "documentation": setting.key.doc if documentation else None,
    }
