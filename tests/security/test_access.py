"""What each API asks for: with exactly the rights, with one missing, with none, and with a denial.

The rights and codes are those of Apache Kafka's KafkaApis and ControllerApis.
"""

import json
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from suwi.handlers.authorization import ASKED
from suwi.handlers.fetch import LARGE_PARTITIONS
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.security.acls import Operation, PatternType, ResourceType
from suwi.wire.codec import encode_request
from suwi.wire.versions import APIS, ApiKey
from tests.raw_client import RawClient, fetch_fields, new_topic, produce_fields
from tests.security.access import (
    CLUSTER_REFUSED,
    GROUP_REFUSED,
    REFUSALS,
    TOPIC_REFUSED,
    TRANSACTION_REFUSED,
    GuardedBroker,
    Right,
    cluster,
    codes,
    create_rules,
    delete_rules,
    filter_fields,
    group,
    topic,
    transaction,
)

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
)
NO_ID = None
BATCH = build_batch([Record(0, 1000, None, b"x")], base_offset=0)
TRANSACTIONAL = build_batch(
    [Record(0, 1000, None, b"x")],
    producer_id=1,
    producer_epoch=0,
    base_sequence=0,
    transactional=True,
)
_numbers = count()
CODES = {
    ResourceType.TOPIC: TOPIC_REFUSED,
    ResourceType.GROUP: GROUP_REFUSED,
    ResourceType.CLUSTER: CLUSTER_REFUSED,
    ResourceType.TRANSACTIONAL_ID: TRANSACTION_REFUSED,
}


class Case(NamedTuple):
    api: ApiKey
    version: int
    fields: Mapping[str, Any]
    rights: tuple[Right, ...]
    """All are needed."""
    refusal: int
    """The code without any right."""

    def refusal_without(self, missing: Right) -> int:
        """The code tells which of several rights is missing."""
        return CODES[missing.kind] if len(self.rights) > 1 else self.refusal


def partitions(**fields: Any) -> list[dict[str, Any]]:
    return [{"name": "t", "partitions": [fields]}]


