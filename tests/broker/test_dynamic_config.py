"""Dynamic configuration takes effect at once."""

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.controller.configuration_control import AlterOperation, Resource
from suwi.metadata.dynamic_broker_config import topic_config_of
from suwi.metadata.image import Topic
from suwi.model.ids import TopicId
from suwi.model.keys_without_effect import KEYS_WITHOUT_EFFECT
from suwi.model.topic_config import TopicConfig
from suwi.records.record import Record
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import SimBroker, create_topic, produce, produce_records, read_all

TOPIC = "orders"


async def alter(
    client: PeerConnection, resource: Resource, name: str, key: str, value: str | None
) -> int:
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    answer = await client.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        {
            "resources": [
                {
                    "resource_type": resource,
                    "resource_name": name,
                    "configs": [{"name": key, "config_operation": operation, "value": value}],
                }
            ],
            "validate_only": False,
        },
    )
    return int(answer.responses[0].error_code)


async def value_of(client: PeerConnection, resource: Resource, name: str, key: str) -> str:
    answer = await client.call(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        {
            "resources": [
                {"resource_type": resource, "resource_name": name, "configuration_keys": [key]}
            ],
            "include_synonyms": True,
        },
    )
    return str(answer.results[0].configs[0].value)


def _run(scenario: Any, seed: int = 0) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        broker = SimBroker(simulation)
        await broker.start()
        client = await broker.connect()
        await create_topic(client, TOPIC)
        await scenario(broker, client)

    simulation.run(main())


def test_a_topic_setting_takes_effect_at_the_next_request() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert (await produce(client, TOPIC, [b"x" * 500])).error_code == 0
        assert await alter(client, Resource.TOPIC, TOPIC, "max.message.bytes", "300") == 0
        assert (await produce(client, TOPIC, [b"x" * 500])).error_code == 10
        assert await alter(client, Resource.TOPIC, TOPIC, "max.message.bytes", None) == 0
        assert (await produce(client, TOPIC, [b"x" * 500])).error_code == 0

    _run(scenario)


@pytest.mark.parametrize("broker_name", ["0", ""])
def test_a_broker_default_applies_to_topics_without_the_setting(broker_name: str) -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        key = "message.max.bytes"
        assert await alter(client, Resource.BROKER, broker_name, key, "300") == 0
        assert (await produce(client, TOPIC, [b"x" * 500])).error_code == 10
        assert await value_of(client, Resource.TOPIC, TOPIC, "max.message.bytes") == "300"
        await client.close()
        await broker.stop()
        await broker.start()
        again = await broker.connect()
        assert (await produce(again, TOPIC, [b"x" * 500])).error_code == 10

    _run(scenario)


def test_a_broker_default_in_hours_is_shown_in_milliseconds_for_a_topic() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert await value_of(client, Resource.TOPIC, TOPIC, "retention.ms") == "604800000"
        assert await alter(client, Resource.BROKER, "0", "log.retention.hours", "1") == 0
        assert await value_of(client, Resource.TOPIC, TOPIC, "retention.ms") == "3600000"

    _run(scenario)


def test_a_changed_connection_limit_applies_to_the_next_connection() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert await alter(client, Resource.BROKER, "", "max.connections", "1") == 0
        refused = await broker.connect()
        with pytest.raises(ConnectionLost):
            await produce(refused, TOPIC, [b"x"])
        assert await alter(client, Resource.BROKER, "", "max.connections", "10") == 0
        admitted = await broker.connect()
        assert (await produce(admitted, TOPIC, [b"x"])).error_code == 0

    _run(scenario)


def test_invalid_or_static_settings_are_refused_and_change_nothing() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert await alter(client, Resource.BROKER, "0", "node.id", "7") == 40
        assert await alter(client, Resource.TOPIC, TOPIC, "retention.ms", "soon") == 40
        assert await alter(client, Resource.TOPIC, TOPIC, "no.such.key", "1") == 40
        assert await alter(client, Resource.TOPIC, "nowhere", "retention.ms", "1") == 3
        assert await value_of(client, Resource.TOPIC, TOPIC, "retention.ms") == "604800000"

    _run(scenario)


