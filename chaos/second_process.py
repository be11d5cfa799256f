"""A second process with the id and the advertised addresses of a broker that runs."""

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import broker_name

_PORTS_FROM = 690
"""From the first of the cluster on: nobody else uses them."""
_ENDS_S = 60.0
_SERVE = ("-c", "from suwi.cli.main import app; app()", "serve", "--insecure", "--config")
_FLAPS = ("broker registered", "metadata session lost", "registration lost")


def refusal(cluster: LocalCluster, broker: int) -> str | None:
    """What is wrong: the second has to end with the name of the first, which must not notice."""
    home = Path(cluster.directory)
    ports = cluster.layout.port + _PORTS_FROM
    of_first = home / broker_name(broker) / "server.properties"
    config = _write_config(of_first, home / "second", ports)
    log = Path(cluster.log_path(broker_name(broker)))
    before = _flaps(log)
    try:
        done = subprocess.run(
            [*cluster.launcher(broker_name(broker)), sys.executable, *_SERVE, str(config)],
            capture_output=True,
            text=True,
            timeout=_ENDS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a second process with id {broker} runs"
    said = done.stdout + done.stderr
    if done.returncode == 0 or f"broker id {broker} is in use" not in said:
        return f"a second process with id {broker} ended with {done.returncode}: {said[-500:]}"
    if _flaps(log) != before:
        return f"broker {broker} flapped when a second process with its id was started"
    return None


def _write_config(of_first: Path, home: Path, port: int) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    ports = itertools.count(port)
    lines = []
    for line in of_first.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "log.dirs":
            value = str(home / "data")
        elif key == "listeners":
            value = re.sub(r":\d+", lambda _: f":{next(ports)}", value)
        lines.append(f"{key}={value}\n")
    path = home / "server.properties"
    path.write_text("".join(lines))
    return path


def _flaps(log: Path) -> int:
    content = log.read_text(errors="replace")
    return sum(map(content.count, _FLAPS))
