"""One client connection: frames in, answers out in the order of their requests.

Bytes enter at `get_buffer`/`buffer_updated`, whole frames go to `dispatch`, replies to `Output`.
A frame is a writable view of receive memory and is valid only until `dispatch` returns.
Invariants: replies leave in request order; nothing keeps a view of the shared buffer past
`buffer_updated`; reading stops while too much is in flight, an exclusive request runs, or whole
requests wait for this connection's next turn (see `turns`).
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias, cast

from suwi.env.hang_up import has_hung_up
from suwi.net.answers import Answer, CloseConnection, Exclusive, NoReply, Outcome, Reply
from suwi.net.buffers import SHARED_BYTES, ReceiveBuffers
from suwi.net.client_identity import ClientIdentity
from suwi.net.disconnected import without_reply
from suwi.net.limits import Limits
from suwi.net.output import WRITE_BYTES, Output
from suwi.net.slot import Slot, as_promise
from suwi.net.turns import Turns
from suwi.net.unsent import Unsent
from suwi.security.distinguished_name import principal_of_peer
from suwi.security.peer_proof import PeerChallenge
from suwi.security.principal import ANONYMOUS, Principal
from suwi.security.sasl_session import SaslSession

log = logging.getLogger(__name__)

# From a frame (without its size) to the response header and the answer.
Dispatch: TypeAlias = Callable[["Connection", memoryview], tuple[bytes, Answer]]

_read_size = struct.Struct(">i").unpack_from


class Keeper(Protocol):
    """Who counts connections."""

    def opened(self, connection: "Connection") -> str | None:
        """Take note of a new connection; or say why it is refused."""

    def closed(self, connection: "Connection") -> None: ...

    def authentication_failed(self, mechanism: str, reason: str, peer: str, user: str) -> None: ...


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_active_at",
        "_awaits_turn",
        "_blocked",
        "_buffers",
        "_closing",
        "_direct",
        "_dispatch",
        "_end",
        "_exclusive",
        "_expected_bytes",
        "_flush_planned",
        "_frame_end",
        "_held",
        "_hung_up",
        "_keeper",
        "_lacks_memory",
        "_limits",
        "_loop",
        "_opened_at",
        "_output",
        "_owed_bytes",
        "_reading",
        "_ready_bytes",
        "_serving",
        "_slots",
        "_slots_bytes",
        "_start",
        "_stashed",
        "_stopping",
        "_transport",
        "_turns",
        "_unsent",
        "_window_at",
        "_window_had_bytes",
        "client",
        "peer_challenge",
        "peer_host",
        "peer_port",
        "sasl",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener_name: str,
        dispatch: Dispatch,
        limits: Limits,
        buffers: ReceiveBuffers,
        unsent: Unsent,
        turns: Turns,
        keeper: Keeper,
    ) -> None:
        self.client = ClientIdentity(listener_name)
        self.peer_host = ""
        self.peer_port = 0
        self.peer_challenge: PeerChallenge | None = None  # what a broker has yet to prove
        self.sasl: SaslSession | None = None  # on listeners with SASL, from the first request on
        self._loop = loop
        self._dispatch = dispatch
        self._limits = limits
        self._buffers = buffers
        self._unsent = unsent
        self._turns = turns
        self._keeper = keeper
        self._transport: asyncio.Transport
        self._output: Output
        self._slots: deque[Slot] = deque()
        self._slots_bytes = 0
        self._ready_bytes = 0  # of replies that wait for an earlier one
        self._owed_bytes = 0  # as `Unsent` knows it
        self._opened_at = self._active_at = loop.time()
        # Reading. Held bytes are _held[_start:_end]; _frame_end is where their first frame ends.
        self._held: memoryview | None = None
        self._start = self._end = self._frame_end = 0
        self._direct = False  # the next bytes go straight into _held
        self._stashed = 0  # or: so many held bytes stand before them in the shared buffer
        self._expected_bytes = 0  # how long the next frame is, where the last was a long one
        self._window_at = 0.0  # since then the frame at hand must make progress
        self._window_had_bytes = 0
        self._reading = True
        self._lacks_memory = False
        # Serving.
        self._serving = False
        self._blocked = False  # no further request may start
        self._awaits_turn = False  # others come first
        self._hung_up = False  # the peer has closed, behind what is held of it
        self._exclusive = False
        self._flush_planned = False
        self._stopping = False
        self._closing = False

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    # The transport's calls: life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        tls = transport.get_extra_info("ssl_object")
        principal = ANONYMOUS if tls is None else principal_of_peer(tls)
        self.client = self.client._replace(host=self.peer_host, principal=principal)
        self._output = Output(self._loop, transport, self._output_moved, self._abort)
        self._output.begin()
        refused = self._keeper.opened(self)
        if refused is not None:
            self._abort(refused)

    def connection_lost(self, exc: Exception | None) -> None:
        self._blocked = self._closing = True
        if self._held is not None:
            self._release_held()
        slots, self._slots = self._slots, deque()
        for slot in slots:
            if slot.wait is not None:
                slot.wait.cancel()
            elif isinstance(slot.reply, Reply) and slot.reply.release is not None:
                slot.reply.release()
        self._output.close()
        self._unsent.owes(self, 0)
        self._keeper.closed(self)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()

    # The transport's calls: bytes

    def get_buffer(self, sizehint: int) -> memoryview:
        held = self._held
        if held is None:
            self._stashed = 0
            if self._expected_bytes and not self._blocked:
                return self._buffers.window_for(self._expected_bytes)
            return self._buffers.window
        if self._direct:
            return held[self._end : min(self._frame_end, len(held))]
        # The rest of a burst: it moves to the front of the shared buffer, so that one read
        # completes it and brings the next requests too.
        buffers = self._buffers
        stashed = self._stashed = self._end - self._start
        buffers.shared[:stashed] = held[self._start : self._end]
        return buffers.shared[stashed : stashed + len(buffers.window)]

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self._loop.time()
        if not self._direct:
            if nbytes != self._expected_bytes:
                self._expected_bytes = 0
            self._take(self._buffers.shared, 0, self._stashed + nbytes)
            return
        self._end += nbytes
        held = self._held
        assert held is not None
        if self._end == self._frame_end:
            self._take(held, self._start, self._end)
        elif self._end == len(held):
            self._enlarge()

    def _take(self, view: memoryview, start: int, end: int) -> None:
        """Serve the whole frames in view[start:end], send what is ready, hold the rest."""
        self._serving = True
        if self._owed_bytes and self._unsent.is_much:
            self._blocked = True
        try:
            start = self._serve(view, start, end)
            self._flush()
        finally:
            self._serving = False
        if self._blocked and not self._is_blocked():  # the flush made room
            self._blocked = False
            if start < end:
                self._end_turn()
        if start < end or self._held is not None:
            self._hold(view, start, end)
        if self._blocked or not self._reading:
            self._pace()

    def _serve(self, view: memoryview, at: int, end: int) -> int:
        """Answer frame after frame; return where the first unserved byte is."""
        dispatch = self._dispatch
        output = self._output
        slots = self._slots
        served = served_max = 0
        ends_at = 0.0
        while not self._blocked and end - at >= 4:
            (size_bytes,) = _read_size(view, at)
            if not 0 <= size_bytes <= self._limits.request_bytes_max:
                self._fail(CloseConnection(f"a frame of {size_bytes} bytes is announced"))
                break
            stop = at + 4 + size_bytes
            if stop > end:
                break
            if served:
                if served == 1:
                    served_max, ends_at = self._turns.limits(self._active_at)
                if served >= served_max or self._loop.time() >= ends_at:
                    self._end_turn()
                    break
            served += 1
            frame = view[at + 4 : stop]
            at = stop
            try:
                header, answer = dispatch(self, frame)
            except Exception as error:
                self._fail(error)
                break
            if self._buffers.poison:
                frame[:] = b"\xdd" * size_bytes
            if type(answer) is Reply and not slots:
                output.add(header, answer)
            else:
                self._place(header, answer, size_bytes)
            if output.queued_bytes >= WRITE_BYTES:
                output.flush()
            if self._is_full():
                self._flush()
                if self._is_full():
                    self._blocked = True
        return at

    # Turns

    def _end_turn(self) -> None:
        """Leave the requests at hand for the next turn."""
        self._awaits_turn = self._blocked = True
        self._turns.join(self)

    def take_turn(self) -> bool:
        self._awaits_turn = False
        if self._closing:
            return False
        self._proceed()
        return True

    def _take_held(self, held: memoryview) -> None:
        """Go on with requests that had to wait."""
        if not self._reading and not self._hung_up and has_hung_up(self._transport):
            self._hung_up = True
            self._dispatch = without_reply(self._dispatch)
        self._active_at = self._loop.time()
        self._take(held, self._start, self._end)

    # Bytes that must wait

    def _hold(self, view: memoryview, start: int, end: int) -> None:
        """Keep view[start:end], the beginning of a frame or requests that may not start yet."""
        size_bytes = end - start
        held = self._held
        if not size_bytes or self._closing:
            if held is not None:
                self._release_held()
            return
        is_same_frame = start == 0 and self._stashed > 0 and view is not held
        if view is held:
            self._start = start
        else:
            if held is None or len(held) < size_bytes:
                if held is not None:
                    self._release_held()
                held = self._held = self._buffers.take(size_bytes)
            held[:size_bytes] = view[start:end]
            self._start, self._end = 0, size_bytes
        self._direct = False
        if not is_same_frame:
            self._start_window()
        if self._blocked or size_bytes < 4:
            return
        assert held is not None
        frame_bytes = 4 + _read_size(held, self._start)[0]
        if frame_bytes > SHARED_BYTES or is_same_frame:
            if SHARED_BYTES < frame_bytes <= len(self._buffers.shared):
                self._expected_bytes = frame_bytes
            self._direct = True
            self._frame_end = self._start + frame_bytes
            if self._end == len(held) or self._frame_end > len(held):
                self._enlarge()

    def _enlarge(self) -> None:
        """Make room for more of a frame; where memory is short, stop reading until there is."""
        held = self._held
        assert held is not None
        if self._start:
            size_bytes = self._end - self._start
            held[:size_bytes] = held[self._start : self._end]
            self._frame_end -= self._start
            self._start, self._end = 0, size_bytes
        if self._frame_end > len(held):
            larger = self._buffers.grow(held, self._end, self._frame_end, self)
            if larger is not None:
                self._held = larger
            elif self._end == len(held):
                self._lacks_memory = True
                self._pace()

    def memory_available(self) -> None:
        self._lacks_memory = False
        if self._direct:
            self._enlarge()
        self._pace()

    def _release_held(self) -> None:
        held = self._held
        assert held is not None
        self._held = None
        self._direct = self._lacks_memory = False
        self._buffers.give_back(held, self)

    def _start_window(self) -> None:
        self._window_at = self._loop.time()
        self._window_had_bytes = self._end - self._start

    # Answers that must wait

    def _place(self, header: bytes, answer: Answer, request_bytes: int) -> None:
        """Queue an answer that is not ready or not yet its turn."""
        slots = self._slots
        if isinstance(answer, Reply):
            self._ready_bytes += answer.memory_bytes()
            self._add_slot(Slot(header, answer.memory_bytes(), answer, None))
        elif isinstance(answer, NoReply):
            if slots:
                self._add_slot(Slot(header, 0, answer, None))
        else:
            is_exclusive = isinstance(answer, Exclusive)
            if is_exclusive:
                self._exclusive = self._blocked = True
            promise = as_promise(self._loop, answer.reply)
            slot = Slot(header, request_bytes, None, promise)
            self._add_slot(slot)
            promise.when_kept(partial(self._arrived, slot, is_exclusive))

    def _add_slot(self, slot: Slot) -> None:
        self._slots.append(slot)
        self._slots_bytes += slot.bytes_in_flight

    def _arrived(self, slot: Slot, is_exclusive: bool, reply: Outcome) -> None:
        slot.wait = None
        if isinstance(reply, Exception):
            # In a turn of its own: whoever keeps a promise may be in the middle of something.
            self._loop.call_soon(self._fail, reply)
            return
        slot.reply = reply
        if isinstance(reply, Reply):
            memory_bytes = reply.memory_bytes()
            self._slots_bytes += memory_bytes - slot.bytes_in_flight
            self._ready_bytes += memory_bytes
            slot.bytes_in_flight = memory_bytes
        if is_exclusive:
            self._exclusive = False
            self._send_ready()
        elif not self._flush_planned:
            # Many waits end together, when a watermark rises: their replies share a write.
            self._flush_planned = True
            self._loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._flush_planned = False
        if self._closing:
            return
        slots = self._slots
        while slots and slots[0].reply is not None:
            slot = slots.popleft()
            self._slots_bytes -= slot.bytes_in_flight
            if isinstance(slot.reply, Reply):
                self._ready_bytes -= slot.bytes_in_flight
                self._output.add(slot.header, slot.reply)
        self._flush()
        self._proceed()

    def _output_moved(self) -> None:
        self._active_at = self._loop.time()
        self._settle()
        self._proceed()

    # Flow control

    def _flush(self) -> None:
        self._output.flush()
        if self._owed_bytes or self._ready_bytes or not self._output.is_empty:
            self._settle()  # Mostly nothing waits, and nothing did before.

    def _settle(self) -> None:
        """Say how much memory waits for the peer."""
        held_bytes = self._output.held_bytes + self._ready_bytes
        if held_bytes != self._owed_bytes:
            self._owed_bytes = held_bytes
            self._unsent.owes(self, held_bytes)

    def cut_off(self) -> None:
        if not self._closing:
            self._abort("its unread replies take the memory that others need")

    def _is_full(self) -> bool:
        limits = self._limits
        output = self._output
        return (
            len(self._slots) + output.replies >= limits.in_flight_requests_max
            or self._slots_bytes + output.queued_bytes >= limits.in_flight_bytes_max
            or (self._owed_bytes > 0 and self._unsent.is_much)
        )

    def _is_blocked(self) -> bool:
        return (
            self._exclusive
            or self._awaits_turn
            or self._stopping
            or self._closing
            or self._is_full()
        )

    def _proceed(self) -> None:
        """Something left or arrived: start held requests if they may, and read on."""
        if self._serving or self._closing:
            return
        if self._blocked:
            self._blocked = self._is_blocked()
            held = self._held
            if not self._blocked and held is not None:
                self._take_held(held)
                return
        if self._stopping and not self._slots and self._output.is_empty:
            self._close()
            return
        self._pace()

    def _pace(self) -> None:
        """Read unless bytes are already waiting for their turn or for memory."""
        held = self._held is not None
        read = not (self._stopping or self._lacks_memory or (self._blocked and held))
        if read == self._reading or self._closing:
            return
        self._reading = read
        if read:
            self._start_window()  # the pause was ours
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def authenticated(self, principal: Principal, *, is_peer: bool = False) -> None:
        """The peer has shown who it is: its requests are served from now on."""
        self.client = self.client._replace(principal=principal, is_peer=is_peer)
        self._limits = self._limits.authenticated or self._limits

    def authentication_failed(self, mechanism: str, reason: str, user: str = "") -> None:
        """The peer is not who it says, as far as it said: tell whoever looks after that."""
        self._keeper.authentication_failed(mechanism, reason, str(self), user)

    def serve_with(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    # Ends

    def stop(self) -> None:
        """Start no further request; close when the replies under way have left."""
        self._stopping = self._blocked = True
        self._proceed()

    def check_time(self, now: float) -> None:
        """Close a connection that is idle, sends a frame too slowly, or does not finish."""
        limits = self._limits
        quiet_ms = (now - self._active_at) * 1000
        if self._closing:
            if quiet_ms > limits.close_ms_max:
                self._transport.abort()
            return
        if limits.authenticated and (now - self._opened_at) * 1000 > limits.authenticate_ms_max:
            self._abort("not authenticated in time")
        elif quiet_ms > limits.idle_ms_max and not self._awaits_us():
            self._abort("idle for too long")
        elif self._held is not None and self._reading:
            self._check_progress(now)

    def _awaits_us(self) -> bool:
        return self._awaits_turn or any(slot.wait for slot in self._slots)

    def _check_progress(self, now: float) -> None:
        limits = self._limits
        window_s = now - self._window_at
        # While frames wait for memory, one that stalls must not hold it for long.
        window_ms_min = limits.frame_ms_max / (10 if self._buffers.is_short else 1)
        if window_s * 1000 <= window_ms_min:
            return
        got_bytes = self._end - self._start - self._window_had_bytes
        if got_bytes < window_s * limits.frame_bytes_per_s_min:
            self._abort("a frame does not complete")
        else:
            self._start_window()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, CloseConnection):
            log.info("connection closed", extra={"peer": str(self), "reason": str(error)})
        else:
            log.error("request failed", extra={"peer": str(self)}, exc_info=error)
        self._close()

    def _close(self) -> None:
        """Close after what is ready has been handed over."""
        if not self._closing:
            self._output.flush()
            self._blocked = self._closing = True
            self._active_at = self._loop.time()
            self._transport.close()

    def _abort(self, reason: str) -> None:
        log.info("connection closed", extra={"peer": str(self), "reason": reason})
        self._blocked = self._closing = True
        self._transport.abort()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._blocked = self._closing = True
        self._transport.abort()
