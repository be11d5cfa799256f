"""Where a broker's settings come from: a properties file, the environment, the command line."""

from collections.abc import Iterator, Mapping, Sequence

from suwi.model.broker_config import IGNORED_BROKER_KEYS, is_broker_key
from suwi.model.config_kinds import BadConfig

_PREFIXES = ("KAFKA_", "SUWI_")  # The later one wins.


def parse_properties(text: str) -> dict[str, str]:
    """Java's properties format, as far as Kafka's files use it."""
    properties = {}
    for line in _logical_lines(text):
        for at, character in enumerate(line):
            if character in "=:":
                properties[line[:at].strip()] = line[at + 1 :].strip()
                break
        else:
            properties[line] = ""
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments; one that ends in a backslash goes on in the next."""
    pending = ""
    for raw in text.splitlines():
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        yield line
    if pending:
        yield pending


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`KAFKA_LOG_RETENTION_MS` is `log.retention.ms`; `__` stands for `_` and `___` for `-`.

    Variables of other programs share the prefix KAFKA_ (KAFKA_HEAP_OPTS), so only known keys are
    taken from it; a SUWI_ variable that is not known is a mistake.
    """
    found = {}
    for prefix in _PREFIXES:
        for variable in sorted(environment):
            if not variable.startswith(prefix):
                continue
            key = _key_of(variable.removeprefix(prefix))
            if prefix == "SUWI_" or is_broker_key(key) or key in IGNORED_BROKER_KEYS:
                found[key] = environment[variable]
    return found


def _key_of(variable: str) -> str:
    dashes = variable.lower().replace("___", "-")
    return dashes.replace("__", "\0").replace("_", ".").replace("\0", "_")


def from_settings(settings: Sequence[str]) -> dict[str, str]:
    """`--set key=value`. Raises `BadConfig`."""
    properties = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise BadConfig(f"--set {setting}: give it as KEY=VALUE")
        properties[key.strip()] = value.strip()
    return properties
