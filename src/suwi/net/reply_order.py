"""The order of replies: responses are sent in request order. No I/O.

A request whose reply is delayed, or follows a delayed one, gets a `Slot`. Replies are given to
`add` and `complete` in any order; `take_ready` returns them in the order of their slots.
Invariant: a reply is returned only after the replies of all earlier requests.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from suwi.net.answers import NoReply, Promise, Reply


@dataclass(slots=True, eq=False)
class Slot:
    """One request whose reply has not been sent."""

    header: bytes
    bytes_in_flight: int  # of the reply; of the request until it is ready
    reply: Reply | NoReply | None
    wait: Promise | None


class ReplyOrder:
    __slots__ = ("bytes_in_flight", "ready_bytes", "slots")

    def __init__(self) -> None:
        self.slots: deque[Slot] = deque()
        self.bytes_in_flight = 0
        self.ready_bytes = 0  # memory of replies that are ready and wait for an earlier one

    @property
    def is_waiting(self) -> bool:
        """Whether any reply is not ready."""
        return any(slot.wait for slot in self.slots)

    def add(self, header: bytes, reply: Reply | NoReply) -> None:
        """The next request has its reply."""
        memory_bytes = 0
        if isinstance(reply, Reply):
            memory_bytes = reply.memory_bytes()
            self.ready_bytes += memory_bytes
        elif not self.slots:
            return
        self._append(Slot(header, memory_bytes, reply, None))

    def add_waiting(self, header: bytes, request_bytes: int, wait: Promise) -> Slot:
        """The reply of the next request is delayed; see `complete`."""
        slot = Slot(header, request_bytes, None, wait)
        self._append(slot)
        return slot

    def _append(self, slot: Slot) -> None:
        self.slots.append(slot)
        self.bytes_in_flight += slot.bytes_in_flight

    def complete(self, slot: Slot, reply: Reply | NoReply) -> None:
        slot.wait = None
        slot.reply = reply
        if isinstance(reply, Reply):
            memory_bytes = reply.memory_bytes()
            self.bytes_in_flight += memory_bytes - slot.bytes_in_flight
            self.ready_bytes += memory_bytes
            slot.bytes_in_flight = memory_bytes

    def take_ready(self) -> Iterator[tuple[bytes, Reply]]:
        """Remove and return the replies that can be sent now: header and body."""
        slots = self.slots
        while slots and slots[0].reply is not None:
            slot = slots.popleft()
            self.bytes_in_flight -= slot.bytes_in_flight
            if isinstance(slot.reply, Reply):
                self.ready_bytes -= slot.bytes_in_flight
                yield slot.header, slot.reply

    def close(self) -> None:
        """Send no more replies: cancel delayed ones and release the others."""
        slots, self.slots = self.slots, deque()
        for slot in slots:
            if slot.wait is not None:
                slot.wait.cancel()
            elif isinstance(slot.reply, Reply):
                slot.reply.discard()
