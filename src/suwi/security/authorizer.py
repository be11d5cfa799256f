"""Decides who may do what, as Kafka's StandardAuthorizer. No I/O.

`AclIndex` holds all rules by their resource and principal; a change makes another index.
`Authorizer` asks it, and remembers what it decided as long as the index is the same one.
Invariants: a rule that denies wins over all that allow; a super user may do everything.
"""

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from suwi.security.acls import (
    ANYONE,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from suwi.security.principal import Principal

_REMEMBERED_MAX: Final = 20_000
_GRANTED_MAX: Final = 100
"""Of each connection and right."""
_NAME_MAX: Final = 249
"""Longer names, which clients choose, are not remembered: of topics there are none."""
_MAPPED_BITS: Final = 96
"""What comes before an address of IPv4 that is written as one of IPv6."""
_ANYONE: Final = str(ANYONE)
NO_RULE: Final = "no rule allows it"
# The name that Kafka asks about, to find super users and rules for every resource.
_ANY_NAME: Final = "hardcode"

_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.ALL,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
    ),
}
"""A rule that allows one of these also allows the operation. One that denies does not deny it."""

_Pattern: TypeAlias = tuple[ResourceType, PatternType, str]
_Rules: TypeAlias = Mapping[str, Collection[AclBinding]]
"""Of one pattern, by principal."""


_numbers = count()


class Decision(NamedTuple):
    is_allowed: bool
    rule: AclBinding | None = None
    """The rule that decided; None if none applies, or for super users."""


