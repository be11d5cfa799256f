"""AlterConfigs v0-v2 and IncrementalAlterConfigs v0-v1.

AlterConfigs replaces all settings of a resource; IncrementalAlterConfigs changes the named ones.
"""

from typing import Any

from suwi.controller.configuration_control import Alteration, AlterOperation, Resource
from suwi.controller.controller_election import ControllerElection
from suwi.handlers.describe_configs import check_resource
from suwi.handlers.errors import outcome
from suwi.handlers.slices import SlicedItems, times_named
from suwi.model.errors import InvalidRequest
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.security.acls import Operation

_SETTINGS_MAX = 1000
"""Of one resource: none has that many. A decision does not go in slices."""


class AlterConfigs:
    def __init__(self, controller: ControllerElection, *, incremental: bool) -> None:
        self._controller = controller
        self._incremental = incremental

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        times = await times_named(
            request, ((r.resource_type, r.resource_name) for r in asked.resources)
        )
        responses = SlicedItems(request, ("responses",))
        for resource in asked.resources:
            key = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
            times_asked = times[resource.resource_type, resource.resource_name]
            altered = await outcome(self._alter(request, resource, times_asked))
            await responses.put({**altered, **key})
        return responses.reply()

    async def _alter(self, request: Request, resource: Any, times_asked: int) -> None:
        if times_asked > 1:
            raise InvalidRequest(f"{resource.resource_name!r} is named more than once")
        check_resource(request, Operation.ALTER_CONFIGS, resource)
        if len(resource.configs) > _SETTINGS_MAX:
            raise InvalidRequest(f"{len(resource.configs)} settings are more than there are")
        alterations = [
            Alteration(config.name, self._operation(config), config.value)
            for config in resource.configs
        ]
        if resource.resource_type not in (Resource.TOPIC, Resource.BROKER, Resource.GROUP):
            raise InvalidRequest(f"resource type {resource.resource_type} cannot be configured")
        await self._controller.active.configs.alter(
            Resource(resource.resource_type),
            resource.resource_name,
            alterations,
            replace=not self._incremental,
            validate_only=request.message.validate_only,
        )

    def _operation(self, config: Any) -> AlterOperation:
        if not self._incremental:
            return AlterOperation.SET
        try:
            return AlterOperation(config.config_operation)
        except ValueError:
            raise InvalidRequest(f"operation {config.config_operation} is unknown") from None
