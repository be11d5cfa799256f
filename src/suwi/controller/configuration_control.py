"""Dynamic configuration: validates changes of topic, broker and group settings and writes them.

`alter` returns when the image has the change.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

from suwi.controller.internal_topics import check_configs
from suwi.controller.metadata_writer import MetadataWriter, check_fits
from suwi.controller.partition_changes import shard_puts, without_elr
from suwi.metadata.dynamic_broker_config import topic_config_of
from suwi.metadata.image import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    TOPICS,
    Topic,
    encode_topic,
    group_configs_key,
)
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Delete, Operation, Put
from suwi.model.broker_config import DYNAMIC_BROKER_KEYS, BrokerConfig, parse_broker_config
from suwi.model.config_kinds import BadConfig, Key, value_text
from suwi.model.errors import InvalidConfig, InvalidRequest, UnknownTopicOrPartition
from suwi.model.group_config import GROUP_KEYS, parse_group_config
from suwi.model.keys_without_effect import KEYS_WITHOUT_EFFECT
from suwi.model.topic_config import IGNORED_TOPIC_KEYS, TOPIC_KEYS, TopicConfig, parse_topic_config
from suwi.model.topic_names import INTERNAL_TOPICS

log = logging.getLogger(__name__)

_MIN_ISR = "min.insync.replicas"
_ELECTION_KEYS = (_MIN_ISR, "unclean.leader.election.enable")


class Resource(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    operation: AlterOperation
    value: str | None


class _Plan(NamedTuple):
    writes: list[Operation]
    """The resource's own entry is the last."""
    configs: dict[str, str]
    rules_changed: Sequence[str] = ()
    """The topics for which keys that elections depend on were set."""


