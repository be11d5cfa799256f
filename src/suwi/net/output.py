"""The send queue of one connection: replies are written in order, as fast as the peer reads.

Replies are queued by `add` and sent by `flush`, many small ones in one write. File regions are sent
with `os.sendfile` from the page cache to the socket. Where that is not possible (TLS, a simulated
network or disk) they are read and written in pieces.
Invariant: the transport buffers at most one write; all other bytes are in the queue, whose size is
`replies` and `queued_bytes`.
"""

import asyncio
import errno
import logging
import os
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from suwi.env import FileRegion
from suwi.net.answers import Chunk, Reply
from suwi.net.fair_turns import TurnQueue

WRITE_BYTES = 256 * 1024
# Smaller regions are read and written together with adjacent chunks: cheaper than sendfile.
SMALL_REGION_BYTES = 32 * 1024
# Small replies are joined with their header and queued in a separate list, sent first.
_MERGED_BYTES_MAX = 4 * 1024
_REGION_PIECE_BYTES = 1024 * 1024
# After this many bytes it is the turn of others (`senders`); reading a small region costs as much
# time as sending _READ_COST_BYTES.
_TURN_BYTES = 1024 * 1024
_READ_COST_BYTES = 2 * 1024
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSOCK, errno.ENOTSUP, errno.EOPNOTSUPP)
# Errors of the socket, not of the file.
_PEER_GONE = (
    errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED, errno.ENOTCONN, errno.ETIMEDOUT,
    errno.EHOSTUNREACH, errno.ENETUNREACH,
)  # fmt: skip

_PREFIX = struct.Struct(">i")


class UnsentBytesHolder(Protocol):
    def evict(self) -> None:
        """Close the connection at once, to free its memory."""


