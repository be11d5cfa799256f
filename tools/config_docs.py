"""Write docs/configuration.md from the one table of configuration keys: `make docs`."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from suwi.model.broker_config import (
    BROKER_KEYS,
    SYNONYMS,
)
from suwi.model.config_kinds import INT32_MAX, INT64_MAX, Key, value_text
from suwi.model.group_config import GROUP_KEYS
from suwi.model.keys_without_effect import IGNORED_BROKER_KEYS, KEYS_WITHOUT_EFFECT
from suwi.model.security_config import MECHANISM_KEYS, OAUTHBEARER_KEYS, SECURITY_KEYS
from suwi.model.topic_config import IGNORED_TOPIC_KEYS, TOPIC_KEYS

TARGET = Path(__file__).parents[1] / "docs" / "configuration.md"

# Keys that are parsed and checked but have no effect yet, each with the reason.
NO_EFFECT_YET = {
    "preallocate": "files grow as they are written",
    "sasl.server.callback.handler.class": "tokens are always checked so",
}
_REMARKS = {
    "log.dirs": "The first holds the metadata too.",
    "socket.request.max.bytes": "Other requests than Produce: 8 MiB at most.",
}

_UNITS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_UNITS_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))

_HEAD = """\
# Configuration

<!-- Written by tools/config_docs.py from src/suwi/model: `make docs`. Do not edit. -->

Nothing has to be configured. The keys have Apache Kafka's names and meanings.

## Where settings come from

From these places; later ones take precedence, also under another name of the same setting:

1. a properties file: `suwi serve --config server.properties`
2. the environment: `KAFKA_LOG_RETENTION_MS=60000`, and over it `SUWI_LOG_RETENTION_MS=60000`
3. the command line: `suwi serve --set log.retention.ms=60000`
4. `--listen HOST:PORT`, short for `--set listeners=PLAINTEXT://HOST:PORT`, and `--data DIR`, short
   for `--set log.dirs=DIR`

The name of an environment variable is the key in capitals, with `_` for `.`, `__` for `_` and `___`
for `-`, as in Apache Kafka's container image.

An unknown key, or a value that is not allowed, prevents the start with a message that names
it and its source. Variables that are not keys of Suwi are ignored, because other programs use
these prefixes too (`KAFKA_HEAP_OPTS`, and `SUWI_PORT` in Kubernetes): a `SUWI_` variable with a
warning, unless it resembles a key and so is likely a mistake.

