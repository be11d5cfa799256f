"""Access: the users of a cluster, its access rules, and whom they let do what."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from suwi.admin.access_rules import (
    OPERATIONS,
    AccessSettings,
    as_written,
    decide,
    pattern_text,
    read_access_settings,
)
from suwi.admin.failure import Failure
from suwi.client.acls import Acls
from suwi.client.connection import ConnectionLost
from suwi.client.errors import reason as text_of
from suwi.client.users import Users
from suwi.console.clusters import ShownCluster
from suwi.console.page import BadQuery, Part, Query, cut
from suwi.model.errors import BrokerError, SecurityDisabled
from suwi.security.acls import AclBinding, AclFilter
from suwi.wire.versions import ApiKey

_ACLS = "acls"


class UserRow(NamedTuple):
    user: str
    mechanisms: Sequence[str]


class AclRow(NamedTuple):
    """A rule as people write it."""

    permission: str
    principal: str
    operation: str
    resource: str
    """`topic:orders-*` for a prefix."""
    host: str
    is_literal: bool
    """The name ends in `*`, and the rule is about this name only."""


class AccessRules(NamedTuple):
    part: Part
    rows: Sequence[AclRow]
    is_on: bool
    """Whether the brokers have an authorizer: without one there are no rules."""
    settings: AccessSettings | None
    """None if the brokers do not tell them, or not to this user."""
    users_part: Part
    users: Sequence[UserRow]
    users_problem: str | None
    """Why they are not known."""
    operations: Sequence[str]
    """What a rule can allow or deny."""
    command: str
    users_command: str


async def read_acls(shown: ShownCluster, query: Query) -> AccessRules:
    rules, is_on = list[AclBinding](), True
    try:
        rules = await _rules(shown)
    except SecurityDisabled:
        is_on = False
    part, found = cut(rules, query, lambda rule: " ".join(acl_row(rule)[:5]))
    users_part, users, users_problem = await _users(shown, query)
    return AccessRules(
        part,
        [acl_row(rule) for rule in found],
        is_on,
        await _settings(shown) if is_on else None,
        users_part,
        users,
        users_problem,
        list(OPERATIONS),
        shown.command("acls list"),
        shown.command("users list"),
    )


async def _rules(shown: ShownCluster) -> list[AclBinding]:
    """All of them, read again when they have changed."""
    acls = Acls(shown.client)
    # One connection for both, so that the rules are not older than what the broker says of them.
    link = await shown.client.any_own_link()
    try:
        told = await link.call_json(ApiKey.DESCRIBE_BROKER, {})
        key = _ACLS, str(told["acls_sequence"])
        return await shown.keep(key, math.inf, lambda: acls.describe(AclFilter(), link))
    except (ConnectionLost, KeyError):  # Apache Kafka, an older version, or it is not told to all
        return await acls.describe(AclFilter())


def acl_row(rule: AclBinding) -> AclRow:
    resource, is_literal = pattern_text(rule)
    return AclRow(
        rule.permission.name.lower(),
        rule.principal,
        as_written(rule.operation),
        resource,
        rule.host,
        is_literal,
    )


async def _users(shown: ShownCluster, query: Query) -> tuple[Part, Sequence[UserRow], str | None]:
    users, problem = list[UserRow](), None
    try:
        for user in await Users(shown.client).describe():
            users.append(UserRow(user.name, [f"{k} ({v})" for k, v in user.iterations.items()]))
    except BrokerError as error:
        problem = text_of(error)
    return *cut(users, query, lambda row: row.user, "user_"), problem


async def _settings(shown: ShownCluster) -> AccessSettings | None:
    try:
        settings = await read_access_settings(shown.client)
    except BrokerError:
        return None  # to describe a broker's settings is another right
    return settings if settings.is_known else None


class AclCheck(NamedTuple):
    is_allowed: bool
    reason: str
    """The rule that decides, or why none does."""
    command: str


async def check_acl(shown: ShownCluster, query: Query) -> AclCheck:
    """What `suwi acls check` says."""
    asked = query.text("principal"), query.text("operation"), query.text("resource")
    host = query.text("host") or "127.0.0.1"
    try:
        is_allowed, _, reason = await decide(shown.client, *asked, host)
    except Failure as failure:
        raise BadQuery(str(failure)) from None
    command = shown.command("acls check", *asked, options=["--from", host])
    return AclCheck(is_allowed, reason, command)
