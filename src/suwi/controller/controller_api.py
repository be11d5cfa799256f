"""The controller's office: what a handler may ask of it, on whichever broker it runs.

Invariant: outside a term of office everything asked for raises NotController.
"""

from typing import NamedTuple, Protocol

from suwi.controller.config_admin import ConfigAdmin
from suwi.controller.partition_admin import PartitionAdmin
from suwi.controller.scram_admin import ScramAdmin
from suwi.controller.topic_admin import TopicAdmin


class ControllerApi(Protocol):
    @property
    def topics(self) -> TopicAdmin: ...

    @property
    def configs(self) -> ConfigAdmin: ...

    @property
    def scram(self) -> ScramAdmin: ...

    @property
    def partitions(self) -> PartitionAdmin: ...


class ActiveController(NamedTuple):
    """The powers of one controller, from its election until another is elected."""

    epoch: int
    topics: TopicAdmin
    configs: ConfigAdmin
    scram: ScramAdmin
    partitions: PartitionAdmin
