"""DescribeUserScramCredentials v0. The SCRAM users and their iterations, never their secrets."""

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.scram_control import ScramDirectory
from suwi.handlers.slices import Sliced, counting, in_slices, list_in_slices
from suwi.model.errors import BrokerError, DuplicateResource, ResourceNotFound, error_of
from suwi.net.answers import Answer
from suwi.net.dispatch import Request
from suwi.security.scram import MECHANISMS


class DescribeUserScramCredentials:
    def __init__(self, directory: ScramDirectory) -> None:
        self._directory = directory

    def __call__(self, request: Request) -> Answer:
        return in_slices(request, self._answer(request))

    def _answer(self, request: Request) -> Sliced:
        times: Counter[str] = Counter()
        yield from counting(times, (user.name for user in request.message.users or ()))
        names = list(times) or self._directory.users()
        described = (self._describe(name, times[name]) for name in names)
        fields = {"error_code": ErrorCode.none, "error_message": None}
        return (yield from list_in_slices(request, "results", described, fields))

    def _describe(self, name: str, times_named: int) -> dict[str, Any]:
        error, message = ErrorCode.none, None
        credentials = self._directory.credentials(name)
        try:
            if times_named > 1:
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
