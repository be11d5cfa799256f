"""The size limit: no function of `src` and `simulation` has a body of more than 55 lines.

Signature and docstring do not count. A function that is longer gives the reason: a sentence in its
docstring that begins with `Size:`. A file holds one idea, whatever its length.
"""

import ast
import re
import sys
from pathlib import Path

FUNCTION_LINES_MAX = 55
_REASON = re.compile(r"(?:^|\.\s)\s*Size: \S")


def complaints(source: str) -> list[tuple[int, str]]:
    """The line and the complaint, for each function that is too long."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        body = node.body[1:] if docstring is not None else node.body
        lines = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
        if lines > FUNCTION_LINES_MAX and not _REASON.search(docstring or ""):
            what = f"{node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"
            found.append((node.lineno, f"{what}: split it, or add `Size: …` to its docstring"))
    return found


def main() -> int:
    root = Path(__file__).parent.parent
    found = [
        f"{path}:{line}: {complaint}"
        for package in (root / "src/suwi", root / "simulation")
        for path in sorted(package.rglob("*.py"))
        for line, complaint in complaints(path.read_text())
    ]
    for complaint in found:
        print(complaint)
    print(f"sizes: {len(found)} too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