@pytest.mark.parametrize("broker_name", ["0", ""])
def test_dynamic_keys_of_kafka_without_effect_are_accepted(
    broker_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        for key in sorted(KEYS_WITHOUT_EFFECT):
            assert await alter(client, Resource.BROKER, broker_name, key, "2") == 0
            assert await value_of(client, Resource.BROKER, broker_name, key) == "2"
            assert await alter(client, Resource.BROKER, broker_name, key, None) == 0
        assert await alter(client, Resource.BROKER, broker_name, "num.io.threads", "0") == 40
        assert await alter(client, Resource.BROKER, broker_name, "num.io.threads", "many") == 40

    _run(scenario)
    told = {
        record.__dict__["key"]
        for record in caplog.records
        if record.message == "configuration has no effect here"
    }
    assert told == KEYS_WITHOUT_EFFECT.keys()


def test_a_broker_describes_the_keys_that_tools_of_kafka_ask_for() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        values = {
            key: await value_of(client, Resource.BROKER, "0", key)
            for key in ("broker.id", "node.id", "log.dir", "log.dirs")
        }
        assert values == {
            "broker.id": "0",
            "node.id": "0",
            "log.dir": "/data",
            "log.dirs": "/data",
        }
        share = "leader.imbalance.per.broker.percentage"
        assert await value_of(client, Resource.BROKER, "0", share) == "10"
        assert await alter(client, Resource.BROKER, "0", share, "20") == 40  # read-only in Kafka

    _run(scenario)


# -- compaction --------------------------------------------------------------------------------

_COMPACTED = {
    "cleanup_policy": "compact",
    "segment_bytes": "2048",
    "min_cleanable_dirty_ratio": "0.01",
}


async def _overwrite(client: PeerConnection, topic: str, times: int) -> None:
    for number in range(times):
        batch = [Record(key=b"k%d" % (number % 3), value=b"v" * 300, timestamp=1_000)]
        assert (await produce_records(client, topic, batch)).error_code == 0


def test_the_cleaner_backoff_can_be_changed_during_the_backoff() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        key = "log.cleaner.backoff.ms"
        assert await alter(client, Resource.BROKER, "", key, str(24 * 3_600_000)) == 0
        await create_topic(client, "prices", **_COMPACTED)
        await _overwrite(client, "prices", 60)
        await asyncio.sleep(300)
        assert len(await read_all(client, "prices")) == 60
        assert await alter(client, Resource.BROKER, "", key, "1000") == 0
        await asyncio.sleep(30)
        assert len(await read_all(client, "prices")) < 20

    _run(scenario)


def test_the_cleaner_io_limit_can_be_changed_while_the_cleaner_is_throttled() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        key = "log.cleaner.io.max.bytes.per.second"
        assert await alter(client, Resource.BROKER, "", key, "1") == 0
        await create_topic(client, "prices", **_COMPACTED)
        await _overwrite(client, "prices", 60)
        await asyncio.sleep(300)
        assert len(await read_all(client, "prices")) == 60
        assert await alter(client, Resource.BROKER, "", key, None) == 0
        await asyncio.sleep(60)
        assert len(await read_all(client, "prices")) < 20

    _run(scenario)


def test_the_dedupe_buffer_size_can_be_changed_for_the_next_round() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        key = "log.cleaner.dedupe.buffer.size"
        assert await alter(client, Resource.BROKER, "0", key, "48") == 0
        assert await value_of(client, Resource.BROKER, "0", key) == "48"
        await create_topic(client, "prices", **_COMPACTED)
        await _overwrite(client, "prices", 60)
        await asyncio.sleep(60)
        # With memory for a single key it takes more rounds, but still finishes.
        assert len(await read_all(client, "prices")) < 20

    _run(scenario)


def test_log_cleaner_enable_cannot_be_changed_at_run_time() -> None:
    async def scenario(broker: SimBroker, client: PeerConnection) -> None:
        assert await alter(client, Resource.BROKER, "", "log.cleaner.enable", "false") == 40

    _run(scenario)


def test_a_setting_of_another_version_is_ignored_and_the_rest_of_its_topic_is_not() -> None:
    topic = Topic(TOPIC, TopicId(UUID(int=1)), {"retention.ms": "5", "of.tomorrow": "x"}, ())
    config = topic_config_of(topic, TopicConfig())
    assert config == replace(TopicConfig(), retention_ms=5)
