"""Receive memory: one buffer shared by all connections, and a pool for incomplete frames.

A connection reads into `shared`. It owns a buffer only while received bytes cannot be processed
(`allocate`, `grow`, `release`). Handlers get writable views of either.
Invariant: memory grows with bytes received, never with the size a frame announces. `bytes_max` is
exceeded by at most one frame and a small window per connection.
"""

import mmap
from typing import Protocol

SHARED_BYTES = 256 * 1024
# A connection that sends large frames may read a whole one of up to this size at once.
_WIDE_BYTES = 2 * 1024 * 1024
_SMALL_WINDOW_BYTES = 4 * 1024
_CLASS_BYTES_MIN = 4 * 1024
# The first buffer of a frame is this many times the bytes received; pages are mapped on first use.
_GROWTH = 8
_FREE_BYTES_MAX = 8 * 1024 * 1024
_FREE_EACH_BYTES_MAX = 4 * 1024 * 1024


def _allocate(size_bytes: int) -> memoryview:
    if size_bytes < 128 * 1024:
        return memoryview(bytearray(size_bytes))
    # mmap: pages use memory only after the first write, and are returned to the system when freed,
    # independent of the thresholds of the C allocator.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return memoryview(mmap.mmap(-1, size_bytes, flags=flags))


def _class_of(size_bytes: int) -> int:
    return max(_CLASS_BYTES_MIN, 1 << (size_bytes - 1).bit_length())


class BufferOwner(Protocol):
    def memory_available(self) -> None:
        """`grow` returned None before; it may succeed now."""


class BufferPool:
    """Receive memory of all connections of one broker."""

    def __init__(self, bytes_max: int, *, poison: bool = False) -> None:
        self.shared = _allocate(_WIDE_BYTES)
        # The part of `shared` that one read may fill. It is small while the pool is exhausted,
        # because incomplete frames that have been received must be kept.
        self._full_window = self.window = self.shared[:SHARED_BYTES]
        # For tests: overwrite each frame after its handler, to detect views that were kept.
        self.poison = poison
        self.allocated_bytes = 0
        self._bytes_max = bytes_max
        self._free_buffers: dict[int, list[memoryview]] = {}
        self._free_bytes = 0
        self._waiting: dict[BufferOwner, None] = {}  # in order of arrival
        self._over_limit: BufferOwner | None = None

    @property
    def is_exhausted(self) -> bool:
        """Whether frames wait for memory."""
        return bool(self._waiting)

    def window_for(self, frame_bytes: int) -> memoryview:
        """A window in which a frame of this size can be read at once."""
        if self.window is not self._full_window:
            return self.window
        return self.shared[: max(frame_bytes, SHARED_BYTES)]

    def allocate(self, size_bytes: int, mapped_bytes: int = 0) -> memoryview:
        """A buffer of at least this size, for bytes that have been received. Never refused. With
        `mapped_bytes` it is the beginning of a larger one, of which the rest uses no memory yet."""
        size_class = _class_of(size_bytes)
        free = self._free_buffers.get(size_class)
        if free:
            buffer = free.pop()
            self._free_bytes -= size_class
        else:
            buffer = _allocate(max(size_class, mapped_bytes))[:size_class]
        self._charge(size_class)
        return buffer

    def _charge(self, size_bytes: int) -> None:
        self.allocated_bytes += size_bytes
        if self.allocated_bytes >= self._bytes_max:
            self.window = self.shared[:_SMALL_WINDOW_BYTES]

    def grow(
        self, buffer: memoryview, received_bytes: int, frame_bytes: int, owner: BufferOwner
    ) -> memoryview | None:
        """Replace a buffer that holds the beginning of a frame by a larger one.

        It is copied once: from then on the buffer is a growing part of one for the whole frame.
        The new buffer may still be smaller than the frame. None: the pool is exhausted, the owner
        keeps its buffer, and `memory_available` is called later. One owner at a time may exceed
        the limit, so that a pool full of incomplete frames makes progress.
        """
        frame_class = size_class = _class_of(frame_bytes)
        mapped = memoryview(buffer.obj)
        if len(mapped) >= frame_class or not self._free_buffers.get(size_class):
            size_class = min(size_class, _class_of(received_bytes * _GROWTH))
        if self.allocated_bytes + size_class > self._bytes_max and self._over_limit is not owner:
            if self._over_limit is not None:
                self._waiting[owner] = None
                return None
            self._over_limit = owner
        if len(mapped) >= frame_class:
            self._charge(size_class - len(buffer))
            return mapped[:size_class]
        larger = self.allocate(size_class, frame_class)
        larger[:received_bytes] = buffer[:received_bytes]
        self._free(buffer)
        return larger

    def release(self, buffer: memoryview, owner: BufferOwner | None = None) -> None:
        """The frame is complete or dropped: return the buffer and wake waiting owners."""
        self._free(buffer)
        if owner is not None and self._over_limit is owner:
            self._over_limit = None
        if self._waiting:
            if owner is not None:
                self._waiting.pop(owner, None)
            self._wake()

    def _free(self, buffer: memoryview) -> None:
        size_bytes = len(buffer)
        self.allocated_bytes -= size_bytes
        fits = self._free_bytes + size_bytes <= _FREE_BYTES_MAX
        if fits and size_bytes <= _FREE_EACH_BYTES_MAX:
            self._free_buffers.setdefault(size_bytes, []).append(buffer)
            self._free_bytes += size_bytes
        if self.window is not self._full_window and self.allocated_bytes < self._bytes_max:
            self.window = self._full_window

    def _wake(self) -> None:
        while self._waiting and (
            self._over_limit is None or self.allocated_bytes < self._bytes_max
        ):
            owner = next(iter(self._waiting))
            del self._waiting[owner]
            owner.memory_available()
            if owner in self._waiting:
                return


class KeptBytes:
    """Received bytes that outlive their frame, in the pool's memory until `release`."""

    __slots__ = ("_buffer", "_owner", "_pool", "view")

    def __init__(
        self,
        pool: BufferPool,
        data: memoryview,
        buffer: memoryview | None = None,
        owner: BufferOwner | None = None,
    ) -> None:
        """Without `buffer`, the allocated one that contains them, the bytes are copied."""
        self._pool = pool
        self._owner = owner
        self._buffer = buffer
        self.view = data
        if buffer is None:
            self._buffer = buffer = pool.allocate(len(data))
            self.view = buffer[: len(data)]
            self.view[:] = data

    def release(self) -> None:
        """Return the memory. May be called again."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.release(buffer, self._owner)
