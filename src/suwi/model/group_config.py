"""The configuration of a single group: Kafka's key names, for groups of the consumer protocol.

The fields of `DynamicGroupConfig` are the one table of group keys. What a group does not set comes
from the broker (`group.consumer.session.timeout.ms` for `consumer.session.timeout.ms`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from suwi.model.config_kinds import (
    BadConfig,
    BadValue,
    did_you_mean,
    int32,
    key,
    keys_of,
    parse_value,
)
from suwi.model.coordinator_config import CoordinatorConfig, consumer_group_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicGroupConfig:
    consumer_session_timeout_ms: int = key(
        int32(1), 45_000, broker="group.consumer.session.timeout.ms"
    ).doc("How long a member may be silent before it is removed.")
    consumer_heartbeat_interval_ms: int = key(
        int32(1), 5_000, broker="group.consumer.heartbeat.interval.ms"
    ).doc("How often members are told to send a heartbeat.")
    consumer_assignment_interval_ms: int = key(
        int32(0), 1_000, broker="group.consumer.assignment.interval.ms"
    ).doc("The least time between two assignments of the group.")


GROUP_KEYS = keys_of(DynamicGroupConfig)


def parse_group_config(
    overrides: Mapping[str, str], broker: CoordinatorConfig
) -> DynamicGroupConfig:
    """What a group sets, over the broker's values. Raises `BadConfig`."""
    changes: dict[str, int] = {}
    for name, value in overrides.items():
        if name not in GROUP_KEYS:
            hint = did_you_mean(name, GROUP_KEYS)
            raise BadConfig(f"unknown group configuration {name!r}{hint}")
        attribute, declared = GROUP_KEYS[name]
        changes[attribute] = parse_value(name, declared.kind, value)
        least, most = consumer_group_limits(broker)[attribute]
        if not least <= changes[attribute] <= most:
            raise BadConfig(
                f"invalid value {value!r} for configuration {name}: this broker allows {least} to "
                f"{most} (group.{name.replace('consumer.', 'consumer.min.', 1)} and max)"
            )
    config = dataclasses.replace(_defaults(broker), **changes)
    if config.consumer_heartbeat_interval_ms >= config.consumer_session_timeout_ms:
        raise BadConfig(
            "consumer.heartbeat.interval.ms must be less than consumer.session.timeout.ms="
            f"{config.consumer_session_timeout_ms}"
        )
    return config


def group_config_in_force(
    overrides: Mapping[str, str], broker: CoordinatorConfig
) -> DynamicGroupConfig:
    """As above for what is stored. A value that the broker's limits of today do not allow counts as
    the limit, as in Kafka 4.3; one that cannot be read, as not set."""
    changes: dict[str, int] = {}
    for attribute, declared in GROUP_KEYS.values():
        try:
            value = declared.kind.parse(overrides[declared.name])
        except (KeyError, BadValue):
            continue
        least, most = consumer_group_limits(broker)[attribute]
        changes[attribute] = min(max(value, least), most)
    return dataclasses.replace(_defaults(broker), **changes)


def _defaults(broker: CoordinatorConfig) -> DynamicGroupConfig:
    return DynamicGroupConfig(
        consumer_session_timeout_ms=broker.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=broker.group_consumer_heartbeat_interval_ms,
        consumer_assignment_interval_ms=broker.group_consumer_assignment_interval_ms,
    )
