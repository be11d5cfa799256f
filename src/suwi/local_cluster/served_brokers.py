"""Faults of brokers that share a process: `suwi serve --brokers N --faults` listens for them.

`listening` is the side of that process, `ServedBrokers` the side of commands and of the console,
with the same methods as `LocalCluster`. Where it listens, and the token that every request needs,
are in a file of the data directory that only its owner can read.
Invariant: it listens on loopback only, and acts only for who has read the file.
"""

import asyncio
import hmac
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from suwi.env import Env, LocalDisk
from suwi.local_cluster.cluster import ClusterError, LocalCluster
from suwi.local_cluster.layout import Cut

FILE = "suwi-faults.json"
HOLD_S = 20.0
"""For so long replication can be held: less than the usual time-outs of clients."""
ONLY_SERVED = "only brokers of `suwi serve --brokers N --faults` can have this"
_HOST = "127.0.0.1"
_BYTES_MAX = 4096
_PATIENCE_S = 130.0
"""A restart may take long."""

Act = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Does a fault by name. Whoever asks is told what it raises: a broker may fail to start."""


@asynccontextmanager
async def listening(directory: str, env: Env, act: Act) -> AsyncIterator[None]:
    """While it is entered, commands can break the brokers of this process."""
    token, path = env.random.token(16).hex(), os.path.join(directory, FILE)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                line = await reader.readline()
                writer.write(json.dumps(await _answer(line, token, act)).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # Who asked has gone, or has sent no request.
        finally:
            writer.close()

    server = await asyncio.start_server(answer, _HOST, 0, limit=_BYTES_MAX)
    told = {"port": server.sockets[0].getsockname()[1], "token": token}
    env.disk.write_atomically(path, json.dumps(told).encode(), sync=False)
    try:
        yield
    finally:
        env.disk.remove(path)
        server.close()


async def _answer(line: bytes, token: str, act: Act) -> dict[str, str]:
    try:
        asked = json.loads(line)
        if not hmac.compare_digest(str(asked.pop("token", "")), token):
            return {"error": "the token is wrong"}
        await act(str(asked.pop("fault", "")), asked)
        return {}
    except Exception as error:
        return {"error": str(error) or repr(error)}


class ServedBrokers:
    """The brokers of a process that listens for faults."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, FILE)

    @property
    def is_there(self) -> bool:
        """Whether such a process has its data there."""
        return LocalDisk().exists(self._path)

    def kill(self, name: str) -> None:
        self._ask("kill", broker=_number(name))

    def restart(self, name: str) -> None:
        self._ask("restart", broker=_number(name))

    def pause(self, name: str) -> None:
        self._ask("pause", broker=_number(name))

    def resume(self, name: str) -> None:
        self._ask("resume", broker=_number(name))

    def isolate(self, broker: int) -> None:
        self._ask("isolate", broker=broker)

    def cut(self, pairs: Iterable[Cut], *, one_way: bool = False) -> None:
        for start, to in pairs:
            broker, other = _number(start), _number(to)
            self._ask("cut", broker=broker, other=other, one_way=one_way)

    def slow(self, broker: int) -> None:
        self._ask("slow", broker=broker)

    def heal(self) -> None:
        self._ask("heal")

    def hold(self) -> None:
        """Nothing passes between the brokers, until `heal` or for 20 s."""
        self._ask("hold")

    def power_loss(self, name: str) -> None:
        """Unsynced bytes are lost; `restart` starts it again."""
        self._ask("power_loss", broker=_number(name))

    def fill_disk(self, name: str) -> None:
        self._ask("fill_disk", broker=_number(name))

    def free_disk(self, name: str) -> None:
        self._ask("free_disk", broker=_number(name))

    def _ask(self, fault: str, **fields: object) -> None:
        try:
            told = json.loads(LocalDisk().read_bytes(self._path))  # A new process has a new one.
            asked = {"token": told["token"], "fault": fault, **fields}
            with socket.create_connection((_HOST, told["port"]), _PATIENCE_S) as connection:
                connection.sendall(json.dumps(asked).encode() + b"\n")
                answer = json.loads(connection.makefile("rb").readline())
        except (OSError, ValueError, KeyError) as error:
            raise ClusterError(f"the brokers do not answer: {error}") from None
        if "error" in answer:
            raise ClusterError(answer["error"])


def _number(name: str) -> int:
    number = name.removeprefix("broker-")
    if not number.isascii() or not number.isdigit():
        raise ClusterError(f"there is no {name} here: there are only brokers, by their ids")
    return int(number)


class Faults(Protocol):
    """What can be broken in a cluster of this machine: its brokers are processes, or share one."""

    def kill(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...
    def pause(self, name: str) -> None: ...
    def resume(self, name: str) -> None: ...
    def isolate(self, broker: int) -> None: ...
    def cut(self, pairs: Iterable[Cut], *, one_way: bool = False) -> None: ...
    def slow(self, broker: int) -> None: ...
    def heal(self) -> None: ...


def served_in(directory: str) -> ServedBrokers:
    """Those of brokers that share a process only: processes of one machine cannot have these each
    for itself. Raises ClusterError."""
    brokers = ServedBrokers(directory)
    if not brokers.is_there:
        raise ClusterError(ONLY_SERVED)
    return brokers


def faults_of(directory: str, say: Callable[[str], None] = lambda _: None) -> Faults:
    """Those of the brokers that have their data there."""
    served = ServedBrokers(directory)
    return served if served.is_there else LocalCluster(directory, say)
