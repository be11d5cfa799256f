"""The controller's office: what a handler may ask of it, on whichever broker it runs.

Invariant: outside a term of office everything asked for raises NotController.
"""

from typing import NamedTuple, Protocol

from suwi.controller.configuration_control import ConfigurationControl
from suwi.controller.replication_control import ReplicationControl
from suwi.controller.scram_control import ScramControl
from suwi.controller.topic_control import TopicControl


class ControllerApi(Protocol):
    @property
    def topics(self) -> TopicControl: ...

    @property
    def configs(self) -> ConfigurationControl: ...

    @property
    def scram(self) -> ScramControl: ...

    @property
    def partitions(self) -> ReplicationControl: ...


class ActiveController(NamedTuple):
    """The powers of one controller, from its election until another is elected."""

    epoch: int
    topics: TopicControl
    configs: ConfigurationControl
    scram: ScramControl
    partitions: ReplicationControl
