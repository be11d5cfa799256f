"""The features of a cluster, and the levels of them that this version of Suwi supports.

A feature has a level for the whole cluster: the finalized one. Level 0 is the same as none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

GROUP_VERSION: Final = "group.version"
"""1: consumer groups of the new protocol (KIP-848)."""
TRANSACTION_VERSION: Final = "transaction.version"
"""1: flexible records in `__transaction_state`. 2: a producer epoch per transaction (KIP-890)."""

ACL_VERSION: Final = "suwi.acl.version"
"""1: access rules. Set with the first rule: a version that knows none would not enforce them."""

TRANSACTION_VERSION_MAX: Final = 2

SUPPORTED: Final[Mapping[str, int]] = MappingProxyType(
    {GROUP_VERSION: 1, TRANSACTION_VERSION: TRANSACTION_VERSION_MAX, ACL_VERSION: 1}
)
"""The highest levels; the lowest are 0."""

BEFORE_FEATURES: Final[Mapping[str, int]] = MappingProxyType({GROUP_VERSION: 1})
"""What a broker supports whose registration does not say so: it is older than the features. A
cluster that such brokers made has these levels."""


class UnsupportedFeature(Exception):
    """The cluster has finalized a level that this version of Suwi does not support."""


@dataclass(frozen=True, slots=True)
class Features:
    """The finalized levels. Each change of them has a greater epoch."""

    levels: Mapping[str, int]
    epoch: int

    def level(self, feature: str) -> int:
        return self.levels.get(feature, 0)

    def check_supported(self) -> None:
        """Raises UnsupportedFeature."""
        for feature, level in self.levels.items():
            if level > SUPPORTED.get(feature, 0):
                raise UnsupportedFeature(
                    f"the cluster has {feature}={level}; this version of Suwi supports at most "
                    f"{SUPPORTED.get(feature, 0)}"
                )


NEW_CLUSTER: Final = Features(
    {GROUP_VERSION: 1, TRANSACTION_VERSION: TRANSACTION_VERSION_MAX}, epoch=1
)
UNSET_FEATURES: Final = Features(BEFORE_FEATURES, epoch=1)
