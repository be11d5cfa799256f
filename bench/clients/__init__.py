"""Loads. Each is a process: its options are JSON, and it prints its results as JSON.

Raw clients run in the base install, which starts faster and has all they need.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench.base_env import ROOT, base_python, clean_environment

CLIENT_S_MAX = 300

Options = dict[str, Any]
Metrics = dict[str, Any]


def run_client(name: str, options: Options) -> Metrics:
    """Run the client module `name` to its end; returns its results."""
    python = sys.executable if name.startswith("librdkafka") else base_python()
    done = subprocess.run(
        [python, "-m", f"bench.clients.{name}", json.dumps(options)],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=CLIENT_S_MAX,
    )
    if done.returncode:
        raise RuntimeError(f"client {name} failed with {options}")
    metrics: Metrics = json.loads(done.stdout)
    return metrics


def client_main(work: Callable[[Options], Metrics]) -> None:
    """The entry point of a client module."""
    print(json.dumps(work(json.loads(sys.argv[1]))))
