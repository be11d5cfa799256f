"""Detects that the peer has closed a connection, even while nothing is read from it."""

import asyncio
import select
from typing import Final

# macOS has only the first. The second also reports a close behind unread bytes.
_HUNG_UP: Final = select.POLLHUP | getattr(select, "POLLRDHUP", 0)


def has_hung_up(transport: asyncio.BaseTransport) -> bool:
    """False also if there is no socket, as in a simulation: then only reading shows it."""
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), _HUNG_UP)
    return bool(poll.poll(0))
