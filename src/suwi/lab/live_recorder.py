"""Records one partition of a live cluster: makes events of what its brokers tell, again and again.

`add` gets the answers of one round and returns the new events; added up (`Replicas`) they are the
state that the brokers have told. Each broker's events keep their order. Between brokers it is that
of leader epoch and offset; the clocks of several hosts are never compared.
Invariant: after each round the sum of all events is what the answers of the round say.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import floor
from typing import Any, TypeAlias

from suwi.client.own_apis import Watched
from suwi.lab import events
from suwi.lab.events import Event

NEW_EPOCH = "a new leader epoch"
"""The reason of an election that no broker has told yet."""
_LAG_S = 0.5
"""By how much the time may differ at which a follower was last caught up, without an event."""
_BEHIND_S = 1.0
"""How often a follower is told that stays behind: how long it has is read from the time."""
_NO_NODE = -1

_Place: TypeAlias = tuple[int, int, int]
"""Leader epoch and offset, and what comes first at the same ones."""
_RANKS = ("fetch", "send", "fetch-answer", "send-result")


class LiveRecorder:
    def __init__(self, partition: str) -> None:
        self._partition = partition
        self._at_s = 0.0
        self._silent: set[int] = set()
        self._controller: tuple[int, int | None] = (-1, None)
        """Its epoch, and the broker."""
        self._election: tuple[int | None, int] = (None, -1)
        """The leader and its epoch."""
        self._partition_epoch = -1
        self._in_sync: tuple[int, ...] = ()
        self._proposed: tuple[int, ...] | None = None
        self._replicas: dict[int, dict[str, Any]] = {}
        self._followers: dict[int, tuple[int, float | None, float]] = {}
        """What was told of each, and when."""
        self._losses: set[str] = set()

    def add(
        self,
        now_s: float,
        told: Mapping[int, Watched | None],
        *,
        losses: Sequence[Mapping[str, Any]] = (),
        assigned: Collection[int] | None = None,
    ) -> list[Event]:
        """`told` are the brokers that have answered since the last call, and with None those that
        do not answer; `losses` are all that the cluster has recorded; `assigned` are the brokers
        that have or get a replica, if they are known."""
        found = [*self._reached(now_s, told)]
        answers = {node: each for node, each in told.items() if each is not None}
        found += self._controlled(now_s, answers.values())
        for raw in _in_order(map(_items, answers.values())):
            found += self._happened(now_s, raw)
        states = [each.state for each in answers.values() if each.state is not None]
        leading = [state for state in states if state["role"] == "leader"]
        leader = max(leading, key=lambda state: state["leader_epoch"], default=None)
        if leader is not None and leader["leader_epoch"] >= self._election[1]:
            found += self._led(now_s, leader)
        for state in states:
            found += self._replica(now_s, state)
        if leader is not None and leader["leader_epoch"] == self._election[1]:
            found += self._followers_of(now_s, leader)
        found += self._lost(now_s, losses)
        if assigned is not None:
            found += self._moved(now_s, told, assigned)
        return found

    def has_replica(self, node: int) -> bool:
        """Whether this broker had one when it was last told."""
        return node in self._replicas

    def _advance(self, at_s: float) -> float:
        """Events are in order, so their times are, too."""
        self._at_s = max(self._at_s, round(at_s, 3))
        return self._at_s

    def _reached(self, now_s: float, told: Mapping[int, Watched | None]) -> Iterator[Event]:
        for node, answer in told.items():
            if (answer is None) != (node in self._silent):
                what = events.SILENT if answer is None else events.ANSWERS
                (self._silent.add if answer is None else self._silent.discard)(node)
                yield events.Fault(at_s=self._advance(now_s), broker=node, what=what)

    def _controlled(self, now_s: float, answers: Iterable[Watched]) -> Iterator[Event]:
        """That of the highest epoch: a broker that is cut off has not heard of it."""
        for answer in answers:
            (epoch, node), (known_epoch, known) = answer.controller, self._controller
            is_gone = epoch == known_epoch and node is None and known is not None
            if epoch > known_epoch or is_gone:
                self._controller = epoch, node
                yield events.Election(
                    at_s=self._advance(now_s), broker=node, epoch=epoch, reason="controller"
                )

    # -- what brokers have noted -----------------------------------------------------------------

    def _happened(self, now_s: float, raw: Mapping[str, Any]) -> Iterator[Event]:
        """An item of a broker's list as events."""
        fields = {name: _frozen(value) for name, value in raw.items() if name not in _NOT_TOLD}
        at_s = self._advance(now_s - raw["ago_ms"] / 1000)
        if "kind" not in fields:
            yield from self._changed(at_s, raw)
            return
        event = events.KINDS[fields.pop("kind")](
            at_s=at_s, **{"partition": self._partition, **fields}
        )
        if isinstance(event, events.Truncation):
            self._truncated(event)
        yield event

    def _truncated(self, event: events.Truncation) -> None:
        """As `Replicas` adds it, so that the next state is told as far as it is different."""
        known = self._replicas.get(event.broker if event.broker is not None else _NO_NODE)
        if known is not None and event.offset is not None:
            known["offset"] = event.offset
            for name in ("high_watermark", "last_stable"):
                known[name] = min(known.get(name, 0), event.offset)

    def _changed(self, at_s: float, raw: Mapping[str, Any]) -> Iterator[Event]:
        """An election or a change of the in-sync set. Every broker tells of all of them."""
        if raw["partition_epoch"] > self._partition_epoch:
            self._partition_epoch = raw["partition_epoch"]
            yield from self._elected(at_s, raw["leader"], raw["epoch"], raw["election"])
            yield from self._confirmed(at_s, raw["isr"])

    def _elected(self, at_s: float, node: int, epoch: int, reason: str) -> Iterator[Event]:
        leader = None if node == _NO_NODE else node
        if epoch >= self._election[1] and (leader, epoch) != self._election:
            self._election = leader, epoch
            self._followers.clear()
            self._proposed = None
            yield events.Election(
                at_s=at_s,
                broker=leader,
                partition=self._partition,
                epoch=epoch,
                reason=reason or NEW_EPOCH,
            )

    def _confirmed(self, at_s: float, members: Iterable[int]) -> Iterator[Event]:
        in_sync = tuple(members)
        if in_sync != self._in_sync:
            self._in_sync, self._proposed = in_sync, None
            yield self._in_sync_event(at_s, in_sync, is_confirmed=True)

    def _in_sync_event(self, at_s: float, members: tuple[int, ...], *, is_confirmed: bool) -> Event:
        leader, epoch = self._election
        return events.InSync(
            at_s=at_s,
            broker=leader,
            partition=self._partition,
            epoch=epoch,
            members=members,
            is_confirmed=is_confirmed,
        )

    # -- states ----------------------------------------------------------------------------------

    def _led(self, now_s: float, state: Mapping[str, Any]) -> Iterator[Event]:
        at_s = self._advance(now_s)
        if state["partition_epoch"] > self._partition_epoch:  # Newer than what is in the history.
            self._partition_epoch = state["partition_epoch"]
            yield from self._elected(at_s, state["node"], state["leader_epoch"], "")
            yield from self._confirmed(at_s, state["isr"])
        proposed = None if state["isr_proposed"] is None else tuple(state["isr_proposed"])
        if proposed != self._proposed:
            self._proposed = proposed
            members = self._in_sync if proposed is None else proposed
            yield self._in_sync_event(at_s, members, is_confirmed=False)

    def _replica(self, now_s: float, state: Mapping[str, Any]) -> Iterator[Event]:
        node = state["node"]
        now: dict[str, Any] = {"leads": state["role"] == "leader"}
        if state["problem"] is None:
            now |= {
                "offset": state["log_end"],
                "epochs": _frozen(state["epochs"]),
                **{name: state[name] for name in ("high_watermark", "last_stable", "log_start")},
                **{name: _frozen(state[name]) for name in ("segments", "producers")},
            }
        known = self._replicas.setdefault(node, {})
        news = {name: value for name, value in now.items() if known.get(name) != value}
        if news:
            known.update(news)
            yield events.ReplicaChanged(
                at_s=self._advance(now_s),
                broker=node,
                partition=self._partition,
                epoch=state["leader_epoch"],
                **news,
            )

    def _moved(
        self, now_s: float, told: Mapping[int, Watched | None], assigned: Collection[int]
    ) -> Iterator[Event]:
        """A replica is gone when it is no longer assigned and its broker does not have it."""
        for node, answer in told.items():
            has_it = answer is not None and answer.state is not None
            if node not in assigned and not has_it and self._replicas.pop(node, None) is not None:
                yield events.ReplicaChanged(
                    at_s=self._advance(now_s),
                    broker=node,
                    partition=self._partition,
                    is_removed=True,
                )

    def _followers_of(self, now_s: float, state: Mapping[str, Any]) -> Iterator[Event]:
        for seen in state["followers"]:
            node, end, lag_ms = seen["node"], seen["end_offset"], seen["lag_ms"]
            caught_up_s = floor(10 * now_s - lag_ms / 100) / 10 if lag_ms else None
            before_end, before_s, told_s = self._followers.get(node, (None, None, now_s))
            is_same = before_end == end and (caught_up_s is None) == (before_s is None)
            is_same &= abs((caught_up_s or 0) - (before_s or 0)) <= _LAG_S
            if is_same and (caught_up_s is None or now_s - told_s < _BEHIND_S):
                continue
            self._followers[node] = end, caught_up_s, now_s
            yield events.FollowerSeen(
                at_s=self._advance(now_s),
                broker=state["node"],
                partition=self._partition,
                epoch=state["leader_epoch"],
                offset=None if end < 0 else end,
                follower=node,
                caught_up_s=caught_up_s,
            )

    def _lost(self, now_s: float, losses: Sequence[Mapping[str, Any]]) -> Iterator[Event]:
        for loss in losses:
            is_here = loss["facts"].get("partition") == self._partition
            if is_here and str(loss) not in self._losses:
                self._losses.add(str(loss))
                yield events.loss_of(self._advance(now_s), loss["kind"], loss["facts"])


_NOT_TOLD = ("serial", "ago_ms", "end")
"""Fields of a broker's events that recordings do not have."""


def _items(told: Watched) -> list[Mapping[str, Any]]:
    """What one broker has noted, in the order of its own clock."""
    items = [*told.history, *told.events]
    return sorted(items, key=lambda item: -item["ago_ms"])  # It is stable.


def _in_order(lists: Iterable[Sequence[Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    """Each list in its own order; of their first items that of the lowest epoch and offset."""
    left = [deque(items) for items in lists if items]
    while left:
        first = min(left, key=lambda items: _place(items[0]))
        yield first.popleft()
        left = [items for items in left if items]


def _place(item: Mapping[str, Any]) -> _Place:
    """A send is acknowledged after followers have fetched from its end on."""
    epoch = item["epoch"]
    if "kind" not in item:
        return epoch, -1, item["partition_epoch"]
    kind = item["kind"]
    rank = _RANKS.index(kind) if kind in _RANKS else -1
    return epoch, item.get("end", item.get("offset", -1)), rank


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list | tuple) else value
