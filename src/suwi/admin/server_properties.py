"""The sources of a broker's settings: a properties file, the environment, the command line.

Each source returns `Setting`s, which have their source for error texts; `combine` merges the
sources by precedence.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from suwi.model.broker_config import (
    SYNONYMS,
    ParsedConfig,
    is_broker_key,
    parse_broker_config,
    resembles_key,
)
from suwi.model.config_kinds import BadConfig
from suwi.model.keys_without_effect import IGNORED_BROKER_KEYS
from suwi.model.topic_config import TOPIC_KEYS

log = logging.getLogger(__name__)

_PREFIXES = ("KAFKA_", "SUWI_")  # the later one wins
BROKER_VARIABLE = "SUWI_BROKER"
CONFIG_VARIABLE = "SUWI_COMMAND_CONFIG"
_NOT_SETTINGS = frozenset({BROKER_VARIABLE, CONFIG_VARIABLE})
# A key ends at the first `=`, `:` or blank without a backslash before it.
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)")
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
# Several names of one setting: log.retention.ms and log.retention.hours, node.id and broker.id.
_SETTING_OF = SYNONYMS | {
    name: topic_key
    for topic_key, (_, declared) in TOPIC_KEYS.items()
    for name, _ in declared.broker_names
}


class Setting(NamedTuple):
    source: str
    """The source as the user wrote it, for error texts."""
    key: str
    value: str


def from_file(path: str, text: str) -> list[Setting]:
    return [Setting(f"--config {path}", *pair) for pair in parse_properties(text).items()]


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties format, as far as Kafka's files use it (no `\\uXXXX`)."""
    properties = {}
    for line in _logical_lines(text):
        found = _KEY_AND_VALUE.match(line)
        assert found is not None  # every part of the pattern may be empty
        key, value = (
            _ESCAPED.sub(lambda escaped: _ESCAPES.get(escaped[1], escaped[1]), part)
            for part in found.groups()
        )
        properties[key] = value
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; a line that ends in a backslash continues on the next."""
    pending = ""
    for raw in text.splitlines():
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
            continue
        yield line
    if pending:
        yield pending


def from_environment(environment: Mapping[str, str]) -> list[Setting]:
    """`KAFKA_LOG_RETENTION_MS` is `log.retention.ms`; `__` stands for `_` and `___` for `-`.

    Variables of other programs share the prefix KAFKA_ (KAFKA_HEAP_OPTS), so only known keys are
    used. An unknown SUWI_ variable that resembles a key is an error; any other is ignored with a
    warning: Kubernetes sets SUWI_PORT and similar variables for a service with the name `suwi`.
    """
    layers = []
    for prefix in _PREFIXES:
        layer = [
            Setting(variable, _key_of(variable.removeprefix(prefix)), environment[variable])
            for variable in sorted(environment)
            if variable.startswith(prefix) and variable not in _NOT_SETTINGS
        ]
        layers.append([setting for setting in layer if _is_setting(setting, prefix)])
    return combine(layers)


def _is_setting(setting: Setting, prefix: str) -> bool:
    if is_broker_key(setting.key) or setting.key in IGNORED_BROKER_KEYS:
        return True
    if prefix == "SUWI_":
        if resembles_key(setting.key):
            return True  # reported later, with the errors of the other settings
        log.warning(
            "environment variable is not a setting, ignored", extra={"variable": setting.source}
        )
    return False


def _key_of(variable: str) -> str:
    dashes = variable.lower().replace("___", "-")
    return dashes.replace("__", "\0").replace("_", ".").replace("\0", "_")


def from_options(options: Sequence[str]) -> list[Setting]:
    """`--set key=value`. Raises `BadConfig`."""
    settings = []
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not (equals and key):
            raise BadConfig(f"--set {option}: give it as KEY=VALUE")
        settings.append(Setting("--set", key, value))
    return settings


def combine(layers: Iterable[Sequence[Setting]]) -> list[Setting]:
    """Later layers win, even if they use another name of the same setting."""
    combined: list[Setting] = []
    for layer in layers:
        keys = {_SETTING_OF.get(setting.key, setting.key) for setting in layer}
        combined = [s for s in combined if _SETTING_OF.get(s.key, s.key) not in keys]
        combined += layer
    return combined


def parse_settings(settings: Sequence[Setting]) -> ParsedConfig:
    """Raises `BadConfig`, which names the source of the invalid setting."""
    for source, key, value in settings:
        try:
            parse_broker_config({key: value})
        except BadConfig as error:
            raise BadConfig(f"{source}: {error}") from None
    return parse_broker_config({setting.key: setting.value for setting in settings})
