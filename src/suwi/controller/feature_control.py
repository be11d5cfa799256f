"""Finalized features: validates changes of their levels and writes them.

Invariant: a level is finalized only if every registered broker supports it. All updates of a
request are made, or none.
"""

import enum
import logging
from collections.abc import Sequence
from typing import NamedTuple

from suwi.controller.metadata_writer import MetadataWriter
from suwi.metadata.image import FEATURES, ClusterImage, encode_features
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Put
from suwi.model.errors import InvalidRequest, InvalidUpdateVersion
from suwi.model.features import ACL_VERSION, SUPPORTED, Features

log = logging.getLogger(__name__)


class UpgradeType(enum.IntEnum):
    """As in UpdateFeatures. No downgrade of a feature of Suwi loses data: both kinds are equal."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    feature: str
    level: int
    upgrade_type: int


class FeatureControl:
    def __init__(self, writer: MetadataWriter, follower: MetadataFollower) -> None:
        self._writer = writer
        self._follower = follower

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Raises InvalidRequest, InvalidUpdateVersion; then nothing was changed."""
        await self._writer.run_exclusively(lambda: self._update(updates, validate_only))

    async def _update(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        features = updated(self._follower.image, updates)
        if validate_only or features == self._follower.image.features:
            return
        await self._writer.write([Put(FEATURES, encode_features(features))])
        log.info("features updated", extra={"levels": features.levels, "epoch": features.epoch})


def updated(image: ClusterImage, updates: Sequence[FeatureUpdate]) -> Features:
    """The features after the updates. Raises InvalidRequest, InvalidUpdateVersion."""
    if not updates:
        raise InvalidRequest("no feature is to be updated")
    if len({update.feature for update in updates}) < len(updates):
        raise InvalidRequest("a feature is updated twice in one request")
    levels = dict(image.features.levels)
    for update in updates:
        problem = _problem(image, update)
        if problem:
            raise InvalidUpdateVersion(
                f"Invalid update version {update.level} for feature {update.feature}. {problem}"
            )
        levels[update.feature] = update.level
    levels = {feature: level for feature, level in levels.items() if level}
    if levels == image.features.levels:
        return image.features
    return Features(levels, image.features.epoch + 1)


def _problem(image: ClusterImage, update: FeatureUpdate) -> str | None:
    feature, level, upgrade_type = update
    current = image.features.level(feature)
    if upgrade_type not in UpgradeType.__members__.values():
        return f"The upgrade type {upgrade_type} is unknown."
    if feature not in SUPPORTED:
        return "The controller does not know this feature."
    if not 0 <= level <= SUPPORTED[feature]:
        return f"The controller supports the levels 0 to {SUPPORTED[feature]}."
    if feature == ACL_VERSION and level == 0 and image.acls:
        return "There are access rules."
    for node, broker in image.registered_brokers.items():
        if level > broker.features.get(feature, 0):
            return f"Broker {node} supports the levels 0 to {broker.features.get(feature, 0)}."
    if level < current and upgrade_type == UpgradeType.UPGRADE:
        return "This is a downgrade: its upgrade type must be safe or unsafe downgrade."
    if level > current and upgrade_type != UpgradeType.UPGRADE:
        return f"A downgrade cannot raise the level, which is {current}."
    return None
