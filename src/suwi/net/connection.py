"""One client connection: the asyncio protocol around `FrameReader`, `ReplyOrder` and `Output`.

Bytes enter at `get_buffer`/`buffer_updated`, frames go to `dispatch`, replies to `Output`. This
module decides when a request may start and when the socket is read. A frame is valid only until
`dispatch` returns.
Invariants: no view of the shared buffer is kept after `buffer_updated`; reading is paused while too
much is in flight, an exclusive request runs, or received requests wait for the next turn (`turns`).
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

from suwi.env.hang_up import has_hung_up
from suwi.env.tasks import clock_of
from suwi.env.token_bucket import TokenBucket
from suwi.net.answers import (
    Answer,
    CloseConnection,
    Exclusive,
    Later,
    NoReply,
    Outcome,
    Reply,
    as_promise,
)
from suwi.net.buffer_pool import BufferPool, KeptBytes
from suwi.net.fair_turns import Turns
from suwi.net.frame_reader import FrameReader, InvalidFrameSize
from suwi.net.limits import Limits
from suwi.net.output import WRITE_BYTES, Output, UnsentBytesBudget
from suwi.net.reply_order import ReplyOrder, Slot
from suwi.security.authorizer import GrantedTopics
from suwi.security.distinguished_name import principal_of_peer
from suwi.security.peer_proof import PeerChallenge
from suwi.security.principal import ANONYMOUS, Principal
from suwi.security.sasl_session import SaslSession
from suwi.wire.versions import ApiKey

log = logging.getLogger(__name__)

# Takes a frame (without its size), returns the response header and the answer.
Dispatch: TypeAlias = Callable[["Connection", memoryview], tuple[bytes, Answer]]

_PRODUCE: Final = int(ApiKey.PRODUCE).to_bytes(2, "big")
_READY: Final = (Reply, NoReply)  # not `Reply | NoReply`, which is built on each call


class ClientIdentity(NamedTuple):
    """Shared by all requests of a connection, which replaces it after authentication."""

    listener: str
    host: str = ""
    principal: Principal = ANONYMOUS
    is_peer: bool = False
    """Whether it has been authenticated as another broker of this cluster."""


@dataclass(slots=True, frozen=True)
class ClientBuckets:
    """The quotas of one client, in the order of `CLIENT_KEYS`. Some clients may share one."""

    produce: TokenBucket | None
    fetch: TokenBucket | None
    request: TokenBucket | None
    mutation: TokenBucket | None


class ConnectionRegistry(Protocol):
    """Counts connections and failed authentications: the listener."""

    def opened(self, connection: "Connection") -> str | None:
        """Count a new connection, or log and return the reason why it is refused."""

    def closed(self, connection: "Connection") -> None: ...

    def authentication_failed(
        self,
        mechanism: str,
        reason: str,
        peer: str,
        user: str,
        principal: Principal = ANONYMOUS,
    ) -> None:
        """`principal`: whose connection it is, if it was to be authenticated again."""


class Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_active_at", "_awaits_turn", "_blocked", "_closing", "_dispatch",
        "_exclusive", "_flush_planned", "_limits", "_loop", "_opened_at", "_order", "_output",
        "_peer_closed", "_reader", "_reading", "_registry", "_serving", "_stopping", "_transport",
        "_turns", "_unmuting", "_unsent_budget", "_unsent_bytes", "began_s", "buffer_pool",
        "client", "peer_challenge", "peer_host", "peer_port", "quotas", "reads_from", "sasl",
        "slices", "time_s", "writes_to",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener_name: str,
        dispatch: Dispatch,
        limits: Limits,
        buffer_pool: BufferPool,
        unsent_budget: UnsentBytesBudget,
        turns: Turns,
        registry: ConnectionRegistry,
    ) -> None:
        self.client = ClientIdentity(listener_name)
        self.peer_host = ""
        self.peer_port = 0
        self.peer_challenge: PeerChallenge | None = (
            None  # for a broker that has not proved its identity yet
        )
        self.sasl: SaslSession | None = None  # on SASL listeners, from the first request on
        self._forget_rights()
        self._loop = loop
        self.time_s = clock_of(loop)
        self._dispatch = dispatch
        self._limits = limits
        self.buffer_pool = buffer_pool
        self._unsent_budget = unsent_budget
        self._turns = turns
        self.slices = turns.slices
        self._registry = registry
        self._transport: asyncio.Transport
        self._output: Output
        self._reader = FrameReader(buffer_pool, self, limits.request_bytes_max)
        self._order = ReplyOrder()
        self._unsent_bytes = 0  # as last reported to the budget
        self._opened_at = self._active_at = self.began_s = self.time_s()
        self._reading = True
        self._serving = False
        self._blocked = False  # no further request may start
        self._awaits_turn = False  # in the queue of `turns`
        self._peer_closed = False  # it disconnected while received requests were waiting
        self._exclusive = False
        self._flush_planned = False
        self._stopping = False
        self._closing = False
        self._unmuting: asyncio.TimerHandle | None = None  # set while the client is throttled

    def __str__(self) -> str:
        return f"{self.peer_host}:{self.peer_port}"

    # asyncio.BaseProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.peer_host, self.peer_port = peer_address(transport)
        tls = transport.get_extra_info("ssl_object")
        principal = ANONYMOUS if tls is None else principal_of_peer(tls)
        self.client = self.client._replace(host=self.peer_host, principal=principal)
        self._output = Output(transport, self._turns.senders, self._output_progressed, self._abort)
        self._output.begin()
        if self._registry.opened(self) is not None:
            self.abort()  # The registry logs why.

    def connection_lost(self, exc: Exception | None) -> None:
        self._blocked = self._closing = True
        if self._unmuting is not None:
            self._unmuting.cancel()
        self._reader.release()
        self._order.close()
        self._output.close()
        self._unsent_budget.update(self, 0)
        self._registry.closed(self)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.resume()

    # asyncio.BufferedProtocol

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(self._blocked)

    def buffer_updated(self, nbytes: int) -> None:
        self._active_at = self.began_s = self.time_s()
        if self._reader.received(nbytes):
            self._serve_received()
        elif self._reader.lacks_memory:
            self._update_reading()

    def _serve_received(self) -> None:
        """Serve the complete frames that were received, send ready replies, hold the rest."""
        reader = self._reader
        self._serving = True
        if self._unsent_bytes and self._unsent_budget.is_half_used:
            self._blocked = True
        try:
            if not self._blocked:
                self._serve(reader)
            self._flush()
        finally:
            self._serving = False
        if self._blocked and not self._is_blocked():  # the flush freed space
            self._blocked = False
            if reader.start < reader.end:
                self._end_turn()
        if reader.start < reader.end or reader.held is not None:
            if self._closing:
                reader.release()
            else:
                reader.hold(self._blocked, self._loop.time())
            if reader.lacks_memory:
                self._update_reading()
        if self._blocked or not self._reading:
            self._update_reading()

    def _serve(self, reader: FrameReader) -> None:
        """Dispatch frames until no further request may start in this turn."""
        dispatch = self._dispatch
        output = self._output
        slots = self._order.slots
        poison = self.buffer_pool.poison
        served_max, ends_at = 1, 0.0
        try:
            for served, frame in enumerate(reader.frames()):
                if served:
                    if served == 1:
                        served_max, ends_at = self._turns.limits(self._active_at)
                    self.began_s = self.time_s()
                    if served >= served_max or self.began_s >= ends_at:
                        reader.put_back(frame)
                        self._end_turn()
                        break
                try:
                    header, answer = dispatch(self, frame)
                except Exception as error:
                    self._fail(error)
                    break
                if poison:
                    frame[:] = b"\xdd" * len(frame)
                if type(answer) is Reply and not slots:
                    output.add(header, answer)
                else:
                    self._queue_answer(header, answer, len(frame))
                if output.queued_bytes >= WRITE_BYTES:
                    output.flush()
                limits = self._limits
                if (
                    slots
                    or self._unsent_bytes
                    or output.replies >= limits.in_flight_requests_max
                    or output.queued_bytes >= limits.in_flight_bytes_max
                ) and self._is_full():  # mostly no call
                    self._flush()
                    if self._is_full():
                        self._blocked = True
                if self._blocked:
                    break
        except InvalidFrameSize as error:
            self._fail(error)

    # Turns

    def _end_turn(self) -> None:
        """Leave the remaining requests to the next turn."""
        self._awaits_turn = self._blocked = True
        self._turns.join(self)

    def take_turn(self) -> bool:
        self._awaits_turn = False
        if self._closing:
            return False
        self._resume()
        return True

    def _serve_held(self) -> None:
        if not self._reading and not self._peer_closed and has_hung_up(self._transport):
            self._peer_closed = True
            self._dispatch = _without_reply(self._dispatch)
        self._active_at = self.began_s = self.time_s()
        self._serve_received()

    def memory_available(self) -> None:
        self._reader.memory_available()
        self._update_reading()

    def keep(self, data: memoryview) -> KeptBytes:
        """Keep bytes of the frame that is being dispatched."""
        return self._reader.keep(data)

    # Delayed answers

    def _queue_answer(self, header: bytes, answer: Answer, request_bytes: int) -> None:
        """Queue an answer that is delayed or follows a delayed one."""
        if isinstance(answer, _READY):
            self._order.add(header, answer)
            return
        if is_exclusive := isinstance(answer, Exclusive):
            self._exclusive = self._blocked = True
            if answer.until is not None:
                is_exclusive = False
                answer.until.add_done_callback(self._end_exclusive)
        promise = as_promise(self._loop, answer.reply)
        slot = self._order.add_waiting(header, request_bytes, promise)
        promise.when_kept(partial(self._complete, slot, is_exclusive))

    def _complete(self, slot: Slot, is_exclusive: bool, reply: Outcome) -> None:
        if isinstance(reply, Exception):
            slot.wait = None
            # Not here: the code that completes a promise must not see the connection close.
            self._loop.call_soon(self._fail, reply)
            return
        self._order.complete(slot, reply)
        if is_exclusive:
            self._end_exclusive()
        elif not self._flush_planned:
            # When a high watermark rises, many promises complete together: one write for all.
            self._flush_planned = True
            self._loop.call_soon(self._send_ready)

    def _end_exclusive(self, _until: object = None) -> None:
        self._exclusive = False
        self._send_ready()

    def _send_ready(self) -> None:
        self._flush_planned = False
        if self._closing:
            return
        for header, reply in self._order.take_ready():
            self._output.add(header, reply)
        self._flush()
        self._resume()

    def _output_progressed(self) -> None:
        self._active_at = self._loop.time()
        self._report_unsent_bytes()
        self._resume()

    # Flow control

    def _flush(self) -> None:
        output = self._output
        output.flush()
        if self._unsent_bytes or self._order.ready_bytes or output.replies or output.is_paused:
            self._report_unsent_bytes()  # mostly nothing is unsent, and nothing was before

    def _report_unsent_bytes(self) -> None:
        """Report to the budget how much memory unsent replies use."""
        held_bytes = self._output.held_bytes + self._order.ready_bytes
        if held_bytes != self._unsent_bytes:
            self._unsent_bytes = held_bytes
            self._unsent_budget.update(self, held_bytes)

    def evict(self) -> None:
        if not self._closing:
            self._abort("too many unsent reply bytes in the broker, and this connection has most")

    def _is_full(self) -> bool:
        limits, order, output = self._limits, self._order, self._output
        return (
            len(order.slots) + output.replies >= limits.in_flight_requests_max
            or order.bytes_in_flight + output.queued_bytes >= limits.in_flight_bytes_max
            or (self._unsent_bytes > 0 and self._unsent_budget.is_half_used)
        )

    def _is_blocked(self) -> bool:
        is_ending = self._stopping or self._closing
        waits = self._exclusive or self._awaits_turn or self._unmuting is not None
        return is_ending or waits or self._is_full()

    def mute(self, throttle_ms: int) -> None:
        """Start no further request for this time: the client has used more than its quota."""
        if self._closing:
            return
        self._blocked = True
        ends_at_s = self._loop.time() + throttle_ms / 1000
        if self._unmuting is not None:
            if self._unmuting.when() >= ends_at_s:
                return
            self._unmuting.cancel()
        self._unmuting = self._loop.call_at(ends_at_s, self._unmute)

    def _unmute(self) -> None:
        self._unmuting = None
        self._active_at = self._loop.time()
        self._resume()

    def _resume(self) -> None:
        """Called after a state change: serve held requests and resume reading, if allowed."""
        if self._serving or self._closing:
            return
        if self._blocked:
            self._blocked = self._is_blocked()
            if not self._blocked and self._reader.held is not None:
                self._serve_held()
                return
        if self._stopping and not self._order.slots and self._output.is_empty:
            self._close()
            return
        self._update_reading()

    def _update_reading(self) -> None:
        """Pause reading while received bytes cannot be processed or stored; else resume it."""
        held = self._reader.held is not None
        read = not (self._stopping or self._reader.lacks_memory or (self._blocked and held))
        if read == self._reading or self._closing:
            return
        self._reading = read
        if read:
            self._reader.restart_progress(self._loop.time())  # the peer did not cause the pause
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def authenticated(self, principal: Principal, *, is_peer: bool = False) -> None:
        """The peer has authenticated: serve its requests from now on."""
        self.client = self.client._replace(principal=principal, is_peer=is_peer)
        self._forget_rights()
        self._limits = self._limits.authenticated or self._limits
        self._reader.frame_bytes_max = self._limits.request_bytes_max

    def _forget_rights(self) -> None:
        self.reads_from = GrantedTopics()
        self.writes_to = GrantedTopics()
        self.quotas: tuple[ClientBuckets | None, str | None, int | None] = None, None, None
        """Those of its last client id, with that and the epoch of the quotas."""

    def authentication_failed(
        self, mechanism: str, reason: str, user: str = "", principal: Principal = ANONYMOUS
    ) -> None:
        """Count and log a failed authentication."""
        self._registry.authentication_failed(mechanism, reason, str(self), user, principal)

    def serve_with(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    # Closing

    def stop(self) -> None:
        """Start no further request; close when all pending replies have been sent."""
        self._stopping = self._blocked = True
        self._resume()

    def check_time(self, now: float) -> None:
        """Enforce the time limits: idle, slow frame, authentication, close."""
        limits = self._limits
        quiet_ms = (now - self._active_at) * 1000
        if self._closing:
            if quiet_ms > limits.close_ms_max:
                self._transport.abort()
            return
        if limits.authenticated and (now - self._opened_at) * 1000 > limits.authenticate_ms_max:
            self._abort("not authenticated in time")
        elif quiet_ms > limits.idle_ms_max and not (
            self._awaits_turn or self._unmuting is not None or self._order.is_waiting
        ):
            self._abort("idle longer than connections.max.idle.ms")
        elif self._reading and self._reader.is_stalled(
            now, limits.frame_ms_max, limits.frame_bytes_per_s_min
        ):
            self._abort("frame arrives too slowly")

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, CloseConnection):
            log.info("connection closed", extra={"peer": str(self), "reason": str(error)})
        elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            # No bug: the first request of a kind loads a module, which needs a descriptor.
            log.error("request failed", extra={"peer": str(self), "reason": error.strerror})
        else:
            log.error("request failed", extra={"peer": str(self)}, exc_info=error)
        self._close()

    def _close(self) -> None:
        """Close after the ready replies have been sent."""
        if not self._closing:
            self._output.flush()
            self._blocked = self._closing = True
            self._active_at = self._loop.time()
            self._transport.close()

    def _abort(self, reason: str, level: int = logging.INFO) -> None:
        log.log(level, "connection closed", extra={"peer": str(self), "reason": reason})
        self.abort()

    def abort(self) -> None:
        """Close at once and drop pending replies."""
        self._blocked = self._closing = True
        self._transport.abort()


def peer_address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Host and port of the peer; ("", 0) if unknown."""
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple) and len(peer) >= 2:
        return str(peer[0]), int(peer[1])
    return "", 0


