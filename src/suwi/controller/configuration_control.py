"""Dynamic configuration: validates changes of topic and broker settings and writes them.

`alter_topic` and `alter_broker` return when the image has the change.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from suwi.controller.metadata_writer import MetadataWriter, check_fits
from suwi.controller.partition_changes import shard_puts, without_elr
from suwi.metadata.image import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    TOPICS,
    Topic,
    encode_topic,
    group_configs_key,
)
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Delete, Put
from suwi.model.broker_config import (
    DYNAMIC_BROKER_KEYS,
    KEYS_WITHOUT_EFFECT,
    BrokerConfig,
    parse_broker_config,
)
from suwi.model.config_kinds import BadConfig, Key, value_text
from suwi.model.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from suwi.model.group_config import GROUP_KEYS, parse_group_config
from suwi.model.topic_config import IGNORED_TOPIC_KEYS, TOPIC_KEYS, parse_topic_config

log = logging.getLogger(__name__)

_MIN_ISR = "min.insync.replicas"


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Operation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    operation: Operation
    value: str | None


class ConfigurationControl:
    def __init__(
        self, writer: MetadataWriter, follower: MetadataFollower, config: BrokerConfig
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._config = config

    async def alter_topic(
        self,
        name: str,
        alterations: Sequence[Alteration],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change a topic's settings; `replace` removes those that are not in `alterations`."""
        await self._writer.run_exclusively(
            lambda: self._alter_topic(name, alterations, replace, validate_only)
        )

    async def _alter_topic(
        self, name: str, alterations: Sequence[Alteration], replace: bool, validate_only: bool
    ) -> None:
        topic = self._follower.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        keys = {name: declared for name, (_, declared) in TOPIC_KEYS.items()}
        base: Mapping[str, str] = {} if replace else topic.configs
        configs = _altered(base, alterations, keys)
        try:
            parse_topic_config(configs, self._config.topic)
        except BadConfig as error:
            raise InvalidConfig(str(error)) from None
        changed = Topic(topic.name, topic.id, configs, topic.partitions)
        put = Put(TOPICS + name, encode_topic(changed))
        check_fits(put)
        if not validate_only:
            cleared = self._clear_elr(topic.configs, configs, [name])
            await self._writer.write([*cleared, put])
            log.info("topic configured", extra={"topic": name, "configs": configs})

    async def alter_broker(
        self,
        name: str,
        alterations: Sequence[Alteration],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change the settings of one broker, or of all brokers if `name` is empty."""
        await self._writer.run_exclusively(
            lambda: self._alter_broker(name, alterations, replace, validate_only)
        )

    async def _alter_broker(
        self, name: str, alterations: Sequence[Alteration], replace: bool, validate_only: bool
    ) -> None:
        image = self._follower.image
        if name and name not in [str(broker) for broker in image.unfenced_brokers]:
            raise InvalidRequest(f"no live broker has the id {name!r}")
        for alteration in alterations:
            if alteration.name not in DYNAMIC_BROKER_KEYS:
                raise InvalidConfig(f"{alteration.name} cannot be changed while running")
        entry = name or ALL_BROKERS
        base: Mapping[str, str] = {} if replace else image.broker_configs.get(entry, {})
        configs = _altered(base, alterations, _broker_keys())
        try:
            parse_broker_config({**self._config.given, **configs})
        except BadConfig as error:
            raise InvalidConfig(str(error)) from None
        put = Put(BROKER_CONFIGS + entry, json.dumps(configs).encode())
        check_fits(put)
        if not validate_only:
            cleared = self._clear_elr(
                image.broker_configs.get(entry, {}), configs, list(image.topics)
            )
            await self._writer.write([*cleared, put])
            log.info("broker configured", extra={"broker": entry, "configs": configs})

    async def alter_group(
        self,
        name: str,
        alterations: Sequence[Alteration],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change what is set for a consumer group, which need not exist yet."""
        await self._writer.run_exclusively(
            lambda: self._alter_group(name, alterations, replace, validate_only)
        )

    async def _alter_group(
        self, name: str, alterations: Sequence[Alteration], replace: bool, validate_only: bool
    ) -> None:
        if not name:
            raise InvalidRequest("the name of a group is missing: there are no settings for all")
        keys = {name: declared for name, (_, declared) in GROUP_KEYS.items()}
        present = self._follower.image.group_configs.get(name, {})
        configs = _altered({} if replace else present, alterations, keys)
        try:
            parse_group_config(configs, self._config)
        except BadConfig as error:
            raise InvalidConfig(str(error)) from None
        put = Put(group_configs_key(name), json.dumps(configs).encode())
        check_fits(put)
        if not validate_only and configs != present:
            await self._writer.write([put if configs else Delete(put.key)])
            log.info("group configured", extra={"group": name, "configs": configs})

    def _clear_elr(
        self, before: Mapping[str, str], after: Mapping[str, str], topics: Sequence[str]
    ) -> list[Put]:
        """Clear the eligible leader replicas (ELR) if `min.insync.replicas` changes.

        With another minimum, records may be committed that replicas outside the ISR do not have.
        """
        if before.get(_MIN_ISR) == after.get(_MIN_ISR):
            return []
        image = self._follower.image
        return shard_puts(image, without_elr(image, topics))


def _broker_keys() -> dict[str, Key]:
    return {
        name: declared for _, declared in TOPIC_KEYS.values() for name, _ in declared.broker_names
    }


def _altered(
    base: Mapping[str, str], alterations: Sequence[Alteration], keys: Mapping[str, Key]
) -> dict[str, str]:
    configs = dict(base)
    seen: set[str] = set()
    for name, operation, value in alterations:
        if name in seen:
            raise InvalidRequest(f"{name} is changed twice")
        seen.add(name)
        if operation == Operation.DELETE:
            configs.pop(name, None)
        elif value is None:
            raise InvalidRequest(f"{name}: a value is missing")
        elif operation == Operation.SET:
            configs[name] = value
        else:
            configs[name] = _edit_list(name, configs.get(name), operation, value, keys)
        if name in IGNORED_TOPIC_KEYS or name in KEYS_WITHOUT_EFFECT:
            log.warning("configuration has no effect here", extra={"key": name})
    return configs


def _edit_list(
    name: str, present: str | None, operation: Operation, value: str, keys: Mapping[str, Key]
) -> str:
    key = keys.get(name)
    if key is None or key.kind.name != "list":
        raise InvalidConfig(f"{name} is not a list: it can be set, not appended to")
    if present is None:  # As in Kafka, the default is edited then.
        present = value_text(key.default)
    items = [item for item in (present or "").split(",") if item]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if operation == Operation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)
