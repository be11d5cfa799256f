"""Splits received bytes into frames: a size of four bytes, then that many bytes. No I/O.

The transport fills the buffer of `get_buffer` and reports the number of bytes at `received`. Then
`frames` yields the complete frames, and `hold` keeps the remaining bytes.
A frame is a writable view of receive memory, valid until the next one is requested.
Invariants: any chunking of the same bytes gives the same frames; a buffer is allocated only while
bytes remain after `hold`.
"""

import struct
from collections.abc import Iterator

from suwi.net.answers import CloseConnection
from suwi.net.buffer_pool import SHARED_BYTES, BufferOwner, BufferPool, KeptBytes

_SIZE_BYTES = 4
# Unsigned: a negative size exceeds every limit, so that one comparison is enough.
_read_size = struct.Struct(">I").unpack_from


class InvalidFrameSize(CloseConnection):
    """The size of a frame is negative or exceeds the limit."""


class FrameReader:
    __slots__ = (
        "_bytes",
        "_expected_bytes",
        "_frame_end",
        "_is_direct",
        "_moved_bytes",
        "_owner",
        "_pool",
        "_progress_bytes",
        "_progress_since",
        "end",
        "frame_bytes_max",
        "held",
        "lacks_memory",
        "start",
    )

    def __init__(self, pool: BufferPool, owner: BufferOwner, frame_bytes_max: int) -> None:
        """`owner` passes the pool's `memory_available` on to the reader."""
        self.frame_bytes_max = frame_bytes_max
        self.held: memoryview | None = None  # the allocated buffer, if any
        self.lacks_memory = False  # the buffer is full and the pool exhausted
        self._pool = pool
        self._owner = owner
        # Unserved bytes: _bytes[start:end], in `held` or, after `received`, in the shared buffer.
        self._bytes = pool.shared
        self.start = self.end = 0
        self._is_direct = False  # the next read goes directly into `held`, up to _frame_end
        self._frame_end = 0
        self._moved_bytes = 0  # else: held bytes copied to the front of the shared buffer
        self._expected_bytes = 0  # size of the last frame if it was large; the next may be equal
        self._progress_since = 0.0
        self._progress_bytes = 0  # of the first frame, received by then

    def get_buffer(self, is_blocked: bool) -> memoryview:
        """The buffer for the next read. `is_blocked`: its frames cannot be served at once."""
        held = self.held
        if held is None:
            if self._expected_bytes and not is_blocked:
                return self._pool.window_for(self._expected_bytes)
            return self._pool.window
        if self._is_direct:
            return held[self.end : min(self._frame_end, len(held))]
        # An incomplete small frame: copy it to the front of the shared buffer, so that one read
        # completes it and receives the next requests too.
        pool = self._pool
        moved = self._moved_bytes = self.end - self.start
        pool.shared[:moved] = held[self.start : self.end]
        return pool.shared[moved : moved + len(pool.window)]

    def received(self, size_bytes: int) -> bool:
        """Bytes have been written to the buffer. Returns False if no frame can be complete."""
        held = self.held
        if held is None or not self._is_direct:
            if self._expected_bytes and size_bytes != self._expected_bytes:
                self._expected_bytes = 0
            if held is not None:
                self._bytes = self._pool.shared
                size_bytes += self._moved_bytes
            self.start = 0
            self.end = size_bytes
            return True
        self.end += size_bytes
        if self.end == self._frame_end:
            return True
        if self.end == len(held):
            self._enlarge()
        return False

    def frames(self) -> Iterator[memoryview]:
        """The complete frames, without their size. Raises `InvalidFrameSize`."""
        view = self._bytes
        at = self.start
        end = self.end
        while end - at >= _SIZE_BYTES:
            (size_bytes,) = _read_size(view, at)
            if size_bytes > self.frame_bytes_max:
                signed = int.from_bytes(view[at : at + _SIZE_BYTES], "big", signed=True)
                raise InvalidFrameSize(f"invalid frame size: {signed} bytes")
            stop = at + _SIZE_BYTES + size_bytes
            if stop > end:
                return
            frame = view[at + _SIZE_BYTES : stop]
            self.start = at = stop
            yield frame

    def put_back(self, frame: memoryview) -> None:
        """Return the last frame of `frames`; the next call of `frames` yields it again."""
        self.start -= _SIZE_BYTES + len(frame)

    def hold(self, is_blocked: bool, now: float) -> None:
        """Keep the unserved bytes: an incomplete frame, or frames that must wait (`is_blocked`).

        Must be called before the shared buffer is used again, if bytes are unserved or held.
        """
        view, start, end = self._bytes, self.start, self.end
        size_bytes = end - start
        held = self.held
        if not size_bytes:
            self.release()
            return
        is_same_frame = start == 0 and self._moved_bytes > 0 and view is not held
        if view is not held:
            if held is None or len(held) < size_bytes:
                self.release()
                held = self.held = self._pool.allocate(size_bytes)
            held[:size_bytes] = view[start:end]
            self._bytes, self.start, self.end = held, 0, size_bytes
        self._is_direct = False
        if not is_same_frame:
            self.restart_progress(now)
        if is_blocked or size_bytes < _SIZE_BYTES:
            return
        frame_bytes = _SIZE_BYTES + _read_size(self._bytes, self.start)[0]
        if frame_bytes > SHARED_BYTES or is_same_frame:
            if SHARED_BYTES < frame_bytes <= len(self._pool.shared):
                self._expected_bytes = frame_bytes
            self._is_direct = True
            self._frame_end = self.start + frame_bytes
            if self.end == len(self._bytes) or self._frame_end > len(self._bytes):
                self._enlarge()

    def memory_available(self) -> None:
        self.lacks_memory = False
        if self._is_direct:
            self._enlarge()

    def _enlarge(self) -> None:
        """Make space for the rest of the first frame, or set `lacks_memory`."""
        held = self.held
        assert held is not None
        if self.start:
            size_bytes = self.end - self.start
            held[:size_bytes] = held[self.start : self.end]
            self._frame_end -= self.start
            self.start, self.end = 0, size_bytes
        if self._frame_end > len(held):
            larger = self._pool.grow(held, self.end, self._frame_end, self._owner)
            if larger is not None:
                self.held = self._bytes = larger
            elif self.end == len(held):
                self.lacks_memory = True

    def keep(self, data: memoryview) -> KeptBytes:
        """Keep bytes of the frame that `frames` yielded last. A large frame, which has a buffer of
        its own, is not copied: its buffer changes hands."""
        held, pool = self.held, self._pool
        if held is None or self._bytes is not held or self.start < self.end or pool.poison:
            return KeptBytes(pool, data)
        self.held = None
        self._forget_held()
        return KeptBytes(pool, data, held, self._owner)

    def release(self) -> None:
        """Drop the held bytes and release their buffer."""
        held = self.held
        if held is not None:
            self.held = None
            self._forget_held()
            self._pool.release(held, self._owner)

    def _forget_held(self) -> None:
        self._bytes = self._pool.shared
        self.start = self.end
        self._moved_bytes = 0
        self._is_direct = self.lacks_memory = False

    def restart_progress(self, now: float) -> None:
        """Measure the rate at which the first frame arrives from now on."""
        self._progress_since = now
        self._progress_bytes = self.end - self.start

    def is_stalled(self, now: float, ms_max: float, bytes_per_s_min: int) -> bool:
        """Whether the first frame arrived too slowly during the last period of `ms_max`."""
        if self.held is None:
            return False
        period_s = now - self._progress_since
        # A shorter period while other frames wait for memory.
        if period_s * 1000 <= ms_max / (10 if self._pool.is_exhausted else 1):
            return False
        came_bytes = self.end - self.start - self._progress_bytes
        self.restart_progress(now)
        return came_bytes < period_s * bytes_per_s_min
