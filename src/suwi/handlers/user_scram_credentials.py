"""DescribeUserScramCredentials and AlterUserScramCredentials v0: the SCRAM users.

Described are their iterations, never their secrets; the client that sets one sends salted hashes.
With access rules, only super users may change the user that brokers log in as: no rule makes a
client a broker.
"""

from collections import Counter
from itertools import chain
from typing import Any

from suwi.controller.controller_election import ControllerElection
from suwi.controller.scram_control import Deletion, ScramDirectory, Upsertion
from suwi.handlers.authorization import check
from suwi.handlers.errors import error_fields
from suwi.handlers.slices import (
    Sliced,
    SlicedItems,
    counting,
    list_in_slices,
    sliced,
    sliced_handler,
)
from suwi.model.errors import (
    BrokerError,
    ClusterAuthorizationFailed,
    DuplicateResource,
    ResourceNotFound,
)
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.security.scram import MECHANISMS


@sliced_handler
def describe_user_scram_credentials(directory: ScramDirectory, request: Request) -> Sliced:
    times: Counter[str] = Counter()
    yield from counting(times, (user.name for user in request.message.users or ()))
    names = list(times) or directory.users()
    described = (_describe(directory, name, times[name]) for name in names)
    return (yield from list_in_slices(request, "results", described, error_fields(None)))


def _describe(directory: ScramDirectory, name: str, times_named: int) -> dict[str, Any]:
    error: BrokerError | None = None
    credentials = directory.credentials(name)
    if times_named > 1:
        error, credentials = DuplicateResource(f"user {name!r} is named more than once"), {}
    elif not credentials:
        error = ResourceNotFound(f"there is no SCRAM user {name!r}")
    return {
        "user": name,
        **error_fields(error),
        "credential_infos": [
            {"mechanism": MECHANISMS[mechanism].number, "iterations": credential.iterations}
            for mechanism, credential in sorted(credentials.items())
        ],
    }


async def alter_user_scram_credentials(
    controller: ControllerElection, brokers_user: str | None, request: Request
) -> Reply:
    asked = request.message
    forbidden = _forbidden(brokers_user, request)
    deletions = [
        Deletion(change.name, change.mechanism)
        async for change in sliced(request, asked.deletions)
        if change.name not in forbidden
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
        if change.name not in forbidden
    ]
    changes = chain(asked.deletions, asked.upsertions)
    users = {change.name: None async for change in sliced(request, changes)}
    try:
        check(request, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        results = await controller.active.scram.alter(deletions, upsertions)
        results |= {user: error for user, error in forbidden.items() if user in users}
    except BrokerError as error:
        results = dict.fromkeys(users, error)
    answers = SlicedItems(request, ("results",))
    for user, problem in results.items():
        await answers.put({"user": user, **error_fields(problem)})
    return answers.reply()


def _forbidden(brokers_user: str | None, request: Request) -> dict[str, BrokerError | None]:
    """The users that this client may not change."""
    user, authorizer = brokers_user, request.authorizer
    if user is None or authorizer is None or authorizer.is_super_user(request.client.principal):
        return {}
    error = f"{user!r} is the user of the brokers: only super users may change it"
    return {user: ClusterAuthorizationFailed(error)}
