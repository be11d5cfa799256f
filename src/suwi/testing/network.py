"""The network of a test cluster: sockets for clients, the simulated network between the brokers.

A broker's port is open on both. Faults of links (`cut`, `slow`) affect brokers only; `kill`,
`power_off` and `power_on` affect the connections of clients as well.
"""

import asyncio
import selectors
import socket
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any
from weakref import WeakSet

from suwi.sim.incarnation import Incarnation, current
from suwi.sim.network import SimNetwork
from suwi.sim.random import SimRandom

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CONNECT_AGAIN_S = 0.01
"""How often a connection over a cut link is tried: it is there as soon as the link is healed."""
_WINDOW_BYTES = 1 << 20


@dataclass(slots=True, eq=False)
class _Owned:
    """What one process has open."""

    servers: list[asyncio.AbstractServer] = field(default_factory=list)
    transports: WeakSet[asyncio.Transport] = field(default_factory=WeakSet)
    accepted: WeakSet[socket.socket] = field(default_factory=WeakSet)
    """Sockets of accepted connections, which at first have no transport."""
    kept: list[asyncio.Transport] = field(default_factory=list)
    """Transports that are cut off: nothing else refers to them, and they must stay open."""

    def reset(self) -> None:
        for server in self.servers:
            server.close()
        for transport in list(self.transports):
            connection = transport.get_extra_info("socket")
            if connection is not None and not transport.is_closing():
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.set_protocol(_IgnoringProtocol())
            transport.abort()
        for connection in list(self.accepted):
            connection.close()


class _IgnoringProtocol(asyncio.Protocol):
    """The protocol of a killed process's connections: it ignores everything."""


class Sockets(selectors.DefaultSelector):
    """Knows which process has which socket."""

    def __init__(self) -> None:
        super().__init__()
        self.of: defaultdict[Incarnation, _Owned] = defaultdict(_Owned)
        self._owners: dict[int, Incarnation] = {}
        self._frozen: dict[Incarnation, list[selectors.SelectorKey]] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        owner = current.get()
        if owner is not None:
            self._owners[key.fd] = owner
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._owners.pop(key.fd, None)
        return key

    def freeze(self, process: Incarnation) -> None:
        fds = [fd for fd, owner in self._owners.items() if owner is process]
        self._frozen.setdefault(process, []).extend(self.unregister(fd) for fd in fds)

    def thaw(self, process: Incarnation) -> None:
        for key in self._frozen.pop(process, []):
            self.register(key.fileobj, key.events, key.data)
            self._owners[key.fd] = process

    def cut_off(self, process: Incarnation) -> _Owned:
        """Peers notice nothing until what is returned is reset."""
        self.freeze(process)
        owned = self.of.pop(process, _Owned())
        owned.kept = list(owned.transports)
        for transport in owned.kept:
            transport.set_protocol(_IgnoringProtocol())
        return owned

    def reset(self, process: Incarnation) -> None:
        """Close everything as the kernel does for a killed process."""
        self._frozen.pop(process, None)
        self.of.pop(process, _Owned()).reset()


class ClusterNetwork(SimNetwork):
    def __init__(self, loop: asyncio.AbstractEventLoop, sockets: Sockets) -> None:
        super().__init__(loop, SimRandom())
        self.delay_ms = (0.0, 0.0)
        self.window_bytes = _WINDOW_BYTES
        self.chop_chance = 0.0
        self.orderly_end_chance = 0.0
        self.retransmission_s_max = 0.0
        self.connect_waits_s = repeat(_CONNECT_AGAIN_S)
        self.host_of_port: dict[int, str] = {}
        """The broker that listens on each port, or did."""
        self._sockets = sockets
        self._without_power: defaultdict[str, list[_Owned]] = defaultdict(list)

    def serve(
        self, factory: Callable[[], asyncio.BaseProtocol], server: asyncio.Server, port: int
    ) -> None:
        """Other brokers reach a server of the running process, too, while it accepts clients."""
        process = current.get()
        assert process is not None
        self.host_of_port[port] = process.host
        self.listen(factory, [""], port).server = server

    def kill(self, incarnation: Incarnation) -> None:
        for end in self._ends:
            is_its_own = end.incarnation is incarnation and not end.closed
            if is_its_own and self.is_cut(end.host, end.peer_host):
                end.lose_sent()
        super().kill(incarnation)
        self._sockets.reset(incarnation)

    def power_off(self, name: str) -> None:
        super().power_off(name)
        processes = [process for process in self._sockets.of if process.host == name]
        self._without_power[name] += [self._sockets.cut_off(process) for process in processes]

    def power_on(self, name: str) -> None:
        """Connections to the process that ran when the power was lost are reset."""
        super().power_on(name)
        for owned in self._without_power.pop(name, []):
            owned.reset()
            for other in self._hosts:
                self.reset(other, name)
