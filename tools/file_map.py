"""Write docs/file-map.md from the docstrings of the modules: `make docs`."""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "suwi"
SIMULATION = ROOT / "simulation"
TARGET = ROOT / "docs" / "file-map.md"

_HEAD = """\
# File map

<!-- Written by tools/file_map.py from the docstrings of the modules: `make docs`. Do not edit. -->

The first sentence of each file's docstring. Paths are below `src/suwi`, those of `simulation` below
the repository; [architecture.md](architecture.md) says how the packages fit together.
"""


def summary(path: Path) -> str:
    """The first sentence of a module's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.]\.) (?=[A-Z`])", paragraph)[0]
    return sentence.removesuffix(".")


def file_map() -> str:
    packages = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    parts = [_HEAD, *(_section(package, PACKAGE) for package in sorted(packages))]
    parts += [_section(package, ROOT) for package in sorted(SIMULATION.rglob("__init__.py"))]
    return "\n".join(parts)


def _section(package: Path, root: Path) -> str:
    folder = package.parent
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    lines = [f"- `{path.relative_to(root)}`: {summary(path)}\n" for path in modules]
    head = f"## {folder.relative_to(root)}\n\n{summary(package)}.\n"
    return head + "\n" + "".join(lines) if lines else head


def main() -> int:
    TARGET.write_text(file_map())
    return 0


if __name__ == "__main__":
    sys.exit(main())
