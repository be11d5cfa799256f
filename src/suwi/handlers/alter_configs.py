"""AlterConfigs v0-v2 and IncrementalAlterConfigs v0-v1.

AlterConfigs replaces all settings of a resource; IncrementalAlterConfigs changes the named ones.
"""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.configuration_control import Alteration, AlterOperation, Resource
from suwi.controller.controller_api import ControllerApi
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import BrokerError, InvalidRequest
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class AlterConfigs:
    def __init__(self, controller: ControllerApi, *, incremental: bool) -> None:
        self._controller = controller
        self._incremental = incremental

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        times_named = Counter((r.resource_type, r.resource_name) for r in asked.resources)
        responses = []
        for resource in asked.resources:
            key = (resource.resource_type, resource.resource_name)
            error, message = ErrorCode.none, None
            try:
                if times_named[key] > 1:
                    raise InvalidRequest(f"{resource.resource_name!r} is named more than once")
                await self._alter(resource, asked.validate_only)
            except BrokerError as problem:
                error, message = error_of(problem)
            responses.append(
                {
                    "error_code": error,
                    "error_message": message,
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                }
            )
        return reply(request, {"throttle_time": 0, "responses": responses})

    async def _alter(self, resource: Any, validate_only: bool) -> None:
        alterations = [
            Alteration(config.name, self._operation(config), config.value)
            for config in resource.configs
        ]
        if resource.resource_type not in (Resource.TOPIC, Resource.BROKER, Resource.GROUP):
            raise InvalidRequest(f"resource type {resource.resource_type} cannot be configured")
        await self._controller.configs.alter(
            Resource(resource.resource_type),
            resource.resource_name,
            alterations,
            replace=not self._incremental,
            validate_only=validate_only,
        )

    def _operation(self, config: Any) -> AlterOperation:
        if not self._incremental:
            return AlterOperation.SET
        try:
            return AlterOperation(config.config_operation)
        except ValueError:
            raise InvalidRequest(f"operation {config.config_operation} is unknown") from None
