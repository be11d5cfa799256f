"""Kafka's `sasl.jaas.config`: one login module with its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";

Errors name the key and the problem, never the text, which contains passwords.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

_WORD = r'[^\s=;"]+'
_TEXT = r'"(?:\\.|[^"\\])*"'
_SPACE = re.compile(r"\s*")
_HEAD = re.compile(rf"({_WORD})\s+({_WORD})")
_OPTION = re.compile(rf"({_WORD})\s*=\s*({_TEXT}|{_WORD})")
_ESCAPED = re.compile(r"\\(.)")
_FLAGS = ("required", "requisite", "sufficient", "optional")
_USER = "user_"


class BadJaas(ValueError):
    """The text is not one login module with options."""


class LoginModule(NamedTuple):
    name: str
    """The class name without the package."""
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.name}, [hidden])"

    @property
    def users(self) -> dict[str, str]:
        """The passwords of the options `user_NAME="password"` by user name."""
        return {
            key.removeprefix(_USER): value
            for key, value in self.options.items()
            if key.startswith(_USER)
        }


def parse_jaas(text: str) -> LoginModule:
    """Raises `BadJaas`."""
    at = _skip(text, 0)
    head = _HEAD.match(text, at)
    if head is None or head[2].lower() not in _FLAGS:
        raise BadJaas('it must start with a login module and "required"')
    at = _skip(text, head.end())
    options: dict[str, str] = {}
    while at < len(text) and text[at] != ";":
        option = _OPTION.match(text, at)
        if option is None:
            raise BadJaas(f'at character {at}: options are name="value"')
        key, value = option[1], option[2]
        if value.startswith('"'):
            value = _ESCAPED.sub(r"\1", value[1:-1])
        if key in options:
            raise BadJaas(f"at character {at}: an option is given twice")
        options[key] = value
        at = _skip(text, option.end())
    if at == len(text):
        raise BadJaas('it must end with ";"')
    if _skip(text, at + 1) != len(text):
        raise BadJaas("only one login module is allowed")
    return LoginModule(head[1].rpartition(".")[2], options)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None  # The pattern also matches an empty string.
    return space.end()
