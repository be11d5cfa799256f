"""An attacker's list: what alice tries although she has no right to it is refused, and audited.

Tokens of an attacker are in `test_oauthbearer.py`, the rights of each API in `test_access.py`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from suwi.security.acls import Operation, ResourceType
from suwi.security.peer_proof import _HELLO
from suwi.wire.codec import encode_request
from suwi.wire.headers import request_header
from suwi.wire.versions import APIS, ApiKey
from tests.broker.test_inter_broker_requests import heartbeat_fields
from tests.raw_client import RawClient, fetch_fields, produce_fields
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
    group,
    log_in,
    topic,
    transaction,
)
from tests.security.test_access import BATCH, CASES, TRANSACTIONAL, metadata, own, prepare
from tests.testing.clients import until

CLOSED = -1
SESSION_NOT_FOUND = 70
CLUSTER, TOPIC = "cluster:kafka-cluster", "topic:t"
GROUP, TRANSACTION = "group:g", "transactional_id:x"
NO_RULE, FOR_BROKERS = "no rule allows it", "for brokers only"
Attempt = Callable[[RawClient, RawClient, UUID], int]
"""By alice, with a super user and the id of the topic `t`. The code of the refusal."""


class Attack(NamedTuple):
    attempt: Attempt
    refusal: int
    noted: tuple[str, str, str]
    """The operation, on what, and why not."""
    rights: tuple[Right, ...] = ()
    """What alice may do all the same."""


def asking(api: ApiKey, version: int, fields: Mapping[str, Any]) -> Attempt:
    def attempt(alice: RawClient, _root: RawClient, _topic_id: UUID) -> int:
        (code,) = codes(alice.ask(api, version, fields)) & REFUSALS
        return code

    return attempt


def as_in_case(api: ApiKey, version: int | None = None, **changed: Any) -> Attempt:
    case = next(each for each in CASES if each.api is api and version in (None, each.version))
    return asking(api, case.version, {**case.fields, **changed})


def sending(api: ApiKey, body: bytes) -> Attempt:
    """What closes the connection."""

    def attempt(alice: RawClient, _root: RawClient, _topic_id: UUID) -> int:
        alice.send_request(api, 0, body)
        return CLOSED if alice.is_closed_by_broker else 0

    return attempt


def envelope(principal: bytes) -> Attempt:
    fields = {"topics": [{"name": "t", "topic_id": None}], "timeout": 30_000}
    inner = request_header(ApiKey.DELETE_TOPICS, 6, 1, "root")
    inner += encode_request(ApiKey.DELETE_TOPICS, 6, fields)
    sent = {"request_principal": principal, "client_host_address": b"127.0.0.1"}
    return asking(ApiKey.ENVELOPE, 0, {"request_data": inner, **sent})


def asking_own(api: ApiKey) -> Attempt:
    body = {"group": "g", "producer_id": 1, "topic": "t", "partition": 0}
    body = {} if api is ApiKey.DESCRIBE_REPLICAS else body
    return lambda alice, _root, _topic_id: int(own(alice, api, body)["error_code"])


def fetching_by_id(alice: RawClient, _root: RawClient, topic_id: UUID) -> int:
    return int(alice.fetch(topic_id, 0).error_code)


def producing_by_id(alice: RawClient, _root: RawClient, topic_id: UUID) -> int:
    return alice.produce(topic_id, BATCH).error


def asking_by_id(alice: RawClient, _root: RawClient, topic_id: UUID) -> int:
    (found,) = metadata(alice, topics=[{"topic_id": topic_id, "name": None}]).topics
    assert found.name is None
    return int(found.error_code)


def deleting_by_id(alice: RawClient, _root: RawClient, topic_id: UUID) -> int:
    fields = {"topics": [{"name": None, "topic_id": topic_id}], "timeout": 30_000}
    (deleted,) = alice.ask(ApiKey.DELETE_TOPICS, 6, fields).responses
    assert deleted.name is None
    return int(deleted.error_code)


def waiting_longer_than_the_right(alice: RawClient, root: RawClient, _topic_id: UUID) -> int:
    end = alice.fetch("t", 0).high_watermark
    fields = fetch_fields(12, "t", end, max_wait_ms=60_000)
    alice.send_request(ApiKey.FETCH, 12, bytes(encode_request(ApiKey.FETCH, 12, fields)))
    delete_rules(root)
    assert root.produce("t", BATCH).error == 0  # wakes the fetch
    (code,) = codes(alice.answer(ApiKey.FETCH, 12)) - {0}
    return code


def keeping_a_session(alice: RawClient, root: RawClient, _topic_id: UUID) -> int:
    opened = alice.ask(ApiKey.FETCH, 12, fetch_fields(12, "t", 0, session_epoch=0))
    assert opened.session_id
    delete_rules(root)
    how = {"session_id": opened.session_id, "session_epoch": 1}
    again = {**fetch_fields(12, "t", 0, **how), "topics": []}
    (code,) = codes(alice.ask(ApiKey.FETCH, 12, again)) - {0}
    return code


_REPLICA_OFFSETS = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
_BY_REGEX = {
    "group_id": "g",
    "member_id": "theirs",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": 6000,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": ".*",
    "server_assignor": None,
    "topic_partitions": [],
}
_AS_BROKER = ("cluster_action", CLUSTER, FOR_BROKERS)
_ALL = (cluster(Operation.ALL),)
_PASSWORD = {"iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}

ATTACKS: dict[str, Attack] = {
    # As a broker: whatever rules there are.
    "an envelope of the super user": Attack(envelope(b"User:root"), CLUSTER_REFUSED, _AS_BROKER),
    "an envelope of a broker": Attack(
        envelope(b"Broker:internal"), CLUSTER_REFUSED, _AS_BROKER, _ALL
    ),
    "a change of an ISR": Attack(
        asking(ApiKey.ALTER_PARTITION, 3, {"broker_id": 0, "broker_epoch": 1, "topics": []}),
        CLUSTER_REFUSED,
        _AS_BROKER,
        _ALL,
    ),
    "the shutdown of a broker": Attack(
        asking(ApiKey.BROKER_HEARTBEAT, 1, heartbeat_fields(0, 1)), CLUSTER_REFUSED, _AS_BROKER
    ),
    "the report of a loss": Attack(sending(ApiKey.REPORT_LOSS, b"{}"), CLOSED, _AS_BROKER, _ALL),
    "a broker's proof where clients log in": Attack(
        sending(ApiKey.PEER_CHALLENGE, bytes(_HELLO.size)), CLOSED, _AS_BROKER, _ALL
    ),
    "a fetch as a replica": Attack(
        asking(ApiKey.FETCH, 12, {**fetch_fields(12, "t", 0), "replica_id": 2}),
        CLUSTER_REFUSED,
        _AS_BROKER,
        (topic(Operation.ALL, "t"), *_ALL),
    ),
    "the end of an epoch as a replica": Attack(
        asking(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            4,
            {"replica_id": 2, "topics": [{"topic": "t", "partitions": [_REPLICA_OFFSETS]}]},
        ),
        CLUSTER_REFUSED,
        _AS_BROKER,
        (topic(Operation.ALL, "t"), *_ALL),
    ),
    # What only Suwi's brokers tell.
    **{
        APIS[api].name: Attack(asking_own(api), CLUSTER_REFUSED, ("describe", CLUSTER, NO_RULE))
        for api in ApiKey
        if not APIS[api].is_kafkas
        and api.name.startswith(("DESCRIBE_", "LIVE_", "WATCH_"))
        and api is not ApiKey.DESCRIBE_BROKER
    },
    # Topics, by ids that were guessed, and by rights that have ended.
    "a fetch by id": Attack(fetching_by_id, TOPIC_REFUSED, ("read", TOPIC, NO_RULE)),
    "a batch by id": Attack(producing_by_id, TOPIC_REFUSED, ("write", TOPIC, NO_RULE)),
    "metadata by id": Attack(asking_by_id, TOPIC_REFUSED, ("describe", TOPIC, NO_RULE)),
    "a deletion by id": Attack(deleting_by_id, TOPIC_REFUSED, ("delete", TOPIC, NO_RULE)),
    "a fetch that waits longer than the right exists": Attack(
        waiting_longer_than_the_right,
        TOPIC_REFUSED,
        ("read", TOPIC, NO_RULE),
        (topic(Operation.READ, "t"),),
    ),
    "a fetch session that is older than the rules": Attack(
        keeping_a_session, TOPIC_REFUSED, ("read", TOPIC, NO_RULE), (topic(Operation.READ, "t"),)
    ),
    "the producers of a topic that may be described": Attack(
        as_in_case(ApiKey.DESCRIBE_PRODUCERS),
        TOPIC_REFUSED,
        ("read", TOPIC, NO_RULE),
        (topic(Operation.DESCRIBE, "t"),),
    ),
    # Groups and transactions of others.
    "a regular expression in another's group": Attack(
        asking(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, _BY_REGEX),
        GROUP_REFUSED,
        ("read", GROUP, NO_RULE),
        (topic(Operation.READ, "t"),),
    ),
    "another's member leaves": Attack(
        as_in_case(ApiKey.LEAVE_GROUP), GROUP_REFUSED, ("read", GROUP, NO_RULE)
    ),
    "another's offsets": Attack(
        as_in_case(ApiKey.OFFSET_COMMIT),
        GROUP_REFUSED,
        ("read", GROUP, NO_RULE),
        (topic(Operation.READ, "t"),),
    ),
    "the end of another's group": Attack(
        as_in_case(ApiKey.DELETE_GROUPS),
        GROUP_REFUSED,
        ("delete", GROUP, NO_RULE),
        (group(Operation.READ, "g"),),
    ),
    "another's producer is fenced": Attack(
        as_in_case(ApiKey.INIT_PRODUCER_ID),
        TRANSACTION_REFUSED,
        ("write", TRANSACTION, NO_RULE),
        (transaction(Operation.DESCRIBE, "x"),),
    ),
    "another's transaction is ended": Attack(
        as_in_case(ApiKey.END_TXN), TRANSACTION_REFUSED, ("write", TRANSACTION, NO_RULE)
    ),
    "a batch in another's transaction": Attack(
        asking(
            ApiKey.PRODUCE, 12, produce_fields(12, "t", {0: TRANSACTIONAL}, transactional_id="x")
        ),
        TRANSACTION_REFUSED,
        ("write", TRANSACTION, NO_RULE),
        (topic(Operation.WRITE, "t"),),
    ),
    "offsets in another's transaction": Attack(
        as_in_case(ApiKey.TXN_OFFSET_COMMIT),
        TRANSACTION_REFUSED,
        ("write", TRANSACTION, NO_RULE),
        (group(Operation.READ, "g"), topic(Operation.READ, "t")),
    ),
    "a partition in another's transaction, as a broker adds it": Attack(
        as_in_case(ApiKey.ADD_PARTITIONS_TO_TXN, 4),
        CLUSTER_REFUSED,
        ("cluster_action", CLUSTER, NO_RULE),
        (transaction(Operation.WRITE, "x"), topic(Operation.WRITE, "t")),
    ),
    "a marker for a guessed producer": Attack(
        as_in_case(ApiKey.WRITE_TXN_MARKERS),
        CLUSTER_REFUSED,
        ("alter", CLUSTER, NO_RULE),
        (topic(Operation.ALL, "t"),),
    ),
    # More rights.
    "a rule for herself": Attack(
        as_in_case(ApiKey.CREATE_ACLS), CLUSTER_REFUSED, ("alter", CLUSTER, NO_RULE)
    ),
    "a password for the super user": Attack(
        asking(
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            0,
            {"deletions": [], "upsertions": [{"name": "root", "mechanism": 1, **_PASSWORD}]},
        ),
        CLUSTER_REFUSED,
        ("alter", CLUSTER, NO_RULE),
    ),
    "no quota": Attack(
        as_in_case(ApiKey.ALTER_CLIENT_QUOTAS),
        CLUSTER_REFUSED,
        ("alter_configs", CLUSTER, NO_RULE),
    ),
}


class Outcomes(NamedTuple):
    codes: dict[str, int]
    audited: list[dict[str, Any]]
    """The lines of refusals."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Of all attacks, each with a client id of its own."""
    folder, found = tmp_path_factory.mktemp("attacked"), dict[str, int]()
    settings = {"audit.log.dir": str(folder / "audit"), "node.id": "1"}
    with GuardedBroker(folder, **settings) as broker:
        with RawClient(broker.address) as root:
            prepare(root)
            (described,) = metadata(root, "t").topics
            for name, attack in ATTACKS.items():
                delete_rules(root)
                create_rules(root, [right.rule() for right in attack.rights])
                with log_in(broker.outside, "alice", name) as alice:
                    found[name] = attack.attempt(alice, root, described.topic_id)
            assert metadata(root, "t").topics == (described,)
            deny_and_ask(broker, root)
            foreign_session(broker, root)
        until(lambda: any(line.get("client_id") == _DENIED for line in lines(folder)))
        broker.interrupt()
        assert "Traceback" not in broker.log
    return Outcomes(found, [line for line in lines(folder) if "operation" in line])


