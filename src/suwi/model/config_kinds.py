"""The types of configuration values: what is allowed, and how their text is parsed."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any, Final, NamedTuple

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the nearest of the known ones, if any."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class BadValue(ValueError):
    """The key does not allow this value. The message says what is allowed."""


class BadConfig(ValueError):
    """An invalid configuration; the message names the key, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Password:
    """A secret value: neither `str` nor `repr` shows it."""

    secret: str = field(repr=False)

    def __str__(self) -> str:
        return "[hidden]" if self.secret else ""


NO_PASSWORD: Final = Password("")


class Kind(NamedTuple):
    """A type of values: its name in Kafka, a description of what is allowed, and its parser."""

    name: str
    allowed: str
    read: Callable[[str], Any]

    def parse(self, text: str) -> Any:
        try:
            return self.read(text.strip())
        except BadValue:
            raise
        except ValueError:
            raise BadValue(f"allowed: {self.allowed}") from None


def parse_value(name: str, kind: Kind, value: str) -> Any:
    """The value of the configuration `name`. Raises `BadConfig`."""
    try:
        return kind.parse(value)
    except BadValue as error:
        raise BadConfig(f"invalid value {value!r} for configuration {name}: {error}") from None


class ConfigSource(IntEnum):
    """Where a value comes from, with the numbers of DescribeConfigs."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5
    GROUP = 8


class Key(NamedTuple):
    """One configuration key. `broker_names` are the broker-wide names of a topic key's default,
    each with the factor that converts its unit (`log.retention.hours`: 3,600,000)."""

    name: str
    kind: Kind
    default: Any
    doc: str
    broker_names: tuple[tuple[str, int], ...] = ()


class Declared(NamedTuple):
    """A key whose meaning is still to be told."""

    kind: Kind
    default: Any
    name: str
    broker_names: tuple[tuple[str, int], ...]

    def doc(self, text: str) -> Any:
        """The key as a dataclass field, with its meaning."""
        key = Key(self.name, self.kind, self.default, text, self.broker_names)
        return field(default=self.default, metadata={"key": key})


def key(
    kind: Kind, default: Any, *, name: str = "", broker: str | tuple[tuple[str, int], ...] = ()
) -> Declared:
    """Declare a configuration key as a dataclass field: `key(int32(1), 8).doc("How many …")`. Its
    name is the field's with dots instead of underscores, unless it is given."""
    names = ((broker, 1),) if isinstance(broker, str) else broker
    return Declared(kind, default, name, names)


def keys_of(config: type) -> dict[str, tuple[str, Key]]:
    """Key name -> (attribute name, key), in the order of declaration."""
    keys: dict[str, tuple[str, Key]] = {}
    for attribute in fields(config):
        if "key" in attribute.metadata:
            declared: Key = attribute.metadata["key"]
            name = declared.name or attribute.name.replace("_", ".")
            keys[name] = (attribute.name, declared._replace(name=name))
    return keys


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def int32(low: int = -(2**31), high: int = INT32_MAX) -> Kind:
    return Kind("int", f"a whole number from {low} to {high}", _whole_number(low, high))


def int64(low: int = -(2**63), high: int = INT64_MAX) -> Kind:
    return Kind("long", f"a whole number from {low} to {high}", _whole_number(low, high))


def double(low: float, high: float) -> Kind:
    def read(text: str) -> float:
        number = float(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return Kind("double", f"a number from {low} to {high}", read)


def boolean() -> Kind:
    def read(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"

    return Kind("boolean", "true or false", read)


def text() -> Kind:
    return Kind("string", "any text", str)


def password() -> Kind:
    return Kind("password", "any text", Password)


def one_of(*choices: str, any_case: bool = False) -> Kind:
    def read(value: str) -> str:
        if any_case:
            value = value.lower()
        if value not in choices:
            raise ValueError
        return value

    named = "one of " + ", ".join(filter(None, choices))
    return Kind("string", f"nothing, or {named}" if "" in choices else named, read)


def list_of(*choices: str) -> Kind:
    """A comma-separated list without duplicates; only of the given choices, if there are any."""

    def read(value: str) -> tuple[str, ...]:
        words = tuple(word.strip() for word in value.split(",") if word.strip())
        if len(set(words)) < len(words) or (choices and not set(words) <= set(choices)):
            raise ValueError
        return words

    return Kind("list", "a list of " + (", ".join(choices) if choices else "words"), read)


def principals() -> Kind:
    """A list separated by semicolons: names of certificates have commas."""

    def read(value: str) -> str:
        if not all(all(each.strip().partition(":")) for each in value.split(";") if each.strip()):
            raise ValueError
        return value

    return Kind("string", "User:NAME, several separated by semicolons", read)


def value_text(value: Any) -> str:
    """The text of a value in Kafka's format."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | frozenset):
        return ",".join(value if isinstance(value, tuple) else sorted(value))
    return str(value)
