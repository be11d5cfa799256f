"""Every background task has an owner: `create_task` and `ensure_future` are restricted.

A broker's tasks are started with `suwi.env.tasks.Tasks`. Code that needs a bare task (a client
whose call fails with it, a function that awaits it itself) names who handles its end, on the same
line: `# owner: …`. The simulation and the test kit run brokers and are not part of one.
"""

import ast
import sys
from pathlib import Path

_NAMES = frozenset({"create_task", "ensure_future"})
_EXEMPT = ("env/tasks.py", "sim/", "testing/")


def bare_tasks(source: str) -> list[int]:
    """The lines that start a task without an owner."""
    lines = source.splitlines()
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _NAMES
        and not any("# owner: " in line for line in lines[node.lineno - 1 : node.end_lineno])
    ]


def main() -> int:
    package = Path(__file__).parent.parent / "src/suwi"
    found = [
        f"{path}:{line}: a task without an owner: use Tasks.start, or say `# owner: …`"
        for path in sorted(package.rglob("*.py"))
        if not path.relative_to(package).as_posix().startswith(_EXEMPT)
        for line in bare_tasks(path.read_text())
    ]
    for complaint in found:
        print(complaint)
    print(f"tasks: {len(found)} without an owner")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
