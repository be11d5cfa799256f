"""Client quotas over the protocol, on a cluster: the same requests as to Apache Kafka."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster as Client
from suwi.client.quotas import ClientQuotas
from suwi.env import SystemRandom
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.testing import Cluster
from suwi.wire.versions import ApiKey
from tests.raw_client import RawClient, fetch_fields, new_topic, produce_fields

INVALID_REQUEST, UNSUPPORTED_VERSION, QUOTA_EXCEEDED = 42, 35, 89
BATCH = build_batch([Record(0, 1000, None, bytes(20_000))], base_offset=0)
RATE = 10_000.0
_numbers = count()
_PATIENCE_S = 120

Entity = dict[str, str | None]


def alter(client: RawClient, entity: Entity, validate_only: bool = False, **quotas: Any) -> int:
    """The error code. None removes a quota."""
    ops = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in quotas.items()
    ]
    named = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
    fields = {"entries": [{"entity": named, "ops": ops}], "validate_only": validate_only}
    (result,) = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, fields).entries
    assert {e.entity_type: e.entity_name for e in result.entity} == entity
    return int(result.error_code)


def describe(
    client: RawClient, *components: tuple[str, int, str | None], strict: bool = False
) -> Any:
    """Quotas by entity, or the error code."""
    asked = [
        {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components
    ]
    answer = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": asked, "strict": strict})
    if answer.error_code:
        return int(answer.error_code)
    return {
        frozenset((e.entity_type, e.entity_name) for e in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def throttle_ms(answer: Any) -> float:
    return float(answer.throttle_time.total_seconds() * 1000)


REFUSED: list[tuple[Entity, dict[str, Any]]] = [
    ({}, {"producer_byte_rate": 1.0}),
    ({"topic": "a"}, {"producer_byte_rate": 1.0}),
    ({"ip": "10.0.0.1", "user": "a"}, {"connection_creation_rate": 1.0}),
    ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
    ({"user": "a"}, {"connection_creation_rate": 1.0}),
    ({"user": "a"}, {"no_such_quota": 1.0}),
    ({"user": "a"}, {"producer_byte_rate": -1.0}),
    ({"user": "a"}, {"producer_byte_rate": 1.5}),
]


def check_descriptions(client: RawClient) -> None:
    """Quotas are set, found by filters, and removed."""
    entities: list[Entity] = [
        {"user": "u1"},
        {"user": None},
        {"user": "u1", "client-id": "c1"},
        {"user": "u1", "client-id": None},
        {"client-id": "c1"},
    ]
    try:
        for number, entity in enumerate(entities, 1):
            assert alter(client, entity, validate_only=True, request_percentage=1.0) == 0
            assert alter(client, entity, request_percentage=number * 1e6) == 0
        found = eventually(lambda: describe(client), len(entities))
        assert found[frozenset({("user", "u1")})] == {"request_percentage": 1e6}
        assert len(describe(client, ("user", 0, "u1"))) == 3
        assert len(describe(client, ("user", 0, "u1"), strict=True)) == 1
        assert len(describe(client, ("user", 1, None))) == 1
        assert len(describe(client, ("user", 2, None))) == 4
        assert len(describe(client, ("user", 2, None), ("client-id", 1, None))) == 1
        assert describe(client, ("user", 0, "nobody")) == {}
        assert describe(client, ("user", 0, "a"), ("user", 0, "b")) == INVALID_REQUEST
        assert describe(client, ("user", 0, None)) == INVALID_REQUEST
        assert describe(client, ("user", 7, None)) == INVALID_REQUEST
        assert describe(client, ("ip", 2, None), ("user", 2, None)) == INVALID_REQUEST
        assert describe(client, ("topic", 2, None)) == UNSUPPORTED_VERSION
        assert alter(client, {"user": "u1"}, no_such_quota=None) == 0
    finally:
        for entity in entities:
            assert alter(client, entity, request_percentage=None) == 0
    eventually(lambda: describe(client), 0)


def eventually(ask: Any, size: int) -> Any:
    end_s = time.monotonic() + _PATIENCE_S
    while len(found := ask()) != size:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return found


def check_produce(root: RawClient, client: RawClient, client_id: str) -> None:
    """A producer that exceeds its quota is told so at once, and read again after that time."""
    name = f"produced-{next(_numbers)}"
    root.create_topic(name)
    assert alter(root, {"client-id": client_id}, producer_byte_rate=RATE) == 0
    fields = produce_fields(12, name, {0: BATCH})
    end_s = time.monotonic() + _PATIENCE_S
    wait_ms = 0.0
    while not wait_ms:
        began_s = time.monotonic()
        assert began_s < end_s
        wait_ms = throttle_ms(client.ask(ApiKey.PRODUCE, 12, fields))
    alter(root, {"client-id": client_id}, producer_byte_rate=1e9)
    client.ask(ApiKey.API_VERSIONS, 0, {})
    assert time.monotonic() - began_s >= min(wait_ms / 1000, 1) * 0.9


def check_fetch(root: RawClient, client: RawClient, client_id: str) -> None:
    """A consumer that exceeds its quota gets an answer without partitions."""
    name = f"fetched-{next(_numbers)}"
    root.create_topic(name)
    for _ in range(10):
        root.produce(name, BATCH)
    assert alter(root, {"client-id": client_id}, consumer_byte_rate=RATE) == 0
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        answer = client.ask(ApiKey.FETCH, 12, fetch_fields(12, name, 0))
        assert answer.error_code == 0
        if throttle_ms(answer):
            break
        assert time.monotonic() < end_s
        assert answer.responses
    assert answer.responses == ()
    alter(root, {"client-id": client_id}, consumer_byte_rate=None)


def check_mutations(root: RawClient, client: RawClient, client_id: str) -> None:
    """New versions get an error for what exceeds the quota, old ones a throttle time."""
    rate = 1.0
    assert alter(root, {"client-id": client_id}, controller_mutation_rate=rate) == 0
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        name = f"mutated-{next(_numbers)}"
        fields = {"topics": [new_topic(name, 12)], "timeout": 100_000, "validate_only": False}
        answer = client.ask(ApiKey.CREATE_TOPICS, 7, fields)
        (created,) = answer.topics
        if created.error_code == QUOTA_EXCEEDED:
            break
        assert created.error_code == 0
        assert time.monotonic() < end_s
    assert throttle_ms(answer) > 0
    gone = f"older-{next(_numbers)}"
    # So many that the quota is exceeded however long the answer took.
    fields = {"topics": [new_topic(gone, 100)], "timeout": 100_000, "validate_only": False}
    answer = client.ask(ApiKey.CREATE_TOPICS, 5, fields)
    assert answer.topics[0].error_code == 0
    assert throttle_ms(answer) > 0
    alter(root, {"client-id": client_id}, controller_mutation_rate=None)


CHECKS = {"produce": check_produce, "fetch": check_fetch, "mutations": check_mutations}


# -- on a cluster of Suwi --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def brokers() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running


@pytest.fixture
def addresses(brokers: Cluster) -> list[str]:
    return brokers.bootstrap_servers.split(",")


@pytest.fixture
def root(addresses: list[str]) -> Iterator[RawClient]:
    with RawClient(addresses[0]) as client:
        yield client


@pytest.mark.parametrize(("entity", "quotas"), REFUSED)
def test_what_cannot_be_meant_is_refused(
    root: RawClient, entity: Entity, quotas: dict[str, Any]
) -> None:
    assert alter(root, entity, **quotas) == INVALID_REQUEST


def test_quotas_are_described_as_they_were_set(root: RawClient) -> None:
    check_descriptions(root)


def test_mutations_are_limited_through_every_broker(root: RawClient, addresses: list[str]) -> None:
    with ExitStack() as opened:
        for number, address in enumerate(addresses):
            client_id = f"admin-{number}"
            client = opened.enter_context(RawClient(address, client_id))
            check_mutations(root, client, client_id)


def test_automatic_creation_waits_for_the_quota(root: RawClient, addresses: list[str]) -> None:
    assert alter(root, {"client-id": "auto"}, controller_mutation_rate=0.1) == 0
    with ExitStack() as opened:
        for address in addresses:
            observer = opened.enter_context(RawClient(address))
            eventually(partial(describe, observer, ("client-id", 0, "auto")), 1)
            client = opened.enter_context(RawClient(address, "auto"))
            fields = {
                "topics": [{"topic_id": None, "name": f"auto-{next(_numbers)}"} for _ in range(3)],
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
            }
            answer = client.ask(ApiKey.METADATA, 12, fields)
            assert {int(topic.error_code) for topic in answer.topics} <= {0, 5}
        assert throttle_ms(answer) > 0
    alter(root, {"client-id": "auto"}, controller_mutation_rate=None)


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    with Cluster(brokers=1) as running:
        yield running.bootstrap_servers


@pytest.mark.parametrize("check", ["produce", "fetch"])
def test_bytes_are_limited(alone: str, check: str) -> None:
    with RawClient(alone) as root, RawClient(alone, f"limited-{check}") as client:
        CHECKS[check](root, client, f"limited-{check}")


def test_a_throttled_fetch_keeps_an_old_session_and_makes_no_new_one(alone: str) -> None:
    with RawClient(alone) as root, RawClient(alone, "session") as client:
        root.create_topic("sessions")
        for _ in range(10):
            root.produce("sessions", BATCH)

        def fetch(session_id: int, epoch: int) -> Any:
            how = {"session_id": session_id, "session_epoch": epoch, "max_bytes": 1}
            return client.ask(ApiKey.FETCH, 12, fetch_fields(12, "sessions", 0, **how))

        session_id = fetch(0, 0).session_id
        assert session_id
        alter(root, {"client-id": "session"}, consumer_byte_rate=RATE)
        answers: list[Any] = []
        end_s = time.monotonic() + _PATIENCE_S
        while not (throttled := [each for each in answers if throttle_ms(each)]):
            assert time.monotonic() < end_s
            answers.append(fetch(session_id, len(answers) + 1))
        assert {(each.error_code, each.session_id) for each in answers} == {(0, session_id)}
        assert all(each.responses == () for each in throttled)
        new = [fetch(0, 0) for _ in range(3)]
        assert [each.session_id == 0 for each in new] == [throttle_ms(each) > 0 for each in new]
        alter(root, {"client-id": "session"}, consumer_byte_rate=None)


def test_it_is_told_how_close_a_client_is_to_its_quota(alone: str) -> None:
    async def usages() -> Any:
        async with Client(parse_addresses(alone), random=SystemRandom()) as asking:
            return await ClientQuotas(asking).usages()

    with RawClient(alone) as root, RawClient(alone, "close") as client:
        root.create_topic("closeness")
        alter(root, {"client-id": "close"}, producer_byte_rate=1e6)
        eventually(partial(describe, root, ("client-id", 0, "close")), 1)
        client.produce("closeness", BATCH)
        (told,) = asyncio.run(usages()).values()
        (usage,) = (each for each in told.usages if each.client_id == "close")
        assert (usage.user, usage.key, usage.limit) == (None, "producer_byte_rate", 1e6)
        assert 0 < usage.used <= 1e6
        alter(root, {"client-id": "close"}, producer_byte_rate=None)


def test_connections_of_an_address_are_limited(alone: str) -> None:
    with RawClient(alone) as root:
        alter(root, {"ip": "127.0.0.1"}, connection_creation_rate=1.0)
        end_s = time.monotonic() + _PATIENCE_S
        while not is_refused(alone):
            assert time.monotonic() < end_s
        alter(root, {"ip": "127.0.0.1"}, connection_creation_rate=None)
    assert not is_refused(alone)


def is_refused(address: str) -> bool:
    with suppress(ConnectionError), RawClient(address) as client:
        client.send_request(ApiKey.API_VERSIONS, 0, b"")
        return client.is_closed_by_broker
    return True
