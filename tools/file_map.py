"""Write docs/file-map.md from the docstrings of the modules: `make docs`."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "suwi"
TARGET = ROOT / "docs" / "file-map.md"

_HEAD = """\
# File map

<!-- Written by tools/file_map.py from the docstrings of the modules: `make docs`. Do not edit. -->

The first sentence of each file's docstring. Paths are below `src/suwi`;
[architecture.md](architecture.md) says how the packages fit together.
"""


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.]\.) (?=[A-Z`])", paragraph)[0]
    return sentence.removesuffix(".")


def file_map() -> str:
    parts = [_HEAD]
    for package in sorted(path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE):
        folder = package.parent
        parts.append(f"## {folder.relative_to(PACKAGE)}\n\n{summary(package)}.\n")
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        lines = [f"- `{path.relative_to(PACKAGE)}`: {summary(path)}" for path in modules]
        if lines:
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> int:
    TARGET.write_text(file_map())
    return 0


if __name__ == "__main__":
    sys.exit(main())
