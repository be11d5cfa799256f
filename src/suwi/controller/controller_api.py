"""The controller's operations as request handlers see them, on any broker.

Invariant: on a broker that is not the active controller, every property raises NotController.
"""

from typing import NamedTuple, Protocol

from suwi.controller.configuration_control import ConfigurationControl
from suwi.controller.feature_control import FeatureControl
from suwi.controller.reassignment_control import ReassignmentControl
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
    def features(self) -> FeatureControl: ...

    @property
    def partitions(self) -> ReplicationControl: ...

    @property
    def reassignments(self) -> ReassignmentControl: ...


class ActiveController(NamedTuple):
    """The operations of one controller, from its election until it resigns or is deposed."""

    epoch: int
    topics: TopicControl
    configs: ConfigurationControl
    scram: ScramControl
    features: FeatureControl
    partitions: ReplicationControl
    reassignments: ReassignmentControl
