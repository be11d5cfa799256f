"""AlterUserScramCredentials v0. Upserts and deletes SCRAM users; the client sends salted hashes."""

from suwi.controller.controller_election import ControllerElection
from suwi.controller.scram_control import Deletion, Upsertion
from suwi.handlers.errors import error_fields, reply
from suwi.handlers.slices import SlicedItems, sliced
from suwi.model.errors import BrokerError
from suwi.net.answers import Reply
from suwi.net.dispatch import Request


class AlterUserScramCredentials:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        deletions = [
            Deletion(change.name, change.mechanism)
            async for change in sliced(request, asked.deletions)
        ]
        upsertions = [
            Upsertion(
                change.name,
                change.mechanism,
                change.iterations,
                change.salt,
                change.salted_password,
            )
            async for change in sliced(request, asked.upsertions)
        ]
        try:
            results = await self._controller.active.scram.alter(deletions, upsertions)
        except BrokerError as error:
            users = [*(d.user for d in deletions), *(u.user for u in upsertions)]
            results = dict.fromkeys(users, error)
        answers = SlicedItems(request, ("results",))
        for user, problem in results.items():
            await answers.put({"user": user, **error_fields(problem)})
        return reply(request, {"throttle_time": 0, "results": answers.take()})
