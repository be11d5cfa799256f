"""What happens in partitions that somebody watches, and truncations, which are always kept.

A request takes a watch of one partition, the next ones renew it (`PartitionWatches.renew`) and read
what was noted since (`read`). While a partition is watched its follower notes its fetches, and its
leader what producers send and are answered, as events of the lab's schema (docs/lab.md). Of other
partitions `Partition.watched_by` is None, and that is all it costs them.
Invariants: a watch ends 5 s after its last request. Of each kind and sender there are at most 20
events a second: what comes faster is added up in one event, which is told when it is complete.
Serial numbers of events only grow, also when the broker restarts.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.env import Clock
from suwi.env.tasks import clock_of
from suwi.model.errors import BrokerError, ThrottlingQuotaExceeded
from suwi.model.ids import LeaderEpoch, NodeId, Offset, TopicPartition
from suwi.replica.loss import LostRange
from suwi.replica.replica_log import ReplicaLog
from suwi.wire.fetch_request import FetchPartition
from suwi.wire.fetch_response import FetchedPartition

WATCHES_MAX: Final = 10
WATCH_S: Final = 5.0
SLOT_S: Final = 0.05
"""For so long events of one kind and sender are added up in one."""
BUSY_S: Final = 0.25
"""Batches of one sender that follow each other faster are added up for so long."""
EVENTS_MAX: Final = 2_000
"""Of one watch: more than it notes between two requests."""
TRUNCATIONS_KEPT: Final = 1_000
CLIENTS_MAX: Final = 8
OTHER_CLIENTS: Final = "other clients"
_CLIENT_CHARS_MAX: Final = 100
_WAITING_MAX: Final = 10_000
_ACKS: Final = {-1: "all", 0: "0", 1: "1"}
_UNKNOWN: Final = BrokerError()

_SAME: Final[dict[str, tuple[str, ...]]] = {
    "fetch": (),
    "fetch-answer": ("error", "diverging"),
    "send": ("client", "acks", "has_offset"),
    "send-result": ("client", "error", "has_offset"),
}
"""The fields of each kind that are equal in all that is added up in one event."""
_HIDDEN: Final = ("noted_s", "topic_id", "has_offset")

Noted: TypeAlias = dict[str, Any]
"""An event: its serial number, when it began by the clock of the loop, and its fields."""


_Answered: TypeAlias = tuple[float, LeaderEpoch, Offset, Offset]
"""When by the clock of the loop, the epoch, the first offset of a batch, and the one after it."""
_TAKEN_MAX: Final = 1_000


@dataclass(slots=True, eq=False)
class _Sent:
    """Batches of one sender, one after the other; or one batch whose answer may wait."""

    at_s: float
    """When the first came, by the clock of the loop."""
    until_s: float
    """Those that come before are added."""
    epoch: LeaderEpoch
    first: Offset
    """Of the last batch."""
    end: Offset
    client: str | None
    acks: int
    wait_ms: int | None
    """For how long the answer may wait."""
    records: int
    times: int = 1


class _Waiting(NamedTuple):
    client: str
    number: int
    sent_s: float
    ends_s: float


class Watchable(Protocol):
    """A partition."""

    replica_log: ReplicaLog
    watched_by: "PartitionWatch | None"


class PartitionWatch:
    def __init__(self, replica_log: ReplicaLog, next_serial: Callable[[], int]) -> None:
        self._replica_log = replica_log
        self._next_serial = next_serial
        self._time_s = clock_of(asyncio.get_running_loop())
        self.ends_s = 0.0
        self.events: deque[Noted] = deque(maxlen=EVENTS_MAX)
        self.left_off = -1
        """The serial number of the last event for which there was no room."""
        self._open: dict[tuple[object, ...], Noted] = {}
        """The last event of each kind and sender, to which the next is added if it comes soon."""
        self._asked: tuple[object, ...] = ()
        self._watermark = -1
        self._sends = 0
        self._clients: set[str] = set()
        self._waiting: dict[Offset, _Waiting] = {}
        """Sends without an answer, by the first offset of the batch."""
        self._taken: list[_Sent | _Answered] = []
        """What happened and is not noted yet, in order."""
        self._last: _Sent | None = None
        """The last of them, if it is one to which the next batch may be added."""

    # -- as a follower -------------------------------------------------------------------------

    def fetch(self, leader: NodeId, asked: FetchPartition) -> None:
        """This replica fetches. One like the last is left out."""
        wanted = leader, asked.current_leader_epoch, asked.fetch_offset
        if wanted != self._asked:
            self._asked = wanted
            self.note_taken()  # It led before.
            event = self._note(self._time_s(), "fetch")
            event["epoch"] = asked.current_leader_epoch
            event["offset"] = asked.fetch_offset
            event["leader"] = leader

    def fetch_answer(
        self, leader: NodeId, asked: FetchPartition, fetched: FetchedPartition, size_bytes: int
    ) -> None:
        """What it got. An answer without news is left out."""
        watermark, diverging = fetched.high_watermark, fetched.diverging_epoch
        is_new = watermark != self._watermark
        if not (is_new or size_bytes or fetched.error_code or diverging is not None):
            return
        self._watermark = watermark
        error = ErrorCode(fetched.error_code).name if fetched.error_code else None
        event = self._note(self._time_s(), "fetch-answer", error, diverging)
        event["epoch"] = asked.current_leader_epoch
        event["offset"] = asked.fetch_offset
        event["leader"] = leader
        event["high_watermark"] = watermark
        event["size_bytes"] = event.get("size_bytes", 0) + size_bytes

    # -- as the leader -------------------------------------------------------------------------

    def sent(
        self, client: str | None, acks: int, first: Offset, end: Offset, wait_ms: int | None
    ) -> None:
        """A producer's batch was appended. `wait_ms`: `answered` follows, at the latest then."""
        now_s, epoch, last = self._time_s(), self._replica_log.leader_epoch, self._last
        slot_s = SLOT_S
        if last is not None:
            if (
                now_s < last.until_s
                and last.client == client
                and last.epoch == epoch
                and last.acks == acks
                and wait_ms is None
            ):
                last.first, last.end = first, end
                last.records += end - first
                last.times += 1
                return
            if last.times > 1:
                slot_s = BUSY_S
        one = _Sent(now_s, now_s + slot_s, epoch, first, end, client, acks, wait_ms, end - first)
        self._last = one if wait_ms is None else None
        self._take(one)

    def answered(self, first: Offset, end: Offset, error: BrokerError | None) -> None:
        """A batch that waited is committed, or is not."""
        taken = self._time_s(), self._replica_log.leader_epoch, first, end
        if error is None:
            self._last = None
            self._take(taken)
        else:
            self.note_taken()
            self._note_answer(*taken, error)

    def refused(self, client: str | None, acks: int, error: Exception) -> None:
        """A producer's batch was not appended."""
        self.note_taken()
        name, number = self._sender(client)
        now_s, epoch = self._time_s(), self._replica_log.leader_epoch
        self._note_send(now_s, epoch, name, number, acks, None)
        self._note_result(now_s, epoch, name, number, None, None, error)

    def _take(self, one: "_Sent | _Answered") -> None:
        self._taken.append(one)
        if len(self._taken) == _TAKEN_MAX:
            self.note_taken()

    def note_taken(self) -> None:
        """Note what was only taken so far: many together cost much less than each by itself."""
        taken, self._taken, last = self._taken, [], self._last
        for one in taken:
            if isinstance(one, _Sent):
                self._note_sent(one)
            else:
                self._note_answer(*one, None)
        if last is not None:
            last.until_s = -inf  # It is noted; how busy its sender is counts for the next.

    def _note_sent(self, sent: _Sent) -> None:
        now_s, epoch, first, times = sent.at_s, sent.epoch, sent.first, sent.times
        self._sends += times - 1
        name, number = self._sender(sent.client)
        event = self._note_send(now_s, epoch, name, number, sent.acks, first)
        event["records"] = event.get("records", 0) + sent.records
        event["times"] += times - 1
        if sent.wait_ms is None:
            offset = first if sent.acks else None
            result = self._note_result(now_s, epoch, name, number, offset, sent.end, None)
            result["times"] += times - 1
        elif len(self._waiting) < _WAITING_MAX:
            self._waiting[first] = _Waiting(name, number, now_s, now_s + sent.wait_ms / 1000)

    def _note_answer(
        self,
        now_s: float,
        epoch: LeaderEpoch,
        first: Offset,
        end: Offset,
        error: BrokerError | None,
    ) -> None:
        waiting = self._waiting.pop(first, None)
        if waiting is not None:  # It was sent before the watch began otherwise.
            client, number = waiting.client, waiting.number
            self._note_result(now_s, epoch, client, number, first, end, error)

    def waiting(self) -> list[dict[str, Any]]:
        """Of each client that waits for answers: for how many, how long the oldest has taken, and
        when the first request times out."""
        self.note_taken()
        found: dict[str, list[_Waiting]] = {}
        for send in self._waiting.values():
            found.setdefault(send.client, []).append(send)
        now_s = self._time_s()
        return [
            {
                "client": client,
                "sends": len(sends),
                "waited_ms": round(1000 * (now_s - min(each.sent_s for each in sends))),
                "left_ms": max(0, round(1000 * (min(each.ends_s for each in sends) - now_s))),
            }
            for client, sends in found.items()
        ]

    def _sender(self, client: str | None) -> tuple[str, int]:
        self._sends += 1
        name = (client or "producer")[:_CLIENT_CHARS_MAX]
        if name not in self._clients:
            if len(self._clients) == CLIENTS_MAX:
                return OTHER_CLIENTS, self._sends
            self._clients.add(name)
        return name, self._sends

    def _note_send(
        self,
        now_s: float,
        epoch: LeaderEpoch,
        client: str,
        number: int,
        acks: int,
        offset: Offset | None,
    ) -> Noted:
        event = self._note(now_s, "send", client, _ACKS.get(acks) or str(acks), offset is not None)
        event["epoch"] = epoch
        event["offset"] = offset
        event["number"] = number
        return event

    def _note_result(
        self,
        now_s: float,
        epoch: LeaderEpoch,
        client: str,
        number: int,
        offset: Offset | None,
        end: Offset | None,
        error: Exception | None,
    ) -> Noted:
        code = None
        if error is not None:
            known = error if isinstance(error, BrokerError) else _UNKNOWN
            code = known.code.name.upper()
        event = self._note(now_s, "send-result", client, code, offset is not None)
        event["epoch"] = epoch
        event["offset"] = None if code else offset
        event["end"] = end
        event["number"] = number
        return event

    # -- both ----------------------------------------------------------------------------------

    def _note(self, now_s: float, *key: Any) -> Noted:
        """The event of this kind and its `_SAME` fields to which what happens now is added: for
        every batch and fetch, so nothing is made that is not told."""
        event = self._open.get(key)
        if event is None or now_s - event["noted_s"] >= SLOT_S:
            kind = key[0]
            event = {"serial": self._next_serial(), "noted_s": now_s, "kind": kind, "times": 0}
            event["broker"] = self._replica_log.context.node_id
            event.update(zip(_SAME[kind], key[1:], strict=True))
            self._open[key] = event
            if len(self.events) == EVENTS_MAX:
                self.left_off = self.events[0]["serial"]
            self.events.append(event)
        event["times"] += 1
        return event