A topic may have its own settings, given when it is created or changed later (AlterConfigs,
IncrementalAlterConfigs). All others come from the broker, also for existing topics. The broker's
defaults for topics can be changed while it runs, too, for one broker or for all.
"""


def render() -> str:
    sections = [
        _HEAD,
        _broker_section(),
        _security_section(),
        _topic_section(),
        _group_section(),
        _names_section(),
        _ignored_section(),
    ]
    return "\n".join(sections)


def _broker_section() -> str:
    keys = [key for name, (_, key) in BROKER_KEYS.items() if name not in SECURITY_KEYS]
    return f"## Of a broker\n\n{_key_table(keys)}"


def _security_section() -> str:
    keys = [key for _, key in SECURITY_KEYS.values()]
    return (
        "## TLS and SASL\n\n"
        "For all listeners, or with a prefix for one (`listener.name.outside.ssl.client.auth` for "
        "the\nlistener `OUTSIDE`). "
        f"{', '.join(f'`{key}`' for key in sorted(MECHANISM_KEYS - OAUTHBEARER_KEYS))} and the "
        "keys of OAUTHBEARER also for one\n"
        "mechanism of a listener (`listener.name.outside.plain.sasl.jaas.config`). "
        "The narrower one wins.\n"
        "Passwords and keys are never shown, neither in logs nor to clients that ask for the "
        "configuration.\n\n"
    ) + _key_table(keys)


def _key_table(keys: Iterable[Key]) -> str:
    rows = [(f"`{key.name}`", _default(key), _allowed(key), _meaning(key)) for key in keys]
    return _table(("Key", "Default", "Allowed", "Meaning"), rows)


def _topic_section() -> str:
    return (
        "## Of a topic\n\n"
        "The broker's key is the default of topics that do not set their own. Where there are "
        "several, they\ndiffer in their unit; within one source the finest takes precedence, as in "
        "Kafka.\n\n"
    ) + _inherited_table("Topic's key", TOPIC_KEYS)


def _group_section() -> str:
    return (
        "## Of a consumer group\n\n"
        "`suwi configs set group NAME KEY=VALUE`, within the broker's `group.consumer.min.…` and "
        "`max`. For groups\nof the consumer protocol only: classic members bring their own "
        "time-outs.\n\n"
    ) + _inherited_table("Group's key", GROUP_KEYS)


def _inherited_table(title: str, keys: Mapping[str, tuple[str, Key]]) -> str:
    rows = [
        (
            f"`{key.name}`",
            "<br>".join(f"`{name}`" for name, _ in key.broker_names),
            _default(key),
            _allowed(key),
            _meaning(key),
        )
        for _, key in keys.values()
    ]
    return _table((title, "Broker's key", "Default", "Allowed", "Meaning"), rows)


def _names_section() -> str:
    rows = [(f"`{other}`", f"`{name}`") for other, name in sorted(SYNONYMS.items())]
    return "## Other names\n\n" + _table(("Accepted", "The same as"), rows)


def _ignored_section() -> str:
    return (
        "## Accepted without effect\n\n"
        "A `server.properties` of Apache Kafka often has these. They are for things that Suwi does "
        "not have, so they\nare accepted with a warning at the start:\n\n"
        f"{_list(IGNORED_BROKER_KEYS)}\n\n"
        "Kafka accepts new values of these while running. So does Suwi, with a warning and without "
        "effect:\nit has neither such threads nor such buffers.\n\n"
        f"{_list(KEYS_WITHOUT_EFFECT)}\n\n"
        "And these when a topic is created, without a warning:\n\n"
        f"{_list(IGNORED_TOPIC_KEYS)}\n"
    )


def _default(key: Key) -> str:
    text = value_text(key.default)
    if text == "":
        return ""
    in_words = _in_words(key.name, key.default)
    return f"`{text}`" + (f" ({in_words})" if in_words else "")


def _in_words(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return ""
    if value in (INT32_MAX, INT64_MAX):
        return "never" if name.startswith("flush.") else "no limit"
    units = _UNITS_MS if name.endswith(".ms") else _UNITS_BYTES if name.endswith(".bytes") else ()
    for size, unit in units:
        if value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return ""


def _allowed(key: Key) -> str:
    """What the error message says, shorter where the type's own limit is the limit."""
    allowed = key.kind.allowed
    number = re.fullmatch(r"a (?:whole )?number from (\S+) to (\S+)", allowed)
    if number is None:
        is_anything = allowed in ("any text", "a list of words")
        return "" if is_anything else allowed.removeprefix("one of ")
    low, high = number.groups()
    if high in (str(INT32_MAX), str(INT64_MAX)):
        return f"{low} or more"
    return f"{low} to {high}"


def _meaning(key: Key) -> str:
    meaning = key.doc
    if key.name in _REMARKS:
        meaning += f" *{_REMARKS[key.name]}*"
    if key.name in NO_EFFECT_YET:
        meaning += f" *Without effect: {NO_EFFECT_YET[key.name]}.*"
    return meaning


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _list(keys: Iterable[str]) -> str:
    return "\n".join(f"- `{key}`" for key in sorted(keys))


if __name__ == "__main__":
    TARGET.write_text(render())
    sys.stdout.write(f"{TARGET.relative_to(TARGET.parents[1])} written\n")
