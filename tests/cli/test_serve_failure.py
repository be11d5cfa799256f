"""`suwi serve`: what is loaded first, and when broker-wide work fails: it exits with the reason."""

import subprocess
import sys
from pathlib import Path

_SABOTAGED = """
from suwi.replica.log_manager import LogManager
from suwi.cli.main import app

tick = LogManager._sync_dirty_partitions

async def fails(log_manager):
    if log_manager._config.static.node_id == {victim}:
        raise RuntimeError("a bug")
    await tick(log_manager)

LogManager._sync_dirty_partitions = fails
app()
"""


def test_a_broker_whose_background_work_fails_ends_the_process_with_the_reason(
    tmp_path: Path,
) -> None:
    victim = 7
    ended = subprocess.run(
        [
            *(sys.executable, "-c", _SABOTAGED.format(victim=victim)),
            *("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")),
            *("--set", f"node.id={victim}", "--set", "log.flush.scheduler.interval.ms=50"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert f"broker {victim} has stopped: log flush failed: RuntimeError('a bug')" in ended.stderr
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_metrics_are_loaded_before_anybody_is_served(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from suwi.cli import broker_process\n"
        "from suwi.cli.main import app\n"
        "async def start(brokers):\n"
        "    print('suwi.broker.metrics' in sys.modules, flush=True)\n"
        "    os._exit(0)\n"
        "broker_process._start = start\n"
        "app()\n"
    )
    serve = ["serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--metrics-port", "0"]
    command = [sys.executable, "-c", program, *serve]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "True\n"
