"""What an administrator, or a stranger, cannot do to the topics of the coordinators."""

from collections.abc import Mapping
from typing import Any

import pytest

from suwi.controller.configuration_control import AlterOperation, Resource
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.wire.versions import ApiKey
from tests.group.wire import Wire, on_broker

OFFSETS, STATE = sorted(INTERNAL_TOPICS)
INVALID_TOPIC, INVALID_CONFIG = 17, 40
SET, DELETE, APPEND, SUBTRACT = AlterOperation
DEFAULT_BYTES_MAX = 1_048_588
ONE_SHARD = {
    "transaction_state_log_num_partitions": "1",
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
}


def image_of(wire: Wire) -> Any:
    assert wire.broker.broker is not None
    return wire.broker.broker.replicas.image


async def create(
    wire: Wire, name: str, configs: Mapping[str, str], *, validate_only: bool = False
) -> Any:
    topic = {
        "name": name,
        "num_partitions": 3,
        "replication_factor": 1,
        "assignments": (),
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    fields = {"topics": [topic], "timeout": 10_000, "validate_only": validate_only}
    (answer,) = (await wire.client.call(ApiKey.CREATE_TOPICS, 7, fields)).topics
    return answer


async def alter(
    wire: Wire,
    resource: Resource,
    name: str,
    *changes: tuple[str, AlterOperation, str | None],
    validate_only: bool = False,
) -> Any:
    configs = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    asked = {"resource_type": resource, "resource_name": name, "configs": configs}
    fields = {"resources": [asked], "validate_only": validate_only}
    answer = await wire.client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
    return answer.responses[0]


async def replace(wire: Wire, name: str, configs: Mapping[str, str]) -> Any:
    asked = {
        "resource_type": Resource.TOPIC,
        "resource_name": name,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    fields = {"resources": [asked], "validate_only": False}
    return (await wire.client.call(ApiKey.ALTER_CONFIGS, 2, fields)).responses[0]


def on_both(scenario: Any) -> None:
    """With both topics made by their coordinators."""

    async def with_both(wire: Wire) -> None:
        await wire.find("bank", key_type=1)
        for name in (OFFSETS, STATE):
            before = image_of(wire).topics[name]
            await scenario(wire, name)
            after = image_of(wire).topics[name]
            assert (after.id, len(after.partitions)) == (before.id, len(before.partitions))

    on_broker(with_both, **ONE_SHARD)


@pytest.mark.parametrize("validate_only", [False, True])
def test_their_partitions_stay_as_many_as_they_are(validate_only: bool) -> None:
    async def scenario(wire: Wire, name: str) -> None:
        fields = {
            "topics": [{"name": name, "count": 57, "assignments": None}],
            "timeout": 10_000,
            "validate_only": validate_only,
        }
        (result,) = (await wire.client.call(ApiKey.CREATE_PARTITIONS, 3, fields)).results
        assert result.error_code == INVALID_TOPIC
        assert "by how many there are" in result.error_message

    on_both(scenario)


@pytest.mark.parametrize("by_id", [False, True])
def test_they_cannot_be_deleted(by_id: bool) -> None:
    async def scenario(wire: Wire, name: str) -> None:
        topic_id = image_of(wire).topics[name].id
        topic = {"name": None if by_id else name, "topic_id": topic_id if by_id else None}
        fields = {"topics": [topic], "timeout": 10_000}
        (response,) = (await wire.client.call(ApiKey.DELETE_TOPICS, 6, fields)).responses
        assert response.error_code == INVALID_TOPIC
        assert name in response.error_message

    on_both(scenario)


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        [("cleanup.policy", SET, "delete")],
        [("cleanup.policy", SET, "compact,delete")],
        [("cleanup.policy", APPEND, "delete")],
        [("cleanup.policy", SUBTRACT, "compact")],
        [("cleanup.policy", DELETE, None)],
        [("retention.ms", SET, "1")],
        [("retention.ms", SET, "-1")],
        [("retention.bytes", SET, "1")],
        [("max.message.bytes", SET, str(DEFAULT_BYTES_MAX - 1))],
        [("min.insync.replicas", SET, "1"), ("cleanup.policy", SET, "delete")],
    ],
    ids=lambda changes: "-".join(f"{key}-{how.name}-{value}" for key, how, value in changes),
)
def test_a_change_that_would_lose_their_records_is_refused(
    changes: list[Any], validate_only: bool
) -> None:
    async def scenario(wire: Wire, name: str) -> None:
        before = image_of(wire).topics[name].configs
        answer = await alter(wire, Resource.TOPIC, name, *changes, validate_only=validate_only)
        assert answer.error_code == INVALID_CONFIG
        assert name in answer.error_message
        assert changes[-1][0] in answer.error_message
        assert image_of(wire).topics[name].configs == before

    on_both(scenario)


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"segment.bytes": "1048576"},
        {"cleanup.policy": "delete"},
        {"cleanup.policy": "compact", "retention.ms": "1"},
        {"cleanup.policy": "compact", "max.message.bytes": "1000"},
    ],
)
def test_what_replaces_their_configuration_is_judged_with_the_brokers_defaults(
    configs: dict[str, str],
) -> None:
    async def scenario(wire: Wire, name: str) -> None:
        assert (await replace(wire, name, configs)).error_code == INVALID_CONFIG
        good = {"cleanup.policy": "compact", "segment.bytes": "1048576"}
        assert (await replace(wire, name, good)).error_code == 0
        assert image_of(wire).topics[name].configs == good

    on_both(scenario)


