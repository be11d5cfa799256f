"""Ports for a cluster of a test."""

import random
import socket
from contextlib import ExitStack

from suwi.local_cluster.layout import PORTS
from suwi.local_cluster.zookeeper import HOST

# Below the ports that the system gives to clients.
_FIRST, _END = 12_000, 31_000
_OFFSETS = (*range(5), *range(100, 105), *range(200, 205), *range(300, 330), *range(400, 416))


def free_ports() -> int:
    """The first of as many ports as a cluster uses, all of them free."""
    while True:
        first = random.randrange(_FIRST, _END - PORTS)
        with ExitStack() as stack:
            try:
                for offset in _OFFSETS:
                    probe = stack.enter_context(socket.socket())
                    probe.bind((HOST, first + offset))
            except OSError:
                continue
            return first
