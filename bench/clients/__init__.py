"""Loads. Each is a process: it takes its options as JSON and prints what it measured as JSON."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CLIENT_S_MAX = 300

Options = dict[str, Any]
Metrics = dict[str, Any]


def run_client(name: str, options: Options) -> Metrics:
    """Run the client module `name` to its end; what it measured."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.clients.{name}", json.dumps(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=CLIENT_S_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"client {name} failed with {options}")
    return json.loads(done.stdout)


def client_main(work: Callable[[Options], Metrics]) -> None:
    """What a client module calls when it is run."""
    print(json.dumps(work(json.loads(sys.argv[1]))))
