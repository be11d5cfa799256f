"""What a handler may answer. Effects happen inside the handler; only replies may wait."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias, final

from suwi.env import FileRegion

Chunk: TypeAlias = bytes | bytearray | memoryview | FileRegion


@final
class Reply:
    """The body of a response without its header, as pieces that are sent one after another.

    The pieces must stay unchanged until `release` is called, which happens exactly once: when
    all of them have left, or when they never will because the connection is gone.
    """

    __slots__ = ("chunks", "release")

    def __init__(self, chunks: Sequence[Chunk], release: Callable[[], None] | None = None) -> None:
        self.chunks = chunks
        self.release = release

    def memory_bytes(self) -> int:
        """What the reply holds in memory while it waits; file regions stay on disk."""
        return sum(len(chunk) for chunk in self.chunks if not isinstance(chunk, FileRegion))


@final
class NoReply:
    """The client expects nothing back (Produce with acks=0)."""

    __slots__ = ()


NO_REPLY: Final = NoReply()


@final
class Later:
    """The effects are done and only the reply waits: the next request may start meanwhile.

    The awaitable belongs to the connection, which cancels it on disconnect. A future is cheaper
    than a coroutine, which needs a task.
    """

    __slots__ = ("reply",)

    def __init__(self, reply: Awaitable[Reply | NoReply]) -> None:
        self.reply = reply


@final
class Exclusive:
    """No further request of this connection starts before this one is done."""

    __slots__ = ("reply",)

    def __init__(self, reply: Awaitable[Reply | NoReply]) -> None:
        self.reply = reply


Answer: TypeAlias = Reply | Later | Exclusive | NoReply


class CloseConnection(Exception):
    """The peer broke the protocol; its connection is closed, nothing else suffers."""
