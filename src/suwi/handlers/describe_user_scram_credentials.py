"""DescribeUserScramCredentials v0. The SCRAM users and their iterations, never their secrets."""

from collections import Counter
from typing import Any

from suwi.controller.scram_control import ScramDirectory
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import Sliced, counting, in_slices, list_in_slices
from suwi.model.errors import BrokerError, DuplicateResource, ResourceNotFound
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
        return (yield from list_in_slices(request, "results", described, error_fields(None)))

    def _describe(self, name: str, times_named: int) -> dict[str, Any]:
        error = error_fields(None)
        credentials = self._directory.credentials(name)
        try:
            if times_named > 1:
                raise DuplicateResource(f"user {name!r} is named more than once")
            if not credentials:
                raise ResourceNotFound(f"there is no SCRAM user {name!r}")
        except BrokerError as problem:
            error = error_fields(problem)
            credentials = {}
        return {
            "user": name,
            **error,
            "credential_infos": [
                {"mechanism": MECHANISMS[mechanism].number, "iterations": credential.iterations}
                for mechanism, credential in sorted(credentials.items())
            ],
        }