class ConfigurationControl:
    def __init__(
        self,
        writer: MetadataWriter,
        follower: MetadataFollower,
        config: BrokerConfig,
        reconsider: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        """`reconsider` elects leaders of topics whose rules for it have changed."""
        self._writer = writer
        self._follower = follower
        self._config = config
        self._reconsider = reconsider
        self._plans = {
            Resource.TOPIC: self._plan_topic,
            Resource.BROKER: self._plan_broker,
            Resource.GROUP: self._plan_group,
        }

    async def alter(
        self,
        resource: Resource,
        name: str,
        alterations: Sequence[Alteration],
        *,
        replace: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a topic, of one broker (of all if `name` is empty), or of a consumer
        group, which need not exist yet. `replace` removes those not in `alterations`."""
        if resource is Resource.TOPIC and name not in self._follower.image.topics:
            # Not a decision: a request may name thousands that do not exist.
            raise _unknown(name)

        async def change() -> None:
            writes, configs, rules_changed = self._plans[resource](name, alterations, replace)
            for write in writes[-1:]:
                check_fits(write)
            if writes and not validate_only:
                await self._writer.write(writes)
                kind = resource.name.lower()
                extra = {kind: name or ALL_BROKERS, "configs": configs}
                log.info("configuration changed", extra=extra)
                if rules_changed:
                    await self._reconsider(rules_changed)

        await self._writer.run_exclusively(change)

    def _plan_topic(self, name: str, alterations: Sequence[Alteration], replace: bool) -> _Plan:
        image = self._follower.image
        topic = image.topics.get(name)
        if topic is None:
            raise _unknown(name)
        keys = {name: declared for name, (_, declared) in TOPIC_KEYS.items()}
        configs = _altered({} if replace else topic.configs, alterations, keys)
        with _invalid_config():
            parse_topic_config(configs, self._config.topic)
        if name in INTERNAL_TOPICS:
            defaults = self._present_defaults(image.broker_configs.get(ALL_BROKERS, {}))
            config = parse_topic_config(configs, defaults)
            check_configs(name, configs, config, topic_config_of(topic, defaults))
        put = Put(TOPICS + name, encode_topic(Topic(name, topic.id, configs, topic.partitions)))
        writes: list[Operation] = [*self._clear_elr(topic.configs, configs, [name]), put]
        affects_elections = _affects_elections(topic.configs, configs, alterations)
        return _Plan(writes, configs, [name] if affects_elections else ())

    def _plan_broker(self, name: str, alterations: Sequence[Alteration], replace: bool) -> _Plan:
        image = self._follower.image
        if name and name not in [str(broker) for broker in image.unfenced_brokers]:
            raise InvalidRequest(f"no live broker has the id {name!r}")
        for alteration in alterations:
            if alteration.name not in DYNAMIC_BROKER_KEYS:
                raise InvalidConfig(f"{alteration.name} cannot be changed while running")
        entry = name or ALL_BROKERS
        present = image.broker_configs.get(entry, {})
        configs = _altered({} if replace else present, alterations, _broker_keys())
        with _invalid_config():
            parse_broker_config({**self._config.given, **configs})
        self._check_internal_topics(name, present, configs)
        put = Put(BROKER_CONFIGS + entry, json.dumps(configs).encode())
        topics = list(image.topics)
        writes: list[Operation] = [*self._clear_elr(present, configs, topics), put]
        affects_elections = _affects_elections(present, configs, alterations)
        return _Plan(writes, configs, topics if affects_elections else ())

    def _check_internal_topics(
        self, broker: str, present: Mapping[str, str], configs: Mapping[str, str]
    ) -> None:
        """What they do not set themselves they take from the brokers."""
        image = self._follower.image
        of_all = image.broker_configs.get(ALL_BROKERS, {}) if broker else {}
        before = self._present_defaults({**of_all, **present})
        with _invalid_config():
            after = self._topic_defaults({**of_all, **configs})
        for name in INTERNAL_TOPICS & image.topics.keys():
            topic = image.topics[name]
            had, has = topic_config_of(topic, before), topic_config_of(topic, after)
            if (had.cleanup_policy, had.max_message_bytes) != (
                has.cleanup_policy,
                has.max_message_bytes,
            ):
                check_configs(name, (), has, had)

    def _present_defaults(self, dynamic: Mapping[str, str]) -> TopicConfig:
        try:
            return self._topic_defaults(dynamic)
        except BadConfig:  # A value of another version; the change may be its repair.
            return self._config.topic

    def _topic_defaults(self, dynamic: Mapping[str, str]) -> TopicConfig:
        return parse_broker_config({**self._config.given, **dynamic}).config.topic

    def _plan_group(self, name: str, alterations: Sequence[Alteration], replace: bool) -> _Plan:
        if not name:
            raise InvalidRequest("the name of a group is missing: there are no settings for all")
        keys = {name: declared for name, (_, declared) in GROUP_KEYS.items()}
        present = self._follower.image.group_configs.get(name, {})
        configs = _altered({} if replace else present, alterations, keys)
        with _invalid_config():
            parse_group_config(configs, self._config)
        if configs == present:
            return _Plan([], configs)
        put = Put(group_configs_key(name), json.dumps(configs).encode())
        return _Plan([put if configs else Delete(put.key)], configs)

    def _clear_elr(
        self, before: Mapping[str, str], after: Mapping[str, str], topics: Sequence[str]
    ) -> list[Put]:
        """Clear the eligible leader replicas (ELR) if `min.insync.replicas` changes.

        With another minimum, records may be committed that replicas outside the ISR do not have.
        """
        if before.get(_MIN_ISR) == after.get(_MIN_ISR):
            return []
        image = self._follower.image
        return list(shard_puts(image, without_elr(image, topics)))


def _unknown(topic: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"topic {topic!r} does not exist")


def _affects_elections(
    before: Mapping[str, str], after: Mapping[str, str], alterations: Sequence[Alteration]
) -> bool:
    """Also if nothing changes: it may be a second attempt, after a time-out."""
    named = [alteration.name for alteration in alterations]
    return any(key in named or before.get(key) != after.get(key) for key in _ELECTION_KEYS)


@contextmanager
def _invalid_config() -> Iterator[None]:
    try:
        yield
    except BadConfig as error:
        raise InvalidConfig(str(error)) from None


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
        if operation == AlterOperation.DELETE:
            configs.pop(name, None)
        elif value is None:
            raise InvalidRequest(f"{name}: a value is missing")
        elif operation == AlterOperation.SET:
            configs[name] = value
        else:
            configs[name] = _edit_list(name, configs.get(name), operation, value, keys)
        if name in IGNORED_TOPIC_KEYS or name in KEYS_WITHOUT_EFFECT:
            log.warning("configuration has no effect here", extra={"key": name})
    return configs


def _edit_list(
    name: str, present: str | None, operation: AlterOperation, value: str, keys: Mapping[str, Key]
) -> str:
    key = keys.get(name)
    if key is None or key.kind.name != "list":
        raise InvalidConfig(f"{name} is not a list: it can be set, not appended to")
    if present is None:  # As in Kafka, the default is edited then.
        present = value_text(key.default)
    items = [item for item in (present or "").split(",") if item]
    given = [item.strip() for item in value.split(",") if item.strip()]
    if operation == AlterOperation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)