def lines(folder: Path) -> list[dict[str, Any]]:
    """Of the refusals that are written so far, in their order."""
    (text,) = [file.read_text() for file in folder.glob("audit/audit-1-refused.log")] or [""]
    return [json.loads(line) for line in text.split("\n")[:-1]]


@pytest.mark.parametrize("name", ATTACKS)
def test_what_an_attacker_tries_is_refused_and_audited(outcomes: Outcomes, name: str) -> None:
    attack = ATTACKS[name]
    assert outcomes.codes[name] == attack.refusal
    noted = [
        (line["operation"], *line["on"], line["reason"])
        for line in outcomes.audited
        if line["client_id"] == name
    ]
    assert attack.noted in noted
    assert {line["principal"] for line in outcomes.audited} == {"User:alice"}


_DENIED = "alice, who is denied it"


def deny_and_ask(broker: GuardedBroker, root: RawClient) -> None:
    right = topic(Operation.WRITE, "t")
    create_rules(root, [right.rule("User:*"), right.rule(deny=True)])
    with log_in(broker.outside, "alice", _DENIED) as alice:
        assert alice.produce("t", BATCH).error == TOPIC_REFUSED


def test_the_audit_log_names_the_rule_that_denies(outcomes: Outcomes) -> None:
    (line,) = (line for line in outcomes.audited if line["client_id"] == _DENIED)
    assert line["reason"] == "deny User:alice write on topic t from *"


def foreign_session(broker: GuardedBroker, root: RawClient) -> None:
    """Nobody uses the session of somebody else, whoever knows its id."""
    delete_rules(root, resource_type_filter=ResourceType.TOPIC)
    create_rules(root, [topic(Operation.READ, "t").rule("User:*")])
    with broker.log_in("bob") as bob, broker.log_in("alice") as alice:
        opened = bob.ask(ApiKey.FETCH, 12, fetch_fields(12, "t", 0, session_epoch=0))
        assert opened.session_id

        def fetch(client: RawClient, epoch: int) -> int:
            how = {"session_id": opened.session_id, "session_epoch": epoch}
            asked = {**fetch_fields(12, "t", 0, **how), "topics": []}
            return int(client.ask(ApiKey.FETCH, 12, asked).error_code)

        assert fetch(alice, 1) == SESSION_NOT_FOUND
        assert fetch(alice, -1) == 0  # which ends a session of her own
        assert fetch(bob, 1) == 0
