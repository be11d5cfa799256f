"""Access rules in a cluster: forwarded changes, other brokers, and versions that know no rules."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from suwi.controller.feature_control import FeatureUpdate, updated
from suwi.handlers import forwarding
from suwi.metadata.image import BrokerInfo, ClusterImage, ImageBuilder, acl_key, encode_acls
from suwi.model.errors import InvalidUpdateVersion
from suwi.model.features import ACL_VERSION, NEW_CLUSTER, Features
from suwi.security.acls import AclBinding, Operation, Permission, encode_rule
from suwi.testing import Cluster
from suwi.wire.versions import ApiKey
from tests.raw_client import RawClient
from tests.security.access import (
    AUTHORIZER,
    CLUSTER_REFUSED,
    TOPIC_REFUSED,
    cluster,
    codes,
    create_rules,
    delete_rules,
    topic,
)

NOBODY = "User:nobody"
ANONYMOUS = "User:ANONYMOUS"


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    """Everyone may do everything, except what a rule is about."""
    settings = {
        "authorizer.class.name": AUTHORIZER,
        "allow.everyone.if.no.acl.found": "true",
    }
    with pytest.MonkeyPatch.context() as patched, Cluster(brokers=3, settings=settings) as running:
        # An answer waits for the image of its broker, however slow the machine is.
        patched.setattr(forwarding, "_CATCH_UP_S_MAX", 60.0)
        yield running


@pytest.fixture
def clients(brokers: Cluster) -> Iterator[list[RawClient]]:
    """One for each broker."""
    with ExitStack() as opened:
        addresses = brokers.bootstrap_servers.split(",")
        yield [opened.enter_context(RawClient(address)) for address in addresses]


def refused(client: RawClient, name: str) -> set[int]:
    fields = {
        "topics": [{"topic_id": None, "name": name}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return codes(client.ask(ApiKey.METADATA, 12, fields))


def is_refused(client: RawClient, name: str) -> bool:
    return TOPIC_REFUSED in refused(client, name)


def eventually(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_rule_is_created_through_any_broker_and_applies_on_all(
    brokers: Cluster, clients: list[RawClient]
) -> None:
    brokers.create_topic("guarded", partitions=3)
    for asked in clients:
        denied = topic(Operation.DESCRIBE, "guarded").rule(ANONYMOUS, deny=True)
        assert create_rules(asked, [denied]) == [0]
        # Here at once, elsewhere as soon as the other brokers have the image.
        assert refused(asked, "guarded") == {TOPIC_REFUSED}
        for other in clients:
            eventually(partial(is_refused, other, "guarded"))
        assert delete_rules(asked, permission_type=Permission.DENY) == 1
        assert refused(asked, "guarded") == {0}


def test_the_controller_decides_with_the_clients_principal(clients: list[RawClient]) -> None:
    rights = [
        topic(Operation.CREATE, "__consumer_offsets"),
        cluster(Operation.CREATE),
        cluster(Operation.ALTER),
    ]
    rules = [right.rule(ANONYMOUS, deny=True) for right in rights]
    fields = {"timeout": 60_000, "topics": []}
    assert create_rules(clients[0], rules) == [0, 0, 0]
    for client in clients:
        answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields)
        assert codes(answer) == {CLUSTER_REFUSED}
        # Not even the rules can be taken back.
        assert create_rules(client, rules) == [CLUSTER_REFUSED] * 3


def test_coordinators_need_no_rule_for_their_topic(clients: list[RawClient]) -> None:
    """Runs after the test before, which denies everyone the creation of the topic."""
    asked = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    controller = clients[0].ask(ApiKey.DESCRIBE_CLUSTER, 1, asked).controller_id
    other = clients[controller % 3]  # forwards the creation
    fields = {"key_type": 0, "coordinator_keys": ["g"]}

    def has_coordinator() -> bool:
        (found,) = other.ask(ApiKey.FIND_COORDINATOR, 4, fields).coordinators
        return bool(found.error_code == 0)

    eventually(has_coordinator)


# -- in the image ----------------------------------------------------------------------------------


def shards(*rules: AclBinding) -> dict[str, bytes]:
    lines = [encode_rule(rule) for rule in rules]
    return {
        key: encode_acls(line for line in lines if acl_key(line) == key)
        for key in {acl_key(line) for line in lines}
    }


def test_rules_are_followed_in_the_image() -> None:
    first, second = (topic(Operation.READ, name).rule(NOBODY) for name in ("a", "b\n"))
    builder = ImageBuilder()
    image = builder.apply(1, shards(first, second))
    assert set(image.acls) == {first, second}
    unchanged = builder.apply(2, {"cluster": b"x"})
    assert unchanged.acls is image.acls
    gone: dict[str, bytes | None] = dict.fromkeys(shards(first))
    assert set(builder.apply(3, gone).acls) == {second}
    assert set(image.acls) == {first, second}


def test_a_new_cluster_has_no_level_for_rules_until_there_are_some() -> None:
    assert NEW_CLUSTER.level(ACL_VERSION) == 0
    older = BrokerInfo(1, ())  # type: ignore[arg-type]
    assert older.features.get(ACL_VERSION, 0) == 0
    with_older = ClusterImage(registered_brokers={1: older}, features=NEW_CLUSTER)  # type: ignore[dict-item]
    with pytest.raises(InvalidUpdateVersion, match="Broker 1 supports the levels 0 to 0"):
        updated(with_older, [FeatureUpdate(ACL_VERSION, 1, 1)])
    image = ImageBuilder().apply(1, shards(topic(Operation.READ, "a").rule(NOBODY)))
    closed = replace(image, features=Features({ACL_VERSION: 1}, 2))
    with pytest.raises(InvalidUpdateVersion, match="There are access rules"):
        updated(closed, [FeatureUpdate(ACL_VERSION, 0, 2)])