class AclIndex:
    """All rules. Never changed: `replaced` returns another one."""

    def __init__(
        self,
        rules: Mapping[_Pattern, _Rules] | None = None,
        prefixes: "Mapping[ResourceType, _Prefixes] | None" = None,
        hosts: int = 0,
    ) -> None:
        """`hosts`: how many of the rules are for some hosts only."""
        self.number = next(_numbers)
        """Of no other index: by it one knows whether the rules have changed."""
        self.names_hosts = hosts > 0
        """Whether a decision depends on the host."""
        self._rules = rules or {}
        self._prefixes = prefixes or {}
        self._hosts = hosts

    def __iter__(self) -> Iterator[AclBinding]:
        for by_principal in self._rules.values():
            for rules in by_principal.values():
                yield from rules

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __contains__(self, rule: AclBinding) -> bool:
        by_principal = self._rules.get(rule[:3])
        return by_principal is not None and rule in by_principal.get(rule.principal, ())

    def replaced(self, removed: Iterable[AclBinding], added: Iterable[AclBinding]) -> "AclIndex":
        rules, hosts = dict(self._rules), self._hosts
        own: dict[_Pattern, dict[str, dict[AclBinding, None]]] = {}

        def of(rule: AclBinding) -> dict[AclBinding, None]:
            """Its pattern's rules for its principal, as a copy that may be changed."""
            pattern, principal = rule[:3], rule.principal
            if pattern not in own:
                own[pattern] = {}
                rules[pattern] = dict(rules.get(pattern, {}))
            if principal not in own[pattern]:
                own[pattern][principal] = dict.fromkeys(rules[pattern].get(principal, ()))
            return own[pattern][principal]

        for rule in removed:
            if rule in (found := of(rule)):
                del found[rule]
                hosts -= rule.host != WILDCARD
        for rule in added:
            if rule not in (found := of(rule)):
                found[rule] = None
                hosts += rule.host != WILDCARD
        for pattern, changed in own.items():
            left = {**rules[pattern], **changed}
            rules[pattern] = {who: each for who, each in left.items() if each}
            if not rules[pattern]:
                del rules[pattern]
        return AclIndex(rules, self._changed_prefixes(own, rules), hosts)

    def _changed_prefixes(
        self, changed: Iterable[_Pattern], rules: Mapping[_Pattern, _Rules]
    ) -> "Mapping[ResourceType, _Prefixes]":
        prefixes = dict(self._prefixes)
        for kind in {pattern[0] for pattern in changed if pattern[1] is PatternType.PREFIXED}:
            names = dict.fromkeys(prefixes.get(kind, _NO_PREFIXES).sorted)
            for pattern in changed:
                if pattern[:2] == (kind, PatternType.PREFIXED):
                    names.pop(pattern[2], None)
                    if pattern in rules:
                        names[pattern[2]] = None
            prefixes[kind] = _Prefixes(names)
        return prefixes

    def decide(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision | None:
        """None if no rule is about this resource, whoever it is for."""
        found: AclBinding | None = None
        is_mentioned = False
        for by_principal in self._of_resource(kind, name):
            is_mentioned = True
            for rule in (*by_principal.get(principal, ()), *by_principal.get(_ANYONE, ())):
                if not _is_from(rule.host, host) or not _is_about(rule, operation):
                    continue
                if rule.permission is Permission.DENY:
                    return Decision(False, rule)
                if found is None or found.principal == _ANYONE:
                    found = rule  # it tells more than one for everybody
        if not is_mentioned:
            return None
        return Decision(found is not None, found)

    def _of_resource(self, kind: ResourceType, name: str) -> Iterator[_Rules]:
        patterns: list[_Pattern] = [(kind, PatternType.LITERAL, name)]
        if name != WILDCARD:
            patterns.append((kind, PatternType.LITERAL, WILDCARD))
        if kind in self._prefixes:
            found = self._prefixes[kind].of(name)
            patterns += [(kind, PatternType.PREFIXED, prefix) for prefix in found]
        for pattern in patterns:
            by_principal = self._rules.get(pattern)
            if by_principal is not None:
                yield by_principal

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether it is allowed on at least one resource, as Kafka's authorizeByResourceType."""
        allowed: list[_Pattern] = []
        denied: set[_Pattern] = set()
        for pattern, by_principal in self._rules.items():
            if pattern[0] is not kind:
                continue
            for rule in (*by_principal.get(principal, ()), *by_principal.get(_ANYONE, ())):
                if rule.operation not in (operation, Operation.ALL) or not _is_from(
                    rule.host, host
                ):
                    continue
                if rule.permission is Permission.DENY:
                    denied.add(pattern)
                else:
                    allowed.append(pattern)
        everything = kind, PatternType.LITERAL, WILDCARD
        if everything in denied:
            return False
        dominant = _Prefixes(name for _, pattern, name in denied if pattern is PatternType.PREFIXED)
        return everything in allowed or any(
            pattern not in denied and not any(dominant.of(pattern[2])) for pattern in allowed
        )


NO_RULES: Final = AclIndex()


class _Prefixes:
    """Finds those that a name begins with, in a time that depends on how deep they are nested, not
    on how many there are or how long the name is."""

    def __init__(self, prefixes: Iterable[str]) -> None:
        self.sorted = sorted(prefixes)  # fast if they nearly are already
        self._outer: list[int] = []
        """For each, the longest other one that it begins with; -1 if there is none."""
        nested: list[int] = []
        for number, prefix in enumerate(self.sorted):
            while nested and not prefix.startswith(self.sorted[nested[-1]]):
                nested.pop()
            self._outer.append(nested[-1] if nested else -1)
            nested.append(number)

    def of(self, name: str) -> Iterator[str]:
        # All that are sorted between a prefix of the name and the name begin with that prefix. So
        # the last one before the name begins with all that the name begins with.
        number = bisect_right(self.sorted, name) - 1
        while number >= 0:
            prefix = self.sorted[number]
            if name.startswith(prefix):
                yield prefix
            number = self._outer[number]


_NO_PREFIXES: Final = _Prefixes(())


def _is_about(rule: AclBinding, operation: Operation) -> bool:
    if rule.operation in (operation, Operation.ALL):
        return True
    implied_by = _IMPLIED_BY.get(operation, ())
    return rule.permission is Permission.ALLOW and rule.operation in implied_by


def _is_from(allowed: str, host: str) -> bool:
    if allowed in (WILDCARD, host):
        return True
    network = _network(allowed) if "/" in allowed or ":" in allowed else None
    try:
        return network is not None and ipaddress.ip_address(host) in network
    except ValueError:
        return False


@lru_cache(maxsize=10_000)
def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Of a range of addresses (an extension of Suwi's), or of one address however it is written:
    Java writes those of IPv6 in full. `::ffff:10.0.0.7` is one of IPv4."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        return None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


class GrantedTopics:
    """The topics, by name or id, that a client is known to have one right to. Its connection
    remembers them, since most clients use the same topics again and again."""

    __slots__ = ("rules", "topics")

    def __init__(self) -> None:
        self.rules = -1
        """The number of the rules that allow it: with others `topics` says nothing."""
        self.topics: set[str | UUID] = set()

    def have(self, topic: str | UUID, acls: AclIndex) -> bool:
        """Whether these rules are known to allow it."""
        return self.rules == acls.number and topic in self.topics

    def add(self, topic: str | UUID, acls: AclIndex) -> None:
        if self.rules != acls.number or len(self.topics) >= _GRANTED_MAX:
            self.topics.clear()
            self.rules = acls.number
        self.topics.add(topic)


NOTHING_GRANTED: Final = GrantedTopics()


class Authorizer:
    def __init__(
        self,
        acls: AclIndex = NO_RULES,
        super_users: Iterable[str] = (),
        *,
        allows_without_rules: bool = False,
    ) -> None:
        """`allows_without_rules`: allow.everyone.if.no.acl.found."""
        self.acls = acls
        """The rules now."""
        self.on_refusal: Callable[[Any, Operation, ResourceType, str, str], None] = lambda *_: None
        """Called with a request that is refused for the lack of a right, and why it lacks it."""
        self._super_users = frozenset(super_users)
        self._allows_without_rules = allows_without_rules
        self._decided: dict[tuple[Principal, str, Operation, ResourceType, str | None], bool] = {}

    def may(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        kind: ResourceType,
        name: str | None,
    ) -> bool:
        """Whether the principal may do it. Without a name: to at least one resource of its kind."""
        acls = self.acls
        key = principal, host if acls.names_hosts else "", operation, kind, name
        decided = self._decided.get(key)
        if decided is None:
            if name is not None:
                decided = self.decide(principal, host, operation, kind, name).is_allowed
            else:
                decided = self.decide(
                    principal, host, operation, kind, _ANY_NAME
                ).is_allowed or acls.allows_any(str(principal), host, operation, kind)
            if len(self._decided) >= _REMEMBERED_MAX:
                self._decided.clear()
            if name is None or len(name) <= _NAME_MAX:
                self._decided[key] = decided
        return decided

    def apply(self, acls: AclIndex) -> None:
        """The rules from now on."""
        if acls is not self.acls:
            self.acls = acls
            self._decided.clear()

    def is_super_user(self, principal: Principal) -> bool:
        return str(principal) in self._super_users

    def decide(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> Decision:
        """The same, with the rule that decides."""
        if self.is_super_user(principal):
            return Decision(True)
        decision = self.acls.decide(str(principal), host, operation, kind, name)
        return Decision(self._allows_without_rules) if decision is None else decision

    def why_not(
        self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> str:
        """Of what the principal may not do: the rule that denies it, if one does."""
        rule = self.decide(principal, host, operation, kind, name).rule
        return NO_RULE if rule is None else str(rule)

    def operations(
        self, principal: Principal, host: str, kind: ResourceType, name: str = CLUSTER_NAME
    ) -> int:
        """What the principal may do to a resource, as a bit field."""
        return sum(
            1 << operation
            for operation in SUPPORTED_OPERATIONS[kind]
            if self.may(principal, host, operation, kind, name)
        )
