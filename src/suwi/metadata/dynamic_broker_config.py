"""A broker's configuration as it is in force: what was set while running lies over the file.

`apply_image` takes in each new image, before anybody who reads the configuration from here.
"""

import logging
from collections.abc import Mapping

from suwi.metadata.image import ALL_BROKERS, ClusterImage
from suwi.model.broker_config import BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.ids import NodeId

log = logging.getLogger(__name__)


class DynamicBrokerConfig:
    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        self.current = static
        """Of this broker."""
        self.cluster_wide = static
        """Without what was set for this broker alone: for decisions about the whole cluster."""

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
            # It was checked when it was set: by a broker that takes other values than this one.
            log.error("dynamic configuration not applied", extra={"reason": str(error)})
            return last
