"""Text of a pipeline file with `${…}` in it: from the environment, or from a file.

`${NAME}` is a variable of the environment, `${NAME:-otherwise}` one that need not be set,
`${file:/run/secrets/password}` the content of a file without the end of its last line; `$${` is a
plain `${`. What they stand for is looked up when the pipeline runs: `python` gives the expression
that does, so nothing that prints a pipeline can print a secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from suwi.env import Disk, local_env

_REFERENCE = re.compile(r"\$(\$)?\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"
_OTHERWISE = ":-"


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    otherwise: str | None = None


@dataclass(frozen=True, slots=True)
class SecretFile:
    path: str


Part: TypeAlias = str | Variable | SecretFile


class Unresolved(Exception):
    """What a reference stands for is not there; the text names the reference only."""


@dataclass(frozen=True, slots=True)
class Text:
    parts: tuple[Part, ...]
    line: int

    @property
    def is_plain(self) -> bool:
        return all(isinstance(part, str) for part in self.parts)

    @property
    def shown(self) -> str:
        """As it stands in the file: references, not what they stand for."""
        return "".join(_shown(part) for part in self.parts)

    def resolve(self, environ: Mapping[str, str], disk: Disk) -> str:
        """Raises `Unresolved`."""
        return "".join(_resolved(part, environ, disk) for part in self.parts)

    def plus(self, more: str) -> "Text":
        return Text(_joined([*self.parts, more]), self.line)

    def python(self) -> str:
        """A Python expression; it needs `os` and `secret_file` of this module."""
        return " + ".join(_python(part) for part in self.parts) or '""'


def parse_text(raw: str, line: int) -> Text:
    """Raises ValueError, for a reference that is none."""
    parts: list[Part] = []
    end = 0
    for found in _REFERENCE.finditer(raw):
        parts.append(raw[end : found.start()])
        end = found.end()
        parts.append("${" + found[2] + "}" if found[1] else _reference(found[2]))
    parts.append(raw[end:])
    return Text(_joined(parts), line)


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def secret_file(path: str) -> str:
    """What a file says, without the end of its last line. Raises OSError."""
    return local_env().disk.read_bytes(path).decode().rstrip("\r\n")


def _reference(inside: str) -> Variable | SecretFile:
    if inside.startswith(_FILE):
        path = inside.removeprefix(_FILE)
        if not path:
            raise ValueError("${file:} names no file")
        return SecretFile(path)
    name, dash, otherwise = inside.partition(_OTHERWISE)
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"${{{inside}}} is neither ${{NAME}} nor ${{file:/path}}; write $${{ for a plain ${{"
        )
    return Variable(name, otherwise if dash else None)


def _shown(part: Part) -> str:
    match part:
        case Variable(name, None):
            return f"${{{name}}}"
        case Variable(name, otherwise):
            return f"${{{name}{_OTHERWISE}{otherwise}}}"
        case SecretFile(path):
            return f"${{{_FILE}{path}}}"
    return part


def _resolved(part: Part, environ: Mapping[str, str], disk: Disk) -> str:
    match part:
        case Variable(name, otherwise):
            value = environ.get(name, otherwise)
            if value is None:
                raise Unresolved(f"{_shown(part)}: the variable {name} is not set")
            return value
        case SecretFile(path):
            try:
                return disk.read_bytes(path).decode().rstrip("\r\n")
            except OSError as error:
                raise Unresolved(f"{_shown(part)}: {error.strerror}") from None
            except UnicodeDecodeError:
                raise Unresolved(f"{_shown(part)}: not text in UTF-8") from None
    return part


def _python(part: Part) -> str:
    match part:
        case Variable(name, None):
            return f'os.environ["{name}"]'
        case Variable(name, otherwise):
            return f'os.environ.get("{name}", {literal(otherwise or "")})'
        case SecretFile(path):
            return f"secret_file({literal(path)})"
    return literal(part)


def literal(text: str) -> str:
    """A Python literal as people write it: in double quotes, several lines as several lines."""
    if "\n" in text and _is_quotable(text):
        return f'"""\\\n{text}"""'
    quoted = repr(text)
    return f'"{quoted[1:-1]}"' if quoted.startswith("'") and '"' not in text else quoted


def _is_quotable(text: str) -> bool:
    is_plain = all(c.isprintable() or c == "\n" for c in text) and "\\" not in text
    return is_plain and '"""' not in text and not text.endswith('"')
