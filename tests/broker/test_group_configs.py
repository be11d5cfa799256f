"""Settings of consumer groups: of the broker for all, and of single ones, changed while it runs."""

from typing import Any

import pytest

from suwi.client.connection import PeerConnection
from suwi.controller.configuration_control import Resource
from suwi.metadata.image import ImageBuilder, group_configs_key
from suwi.model.broker_config import parse_broker_config
from suwi.model.config_kinds import BadConfig
from suwi.model.group_config import group_config_in_force
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic
from tests.broker.test_dynamic_config import alter, value_of

SESSION = "consumer.session.timeout.ms"
HEARTBEAT = "consumer.heartbeat.interval.ms"
INVALID_REQUEST, INVALID_CONFIG, UNSUPPORTED_VERSION = 42, 40, 35


def run(scenario: Any) -> None:
    simulation = Simulation(0)

    async def main() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        await scenario(broker, await broker.connect())

    simulation.run(main())


async def resources(
    client: PeerConnection, types: list[int], version: int = 1
) -> tuple[int, list[tuple[str, int]]]:
    answer = await client.call(ApiKey.LIST_CONFIG_RESOURCES, version, {"resource_types": types})
    found = [
        (one.resource_name, getattr(one, "resource_type", 16)) for one in answer.config_resources
    ]
    return int(answer.error_code), found


def test_a_group_has_the_brokers_settings_until_it_has_its_own() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert await value_of(client, Resource.GROUP, "g", SESSION) == "45000"
        assert await alter(client, Resource.GROUP, "g", SESSION, "50000") == 0
        assert await value_of(client, Resource.GROUP, "g", SESSION) == "50000"
        assert await value_of(client, Resource.GROUP, "other", SESSION) == "45000"
        assert broker.broker.groups.config_of("g").consumer_session_timeout_ms == 50_000
        assert await alter(client, Resource.GROUP, "g", SESSION, None) == 0
        assert await value_of(client, Resource.GROUP, "g", SESSION) == "45000"
        assert await resources(client, [Resource.GROUP]) == (0, [])

    run(scenario)


def test_what_is_wrong_or_beyond_the_brokers_limits_is_refused() -> None:
    async def scenario(_: SimBroker, client: PeerConnection) -> None:
        for key, value in (
            (SESSION, "44999"),
            (SESSION, "60001"),
            (SESSION, "long"),
            (HEARTBEAT, "4999"),
            ("retention.ms", "1"),
        ):
            assert await alter(client, Resource.GROUP, "g", key, value) == INVALID_CONFIG
        assert await alter(client, Resource.GROUP, "", SESSION, "50000") == INVALID_REQUEST
        assert await resources(client, [Resource.GROUP]) == (0, [])

    run(scenario)


def test_resources_with_settings_are_listed_by_type() -> None:
    async def scenario(_: SimBroker, client: PeerConnection) -> None:
        await create_topic(client, "orders")
        await alter(client, Resource.GROUP, "a/b", HEARTBEAT, "6000")
        assert await resources(client, [Resource.GROUP]) == (0, [("a/b", 32)])
        assert await resources(client, [Resource.TOPIC]) == (0, [("orders", 2)])
        assert (await resources(client, []))[1] == [
            ("orders", 2),
            ("0", 4),
            ("a/b", 32),
        ]
        assert await resources(client, [99]) == (UNSUPPORTED_VERSION, [])
        assert await resources(client, [], version=0) == (0, [])

    run(scenario)


def test_a_groups_settings_come_back_from_the_store_whatever_its_name_is() -> None:
    builder, names = ImageBuilder(), ("a/b", "..", "grüße")
    for name in names:
        image = builder.apply(1, {group_configs_key(name): b'{"consumer.session.timeout.ms": "7"}'})
        assert image.group_configs[name] == {SESSION: "7"}
    gone = {group_configs_key(name): None for name in names}
    assert sorted(builder.apply(2, gone).group_configs) == []


def test_a_stored_value_beyond_the_limits_of_today_counts_as_the_limit() -> None:
    broker = parse_broker_config({}).config
    config = group_config_in_force({SESSION: "6000", HEARTBEAT: "junk"}, broker)
    assert config.consumer_session_timeout_ms == 45_000
    assert config.consumer_heartbeat_interval_ms == 5_000


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"group.consumer.session.timeout.ms": "6000"}, "group.consumer.min.session.timeout.ms"),
        ({"group.consumer.heartbeat.interval.ms": "20000"}, "group.consumer.max.heartbeat"),
        ({"group.consumer.assignors": ""}, "group.consumer.assignors"),
        ({"group.consumer.assignors": "sticky"}, "uniform, range"),
        ({"group.consumer.migration.policy": "sideways"}, "bidirectional"),
        ({"group.consumer.regex.refresh.interval.ms": "9999"}, "10000"),
    ],
)
def test_keys_that_contradict_each_other_stop_the_start(
    properties: dict[str, str], named: str
) -> None:
    with pytest.raises(BadConfig, match=named.replace(".", r"\.")):
        parse_broker_config(properties)


def test_the_migration_policy_may_be_written_as_kafka_prints_it() -> None:
    config = parse_broker_config({"group.consumer.migration.policy": "UPGRADE"}).config
    assert config.group_consumer_migration_policy == "upgrade"
