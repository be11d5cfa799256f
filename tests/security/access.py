"""A broker with access rules, the client of a super user, and that of a user with some rights."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from suwi.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess
from tests.raw_client import RawClient
from tests.security.secure_broker import jaas

PASSWORDS = {"alice": "alice", "bob": "bob"}
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, TRANSACTION_REFUSED = 29, 30, 31, 53
REFUSALS = {TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, TRANSACTION_REFUSED}


class Right(NamedTuple):
    operation: Operation
    kind: ResourceType
    name: str

    def rule(self, who: str = "User:alice", *, deny: bool = False) -> AclBinding:
        permission = Permission.DENY if deny else Permission.ALLOW
        literal = PatternType.LITERAL
        return AclBinding(self.kind, literal, self.name, who, "*", self.operation, permission)


def topic(operation: Operation, name: str) -> Right:
    return Right(operation, ResourceType.TOPIC, name)


def group(operation: Operation, name: str) -> Right:
    return Right(operation, ResourceType.GROUP, name)


def transaction(operation: Operation, name: str) -> Right:
    return Right(operation, ResourceType.TRANSACTIONAL_ID, name)


def cluster(operation: Operation) -> Right:
    return Right(operation, ResourceType.CLUSTER, CLUSTER_NAME)


class GuardedBroker(BrokerProcess):
    """Clients of the PLAINTEXT listener are super users, those of OUTSIDE are alice and bob."""

    def __init__(self, folder: Path, **more: str) -> None:
        super().__init__(folder / "data")
        self._config = folder / "server.properties"
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.outside.plain.sasl.jaas.config": jaas(PASSWORDS),
            "authorizer.class.name": AUTHORIZER,
            "super.users": "User:ANONYMOUS;User:root",
            "group.initial.rebalance.delay.ms": "0",
            **more,
        }
        self._config.write_text("\n".join(f"{key}={value}" for key, value in settings.items()))

    @property
    def outside(self) -> str:
        found = re.findall(r"listening listener=OUTSIDE address=127\.0\.0\.1:(\d+)", self.log)
        return f"127.0.0.1:{found[-1]}"

    def log_in(self, user: str) -> RawClient:
        return log_in(self.outside, user)

    def _arguments(self) -> list[str]:
        level = ("--log-level", "debug")
        return ["--config", str(self._config), "--data", str(self.data), *level]


def log_in(address: str, user: str, client_id: str = "raw") -> RawClient:
    client = RawClient(address, client_id)
    client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    token = f"\0{user}\0{PASSWORDS[user]}".encode()
    assert client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code == 0
    return client


def create_rules(client: RawClient, rules: Iterable[AclBinding]) -> list[int]:
    creations = [
        {
            "resource_type": rule.resource_type,
            "resource_name": rule.name,
            "resource_pattern_type": rule.pattern_type,
            "principal": rule.principal,
            "host": rule.host,
            "operation": rule.operation,
            "permission_type": rule.permission,
        }
        for rule in rules
    ]
    answer = client.ask(ApiKey.CREATE_ACLS, 3, {"creations": creations})
    return [int(result.error_code) for result in answer.results]


def delete_rules(client: RawClient, **wanted: Any) -> int:
    """How many; by default all."""
    answer = client.ask(ApiKey.DELETE_ACLS, 3, {"filters": [filter_fields(**wanted)]})
    (result,) = answer.filter_results
    assert result.error_code == 0
    return len(result.matching_acls)


def filter_fields(**wanted: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
        **wanted,
    }


def codes(answer: Any) -> set[int]:
    """All error codes in a response."""
    return set(_codes(answer))


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, tuple):
        for item in value:
            yield from _codes(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            if "error_code" in field.name:
                yield int(inner)
            else:
                yield from _codes(inner)
