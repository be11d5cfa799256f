"""Access rules (Kafka's AclBinding), and the filters that select some of them.

A rule allows or denies a principal an operation on the resources of a pattern, from a host. Numbers
and names are Kafka's. `check` says why a rule cannot be stored.
"""

import ipaddress
import json
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

from suwi.security.principal import Principal, parse_principal

WILDCARD: Final = "*"
"""As the name of a literal pattern: every resource of its type. As a host: every host."""
ANYONE: Final = Principal("User", WILDCARD)
"""In a rule: every principal."""
CLUSTER_NAME: Final = "kafka-cluster"
_RULE_BYTES_MAX: Final = 4096


class ResourceType(IntEnum):
    __hash__ = int.__hash__  # Enum's is written in Python, and every request needs it

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In filters: every pattern that applies to a resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    __hash__ = int.__hash__  # Enum's is written in Python, and every request needs it

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: Final = {
    kind: tuple(Operation[name] for name in names.split())
    for kind, names in {
        ResourceType.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS "
        "ALTER_CONFIGS",
        ResourceType.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
        ResourceType.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS "
        "IDEMPOTENT_WRITE",
    }.items()
}
"""What a response lists as authorized operations, if they are authorized."""


class AclBinding(NamedTuple):
    """One rule."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def names(self) -> str:
        """The names that it is about, as people write them: `orders-*` for a prefix."""
        if self.pattern_type is PatternType.PREFIXED:
            return self.name + WILDCARD
        is_doubtful = self.name.endswith(WILDCARD) and self.name != WILDCARD
        return f"{self.name} (literal)" if is_doubtful else self.name

    def __str__(self) -> str:
        kind = self.resource_type.name.lower()
        return (
            f"{self.permission.name.lower()} {self.principal} {self.operation.name.lower()} "
            f"on {kind} {self.names} from {self.host}"
        )


class AclFilter(NamedTuple):
    """Selects rules. None, and ANY, select everything."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, rule: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and (self.name is None or self._matches_name(rule))
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, rule.pattern_type)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )

    def _matches_name(self, rule: AclBinding) -> bool:
        assert self.name is not None
        if self.pattern_type is not PatternType.MATCH:
            return self.name == rule.name
        if rule.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(rule.name)
        return rule.name in (self.name, WILDCARD)

    @property
    def has_unknown(self) -> bool:
        """Whether a part of it has a number that Kafka does not have."""
        return 0 in (self.resource_type, self.pattern_type, self.operation, self.permission)


_Number = TypeVar("_Number", ResourceType, PatternType, Operation, Permission)


def of_number(kind: type[_Number], number: int) -> _Number:
    """As Kafka reads it: UNKNOWN for a number that it does not have."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


def binding_of(resource: Any, pattern_type: int, entry: Any) -> AclBinding:
    """From the parts of a request or response."""
    return AclBinding(
        of_number(ResourceType, resource.resource_type),
        of_number(PatternType, pattern_type),
        resource.resource_name,
        entry.principal,
        entry.host,
        of_number(Operation, entry.operation),
        of_number(Permission, entry.permission_type),
    )


def check(rule: AclBinding) -> None:
    """Raises ValueError if the rule cannot be stored."""
    if rule.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise ValueError(f"Invalid resourceType {rule.resource_type.name}")
    if rule.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise ValueError(f"Invalid patternType {rule.pattern_type.name}")
    if rule.operation in (Operation.UNKNOWN, Operation.ANY):
        raise ValueError(f"Invalid operation {rule.operation.name}")
    if rule.permission not in (Permission.ALLOW, Permission.DENY):
        raise ValueError(f"Invalid permissionType {rule.permission.name}")
    if not rule.name:
        raise ValueError("Resource name should not be empty")
    if rule.resource_type is ResourceType.CLUSTER and rule.name != CLUSTER_NAME:
        raise ValueError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    parse_principal(rule.principal)
    if "/" in rule.host:
        ipaddress.ip_network(rule.host)
    if len(encode_rule(rule)) > _RULE_BYTES_MAX:
        raise ValueError(f"the rule takes more than {_RULE_BYTES_MAX} bytes")


def encode_rule(rule: AclBinding) -> bytes:
    """One line of JSON."""
    return json.dumps(rule, separators=(",", ":")).encode()


def decode_rule(line: bytes) -> AclBinding:
    resource_type, pattern_type, name, principal, host, operation, permission = json.loads(line)
    return AclBinding(
        ResourceType(resource_type),
        PatternType(pattern_type),
        name,
        principal,
        host,
        Operation(operation),
        Permission(permission),
    )
