"""UpdateFeatures v0-v2. v1: upgrade types, validate only. v2: one result for all updates."""

from collections.abc import Iterator
from typing import Final

from suwi.controller.controller_election import ControllerElection
from suwi.controller.feature_control import FeatureUpdate, UpgradeType
from suwi.handlers.deadline import deadline_of, in_time
from suwi.handlers.errors import error_fields, reply
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_UPGRADE_TYPE_FROM: Final = 1
_RESULTS_UP_TO: Final = 1
_UPDATES_MAX: Final = 1000
"""There are far fewer features. A decision does not go in slices."""


async def update_features(controller: ControllerElection, request: Request) -> Reply:
    updates: list[FeatureUpdate] = []
    validate_only = getattr(request.message, "validate_only", False)
    error = error_fields(None)
    try:
        if len(request.message.feature_updates) > _UPDATES_MAX:
            raise InvalidRequest("more features are updated than there are")
        updates += _updates(request)
        async with in_time(deadline_of(request)):
            await controller.active.features.update(updates, validate_only=validate_only)
    except BrokerError as problem:
        error, updates = error_fields(problem), []
    # Only where it exists: the encoder would look for the field in all older versions.
    if request.version <= _RESULTS_UP_TO:
        results = [{"feature": update.feature, **error} for update in updates]
        return reply(request, {**error, "results": results})
    return reply(request, error)


def _updates(request: Request) -> Iterator[FeatureUpdate]:
    kinds = (UpgradeType.UPGRADE, UpgradeType.SAFE_DOWNGRADE)
    for update in request.message.feature_updates:
        if request.version >= _UPGRADE_TYPE_FROM:
            kind = update.upgrade_type
        else:
            kind = kinds[update.allow_downgrade]
        yield FeatureUpdate(update.feature, update.max_version_level, kind)
