"""Whether the other side of a connection has closed, also while nothing is read from it."""

import asyncio
import select
from typing import Final

# macOS has the first only. The second tells of an end that stands behind bytes not read yet.
_HUNG_UP: Final = select.POLLHUP | getattr(select, "POLLRDHUP", 0)


def has_hung_up(transport: asyncio.BaseTransport) -> bool:
    """False also where there is no socket to ask, as in a simulation: then reading tells."""
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(socket.fileno(), _HUNG_UP)
    return bool(poll.poll(0))
