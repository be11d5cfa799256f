"""DescribeUserScramCredentials v0. The SCRAM users and their iterations, never their secrets."""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.scram_control import ScramDirectory
from suwi.handlers.errors import error_of, reply
from suwi.model.errors import BrokerError, DuplicateResource, ResourceNotFound
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.security.scram import MECHANISMS


class DescribeUserScramCredentials:
    def __init__(self, directory: ScramDirectory) -> None:
        self._directory = directory

    def __call__(self, request: Request) -> Answer:
        asked = [user.name for user in request.message.users or ()]
        names = list(dict.fromkeys(asked)) if asked else self._directory.users()
        repeated = {name for name, count in Counter(asked).items() if count > 1}
        return reply(
            request,
            {
                "throttle_time": 0,
                "error_code": ErrorCode.none,
                "error_message": None,
                "results": [self._describe(name, repeated) for name in names],
            },
        )

    def _describe(self, name: str, repeated: set[str]) -> dict[str, Any]:
        error, message = ErrorCode.none, None
        credentials = self._directory.credentials(name)
        try:
            if name in repeated:
                raise DuplicateResource(f"user {name!r} is named more than once")
            if not credentials:
                raise ResourceNotFound(f"there is no SCRAM user {name!r}")
        except BrokerError as problem:
            error, message = error_of(problem)
            credentials = {}
        return {
            "user": name,
            "error_code": error,
            "error_message": message,
            "credential_infos": [
                {"mechanism": MECHANISMS[mechanism].number, "iterations": credential.iterations}
                for mechanism, credential in sorted(credentials.items())
            ],
        }