def test_a_raised_maximum_cannot_be_lowered_again() -> None:
    async def scenario(wire: Wire, name: str) -> None:
        raised, key = str(2 * DEFAULT_BYTES_MAX), "max.message.bytes"
        assert (await alter(wire, Resource.TOPIC, name, (key, SET, raised))).error_code == 0
        for operation, value in ((SET, str(DEFAULT_BYTES_MAX)), (DELETE, None)):
            answer = await alter(wire, Resource.TOPIC, name, (key, operation, value))
            assert answer.error_code == INVALID_CONFIG
            assert raised in answer.error_message

    on_both(scenario)


def test_what_does_not_harm_them_can_be_changed() -> None:
    async def scenario(wire: Wire, name: str) -> None:
        answer = await alter(
            wire,
            Resource.TOPIC,
            name,
            ("min.insync.replicas", SET, "1"),
            ("segment.bytes", SET, "1048576"),
            ("cleanup.policy", SET, "compact"),
            ("leader.replication.throttled.replicas", SET, "*"),
            ("follower.replication.throttled.replicas", APPEND, "0:1"),
            ("retention.ms", DELETE, None),
        )
        assert answer.error_code == 0, answer.error_message

    on_both(scenario)


def test_other_topics_are_not_restricted() -> None:
    async def scenario(wire: Wire) -> None:
        for name in ("__cluster_metadata", "__consumer_offsets_old"):
            assert (await create(wire, name, {"cleanup.policy": "delete"})).error_code == 0
            changes = (("retention.ms", SET, "1"), ("max.message.bytes", SET, "100"))
            assert (await alter(wire, Resource.TOPIC, name, *changes)).error_code == 0
            await wire.delete_topic(name)

    on_broker(scenario)


@pytest.mark.parametrize("broker", ["", "0"])
def test_the_default_that_they_use_cannot_be_lowered_below_them(broker: str) -> None:
    async def scenario(wire: Wire) -> None:
        lowered = ("message.max.bytes", SET, "1000")
        answer = await alter(wire, Resource.BROKER, broker, lowered)
        assert answer.error_code == INVALID_CONFIG
        assert OFFSETS in answer.error_message
        assert "max.message.bytes" in answer.error_message
        # With a setting of its own the topic does not depend on the default.
        own = ("max.message.bytes", SET, str(DEFAULT_BYTES_MAX))
        assert (await alter(wire, Resource.TOPIC, OFFSETS, own)).error_code == 0
        assert (await alter(wire, Resource.BROKER, broker, lowered)).error_code == 0

    on_broker(scenario)


@pytest.mark.parametrize("broker", ["", "0"])
def test_the_cleanup_policy_that_they_use_stays_compact(broker: str) -> None:
    async def scenario(wire: Wire) -> None:
        key = "log.cleanup.policy"
        # They have their own.
        assert (await alter(wire, Resource.BROKER, broker, (key, SET, "delete"))).error_code == 0
        for each in dict.fromkeys(("", broker)):
            assert (await alter(wire, Resource.BROKER, each, (key, SET, "compact"))).error_code == 0
        inherited = ("cleanup.policy", DELETE, None)
        assert (await alter(wire, Resource.TOPIC, OFFSETS, inherited)).error_code == 0
        answer = await alter(wire, Resource.BROKER, broker, (key, SET, "delete"))
        assert answer.error_code == INVALID_CONFIG
        assert OFFSETS in answer.error_message

    on_broker(scenario)


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup.policy": "delete"},
        {"cleanup.policy": "compact,delete"},
        {"cleanup.policy": "compact", "retention.bytes": "1"},
        {"cleanup.policy": "compact", "max.message.bytes": "1000"},
    ],
)
def test_made_beforehand_they_need_the_same_configuration(
    configs: dict[str, str], validate_only: bool
) -> None:
    async def scenario(wire: Wire) -> None:
        answer = await create(wire, STATE, configs, validate_only=validate_only)
        assert answer.error_code == INVALID_CONFIG
        assert STATE in answer.error_message
        good = {"cleanup.policy": "compact", "max.message.bytes": str(2 * DEFAULT_BYTES_MAX)}
        answer = await create(wire, STATE, good, validate_only=validate_only)
        assert answer.error_code == 0
        if not validate_only:
            assert len(image_of(wire).topics[STATE].partitions) == 3

    on_broker(scenario)


def test_a_broker_with_other_defaults_makes_them_all_the_same() -> None:
    """`log.cleanup.policy` and `message.max.bytes` of the file are no changes."""

    async def scenario(wire: Wire) -> None:
        await wire.find("bank", key_type=1)
        for name in (OFFSETS, STATE):
            assert image_of(wire).topics[name].configs["cleanup.policy"] == "compact"

    on_broker(scenario, log_cleanup_policy="delete", message_max_bytes="5000", **ONE_SHARD)
