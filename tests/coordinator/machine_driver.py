"""A coordinator's pure machine, driven by hand: what it decides is replayed at once.

`MachineDriver` has what the machines of groups and of transactions share: events, the log, and
fail-over. After every event the driver's `check` compares the machine with replays of its log (H0).
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from suwi.coordinator.event import Call, Event, TimerKey
from suwi.coordinator.record import Codec, CoordinatorRecord, RecordFacts
from suwi.coordinator.topics import NO_TOPICS, Topics

M = TypeVar("M", bound=Any)


class MachineDriver(Generic[M]):
    def __init__(self, codec: Codec, now_ms: int) -> None:
        self._codec = codec
        self.machine: M = self._new_machine()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.now_ms = now_ms
        self.replies: dict[Call[M], Any] = {}
        self.waiting: dict[Call[M], None] = {}
        self.timers: dict[TimerKey, int] = {}
        self.batch_bytes_max = 1 << 20
        self.event = Event(now_ms)
        """The last one."""
        self._elect()

    def _new_machine(self) -> M:
        raise NotImplementedError

    def _topics(self) -> Topics:
        return NO_TOPICS

    def _notice(self, event: Event) -> None:
        """Takes the notices of an event."""
        raise NotImplementedError

    def check(self) -> None:
        raise NotImplementedError

    # -- events ----------------------------------------------------------------------------------

    def ask(self, decide: Callable[[M, Any, Event], Any], asked: Any) -> Call[M]:
        """A request; its reply is in `replies`, unless it waits."""
        call: Call[M] = Call(decide, asked)
        self.waiting[call] = None
        self._carry_out(call)
        return call

    def reply_to(self, decide: Callable[[M, Any, Event], Any], asked: Any) -> Any:
        """The reply to a request that does not wait."""
        return self.replies[self.ask(decide, asked)]

    def do(self, decide: Callable[[M, Any, Event], Any], asked: Any = None) -> None:
        """An event that nobody waits for."""
        self._carry_out(Call(decide, asked))

    def _carry_out(self, call: Call[M]) -> None:
        self.event = event = Event(self.now_ms, call, self._topics(), self.batch_bytes_max)
        for _ in call.decide(self.machine, event) or ():
            pass
        for record in event.records:
            self._append(record)
        for key, deadline_ms in event.timers.items():
            if deadline_ms is None:
                self.timers.pop(key, None)
            else:
                self.timers[key] = deadline_ms
        for each, reply in event.replies:
            assert each in self.waiting, "a reply that nobody waits for"
            del self.waiting[each]
            self.replies[each] = reply
        self._notice(event)
        self.check()

    def _append(self, record: CoordinatorRecord) -> None:
        offset = len(self.log)
        self.log.append(self._codec.encode(record))
        deque(self.machine.replay(record, RecordFacts(offset, is_committed=False)) or (), 0)
        self.machine.committed(offset + 1)

    # -- fail-over -------------------------------------------------------------------------------

    def fail_over(self, *, compacted: bool = True) -> None:
        """Another replica is elected, with what the log has. Nobody who waits is answered here."""
        self.machine = self.replayed(len(self.log) if compacted else 0)
        self._begin_again()

    def resign_and_return(self) -> None:
        """The same replica follows for a while, and is elected again."""
        self.machine.resigned()
        self._begin_again()

    def _begin_again(self) -> None:
        self.timers.clear()
        self.waiting.clear()
        self._elect()

    def _elect(self) -> None:
        self.do(lambda machine, _, event: machine.elected(event))

    def replayed(self, compacted_to: int) -> M:
        """A machine that replays the log, with its first records compacted."""
        newest = {key: offset for offset, (key, _) in enumerate(self.log[:compacted_to])}
        machine = self._new_machine()
        for offset, (key, value) in enumerate(self.log):
            if offset < compacted_to and (newest[key] != offset or value is None):
                continue  # Tombstones go, too.
            record = self._codec.decode(key, value)
            assert record is not None
            deque(machine.replay(record, RecordFacts(offset)) or (), 0)
        return machine