class PartitionWatches:
    """The watches of a broker, and the last truncations of its replicas."""

    def __init__(self, clock: Clock) -> None:
        self._serial = clock.now_ms()
        """Of the last event. It begins with the time, so that no earlier process had more."""
        self._watched: dict[TopicPartition, Watchable] = {}
        self._truncations: deque[Noted] = deque(maxlen=TRUNCATIONS_KEPT)
        self._sweep: asyncio.TimerHandle | None = None

    def renew(self, partition: Watchable) -> None:
        """For another 5 s. Raises ThrottlingQuotaExceeded if too many others are watched."""
        tp, watch, loop = partition.replica_log.partition, partition.watched_by, _loop()
        if watch is None:
            if tp not in self._watched and len(self._watched) >= WATCHES_MAX:
                raise ThrottlingQuotaExceeded(
                    f"{WATCHES_MAX} partitions are watched on this broker, which is the maximum; "
                    f"a watch ends {WATCH_S:g} s after it was last renewed"
                )
            self._end(tp)  # That of an earlier replica of this name.
            watch = partition.watched_by = PartitionWatch(partition.replica_log, self._next_serial)
            self._watched[tp] = partition
        watch.ends_s = loop.time() + WATCH_S
        if self._sweep is None:
            self._sweep = loop.call_at(watch.ends_s, self._end_expired)

    def read(self, tp: TopicPartition, after: int) -> tuple[Iterator[Noted], int, bool]:
        """What was noted of a partition after the event of that number, in order; the number of the
        last event, for the next call; and whether nothing was left off for want of room."""
        now_s = _loop().time()
        partition = self._watched.get(tp)
        watch = None if partition is None else partition.watched_by
        if watch is not None:
            watch.note_taken()
        noted: deque[Noted] = deque() if watch is None else watch.events
        last = self._serial
        for event in reversed(noted):
            if now_s - event["noted_s"] >= SLOT_S:
                break
            last = event["serial"] - 1
        if after > self._serial:
            after = 0  # The clock was set back before this broker started.
        kept = [event for event in _newer(self._truncations, after) if _is_of(event, tp, partition)]
        found = [event for event in (*_newer(noted, after), *kept) if event["serial"] <= last]
        found.sort(key=lambda event: event["serial"])
        is_complete = watch is None or watch.left_off <= after
        return (_told(event, now_s) for event in found), last, is_complete

    def truncated(self, replica_log: ReplicaLog, end: Offset, removed: Iterable[LostRange]) -> None:
        """A replica's log ends at `end` now, without the records that are removed."""
        watched = self._watched.get(replica_log.partition)
        if watched is not None and watched.watched_by is not None:
            watched.watched_by.note_taken()
        self._truncations.append(
            {
                "serial": self._next_serial(),
                "noted_s": _loop().time(),
                "kind": "truncation",
                "partition": str(replica_log.partition),
                "topic_id": replica_log.topic_id,
                "broker": replica_log.context.node_id,
                "epoch": replica_log.leader_epoch,
                "offset": end,
                "removed": [(each.first, each.end - 1, each.epoch) for each in removed],
            }
        )

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for tp in list(self._watched):
            self._end(tp)

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _end_expired(self) -> None:
        loop, ends = _loop(), []
        for tp, partition in list(self._watched.items()):
            watch = partition.watched_by
            if watch is None or watch.ends_s <= loop.time():
                self._end(tp)
            else:
                ends.append(watch.ends_s)
        self._sweep = loop.call_at(min(ends), self._end_expired) if ends else None

    def _end(self, tp: TopicPartition) -> None:
        ended = self._watched.pop(tp, None)
        if ended is not None:
            ended.watched_by = None


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _is_of(truncation: Noted, tp: TopicPartition, partition: Watchable | None) -> bool:
    """A topic that was deleted may have had the same name."""
    is_other = partition and partition.replica_log.topic_id != truncation["topic_id"]
    return truncation["partition"] == str(tp) and not is_other


def _newer(noted: deque[Noted], after: int) -> Iterator[Noted]:
    """The last first: a reader who asks ten times a second has read all before."""
    return takewhile(lambda event: event["serial"] > after, reversed(noted))


def _told(event: Noted, now_s: float) -> Noted:
    fields = {name: v for name, v in event.items() if v is not None and name not in _HIDDEN}
    return {**fields, "ago_ms": round(1000 * (now_s - event["noted_s"]))}