CASES = [
    Case(
        ApiKey.PRODUCE, 12, produce_fields(12, "t", {0: BATCH}), (topic(WRITE, "t"),), TOPIC_REFUSED
    ),
    Case(
        ApiKey.PRODUCE,
        12,
        produce_fields(12, "t", {0: TRANSACTIONAL}, transactional_id="x"),
        (topic(WRITE, "t"), transaction(WRITE, "x")),
        TRANSACTION_REFUSED,
    ),
    Case(ApiKey.FETCH, 12, fetch_fields(12, "t", 0), (topic(READ, "t"),), TOPIC_REFUSED),
    Case(ApiKey.FETCH, 4, fetch_fields(4, "t", 0), (topic(READ, "t"),), TOPIC_REFUSED),
    Case(
        ApiKey.LIST_OFFSETS,
        7,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": partitions(partition_index=0, current_leader_epoch=-1, timestamp=-1),
        },
        (topic(DESCRIBE, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.METADATA,
        12,
        {
            "topics": [{"topic_id": NO_ID, "name": "t"}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        },
        (topic(DESCRIBE, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.OFFSET_COMMIT,
        8,
        {
            "group_id": "g",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": partitions(
                partition_index=0,
                committed_offset=1,
                committed_leader_epoch=-1,
                committed_metadata="",
            ),
        },
        (group(READ, "g"), topic(READ, "t")),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.OFFSET_FETCH,
        8,
        {
            "groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]}],
            "require_stable": False,
        },
        (group(DESCRIBE, "g"), topic(DESCRIBE, "t")),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.FIND_COORDINATOR,
        4,
        {"key_type": 0, "coordinator_keys": ["g"]},
        (group(DESCRIBE, "g"),),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.FIND_COORDINATOR,
        4,
        {"key_type": 1, "coordinator_keys": ["x"]},
        (transaction(DESCRIBE, "x"),),
        TRANSACTION_REFUSED,
    ),
    Case(
        ApiKey.JOIN_GROUP,
        5,
        {
            "group_id": "g",
            "session_timeout": 6000,
            "rebalance_timeout": 6000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
        (group(READ, "g"),),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.SYNC_GROUP,
        3,
        {
            "group_id": "g",
            "generation_id": 1,
            "member_id": "m",
            "group_instance_id": None,
            "assignments": [],
        },
        (group(READ, "g"),),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.HEARTBEAT,
        4,
        {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None},
        (group(READ, "g"),),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.LEAVE_GROUP,
        2,
        {"group_id": "g", "member_id": "m"},
        (group(READ, "g"),),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.DESCRIBE_GROUPS,
        5,
        {"groups": ["g"], "include_authorized_operations": False},
        (group(DESCRIBE, "g"),),
        GROUP_REFUSED,
    ),
    Case(ApiKey.DELETE_GROUPS, 2, {"groups_names": ["g"]}, (group(DELETE, "g"),), GROUP_REFUSED),
    Case(
        ApiKey.OFFSET_DELETE,
        0,
        {"group_id": "kept", "topics": partitions(partition_index=0)},
        (group(DELETE, "kept"), topic(READ, "t")),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        0,
        {
            "group_id": "new",
            "member_id": "",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 6000,
            "subscribed_topic_names": ["t"],
            "server_assignor": None,
            "topic_partitions": [],
        },
        (group(READ, "new"), topic(DESCRIBE, "t")),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        0,
        {"group_ids": ["g"], "include_authorized_operations": False},
        (group(DESCRIBE, "g"),),
        GROUP_REFUSED,
    ),
    Case(
        ApiKey.CREATE_TOPICS,
        7,
        {"topics": [new_topic("t")], "timeout": 30_000, "validate_only": False},
        (topic(CREATE, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.DELETE_TOPICS,
        6,
        {"topics": [{"name": "absent", "topic_id": NO_ID}], "timeout": 30_000},
        (topic(DESCRIBE, "absent"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": partitions(partition_index=0, offset=0), "timeout": 30_000},
        (topic(DELETE, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.CREATE_PARTITIONS,
        3,
        {
            "topics": [{"name": "t", "count": 1, "assignments": None}],
            "timeout": 30_000,
            "validate_only": False,
        },
        (topic(ALTER, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {
            "transactional_id": "x",
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        (transaction(WRITE, "x"),),
        TRANSACTION_REFUSED,
    ),
    Case(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        (cluster(Operation.IDEMPOTENT_WRITE),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.INIT_PRODUCER_ID,
        4,
        {
            "transactional_id": None,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        },
        (topic(WRITE, "whichever"),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        4,
        {
            "replica_id": -1,
            "topics": [
                {
                    "topic": "t",
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}],
                }
            ],
        },
        (topic(DESCRIBE, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            "v3_and_below_transactional_id": "x",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        },
        (transaction(WRITE, "x"), topic(WRITE, "t")),
        TRANSACTION_REFUSED,
    ),
    Case(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        4,
        {
            "transactions": [
                {
                    "transactional_id": "x",
                    "producer_id": 1,
                    "producer_epoch": 0,
                    "verify_only": True,
                    "topics": [{"name": "t", "partitions": [0]}],
                }
            ]
        },
        (cluster(Operation.CLUSTER_ACTION),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "group_id": "g"},
        (transaction(WRITE, "x"), group(READ, "g")),
        TRANSACTION_REFUSED,
    ),
    Case(
        ApiKey.END_TXN,
        3,
        {"transactional_id": "x", "producer_id": 1, "producer_epoch": 0, "committed": True},
        (transaction(WRITE, "x"),),
        TRANSACTION_REFUSED,
    ),
    Case(
        ApiKey.TXN_OFFSET_COMMIT,
        3,
        {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": 1,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": partitions(
                partition_index=0,
                committed_offset=1,
                committed_leader_epoch=-1,
                committed_metadata="",
            ),
        },
        (transaction(WRITE, "x"), group(READ, "g"), topic(READ, "t")),
        TRANSACTION_REFUSED,
    ),
    *(
        Case(
            ApiKey.WRITE_TXN_MARKERS,
            1,
            {
                "markers": [
                    {
                        "producer_id": 1,
                        "producer_epoch": 0,
                        "transaction_result": False,
                        "topics": [{"name": "t", "partition_indexes": [0]}],
                        "coordinator_epoch": -1,
                    }
                ]
            },
            (cluster(right),),
            CLUSTER_REFUSED,
        )
        for right in (Operation.ALTER, Operation.CLUSTER_ACTION)
    ),
    Case(ApiKey.DESCRIBE_ACLS, 3, filter_fields(), (cluster(DESCRIBE),), CLUSTER_REFUSED),
    Case(
        ApiKey.CREATE_ACLS,
        3,
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": "t",
                    "resource_pattern_type": 1,
                    "principal": "User:b",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
        (cluster(ALTER),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.DELETE_ACLS,
        3,
        {"filters": [filter_fields(principal_filter="User:none")]},
        (cluster(ALTER),),
        CLUSTER_REFUSED,
    ),
    *(
        Case(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            {
                "resources": [
                    {"resource_type": kind, "resource_name": name, "configuration_keys": []}
                ],
                "include_synonyms": False,
                "include_documentation": False,
            },
            (right,),
            code,
        )
        for kind, name, right, code in [
            (2, "t", topic(Operation.DESCRIBE_CONFIGS, "t"), TOPIC_REFUSED),
            (4, "0", cluster(Operation.DESCRIBE_CONFIGS), CLUSTER_REFUSED),
            (32, "g", group(Operation.DESCRIBE_CONFIGS, "g"), GROUP_REFUSED),
        ]
    ),
    *(
        Case(
            api,
            1,
            {
                "resources": [{"resource_type": kind, "resource_name": name, "configs": []}],
                "validate_only": True,
            },
            (right,),
            code,
        )
        for api in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
        for kind, name, right, code in [
            (2, "t", topic(Operation.ALTER_CONFIGS, "t"), TOPIC_REFUSED),
            (4, "0", cluster(Operation.ALTER_CONFIGS), CLUSTER_REFUSED),
            (32, "g", group(Operation.ALTER_CONFIGS, "g"), GROUP_REFUSED),
        ]
    ),
    Case(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}, (cluster(DESCRIBE),), CLUSTER_REFUSED),
    Case(
        ApiKey.ELECT_LEADERS,
        2,
        {
            "election_type": 0,
            "topic_partitions": [{"topic": "t", "partitions": [0]}],
            "timeout": 30_000,
        },
        (cluster(ALTER),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        {"timeout": 30_000, "topics": []},
        (cluster(ALTER),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        {"timeout": 30_000, "topics": None},
        (cluster(DESCRIBE),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        {"users": [{"name": "nobody"}]},
        (cluster(DESCRIBE),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        (cluster(ALTER),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.UPDATE_FEATURES,
        1,
        {"timeout": 30_000, "feature_updates": [], "validate_only": True},
        (cluster(ALTER),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        1,
        {"components": [], "strict": False},
        (cluster(Operation.DESCRIBE_CONFIGS),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.ALTER_CLIENT_QUOTAS,
        1,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "carol"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
            ],
            "validate_only": True,
        },
        (cluster(Operation.ALTER_CONFIGS),),
        CLUSTER_REFUSED,
    ),
    Case(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 77}, (cluster(ALTER),), CLUSTER_REFUSED),
    Case(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        {"topics": [{"name": "t", "partition_indexes": [0]}]},
        (topic(READ, "t"),),
        TOPIC_REFUSED,
    ),
    Case(
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        {"transactional_ids": ["x"]},
        (transaction(DESCRIBE, "x"),),
        TRANSACTION_REFUSED,
    ),
    Case(
        ApiKey.LIST_CONFIG_RESOURCES,
        1,
        {"resource_types": []},
        (cluster(Operation.DESCRIBE_CONFIGS),),
        CLUSTER_REFUSED,
    ),
    Case(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [{"name": "t"}], "response_partition_limit": 10, "cursor": None},
        (topic(DESCRIBE, "t"),),
        TOPIC_REFUSED,
    ),
]

OTHERS = {
    ApiKey.LIST_GROUPS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
}
"""What they ask for is not an error: they have tests of their own below, or need no right."""


def test_every_api_that_clients_may_use_is_asked_for_here() -> None:
    kafkas = {key for key in ASKED if APIS[key].is_advertised}
    assert {case.api for case in CASES} | OTHERS == kafkas


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with GuardedBroker(tmp_path_factory.mktemp("guarded")) as process, root_of(process) as root:
        prepare(root)
        yield process
        assert "Traceback" not in process.log


def prepare(root: RawClient) -> None:
    """Make topics, the internal ones too, and a group with offsets."""
    root.create_topic("t")
    root.create_topic("t2")
    for key_type, key in ((0, "g"), (1, "x")):
        find = {"key_type": key_type, "coordinator_keys": [key]}
        while 15 in codes(root.ask(ApiKey.FIND_COORDINATOR, 4, find)):
            time.sleep(0.05)
    case = next(each for each in CASES if each.api is ApiKey.OFFSET_COMMIT)
    for name in ("t", "t2"):
        (only,) = case.fields["topics"]
        fields = {**case.fields, "group_id": "kept", "topics": [{**only, "name": name}]}
        while codes(root.ask(case.api, case.version, fields)) != {0}:
            time.sleep(0.05)


def root_of(process: GuardedBroker) -> RawClient:
    return RawClient(process.address)


@pytest.fixture
def root(broker: GuardedBroker) -> Iterator[RawClient]:
    with root_of(broker) as client:
        delete_rules(client)
        yield client


@pytest.fixture
def alice(broker: GuardedBroker) -> Iterator[RawClient]:
    with broker.log_in("alice") as client:
        yield client


def told(client: RawClient, case: Case) -> set[int]:
    """The codes of refusals in the response."""
    return codes(client.ask(case.api, case.version, case.fields)) & REFUSALS


def label(case: Case) -> str:
    return f"{APIS[case.api].name}-v{case.version}-{case.rights[0].kind.name}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_an_api_asks_for_exactly_its_rights(root: RawClient, alice: RawClient, case: Case) -> None:
    assert told(alice, case) == {case.refusal}
    for missing in case.rights:
        others = [right.rule() for right in case.rights if right is not missing]
        others.append(missing.rule("User:bob"))
        assert set(create_rules(root, others)) == {0}
        assert told(alice, case) == {case.refusal_without(missing)}, f"without {missing}"
        delete_rules(root)
    create_rules(root, [right.rule() for right in case.rights])
    assert told(alice, case) == set()
    for denied in case.rights:
        create_rules(root, [denied.rule("User:*", deny=True)])
        assert told(alice, case) == {case.refusal_without(denied)}, f"with {denied} denied"
        delete_rules(root, permission_type=2)
    assert told(root, case) == set()


OF_OTHER_VERSIONS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.LIST_OFFSETS: {"timeout": 1000},
    ApiKey.METADATA: {"include_cluster_authorized_operations": False},
    ApiKey.OFFSET_FETCH: {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]},
    ApiKey.FIND_COORDINATOR: {"key": "g"},
    ApiKey.LEAVE_GROUP: {
        "members": [{"member_id": "m", "group_instance_id": None, "reason": None}]
    },
    ApiKey.DELETE_TOPICS: {"topic_names": ["t"]},
}
"""What the fields of `CASES` lack."""
NAMED_BY_ID = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH)
WITHOUT_THIS_REFUSAL = {
    ("DescribeLogDirs-v4-CLUSTER", 1),  # The list is empty.
    ("DescribeLogDirs-v4-CLUSTER", 2),
    ("FindCoordinator-v4-TRANSACTIONAL_ID", 0),  # It is always about a group.
}


def with_id(fields: Any, topic_id: UUID) -> Any:
    """The topic `t` also by its id."""
    if isinstance(fields, list):
        return [with_id(each, topic_id) for each in fields]
    if not isinstance(fields, Mapping):
        return fields
    named = "t" in (fields.get("name"), fields.get("topic"))
    inner = {key: with_id(value, topic_id) for key, value in fields.items()}
    return {**inner, "topic_id": topic_id} if named else inner


@pytest.mark.parametrize("case", CASES, ids=label)
def test_every_version_of_an_api_refuses(root: RawClient, alice: RawClient, case: Case) -> None:
    (described,) = metadata(root, "t").topics
    asked, api = case.fields, APIS[case.api]
    if case.api in NAMED_BY_ID:
        asked = with_id(asked, described.topic_id)
    fields = {**OF_OTHER_VERSIONS.get(case.api, {}), **asked}
    versions = range(api.min_version, api.max_version + 1)
    if case.api is ApiKey.ADD_PARTITIONS_TO_TXN:  # It is another request from v4 on.
        versions = range(*((4, 6) if case.version >= 4 else (0, 4)))
    for version in versions:
        if (label(case), version) not in WITHOUT_THIS_REFUSAL:
            refused = told(alice, case._replace(version=version, fields=fields))
            assert refused == {case.refusal}, f"v{version}"


@pytest.mark.parametrize(
    "key",
    [
        ApiKey.DESCRIBE_REPLICAS,
        ApiKey.DESCRIBE_EVENTS,
        ApiKey.DESCRIBE_GROUP_HISTORY,
        ApiKey.LIVE_TRANSACTIONS,
        ApiKey.DESCRIBE_PARTITION_HISTORY,
        ApiKey.DESCRIBE_TOPIC_STATS,
        ApiKey.WATCH_PARTITION,
        ApiKey.DESCRIBE_QUOTA_USAGE,
        ApiKey.DESCRIBE_AUDIT_LOG,
    ],
)
def test_suwis_own_apis_ask_for_describe_on_the_cluster(
    root: RawClient, alice: RawClient, key: ApiKey
) -> None:
    body = {"group": "g", "producer_id": 1, "topic": "t", "partition": 0}
    body = {} if key is ApiKey.DESCRIBE_REPLICAS else body
    assert own(alice, key, body)["error_code"] == CLUSTER_REFUSED
    create_rules(root, [cluster(DESCRIBE).rule()])
    assert "error_code" not in own(alice, key, body)


def own(client: RawClient, key: ApiKey, body: Mapping[str, Any]) -> Any:
    client.send_request(key, 0, json.dumps(body).encode())
    frame = client.read_frame()
    assert frame is not None
    return json.loads(frame[5:])


def test_which_broker_it_is_is_told_to_everyone_and_its_problems_are_not(
    root: RawClient, alice: RawClient
) -> None:
    assert own(alice, ApiKey.DESCRIBE_BROKER, {}).keys() == {
        "node",
        "stopping",
        "directories",
        "process",
    }
    create_rules(root, [cluster(DESCRIBE).rule()])
    assert "problems" in own(alice, ApiKey.DESCRIBE_BROKER, {})


@pytest.mark.parametrize(
    "key",
    [key for key in ASKED if APIS[key].audience.name == "PEERS" and APIS[key].is_kafkas],
)
def test_no_rule_makes_a_client_a_broker(root: RawClient, alice: RawClient, key: ApiKey) -> None:
    create_rules(root, [cluster(Operation.ALL).rule()])
    if key is ApiKey.ENVELOPE:
        fields: dict[str, Any] = {
            "request_data": b"",
            "request_principal": b"User:root",
            "client_host_address": b"127.0.0.1",
        }
        assert codes(alice.ask(key, 0, fields)) == {CLUSTER_REFUSED}
    else:
        alice.send_request(key, APIS[key].max_version, bytes(64))
        frame = alice.read_frame()
        assert frame is None or CLUSTER_REFUSED.to_bytes(2) in frame


# -- what is filtered -----------------------------------------------------------------------------


def metadata(client: RawClient, *names: str, version: int = 12, **how: Any) -> Any:
    topics = [{"topic_id": NO_ID, "name": name} for name in names] or None
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
        **how,
    }
    return client.ask(ApiKey.METADATA, version, fields)


def test_all_topics_are_those_that_may_be_described(root: RawClient, alice: RawClient) -> None:
    name = f"hidden-{next(_numbers)}"
    root.create_topic(name)
    assert [t.name for t in metadata(alice).topics] == []
    create_rules(root, [topic(READ, "t").rule()])
    assert [t.name for t in metadata(alice).topics] == ["t"]
    assert {"t", name} <= {t.name for t in metadata(root).topics}
    described = alice.ask(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": [], "response_partition_limit": 10, "cursor": None},
    )
    assert [t.name for t in described.topics] == ["t"]


def test_an_id_does_not_tell_the_name_of_a_hidden_topic(root: RawClient, alice: RawClient) -> None:
    topic_id = root.create_topic(f"hidden-{next(_numbers)}")
    (found,) = metadata(alice, topics=[{"topic_id": topic_id, "name": None}]).topics
    assert (found.error_code, found.name, found.topic_id) == (TOPIC_REFUSED, None, topic_id)
    fields = {"topics": [{"name": None, "topic_id": topic_id}], "timeout": 30_000}
    (deleted,) = alice.ask(ApiKey.DELETE_TOPICS, 6, fields).responses
    assert (deleted.error_code, deleted.name) == (TOPIC_REFUSED, None)
    assert "hidden-" not in deleted.error_message
    assert alice.fetch(topic_id, 0).error_code == TOPIC_REFUSED
    produced = alice.produce(topic_id, BATCH)
    assert produced.error == TOPIC_REFUSED
    assert "hidden-" not in repr(produced)


def test_a_topic_is_deleted_with_the_right_to(root: RawClient, alice: RawClient) -> None:
    name = f"gone-{next(_numbers)}"
    topic_id = root.create_topic(name)
    fields = {"topics": [{"name": None, "topic_id": topic_id}], "timeout": 30_000}
    create_rules(root, [topic(DESCRIBE, name).rule()])
    (deleted,) = alice.ask(ApiKey.DELETE_TOPICS, 6, fields).responses
    assert (deleted.error_code, deleted.name) == (TOPIC_REFUSED, name)
    create_rules(root, [topic(DELETE, name).rule()])
    (deleted,) = alice.ask(ApiKey.DELETE_TOPICS, 6, fields).responses
    assert (deleted.error_code, deleted.name) == (0, name)


def test_a_missing_topic_is_created_only_with_the_right_to(
    root: RawClient, alice: RawClient
) -> None:
    name = f"made-{next(_numbers)}"
    create_rules(root, [topic(DESCRIBE, name).rule()])
    (found,) = metadata(alice, name, allow_auto_topic_creation=True).topics
    assert found.error_code == TOPIC_REFUSED
    assert metadata(root, name).topics[0].error_code == 3
    create_rules(root, [topic(CREATE, name).rule()])
    metadata(alice, name, allow_auto_topic_creation=True)
    assert metadata(root, name).topics[0].error_code == 0


def test_a_created_topic_shows_its_settings_only_with_the_right_to(
    root: RawClient, alice: RawClient
) -> None:
    create_rules(root, [cluster(CREATE).rule()])
    fields = {"timeout": 30_000, "validate_only": False}
    (made,) = alice.ask(
        ApiKey.CREATE_TOPICS, 7, {"topics": [new_topic(f"made-{next(_numbers)}")], **fields}
    ).topics
    assert (made.error_code, made.topic_config_error_code, made.configs) == (0, TOPIC_REFUSED, ())
    assert made.num_partitions == -1
    create_rules(root, [topic(Operation.DESCRIBE_CONFIGS, "*").rule()])
    (made,) = alice.ask(
        ApiKey.CREATE_TOPICS, 7, {"topics": [new_topic(f"made-{next(_numbers)}")], **fields}
    ).topics
    assert made.topic_config_error_code == 0
    assert made.configs


def test_authorized_operations_are_those_of_the_client(root: RawClient, alice: RawClient) -> None:
    create_rules(root, [topic(READ, "t").rule(), group(READ, "g").rule()])
    asked = {
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    answer = metadata(alice, "t", version=8, **asked)
    bits = 1 << READ | 1 << DESCRIBE
    assert answer.topics[0].topic_authorized_operations == bits
    assert answer.cluster_authorized_operations == 0
    described = alice.ask(
        ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["g"], "include_authorized_operations": True}
    )
    assert described.groups[0].authorized_operations == bits
    fields = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    assert alice.ask(ApiKey.DESCRIBE_CLUSTER, 1, fields).cluster_authorized_operations == 0
    create_rules(root, [cluster(ALTER).rule()])
    found = alice.ask(ApiKey.DESCRIBE_CLUSTER, 1, fields).cluster_authorized_operations
    assert found == 1 << ALTER | 1 << DESCRIBE
    everything = root.ask(ApiKey.DESCRIBE_CLUSTER, 1, fields).cluster_authorized_operations
    assert everything == sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


def test_groups_and_offsets_are_listed_as_far_as_they_may_be_described(
    root: RawClient, alice: RawClient
) -> None:
    for name in ("listed", "unlisted"):
        case = next(each for each in CASES if each.api is ApiKey.OFFSET_COMMIT)
        root.ask(case.api, case.version, {**case.fields, "group_id": name})
    fields = {"states_filter": [], "types_filter": []}

    def listed() -> set[str]:
        return {found.group_id for found in alice.ask(ApiKey.LIST_GROUPS, 5, fields).groups}

    assert listed() == set()
    create_rules(root, [group(DESCRIBE, "listed").rule()])
    assert listed() == {"listed"}
    every = {"groups": [{"group_id": "listed", "topics": None}], "require_stable": False}
    (found,) = alice.ask(ApiKey.OFFSET_FETCH, 8, every).groups
    assert (found.error_code, found.topics) == (0, ())
    create_rules(root, [topic(DESCRIBE, "t").rule()])
    (found,) = alice.ask(ApiKey.OFFSET_FETCH, 8, every).groups
    assert [each.name for each in found.topics] == ["t"]
    create_rules(root, [cluster(DESCRIBE).rule()])
    assert {"listed", "unlisted"} <= listed()


def test_transactions_are_listed_as_far_as_they_may_be_described(
    root: RawClient, alice: RawClient
) -> None:
    case = next(each for each in CASES if each.api is ApiKey.INIT_PRODUCER_ID)
    for name in ("mine", "theirs"):
        root.ask(case.api, case.version, {**case.fields, "transactional_id": name})
    fields = {"state_filters": [], "producer_id_filters": []}

    def listed() -> set[str]:
        states = alice.ask(ApiKey.LIST_TRANSACTIONS, 0, fields).transaction_states
        return {found.transactional_id for found in states}

    assert listed() == set()
    create_rules(root, [transaction(DESCRIBE, "mine").rule()])
    assert listed() == {"mine"}


def test_a_session_and_a_waiting_fetch_end_with_the_right(
    root: RawClient, alice: RawClient
) -> None:
    name = f"read-{next(_numbers)}"
    root.create_topic(name)
    create_rules(root, [topic(READ, name).rule()])
    opened = alice.ask(ApiKey.FETCH, 12, fetch_fields(12, name, 0, session_epoch=0))
    assert opened.session_id != 0
    next_of_session = {
        **fetch_fields(12, name, 0, max_wait_ms=60_000, min_bytes=1),
        "topics": [],
        "session_id": opened.session_id,
    }
    waiting = encode({**next_of_session, "session_epoch": 1})
    alice.send_request(ApiKey.FETCH, 12, waiting)
    delete_rules(root)
    assert root.produce(name, BATCH).error == 0  # wakes the fetch
    assert codes(alice.answer(ApiKey.FETCH, 12)) == {0, TOPIC_REFUSED}
    again = alice.ask(ApiKey.FETCH, 12, {**next_of_session, "session_epoch": 2})
    assert codes(again) == {0, TOPIC_REFUSED}


def test_a_waiting_fetch_of_many_partitions_ends_with_the_right(
    root: RawClient, alice: RawClient
) -> None:
    """It is answered in slices, and reads again only what has changed."""
    name, count = f"read-{next(_numbers)}", LARGE_PARTITIONS + 1
    root.create_topic(name, count)
    create_rules(root, [topic(READ, name).rule()])
    fields = fetch_fields(12, name, 0, max_wait_ms=60_000)
    (asked,) = fields["topics"][0]["partitions"]
    fields["topics"][0]["partitions"] = [{**asked, "partition": n} for n in range(count)]
    alice.send_request(ApiKey.FETCH, 12, encode(fields))
    delete_rules(root)
    assert root.produce(name, BATCH).error == 0  # wakes the fetch
    (fetched,) = alice.answer(ApiKey.FETCH, 12).responses
    assert not any(partition.records for partition in fetched.partitions)
    assert TOPIC_REFUSED in {partition.error_code for partition in fetched.partitions}


def encode(fields: Mapping[str, Any]) -> bytes:
    return bytes(encode_request(ApiKey.FETCH, 12, fields))


def test_a_producer_loses_its_right_at_once_and_gets_it_back(
    root: RawClient, alice: RawClient
) -> None:
    name = f"write-{next(_numbers)}"
    root.create_topic(name)
    for _ in range(2):
        create_rules(root, [topic(WRITE, name).rule()])
        assert [alice.produce(name, BATCH).error for _ in range(2)] == [0, 0]
        create_rules(root, [topic(WRITE, name).rule(deny=True)])
        assert alice.produce(name, BATCH).error == TOPIC_REFUSED
        delete_rules(root)
        assert alice.produce(name, BATCH).error == TOPIC_REFUSED


@pytest.mark.parametrize("version", [12, 17], ids=["by name", "by id"])
def test_a_consumer_loses_its_right_at_once_and_gets_it_back(
    root: RawClient, alice: RawClient, version: int
) -> None:
    name = f"read-{next(_numbers)}"
    created = root.create_topic(name)
    assert root.produce(name, BATCH).error == 0
    asked: Any = created if version >= 13 else name

    def fetch() -> set[int]:
        return codes(alice.ask(ApiKey.FETCH, version, fetch_fields(version, asked, 0)))

    for _ in range(2):
        create_rules(root, [topic(READ, name).rule()])
        assert [fetch(), fetch()] == [{0}, {0}]
        create_rules(root, [topic(READ, name).rule(deny=True)])
        assert fetch() == {0, TOPIC_REFUSED}
        delete_rules(root)
        assert fetch() == {0, TOPIC_REFUSED}


def test_a_refused_batch_with_acks_0_closes_the_connection(
    root: RawClient, alice: RawClient
) -> None:
    body = encode_request(ApiKey.PRODUCE, 12, produce_fields(12, "t", {0: BATCH}, acks=0))
    alice.send_request(ApiKey.PRODUCE, 12, bytes(body))
    assert alice.is_closed_by_broker


def without_transactional_id(client: RawClient) -> set[int]:
    """The answer to a transactional batch in a request that names no transaction."""
    fields = produce_fields(12, "t", {0: TRANSACTIONAL})
    return codes(client.ask(ApiKey.PRODUCE, 12, fields))


def test_a_transactional_batch_without_a_transactional_id_is_refused(
    root: RawClient, alice: RawClient
) -> None:
    create_rules(root, [topic(WRITE, "t").rule()])
    assert without_transactional_id(alice) == {TRANSACTION_REFUSED}
    assert without_transactional_id(root) == {TRANSACTION_REFUSED}


def test_one_refused_topic_does_not_refuse_the_others(root: RawClient, alice: RawClient) -> None:
    name = f"other-{next(_numbers)}"
    root.create_topic(name)
    create_rules(root, [topic(WRITE, "t").rule()])
    fields = produce_fields(12, "t", {0: BATCH})
    fields["topic_data"] += produce_fields(12, name, {0: BATCH})["topic_data"]
    answer = alice.ask(ApiKey.PRODUCE, 12, fields)
    found = {t.name: t.partition_responses[0].error_code for t in answer.responses}
    assert found == {"t": 0, name: TOPIC_REFUSED}


def test_a_regular_expression_matches_what_may_be_described(
    root: RawClient, alice: RawClient
) -> None:
    number = next(_numbers)
    seen, hidden = (root.create_topic(f"{kind}-regex-{number}") for kind in ("seen", "hidden"))
    name = f"regex-{number}"
    rules = [group(READ, name).rule(), topic(READ, f"seen-regex-{number}").rule()]
    create_rules(root, rules)
    fields = {
        "group_id": name,
        "member_id": "made-by-the-client",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 6000,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": f".*-regex-{number}",
        "server_assignor": None,
        "topic_partitions": [],
    }
    answer = alice.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
    assert answer.error_code == 0
    assigned = {each.topic_id for each in answer.assignment.topic_partitions}
    assert assigned == {seen}
    assert hidden not in assigned
    describe = {"group_ids": [name], "include_authorized_operations": False}
    (found,) = alice.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, describe).groups
    assert (found.error_code, len(found.members)) == (0, 1)
    delete_rules(root, resource_type_filter=ResourceType.TOPIC)
    (found,) = alice.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, describe).groups
    assert (found.error_code, found.members) == (TOPIC_REFUSED, ())


# -- the three APIs of the rules ------------------------------------------------------------------


def test_rules_are_described_by_their_resource(root: RawClient) -> None:
    rights = [topic(READ, "a"), topic(WRITE, "a"), group(READ, "a")]
    create_rules(root, [right.rule() for right in rights])
    answer = root.ask(ApiKey.DESCRIBE_ACLS, 3, filter_fields())
    assert answer.error_code == 0
    found = {
        (resource.resource_type, resource.resource_name): {e.operation for e in resource.acls}
        for resource in answer.resources
    }
    assert found == {(2, "a"): {READ, WRITE}, (3, "a"): {READ}}
    only = filter_fields(resource_name_filter="abc", pattern_type_filter=PatternType.MATCH)
    assert root.ask(ApiKey.DESCRIBE_ACLS, 3, only).resources == ()


def test_each_rule_has_its_own_result_and_one_that_exists_is_none_less(root: RawClient) -> None:
    good = topic(READ, "a").rule()
    broken = good._replace(principal="alice")
    assert create_rules(root, [good, broken, good]) == [0, 42, 0]
    assert create_rules(root, [good]) == [0]
    assert delete_rules(root) == 1
    assert delete_rules(root) == 0


def test_an_unknown_filter_is_refused(root: RawClient) -> None:
    assert root.ask(ApiKey.DESCRIBE_ACLS, 3, filter_fields(operation=99)).error_code == 42
    answer = root.ask(ApiKey.DELETE_ACLS, 3, {"filters": [filter_fields(operation=99)]})
    assert answer.filter_results[0].error_code == 42


@pytest.mark.slow
def test_ten_thousand_rules_are_one_request_and_survive_a_restart(
    broker: GuardedBroker, root: RawClient
) -> None:
    rules = [topic(READ, f"topic-{number}").rule() for number in range(10_000)]
    assert set(create_rules(root, rules)) == {0}
    assert create_rules(root, [*rules, topic(READ, "more").rule()])[0] == 42
    broker.interrupt()
    broker.start()
    with root_of(broker) as again, broker.log_in("alice") as alice:
        listed = again.ask(ApiKey.DESCRIBE_ACLS, 3, filter_fields())
        assert len(listed.resources) == 10_000
        case = next(each for each in CASES if each.api is ApiKey.LIST_OFFSETS)
        assert told(alice, case) == {TOPIC_REFUSED}
        assert delete_rules(again) == 10_000


def test_the_message_names_the_right_and_the_resource(root: RawClient, alice: RawClient) -> None:
    del root
    answer = alice.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 1000, "topics": None})
    assert answer.error_message == "User:alice has no right to describe on the cluster"


def noted(folder: Path, name: str) -> set[tuple[str, str, str]]:
    """Who asked for what, and on what, in a file of the audit log."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    return {(line["principal"], line["request"], on) for line in lines for on in line["on"]}


def test_changes_and_refusals_of_every_api_are_in_the_audit_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    wanted = set()
    with GuardedBroker(tmp_path, **{"audit.log.dir": str(folder), "node.id": "1"}) as guarded:
        with root_of(guarded) as root, guarded.log_in("alice") as alice:
            prepare(root)
            for case in CASES:
                for missing in case.rights:
                    others = [right.rule() for right in case.rights if right is not missing]
                    create_rules(root, others)
                    assert told(alice, case)
                    delete_rules(root)
                    on = f"{missing.kind.name.lower()}:{missing.name}"
                    wanted.add(("User:alice", APIS[case.api].name, on))
        guarded.interrupt()
    assert ("User:ANONYMOUS", "CreateTopics", "topic:t") in noted(folder, "audit-1.log")
    # The other right that would do is the one that is noted.
    wanted.discard(("User:alice", "InitProducerId", "topic:whichever"))
    assert wanted - noted(folder, "audit-1-refused.log") == set()


def test_what_is_left_out_of_a_response_is_not_in_the_audit_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with GuardedBroker(tmp_path, **{"audit.log.dir": str(folder), "node.id": "1"}) as guarded:
        with root_of(guarded) as root, guarded.log_in("alice") as alice:
            root.create_topic("t")
            every = {"topics": None, "allow_auto_topic_creation": False}
            assert not alice.ask(ApiKey.METADATA, 4, every).topics
            assert not alice.ask(ApiKey.LIST_GROUPS, 0, {}).groups
        guarded.interrupt()
    assert noted(folder, "audit-1-refused.log") == set()


def test_a_topic_that_is_created_automatically_is_in_the_audit_log(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    with GuardedBroker(tmp_path, **{"audit.log.dir": str(folder), "node.id": "1"}) as guarded:
        with root_of(guarded) as root, guarded.log_in("alice") as alice:
            create_rules(root, [topic(Operation.CREATE, "new").rule(), topic(READ, "new").rule()])
            asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
            alice.ask(ApiKey.METADATA, 4, asked)
        guarded.interrupt()
    assert ("User:alice", "CreateTopics", "topic:new") in noted(folder, "audit-1.log")


def newest_lines(client: RawClient) -> Any:
    return own(client, ApiKey.DESCRIBE_AUDIT_LOG, {})["lines"]


def test_a_broker_without_an_audit_log_says_so(root: RawClient) -> None:
    assert own(root, ApiKey.DESCRIBE_AUDIT_LOG, {}) == {"path": None, "problem": None, "lines": []}