def _without_reply(dispatch: Dispatch) -> Dispatch:
    """Wrap a dispatch function for requests that a peer has sent before it disconnected.

    As in Kafka, a producer with acks=0 may send and close: requests without a response are served,
    up to the first request that has one. Other requests do not reach a handler.
    """

    def serve(connection: Connection, frame: memoryview) -> tuple[bytes, Answer]:
        if frame[:2] != _PRODUCE:
            raise CloseConnection("peer disconnected")
        header, answer = dispatch(connection, frame)
        if isinstance(answer, Exclusive) and answer.until is not None:
            return header, Exclusive(_after_effects(answer.reply, answer.until))
        if not isinstance(answer, NoReply):
            _drop(answer)
            raise CloseConnection("peer disconnected")
        return header, answer

    return serve


async def _after_effects(
    reply: Awaitable[Reply | NoReply], until: "asyncio.Future[None]"
) -> NoReply:
    """Wait for the side effects of a request. If it has no response, it is complete then."""
    replying = asyncio.ensure_future(reply)  # owner: this function
    ends: list[asyncio.Future[Any]] = [replying, until]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if replying.done() and isinstance(answer := replying.result(), NoReply):
            return answer
        raise CloseConnection("peer disconnected")
    finally:
        replying.cancel()


def _drop(answer: Reply | Later | Exclusive) -> None:
    if isinstance(answer, Reply):
        answer.discard()
    else:
        as_promise(asyncio.get_running_loop(), answer.reply).cancel()
