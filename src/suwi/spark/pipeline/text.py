"""Text of a pipeline file with `${…}` in it: from the environment, or from a file.

`${NAME}` is a variable of the environment, `${NAME:-otherwise}` one that need not be set,
`${file:/run/secrets/password}` the content of a file without the end of its last line; `$${` is a
plain `${`. What they stand for is looked up when the pipeline runs: `python` gives the expression
that does, so nothing that prints a pipeline can print a secret.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from suwi.env import Disk, local_env

_REFERENCE = re.compile(r"\$(\$)?\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "file:"
_OTHERWISE = ":-"


class Unresolved(Exception):
    """A reference cannot be resolved; the text names the reference, not its value."""


@dataclass(frozen=True, slots=True)
class Reference:
    """To a variable of the environment, or to a file."""

    name: str
    otherwise: str | None = None
    is_file: bool = False

    def __str__(self) -> str:
        """As it stands in the file."""
        kind = _FILE if self.is_file else ""
        more = "" if self.otherwise is None else f"{_OTHERWISE}{self.otherwise}"
        return f"${{{kind}{self.name}{more}}}"

    def resolve(self, environ: Mapping[str, str], disk: Disk) -> str:
        """Raises `Unresolved`."""
        if not self.is_file:
            value = environ.get(self.name, self.otherwise)
            if value is None:
                raise Unresolved(f"{self}: the variable {self.name} is not set")
            return value
        try:
            return disk.read_bytes(self.name).decode().rstrip("\r\n")
        except OSError as error:
            raise Unresolved(f"{self}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise Unresolved(f"{self}: not text in UTF-8") from None

    def python(self) -> str:
        """A Python expression."""
        if self.is_file:
            return f"secret_file({literal(self.name)})"
        if self.otherwise is None:
            return f'os.environ["{self.name}"]'
        return f'os.environ.get("{self.name}", {literal(self.otherwise)})'


Part: TypeAlias = str | Reference


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
        return "".join(map(str, self.parts))

    @property
    def named(self) -> str:
        """Of a topic or path, for people. A variable with a default is no secret."""
        return "".join(
            os.environ.get(part.name, part.otherwise)
            if isinstance(part, Reference) and part.otherwise is not None
            else str(part)
            for part in self.parts
        )

    @property
    def value(self) -> str:
        """With the environment and files of this process. Raises `Unresolved`."""
        return self.resolve(os.environ, local_env().disk)

    def resolve(self, environ: Mapping[str, str], disk: Disk) -> str:
        """Raises `Unresolved`."""
        return "".join(
            part if isinstance(part, str) else part.resolve(environ, disk) for part in self.parts
        )

    def plus(self, more: str) -> "Text":
        return Text(_joined([*self.parts, more]), self.line)

    @staticmethod
    def joined(texts: "Sequence[Text]") -> "Text":
        """Several, separated by commas."""
        parts = [part for text in texts for part in (",", *text.parts)]
        return Text(_joined(parts[1:]), texts[0].line)

    def python(self) -> str:
        """A Python expression; it needs `os` and `secret_file` of this module."""
        said = (literal(one) if isinstance(one, str) else one.python() for one in self.parts)
        return " + ".join(said) or '""'


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


def _reference(inside: str) -> Reference:
    if inside.startswith(_FILE):
        path = inside.removeprefix(_FILE)
        if not path:
            raise ValueError("${file:} names no file")
        return Reference(path, is_file=True)
    name, dash, otherwise = inside.partition(_OTHERWISE)
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"${{{inside}}} is neither ${{NAME}} nor ${{file:/path}}; write $${{ for a plain ${{"
        )
    return Reference(name, otherwise if dash else None)


def literal(text: str) -> str:
    """A Python literal as people write it: in double quotes, several lines as several lines."""
    if "\n" in text and _is_quotable(text):
        return f'"""\\\n{text}"""'
    quoted = repr(text)
    return f'"{quoted[1:-1]}"' if quoted.startswith("'") and '"' not in text else quoted


def _is_quotable(text: str) -> bool:
    is_plain = all(c.isprintable() or c == "\n" for c in text) and "\\" not in text
    return is_plain and '"""' not in text and not text.endswith('"')