class UnsentBytesBudget:
    """The unsent reply bytes in memory of all connections.

    Each connection reports its own at `update`. When half of the budget is used, connections with
    unsent bytes start no new requests. When it is exceeded, the connection with most is evicted.
    Invariant: the total exceeds `bytes_max` at most by what one connection adds at once.
    """

    __slots__ = ("_bytes_max", "_holders", "total_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.total_bytes = 0
        self._bytes_max = bytes_max
        self._holders: dict[UnsentBytesHolder, int] = {}

    @property
    def is_half_used(self) -> bool:
        """Whether connections with unsent bytes should start no new requests."""
        return self.total_bytes * 2 >= self._bytes_max

    def update(self, holder: UnsentBytesHolder, size_bytes: int) -> None:
        """Set the unsent bytes of a connection."""
        self.total_bytes += size_bytes - self._holders.pop(holder, 0)
        if size_bytes:
            self._holders[holder] = size_bytes
        while self.total_bytes > self._bytes_max:
            # It may only be a slow reader, but it uses the most memory and can reconnect.
            worst = max(self._holders, key=self._holders.__getitem__)
            self.total_bytes -= self._holders.pop(worst)
            worst.evict()


class _EndOfReply:
    """Marks the end of a reply without `release` in the queue."""


_END: Final = _EndOfReply()
# A tuple: `bytes | bytearray` in a call builds a union object each time.
_MEMORY: Final = (bytes, bytearray, memoryview)
_Item: TypeAlias = Chunk | _EndOfReply | Callable[[], None]


class Output:
    __slots__ = (
        "_closed", "_draining", "_dup_fd", "_failed", "_items", "_lacks_room", "_loop",
        "_progressed", "_region_sent", "_region_warm", "_senders", "_small", "_socket_fd",
        "_transport", "_waiting", "_warming", "_watching", "is_paused", "queued_bytes", "replies",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        senders: TurnQueue,
        progressed: Callable[[], None],
        failed: Callable[[str, int], None],
    ) -> None:
        """`progressed` is called when queued bytes were sent, `failed` when they cannot be sent,
        with the reason and the level at which it is logged."""
        self.replies = 0
        self.queued_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._senders = senders
        self._progressed = progressed
        self._failed = failed
        self._small: list[bytes] = []  # complete replies, sent before `_items`
        self._items: deque[_Item] = deque()
        self.is_paused = False  # by the transport: the socket buffer is full
        self._waiting = False  # for the socket, a thread or the next turn
        self._warming = False  # a thread reads the first region into the page cache
        self._draining = False
        self._closed = False
        self._region_sent = 0
        self._region_warm = 0
        self._dup_fd = -1
        self._watching = False  # the event loop watches for writability
        self._lacks_room = False
        self._socket_fd = _sendfile_socket(transport)

    def begin(self) -> None:
        """Set the limits of the write buffer. TLS may call `pause` inside, because of bytes of its
        own."""
        transport = self._transport
        if transport.get_extra_info("ssl_object") is None:
            # Then "paused" means that the transport has buffered bytes. While it has, nothing may
            # be written directly to the socket.
            transport.set_write_buffer_limits(high=0)
        else:
            # asyncio's TLS pauses at size >= high: with 0 it would never resume.
            transport.set_write_buffer_limits(high=1, low=0)

    def add(self, header: bytes, reply: Reply) -> None:
        """Queue a reply with its size and response header; `flush` sends it."""
        items = self._items
        memory_bytes = size_bytes = len(header)
        chunks = reply.chunks
        if not items and self.queued_bytes < WRITE_BYTES and len(chunks) == 1:
            (chunk,) = chunks
            if reply.release is None and type(chunk) is bytes and len(chunk) <= _MERGED_BYTES_MAX:
                size_bytes += len(chunk)
                self._small.append(_PREFIX.pack(size_bytes) + header + chunk)
                self.queued_bytes += size_bytes + 4
                self.replies += 1
                return
        region_bytes = 0
        for chunk in chunks:
            if type(chunk) is FileRegion:
                region_bytes += chunk.size_bytes
            else:
                memory_bytes += len(chunk)
        first = _PREFIX.pack(memory_bytes + region_bytes) + header
        self.replies += 1
        if region_bytes and memory_bytes + region_bytes <= SMALL_REGION_BYTES and not items:
            whole = self._read_whole(first, reply)
            if whole is not None:
                self._small.append(whole)
                self.queued_bytes += len(whole)
                return
        if chunks and type(chunks[0]) is bytes and len(chunks[0]) <= _MERGED_BYTES_MAX:
            items.append(first + chunks[0])
            items.extend(chunks[1:])
        else:
            items.append(first)
            items.extend(chunks)
        items.append(_END if reply.release is None else reply.release)
        self.queued_bytes += memory_bytes + 4

    def _read_whole(self, first: bytes, reply: Reply) -> bytes | None:
        """Read a reply with small regions from the page cache; None if they are not in it."""
        if self.queued_bytes >= WRITE_BYTES:
            return None
        parts: list[bytes | bytearray | memoryview] = [first]
        for chunk in reply.chunks:
            data = self._read_small(chunk) if type(chunk) is FileRegion else chunk
            if data is None:
                return None
            parts.append(data)
        whole = b"".join(parts)
        if reply.release is not None:
            reply.release()
        return whole

    def flush(self) -> None:
        """Send what the socket accepts now; the rest is sent when it is writable."""
        if self._draining or self.is_paused or self._waiting or not (self._small or self._items):
            return
        self._draining = True  # TLS may call pause and resume inside a write
        try:
            self._drain()
        finally:
            self._draining = False

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.flush()
        self._progressed()

    def close(self) -> None:
        """Drop the queue and release every reply."""
        self._drop_dup()
        self._waiting = self._closed = True
        self.queued_bytes = self.replies = 0
        self._small.clear()
        if not self._warming:
            self._release_all()

    @property
    def is_empty(self) -> bool:
        return not (self._small or self._items or self.is_paused)

    @property
    def held_bytes(self) -> int:
        """Memory of unsent replies, here and in the transport."""
        if not self.is_paused:
            return self.queued_bytes
        return self.queued_bytes + self._transport.get_write_buffer_size()

    def _drain(self) -> None:
        items = self._items
        turn_bytes = 0
        while (self._small or items) and not (
            self.is_paused or self._waiting or self._transport.is_closing()
        ):
            if turn_bytes >= _TURN_BYTES:
                self._waiting = True
                self._senders.join(self)
                return
            if self._small:
                turn_bytes += self._send_small()
                continue
            item = items[0]
            if type(item) is FileRegion and item.size_bytes > SMALL_REGION_BYTES:
                turn_bytes += self._send_region(item)
            elif callable(item):
                items.popleft()
                self.replies -= 1
                item()
            else:
                turn_bytes += self._send_memory()

    def take_turn(self) -> bool:
        if self._closed or self._transport.is_closing():
            return False
        self._go_on()
        return True

    def _send_small(self) -> int:
        small, self._small = self._small, []
        data = small[0] if len(small) == 1 else b"".join(small)
        self.replies -= len(small)
        self.queued_bytes -= len(data)
        self._transport.write(data)
        return len(data)

    def _send_memory(self) -> int:
        """Send the chunks in memory and small regions at the head of the queue, in one write.

        Returns the cost in bytes.
        """
        items = self._items
        parts: list[bytes | bytearray | memoryview] = []
        size_bytes = region_bytes = cost_bytes = 0
        while items and size_bytes + cost_bytes < WRITE_BYTES:
            item = items[0]
            if isinstance(item, _MEMORY):
                if len(item) > WRITE_BYTES:
                    if parts:
                        break
                    # Write a part of it, so that the transport does not copy all for a slow reader.
                    view = memoryview(item)
                    items[0] = view[WRITE_BYTES:]
                    parts.append(view[:WRITE_BYTES])
                    size_bytes = WRITE_BYTES
                    break
                parts.append(item)
                size_bytes += len(item)
            elif item is _END:
                self.replies -= 1
            elif type(item) is FileRegion and item.size_bytes <= SMALL_REGION_BYTES:
                data = self._read_small(item)
                if data is None:
                    if parts:
                        break
                    return self._send_region(item)
                parts.append(data)
                region_bytes += len(data)
                size_bytes += len(data)
                cost_bytes += _READ_COST_BYTES
            else:
                break
            items.popleft()
        self.queued_bytes -= size_bytes - region_bytes
        if size_bytes:
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        return size_bytes + cost_bytes

    def _read_small(self, region: FileRegion) -> bytes | bytearray | None:
        """Read a small region from the page cache; None: `_send_region` must send it."""
        if self._region_sent or not region.is_current():
            return None
        try:
            return region.file.pread_cached(region.size_bytes, region.position)
        except OSError:
            return None

    def _send_region(self, region: FileRegion) -> int:
        """Send the next piece of the first region; return the number of bytes sent."""
        left_bytes = region.size_bytes - self._region_sent
        if left_bytes <= 0:
            self._end_region()
            return 0
        file = region.file
        position = region.position + self._region_sent
        piece_bytes = min(left_bytes, _REGION_PIECE_BYTES)
        try:
            if not region.is_current():
                raise OSError(errno.ESTALE, "the log changed while the reply was sent")
            if self._region_warm <= self._region_sent:
                if not file.is_cached(position, piece_bytes):
                    self._warm(region, position, piece_bytes)
                    return 0
                self._region_warm = self._region_sent + piece_bytes
            piece_bytes = min(piece_bytes, self._region_warm - self._region_sent)
            file_fd = file.fileno()
            if self._socket_fd >= 0 and file_fd >= 0 and region.size_bytes > SMALL_REGION_BYTES:
                sent_bytes = self._sendfile(file_fd, position, piece_bytes)
            else:
                sent_bytes = self._copy(region, position, min(piece_bytes, WRITE_BYTES))
        except OSError as error:
            if error.errno in _PEER_GONE:
                self._failed("the peer hung up before it had the whole reply", logging.DEBUG)
            else:
                self._failed(f"cannot send {file.path}: {error}", logging.INFO)
            self._waiting = True
            return 0
        self._region_sent += sent_bytes
        if self._region_sent == region.size_bytes:
            self._end_region()
        return sent_bytes

    def _sendfile(self, file_fd: int, position: int, size_bytes: int) -> int:
        try:
            sent_bytes = os.sendfile(self._socket_fd, file_fd, position, size_bytes)
        except (BlockingIOError, InterruptedError):
            self._wait_writable()
            return 0
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._socket_fd = -1
            return 0
        if not sent_bytes:
            raise OSError(errno.ENODATA, "file is shorter than the region")
        return sent_bytes

    def _copy(self, region: FileRegion, position: int, size_bytes: int) -> int:
        data = region.file.pread(size_bytes, position)
        if len(data) != size_bytes:
            raise OSError(errno.ENODATA, "file is shorter than the region")
        self._transport.write(data)
        return size_bytes

    def _end_region(self) -> None:
        self._items.popleft()
        self._region_sent = self._region_warm = 0
        self._drop_dup()

    def _warm(self, region: FileRegion, position: int, size_bytes: int) -> None:
        """Read the piece in a thread first: the event loop never waits for the disk."""
        self._waiting = self._warming = True
        warm = self._region_sent + size_bytes

        def read() -> None:
            region.file.pread(size_bytes, position)

        def arrived(job: asyncio.Future[None]) -> None:
            self._warming = False
            failed = job.cancelled() or job.exception() is not None
            if self._closed:
                self._release_all()
            elif failed:
                self._failed(f"cannot read {region.file.path}", logging.INFO)
            else:
                self._region_warm = warm
                self._go_on()

        self._loop.run_in_executor(None, read).add_done_callback(arrived)

    def _wait_writable(self) -> None:
        self._lacks_room = True
        if not self._watching:
            # asyncio refuses add_writer for the descriptor of a transport: use a duplicate.
            try:
                if self._dup_fd < 0:
                    self._dup_fd = os.dup(self._socket_fd)
                self._loop.add_writer(self._dup_fd, self._writable)
            except (OSError, NotImplementedError):
                self._socket_fd = -1  # out of descriptors: write through the transport instead
                return
            self._watching = True
        self._waiting = True

    def _writable(self) -> None:
        # A large region fills the socket buffer many times: keep the watch until it is sent.
        self._lacks_room = False
        self._go_on()
        if self._watching and not self._lacks_room:
            self._loop.remove_writer(self._dup_fd)
            self._watching = False

    def _go_on(self) -> None:
        if self._transport.is_closing():
            return
        self._waiting = False
        self.flush()
        self._progressed()

    def _release_all(self) -> None:
        items, self._items = self._items, deque()
        for item in items:
            if callable(item):
                item()

    def _drop_dup(self) -> None:
        if self._dup_fd >= 0:
            self._loop.remove_writer(self._dup_fd)
            self._watching = False
            os.close(self._dup_fd)
            self._dup_fd = -1


def _sendfile_socket(transport: asyncio.Transport) -> int:
    """The descriptor for sendfile; -1 if bytes must be written through the transport."""
    socket = transport.get_extra_info("socket")
    if socket is None or transport.get_extra_info("ssl_object") is not None:
        return -1
    return socket.fileno() if hasattr(os, "sendfile") else -1
