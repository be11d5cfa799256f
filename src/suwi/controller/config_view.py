"""The value and source of each configuration key, as DescribeConfigs shows them. Pure.

For each key a chain lists every source that has a value, in order of precedence, from the topic's
own setting to the default. The first value is in effect; the whole chain is what Kafka calls the
synonyms of the key.
"""

from collections.abc import Mapping
from typing import NamedTuple

from suwi.metadata.image import ALL_BROKERS, ClusterImage, Topic
from suwi.model.broker_config import (
    BROKER_KEYS,
    DYNAMIC_BROKER_KEYS,
    SYNONYMS,
    BrokerConfig,
    rack_of,
)
from suwi.model.config_kinds import ConfigSource, Key, value_text
from suwi.model.group_config import GROUP_KEYS
from suwi.model.ids import NodeId
from suwi.model.keys_without_effect import KEYS_WITHOUT_EFFECT, STATIC_KEYS_WITHOUT_EFFECT
from suwi.model.security_config import SECURITY_KEYS, split_scope
from suwi.model.topic_config import TOPIC_KEYS

_RACK = "broker.rack"


class Synonym(NamedTuple):
    """A value from one source."""

    name: str
    value: str | None
    source: ConfigSource


class Setting(NamedTuple):
    """A key with the value in effect."""

    key: Key
    name: str
    value: str | None
    chain: tuple[Synonym, ...]
    is_read_only: bool

    @property
    def is_sensitive(self) -> bool:
        """Whether the value is secret."""
        return self.key.kind.name == "password"

    @property
    def source(self) -> ConfigSource:
        return self.chain[0].source


class ConfigView:
    def __init__(self, image: ClusterImage, static: BrokerConfig, node_id: NodeId) -> None:
        self._layers: list[tuple[ConfigSource, Mapping[str, str]]] = [
            (ConfigSource.BROKER, image.broker_configs.get(str(node_id), {})),
            (ConfigSource.ALL_BROKERS, image.broker_configs.get(ALL_BROKERS, {})),
            (ConfigSource.FILE, _with_rack(static.given, node_id)),
        ]

    def of_topic(self, topic: Topic) -> list[Setting]:
        """Every topic key with its value for a topic."""
        settings = []
        for name, (_, key) in TOPIC_KEYS.items():
            own = topic.configs.get(name)
            first = [Synonym(name, own, ConfigSource.TOPIC)] if own is not None else []
            chain = (*first, *self._broker_chain(key))
            value = _in_topic_units(key, chain[0])
            settings.append(Setting(key, name, value, chain, is_read_only=False))
        return settings

    def of_group(self, own: Mapping[str, str]) -> list[Setting]:
        """Every group key as it is in force for a group that sets these."""
        settings = []
        for name, (_, key) in GROUP_KEYS.items():
            first = [Synonym(name, own[name], ConfigSource.GROUP)] if name in own else []
            chain = (*first, *self._broker_chain(key))
            settings.append(Setting(key, name, chain[0].value, chain, is_read_only=False))
        return settings

    def of_broker(self) -> list[Setting]:
        """Every broker key with its value for this broker."""
        settings = []
        other_names = {name: other for other, name in SYNONYMS.items()}
        without_effect = KEYS_WITHOUT_EFFECT | STATIC_KEYS_WITHOUT_EFFECT
        for key in (*(key for _, key in BROKER_KEYS.values()), *without_effect.values()):
            name = key.name
            chain = (
                *self._values_of(name),
                Synonym(name, value_text(key.default), ConfigSource.DEFAULT),
            )
            is_read_only = name not in DYNAMIC_BROKER_KEYS
            setting = Setting(key, name, chain[0].value, chain, is_read_only)
            settings.append(setting)
            if name in other_names:  # Tools ask for `broker.id`.
                settings.append(setting._replace(name=other_names[name]))
        for _, key in TOPIC_KEYS.values():
            for name, _ in key.broker_names:
                last = key.broker_names[-1][0]
                # As in Kafka, only the last of the names in different units has a default.
                default = (
                    self._default(key)
                    if name == last
                    else Synonym(name, None, ConfigSource.DEFAULT)
                )
                chain = (*self._values_of(name), default)
                settings.append(Setting(key, name, chain[0].value, chain, is_read_only=False))
        return [*settings, *self._listener_settings()]

    def _listener_settings(self) -> list[Setting]:
        """The settings of individual listeners in the configuration file."""
        settings = []
        for name in self._layers[-1][1]:
            scope = split_scope(name)
            if scope is not None:
                _, key = SECURITY_KEYS[scope[1]]
                chain = tuple(self._values_of(name))
                settings.append(Setting(key, name, chain[0].value, chain, is_read_only=True))
        return settings

    def of_all_brokers(self) -> list[Setting]:
        """The dynamic settings for all brokers, without those of this broker alone."""
        _, cluster_wide = self._layers[1]
        settings = []
        for setting in self.of_broker():
            if setting.name in cluster_wide:
                chain = tuple(f for f in setting.chain if f.source is not ConfigSource.BROKER)
                settings.append(setting._replace(value=chain[0].value, chain=chain))
        return settings

    def _broker_chain(self, key: Key) -> list[Synonym]:
        found = [found for name, _ in key.broker_names for found in self._values_of(name)]
        return [*found, self._default(key)]

    def _values_of(self, name: str) -> list[Synonym]:
        return [
            Synonym(name, layer[name], source) for source, layer in self._layers if name in layer
        ]

    def _default(self, key: Key) -> Synonym:
        name, factor = key.broker_names[-1] if key.broker_names else (key.name, 1)
        default = key.default // factor if factor != 1 else key.default
        return Synonym(name, value_text(default), ConfigSource.DEFAULT)


def _with_rack(given: Mapping[str, str], node_id: NodeId) -> Mapping[str, str]:
    if _RACK not in given:
        return given
    return {**given, _RACK: rack_of(given[_RACK], node_id)}


def _in_topic_units(key: Key, found: Synonym) -> str | None:
    """`log.retention.hours=168` is `retention.ms=604800000` for a topic."""
    factor = dict(key.broker_names).get(found.name, 1)
    if found.source is ConfigSource.TOPIC or factor == 1 or found.value is None:
        return found.value
    number = int(found.value)
    return str(number if number < 0 else number * factor)
