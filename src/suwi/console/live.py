"""One partition as it is replicated: what its brokers note, up to ten times a second, as events
of the lab. The front end draws them as `suwi lab serve` draws a recording, and can keep them.

`follow_live` is the stream. It watches the partition on every broker that has a replica; the
watches end 5 s after it does. A broker that does not answer does not hold up the others. The stream
ends when the topic is deleted, also if there is another of its name by then: a page begins anew.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from suwi.client.cluster import TopicInfo
from suwi.client.cluster_status import read_events
from suwi.client.connection import ConnectionLost
from suwi.client.own_apis import PartitionWatch, Watched
from suwi.client.versioned_connection import VersionedConnection
from suwi.console.clusters import ShownCluster
from suwi.console.page import Problem, Query
from suwi.env.tasks import cancel_and_wait, loop_s
from suwi.lab import events
from suwi.lab.event_text import event_text
from suwi.lab.events import Event, fields_of, head_of
from suwi.lab.live_recorder import LiveRecorder
from suwi.lab.play_page import words_of
from suwi.model.errors import LeaderNotAvailable, UnknownTopicOrPartition
from suwi.model.ids import NodeId, PartitionIndex, TopicPartition

_PERIOD_S = 0.1
_BUSY_PERIOD_S = 1.0
"""Of a partition so busy that its events are added up: a request costs a broker more than what is
told, and more pictures in a second show no more."""
_SILENT_S = 1.0
"""A broker that has not answered for so long is shown as one that does not."""
_RETRY_S = 0.5
_METADATA_S = 2.0
"""At least so long apart metadata are asked for."""
_METADATA_MAX_S = 30.0
"""Asked for after so long even if no broker says that they have changed."""
_QUIET_S = 1.0
_LONG_MS = 1000
"""Who waits for less is not worth a line."""
_CLOSED_MAX = 3
NOT_SUWIS = (
    "Only Suwi's brokers note what their replicas do; these closed the connection, as those of "
    "Apache Kafka do when they are asked for what Kafka's protocol does not have."
)
LISTED = (events.Election, events.InSync, events.Truncation, events.Loss, events.Fault)
"""Of these there are few enough to be read."""


class LiveBegin(NamedTuple):
    head: Mapping[str, Any]
    """The first line of a recording."""
    words: Mapping[str, str]
    """Those that the drawing needs, in the language that was asked for."""
    partition: str
    command: str


class LiveEvent(NamedTuple):
    fields: Mapping[str, Any]
    """A line of a recording."""
    text: str
    """What happened; empty of events that are only drawn."""


class WaitingProducer(NamedTuple):
    """One that has waited for long."""

    client: str
    sends: int
    waited_ms: int
    left_ms: int
    """Until its request times out."""


class LiveStep(NamedTuple):
    begin: LiveBegin | None
    """At the beginning of the stream, which has the whole state."""
    events: Sequence[LiveEvent]
    is_complete: bool
    """False: some fetches and produces were left off."""
    waiting: Sequence[WaitingProducer]
    """The one whose request times out next comes first."""


class _Broker:
    """Asks one broker, again and again, with a connection of its own."""

    def __init__(self, shown: ShownCluster, node: NodeId, partition: TopicPartition) -> None:
        self._shown = shown
        self._node = node
        self._watch = PartitionWatch(partition)
        self.link: VersionedConnection | None = None
        self._asking: asyncio.Task[Watched] | None = None
        self._asks_from_s = 0.0
        self._unanswered_s = math.inf
        """When it was first asked since it answered."""
        self.closed = 0
        """How often the broker has closed the connection."""
        self.has_answered = False

    def ask(self) -> Iterable[asyncio.Task[Watched]]:
        """The request that is under way, if it is time for one."""
        if self._asking is None and loop_s() >= self._asks_from_s:
            self._unanswered_s = min(self._unanswered_s, loop_s())
            self._asking = asyncio.ensure_future(self._read())  # owner: `follow_live`
        return () if self._asking is None else (self._asking,)

    async def _read(self) -> Watched:
        if self.link is None or not self.link.is_open:
            self.link = await self._shown.client.open_link(self._node)
        return await self._watch.read(self.link)

    def take(self) -> tuple[Watched | None, ...]:
        """The answer if there is one, None if the broker does not answer. Raises BrokerError if it
        refuses."""
        if self._asking is not None and self._asking.done():
            asked, self._asking = self._asking, None
            try:
                told = asked.result()
                self._unanswered_s, self.has_answered = math.inf, True
                return (told,)
            except LeaderNotAvailable:
                pass  # The cluster does not know its address.
            except ConnectionLost:
                self.closed += 1
            except OSError:
                pass
            self._asks_from_s = loop_s() + _RETRY_S
            return (None,)
        return (None,) if loop_s() - self._unanswered_s > _SILENT_S else ()

    def end(self) -> Iterable[asyncio.Task[Watched]]:
        """Returns what must be waited for."""
        if self.link is not None:
            self.link.abort()
        return () if self._asking is None else (self._asking,)


async def follow_live(shown: ShownCluster, query: Query) -> AsyncGenerator[tuple[str, Any], None]:
    topic, index = query.text("topic"), query.number("partition", 0)
    language = query.choice("language", "en", "ko")
    tp = TopicPartition(topic, PartitionIndex(index))
    info = await shown.client.topic(topic, fresh=True)
    if index >= len(info.partitions):
        raise UnknownTopicOrPartition(f"{tp} does not exist")
    brokers: dict[NodeId, _Broker] = {}
    ending: list[asyncio.Task[Watched]] = []
    recorder, cluster = LiveRecorder(str(tp)), _Cluster(shown, info, brokers)
    yield "live", LiveStep(_begin(shown, tp, language), [], True, [])
    began_s = told_s = loop_s()
    waiting: list[WaitingProducer] = []
    is_busy = False
    try:
        while True:
            next_s = loop_s() + (_BUSY_PERIOD_S if is_busy else _PERIOD_S)
            cluster.refresh_if_due()
            if cluster.info.id != info.id:
                return
            assigned = cluster.info.partition(index).replicas
            for node in assigned:
                if node not in brokers:
                    brokers[node] = _Broker(shown, node, tp)
            asking = [task for broker in brokers.values() for task in broker.ask()]
            if asking:
                await asyncio.wait(asking, timeout=_PERIOD_S)
            told = {int(node): one for node, broker in brokers.items() for one in broker.take()}
            cluster.take(told)
            if _are_others(brokers.values()):
                yield "problem", Problem("unsupported", NOT_SUWIS)
                return
            new = recorder.add(loop_s() - began_s, told, losses=cluster.losses, assigned=assigned)
            for node in brokers.keys() - {*assigned}:
                if not recorder.has_replica(node):
                    ending += brokers.pop(node).end()
            if told:
                is_busy = any(_is_busy(one) for one in told.values())
            is_complete = all(one is None or one.is_complete for one in told.values())
            before, waiting = waiting, _waiting(told.values(), waiting)
            if new or not is_complete or waiting != before:
                told_s = loop_s()
                shown_events = [_shown(one, language) for one in new]
                yield "live", LiveStep(None, shown_events, is_complete, waiting)
            elif loop_s() - told_s > _QUIET_S:
                told_s = loop_s()
                yield "", None  # a comment notices who has gone
            await asyncio.sleep(max(0.0, next_s - loop_s()))
    finally:
        # At once: a stream whose browser has gone may be cancelled again while it waits.
        ending += [task for broker in brokers.values() for task in broker.end()]
        await cancel_and_wait(*ending, cluster.refreshing)


def _begin(shown: ShownCluster, tp: TopicPartition, language: str) -> LiveBegin:
    head = head_of(f"{tp} of {shown.name}", len(shown.client.brokers))
    command = shown.command("topics describe", tp.topic, options=["--replicas", "--follow"])
    return LiveBegin(head, words_of(language), str(tp), command)


class _Cluster:
    """Replicas and addresses, losses: asked for when a broker's metadata have changed, and once
    more, since who is asked may have heard of it later."""

    def __init__(
        self, shown: ShownCluster, info: TopicInfo, brokers: Mapping[NodeId, _Broker]
    ) -> None:
        self._shown = shown
        self._brokers = brokers
        self.info = info
        self.losses: Sequence[Mapping[str, Any]] = ()
        self.refreshing: asyncio.Task[None] | None = None
        self._asked_s = loop_s() - _METADATA_S + _RETRY_S
        self._times_left = 2
        self._metadata: dict[int, int] = {}
        """The newest change that each broker knows."""
        self._newest = -1
        """The broker that was the first to have these metadata."""

    def take(self, told: Mapping[int, Watched | None]) -> None:
        for node, watched in told.items():
            if watched is None:  # Its address may have changed.
                self._times_left = max(self._times_left, 1)
                continue
            if watched.metadata > max(self._metadata.values(), default=-1):
                self._newest, self._times_left = node, 2
            elif watched.metadata != self._metadata.get(node):  # It may be the one that is asked.
                self._times_left = max(self._times_left, 1)
            self._metadata[node] = watched.metadata

    def refresh_if_due(self) -> None:
        """Raises what the topic's description does: it may be deleted."""
        if self.refreshing is not None and self.refreshing.done():
            self.refreshing.result()
            self.refreshing = None
        period_s = _METADATA_S if self._times_left else _METADATA_MAX_S
        if self.refreshing is None and loop_s() >= self._asked_s + period_s:
            self._asked_s, self._times_left = loop_s(), max(0, self._times_left - 1)
            self.refreshing = asyncio.ensure_future(self._refresh())  # owner: `follow_live`

    async def _refresh(self) -> None:
        try:
            self.info = await self._shown.client.topic(self.info.name, fresh=True)
            links = {
                int(node): each.link
                for node, each in self._brokers.items()
                if each.link and each.link.is_open
            }
            # Another may be cut off from the others, and not know.
            link = links.get(self._newest) or next(iter(links.values()), None)
            if link is not None:
                recorded = await read_events(link)
                self.losses = [event for event in recorded if "partition" in event["facts"]]
                return
        except OSError:
            pass  # The brokers say themselves that they do not answer.
        self._times_left = max(self._times_left, 1)


def _waiting(told: Iterable[Watched | None], known: list[WaitingProducer]) -> list[WaitingProducer]:
    """As the leader says; it stays if no leader has answered in this round."""
    leaders = [one for one in told if one and one.state and one.state["role"] == "leader"]
    if not leaders:
        return known
    leader = max(leaders, key=lambda one: (one.state or {})["leader_epoch"])
    found = [WaitingProducer(**each) for each in leader.waiting]
    long = [each for each in found if each.waited_ms >= _LONG_MS]
    return sorted(long, key=lambda each: each.left_ms)


def _is_busy(told: Watched | None) -> bool:
    return told is not None and any(event.get("times", 1) > 1 for event in told.events)


def _are_others(brokers: Collection[_Broker]) -> bool:
    """Whether they are not Suwi's. Those of Suwi close a connection when they stop."""
    return not any(broker.has_answered for broker in brokers) and any(
        broker.closed >= _CLOSED_MAX for broker in brokers
    )


def _shown(event: Event, language: str) -> LiveEvent:
    fields = fields_of(event)
    is_listed = isinstance(event, LISTED) or "is_removed" in fields
    return LiveEvent(fields, event_text(event, language) if is_listed else "")
