"""A base install: an environment with what Suwi requires and nothing else.

The broker under test runs in it. With the development packages it would start slower
and need more memory: kio imports hypothesis wherever that is installed.
"""

import os
import subprocess
import sys
import tomllib
import venv
import zlib
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEELS = Path(sys.prefix) / "wheels"  # kept by `make setup`, so this needs no network
LOCK = ROOT / "requirements.lock"


def base_python() -> Path:
    """The interpreter of the base install, which is created once and kept under `build/`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [sys.version, LOCK.read_text(), str(ROOT), *project["dependencies"]]
    target = ROOT / "build" / f"bench-env-{zlib.crc32(''.join(wanted).encode()):08x}"
    python = target / "bin" / "python"
    done = target / "complete"
    if done.exists():
        return python
    print("creating a base install to measure ...", file=sys.stderr)
    venv.create(target, with_pip=False, symlinks=True, clear=True)
    wheels = ["--find-links", str(WHEELS)] if WHEELS.is_dir() else []
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = [*pip, "--python", str(python), "install", *wheels, "--constraint", str(LOCK)]
    install += project["dependencies"]
    # The kept wheels may be those of an earlier lock: then from the index.
    if not wheels or subprocess.run([*install, "--no-index"], stderr=subprocess.DEVNULL).returncode:
        subprocess.run(install, check=True)
    (site,) = target.glob("lib/python*/site-packages")
    (site / "suwi.pth").write_text(f"{ROOT / 'src'}\n")
    done.touch()
    return python


def clean_environment() -> dict[str, str]:
    """This process's environment without variables that change Python or configure a broker."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SUWI_", "KAFKA_"))
    }
