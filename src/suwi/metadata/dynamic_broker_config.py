"""The configuration in effect: of the broker, the static configuration overridden by dynamic
settings; of a topic, what this version supports of its settings.

`apply_image` must be the first subscriber of the metadata follower, because others read the
configuration from here.
"""

import logging
from collections.abc import Mapping

from suwi.metadata.image import ALL_BROKERS, ClusterImage, Topic
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.ids import NodeId
from suwi.model.topic_config import TopicConfig, parse_topic_config, supported_settings

log = logging.getLogger(__name__)


class DynamicBrokerConfig:
    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        """The configuration of this broker."""
        self.cluster_wide = static
        """Without the dynamic settings of this broker alone: for decisions of the controller."""

    def apply_image(self, old: ClusterImage, new: ClusterImage) -> None:
        if new.broker_configs == old.broker_configs:
            return
        node_id = NodeId(self.static.node_id)
        self.current = self._with(new.dynamic_config(node_id), self.current)
        self.cluster_wide = self._with(new.broker_configs.get(ALL_BROKERS, {}), self.cluster_wide)

    def _with(self, dynamic: Mapping[str, str], last: BrokerConfig) -> BrokerConfig:
        if not dynamic:
            return self.static
        try:
            return parse_broker_config({**self.static.given, **dynamic}).config
        except BadConfig as error:
            # The controller validated it, but may run a version that allows other values.
            log.error("dynamic configuration not applied", extra={"reason": str(error)})
            return last


def topic_config_of(topic: Topic, defaults: TopicConfig) -> TopicConfig:
    """The topic's configuration. A controller of another version may have allowed settings that
    this one does not know: they are logged and ignored."""
    try:
        return parse_topic_config(topic.configs, defaults)
    except BadConfig:
        supported, reasons = supported_settings(topic.configs, defaults)
        extra = {"topic": topic.name, "reason": "; ".join(reasons)}
        log.error("dynamic configuration not applied", extra=extra)
        return parse_topic_config(supported, defaults)
