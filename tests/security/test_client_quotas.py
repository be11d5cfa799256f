"""Client quotas: which one applies, and which can be set."""

import pytest

from suwi.security.client_quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    IP,
    NO_QUOTAS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    canonical,
    check_entity,
    check_quota,
    decode_entity,
    encode_entity,
)

ALICE, APP = (USER, "alice"), (CLIENT_ID, "app")
ANY_USER, ANY_CLIENT = (USER, None), (CLIENT_ID, None)
PRECEDENCE: list[Entity] = [
    (APP, ALICE),
    (ANY_CLIENT, ALICE),
    (ALICE,),
    (APP, ANY_USER),
    (ANY_CLIENT, ANY_USER),
    (ANY_USER,),
    (APP,),
    (ANY_CLIENT,),
]


def test_the_most_specific_quota_applies_as_in_kafka() -> None:
    index = NO_QUOTAS
    for rate, entity in enumerate(reversed(PRECEDENCE), 1):
        index = index.replaced([(entity, {PRODUCER_BYTE_RATE: float(rate)})])
        found = index.limit(PRODUCER_BYTE_RATE, "alice", "app")
        assert found is not None
        assert found.rate == rate
    assert index.limit(REQUEST_PERCENTAGE, "alice", "app") is None


@pytest.mark.parametrize(
    ("entity", "shared_by"),
    [
        ((ANY_CLIENT, ANY_USER), (APP, ALICE)),
        ((ANY_USER,), (ALICE,)),
        ((ALICE,), (ALICE,)),
        ((ANY_CLIENT,), (APP,)),
    ],
)
def test_who_shares_a_quota(entity: Entity, shared_by: Entity) -> None:
    index = NO_QUOTAS.replaced([(entity, {PRODUCER_BYTE_RATE: 1.0})])
    found = index.limit(PRODUCER_BYTE_RATE, "alice", "app")
    assert found is not None
    assert found.shared_by == shared_by


def test_each_key_has_its_own_precedence() -> None:
    index = NO_QUOTAS.replaced(
        [((ALICE,), {PRODUCER_BYTE_RATE: 1.0}), ((ANY_USER,), {REQUEST_PERCENTAGE: 2.0})]
    )
    assert index.limit(PRODUCER_BYTE_RATE, "alice", "app") is not None
    assert index.limit(REQUEST_PERCENTAGE, "alice", "app") is not None
    assert index.limit(PRODUCER_BYTE_RATE, "bob", "app") is None


def test_a_client_without_an_id_has_no_quota_of_client_ids() -> None:
    index = NO_QUOTAS.replaced([((ANY_CLIENT,), {PRODUCER_BYTE_RATE: 1.0})])
    assert index.limit(PRODUCER_BYTE_RATE, "alice", "") is None


def test_an_address_has_its_own_rate_or_the_default() -> None:
    rates = {((IP, "10.0.0.1"),): 1.0, ((IP, None),): 2.0}
    index = NO_QUOTAS.replaced([(e, {CONNECTION_CREATION_RATE: r}) for e, r in rates.items()])
    assert index.connection_rate("10.0.0.1") == 1.0
    assert index.connection_rate("10.0.0.2") == 2.0
    assert index.replaced([(entity, None) for entity in rates]).connection_rate("10.0.0.2") is None


@pytest.mark.parametrize("entity", PRECEDENCE)
def test_an_entity_is_stored_and_read_back(entity: Entity) -> None:
    check_entity(entity)
    assert decode_entity(encode_entity(entity)) == entity


@pytest.mark.parametrize(
    "entity",
    [(), (("topic", "a"),), ((IP, "10.0.0.1"), ALICE), ((IP, "nowhere"),), (ALICE, ALICE)],
)
def test_an_entity_that_cannot_be_meant_is_refused(entity: Entity) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_entity(entity)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ((ALICE,), "producer_bytes", 1.0),
        ((ALICE,), CONNECTION_CREATION_RATE, 1.0),
        (((IP, None),), PRODUCER_BYTE_RATE, 1.0),
        ((ALICE,), PRODUCER_BYTE_RATE, 0.0),
        ((ALICE,), PRODUCER_BYTE_RATE, 1.5),
        ((ALICE,), PRODUCER_BYTE_RATE, 1e30),
        ((ALICE,), REQUEST_PERCENTAGE, float("nan")),
        ((ALICE,), REQUEST_PERCENTAGE, float("inf")),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(entity: Entity, key: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_quota(entity, key, value)


def test_addresses_are_written_in_one_way() -> None:
    assert canonical(IP, "2001:DB8:0::1") == "2001:db8::1"
    assert canonical(IP, "::ffff:10.0.0.7") == canonical(IP, "10.0.0.7") == "10.0.0.7"
    assert canonical(IP, None) is None
    assert canonical(USER, "2001:DB8:0::1") == "2001:DB8:0::1"


def test_the_largest_rate_is_that_of_kafka() -> None:
    check_quota(((USER, "a"),), PRODUCER_BYTE_RATE, float(2**63 - 1))
    with pytest.raises(ValueError, match="too large"):
        check_quota(((USER, "a"),), PRODUCER_BYTE_RATE, 2.0**64)
