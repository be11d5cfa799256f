"""Access rules as people write them, and who they let do what.

A resource is `topic:orders`, `topic:orders-*` for all that begin so, `topic:*` for all, or
`cluster`; a principal is `User:alice`, or `alice` for short. `Access` decides as the brokers do,
with their rules and settings.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from suwi.admin.failure import Failure
from suwi.client.acls import Acls
from suwi.client.admin import Admin, Resource
from suwi.client.admin import ResourceType as ConfigType
from suwi.client.cluster import Cluster
from suwi.model.config_kinds import did_you_mean
from suwi.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check,
)
from suwi.security.authorizer import NO_RULE, AclIndex, Authorizer, Decision
from suwi.security.principal import Principal, parse_principal


def as_written(member: Operation | ResourceType) -> str:
    return member.name.replace("_", "-").lower()


_KINDS: Final = {as_written(kind): kind for kind in ResourceType if kind > ResourceType.ANY}
OPERATIONS: Final = {as_written(each): each for each in Operation if each > Operation.ANY}
_NO_NAME: Final = "\0"
_SUPER_USERS: Final = "super.users"
_OPEN: Final = "allow.everyone.if.no.acl.found"


class Pattern(NamedTuple):
    resource_type: ResourceType
    pattern_type: PatternType
    name: str


def pattern_text(rule: AclBinding) -> tuple[str, bool]:
    """As `read_pattern` reads it, and whether it must be told that this is one name."""
    kind = as_written(rule.resource_type)
    if rule.resource_type is ResourceType.CLUSTER:
        return kind, False
    is_prefix = rule.pattern_type is PatternType.PREFIXED
    name = rule.name + WILDCARD if is_prefix else rule.name
    return f"{kind}:{name}", not is_prefix and name.endswith(WILDCARD) and name != WILDCARD


def resource_text(rule: AclBinding) -> str:
    """As `read_pattern` reads it; ` (literal)` follows a name that it reads as one only if told."""
    text, is_literal = pattern_text(rule)
    return f"{text} (literal)" if is_literal else text


def read_pattern(text: str, *, is_literal: bool = False) -> Pattern:
    """`is_literal`: a name that ends in `*` is no prefix. Raises Failure."""
    kind_text, colon, name = text.partition(":")
    kind = _KINDS.get(kind_text)
    if kind is None or (not name and (colon or kind is not ResourceType.CLUSTER)):
        raise Failure(
            f"{text!r} is not a resource; allowed: cluster, or one of "
            f"{', '.join(sorted(_KINDS))} with a name, as in topic:orders, topic:orders-*, topic:*"
        )
    if kind is ResourceType.CLUSTER:
        return Pattern(kind, PatternType.LITERAL, name or CLUSTER_NAME)
    if name.endswith(WILDCARD) and name != WILDCARD and not is_literal:
        return Pattern(kind, PatternType.PREFIXED, name.removesuffix(WILDCARD))
    return Pattern(kind, PatternType.LITERAL, name)


def read_operation(text: str) -> Operation:
    """Raises Failure."""
    operation = OPERATIONS.get(text.lower().replace("_", "-"))
    if operation is None:
        hint = did_you_mean(text, OPERATIONS)
        raise Failure(f"{text!r} is not an operation{hint}; allowed: {', '.join(OPERATIONS)}")
    return operation


def read_principal(text: str) -> Principal:
    """Raises Failure."""
    if ":" in text and text[0].islower():  # Its rule would apply to nobody.
        raise Failure(
            f"{text!r} is not a principal: {text.partition(':')[0]!r} is not a type of principals; "
            f"a user whose name has a colon is User:{text}"
        )
    try:
        return parse_principal(text if ":" in text else f"User:{text}")
    except ValueError as error:
        raise Failure(str(error)) from None


def read_rules(
    principals: Sequence[str],
    operations: str,
    pattern: Pattern,
    hosts: Sequence[str],
    *,
    denies: bool,
) -> list[AclBinding]:
    """A rule for each principal, each host and each of the operations, which are separated by
    commas. Raises Failure."""
    permission = Permission.DENY if denies else Permission.ALLOW
    asked = [read_operation(operation.strip()) for operation in operations.split(",")]
    rules = [
        AclBinding(*pattern, str(read_principal(principal)), host, operation, permission)
        for principal in principals
        for host in hosts
        for operation in asked
    ]
    try:
        for rule in rules:
            check(rule)
    except ValueError as error:
        raise Failure(str(error)) from None
    return rules


async def remove_rules(cluster: Cluster, rules: Sequence[AclBinding]) -> list[AclBinding]:
    """Exactly these. Raises Failure if one of them does not exist; nothing is removed then."""
    acls = Acls(cluster)
    for rule in rules:
        if not await acls.describe(AclFilter(*rule)):
            raise Failure(f"there is no such rule: {rule}; `suwi acls list` shows the rules")
    return await acls.delete([AclFilter(*rule) for rule in rules])


class AccessSettings(NamedTuple):
    """Of one broker. While brokers differ, `suwi doctor` says so."""

    super_users: Sequence[str]
    allows_without_rules: bool
    """allow.everyone.if.no.acl.found"""
    is_known: bool
    """False: the broker does not tell them. Apache Kafka takes them for secrets."""


async def read_access_settings(cluster: Cluster) -> AccessSettings:
    await cluster.refresh([])
    node = min(cluster.brokers, default=None)
    settings: dict[str, str | None] = {}
    if node is not None:
        broker = Resource(ConfigType.BROKER, str(node))
        found = await Admin(cluster).describe_configs(broker, keys=[_SUPER_USERS, _OPEN])
        settings = {entry.name: entry.value for entry in found}
    users = [user.strip() for user in (settings.get(_SUPER_USERS) or "").split(";")]
    is_open = settings.get(_OPEN)
    return AccessSettings([user for user in users if user], is_open == "true", is_open is not None)


class Access:
    """Who may do what by some rules. Never changed: `replaced` returns another one."""

    def __init__(self, rules: AclIndex, settings: AccessSettings) -> None:
        self.rules = rules
        self.settings = settings
        self._authorizer = Authorizer(
            rules, settings.super_users, allows_without_rules=settings.allows_without_rules
        )

    def replaced(self, removed: Iterable[AclBinding], added: Iterable[AclBinding]) -> "Access":
        return Access(self.rules.replaced(removed, added), self.settings)

    def decide(
        self, who: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision:
        return self._authorizer.decide(who, host, operation, kind, name)

    def gives(self, rule: AclBinding, who: Principal) -> bool:
        """Whether somebody may do what a rule is about, wherever the rule is about it."""
        name, host = _any_name(rule), rule.host
        return self.decide(who, host, rule.operation, rule.resource_type, name).is_allowed

    def mentions(self, rule: AclBinding) -> bool:
        """Whether a rule is about all resources that another rule is about."""
        name, operation = _any_name(rule), rule.operation
        found = self.rules.decide(rule.principal, rule.host, operation, rule.resource_type, name)
        return found is not None


def _any_name(rule: AclBinding) -> str:
    """Of a resource that the rule is about, and no rule for fewer resources."""
    if rule.pattern_type is PatternType.PREFIXED:
        return rule.name + _NO_NAME
    return _NO_NAME if rule.name == WILDCARD else rule.name


async def read_access(cluster: Cluster, kind: ResourceType) -> Access:
    """As it is now, to resources of one kind."""
    rules = await Acls(cluster).describe(AclFilter(kind))
    return Access(AclIndex().replaced((), rules), await read_access_settings(cluster))


class Verdict(NamedTuple):
    is_allowed: bool
    rule: AclBinding | None
    """The rule that decides; None if none does."""
    reason: str


async def decide(
    cluster: Cluster, principal: str, operation: str, resource: str, host: str
) -> Verdict:
    """Whether the principal may do this now, and by which rule. Raises Failure."""
    kind, _, name = read_pattern(resource, is_literal=True)
    who, asked = read_principal(principal), read_operation(operation)
    if name.endswith(WILDCARD):
        raise Failure(f"{resource!r} is a pattern; name one resource to check")
    access = await read_access(cluster, kind)
    decision = access.decide(who, host, asked, kind, name)
    if decision.rule is not None:
        reason = str(decision.rule)
    elif decision.is_allowed:
        reason = "no rule decides, but the settings of the brokers"
    else:
        reason = NO_RULE
        if not access.settings.is_known:
            reason += f"; the brokers do not tell whether {_SUPER_USERS} or {_OPEN} do"
    return Verdict(*decision, reason)
