"""The broker's configuration as it is in force: what was set while running lies over the file."""

from collections.abc import Callable, Mapping

from suwi.metadata.image import ClusterImage
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.ids import NodeId


class LiveConfig:
    """Asked again and again by whatever takes new values; parses only what has changed."""

    def __init__(self, static: BrokerConfig, image: Callable[[], ClusterImage]) -> None:
        self._static = static
        self._image = image
        self._known: Mapping[str, Mapping[str, str]] = {}
        self._current = static

    @property
    def current(self) -> BrokerConfig:
        image = self._image()
        if image.broker_configs is not self._known:
            dynamic = image.dynamic_config(NodeId(self._static.node_id))
            self._current = parse_broker_config({**self._static.given, **dynamic}).config
            self._known = image.broker_configs
        return self._current
