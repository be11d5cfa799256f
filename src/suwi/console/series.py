"""Figures over the last hour: sampled by the console's own connections, shown to who may know them.

`Sampler.run` reads the ends of all logs, the offsets of all groups and the ages of what these have
not read every few seconds, or less often where that takes long: it uses a small part of the time
whatever the size of the cluster. Bytes are those that Suwi's brokers count.
`read_series` is the page. Invariant: it has only figures of topics, groups and brokers that the
connection of the user who asks can describe.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.connection import ConnectionLost
from suwi.client.errors import check
from suwi.client.group_lag import first_timestamps
from suwi.client.groups import committed_offsets, describe_group, list_groups
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, find_offsets
from suwi.client.own_apis import bytes_in_by_topic
from suwi.console.clusters import TIMEOUT_S, ShownCluster
from suwi.console.hour import PERIOD_S, Hour, Subject
from suwi.console.page import Query
from suwi.model.errors import BrokerError
from suwi.model.ids import NodeId, Offset, TopicId, TopicPartition
from suwi.wire.versions import ApiKey

_REST = 20
"""The sampler rests at least this many times as long as its last sample took."""
_REST_S_MAX = 60
_PARTITIONS_AT_ONCE = 500
_GROUPS_AT_ONCE = 10
_AGES_MAX = 200
"""How many partitions of a group are asked for the age of a record: those that it is furthest
behind in."""
_ASK_AGAIN_S = 60
"""After a broker has closed the connection, so that it may not be Suwi's, or has refused."""
Ends = Mapping[TopicPartition, Offset]
Figures = dict[Subject, float | None]


class Series(NamedTuple):
    times_ms: Sequence[int]
    records_per_s: Sequence[float | None]
    """Records in; of a group it is empty."""
    lag: Sequence[float | None]
    """In records, of a group or of all; else it is empty."""
    bytes_per_s: Sequence[float | None]
    """Bytes in, of a topic; empty also if no broker counts them."""
    lag_ms: Sequence[float | None]
    """Of a group: the age of the oldest record that it has not read."""
    is_incomplete: bool
    """The cluster has more topics and groups than are sampled."""


async def read_series(shown: ShownCluster, query: Query) -> Series:
    """Of one `topic`, `group` or `broker` of the address, else of the whole cluster."""
    hour = shown.hour
    lag: list[float | None] = []
    rate: list[float | None] = []
    size: list[float | None] = []
    age: list[float | None] = []
    if topic := query.text("topic"):
        await shown.client.topic(topic, fresh=True)
        rate = hour.total([Subject("topic", topic)])
        size = hour.total([Subject("bytes", topic)]) if hour.has_bytes else []
    elif group := query.text("group"):
        if await describe_group(shown.client, group) is None:
            raise Failure(f"there is no group {group!r}")
        lag = hour.total([Subject("group", group)])
        age = hour.total([Subject("age", group)])
    elif "broker" in query:
        node = NodeId(query.number("broker", 0))
        await _check_cluster_rights(shown.client, node)
        rate = hour.total([Subject("broker", str(node))])
    else:
        topics = groups = None
        if not shown.is_own:
            known = await shown.client.topics(age_s_max=PERIOD_S)
            topics = {topic.name for topic in known}
            listed = await list_groups(shown.client, timeout_s=TIMEOUT_S)
            groups = {group.name for group in listed.groups}
        rate, lag = _sum(hour, "topic", topics), _sum(hour, "group", groups)
    return Series(list(hour.times_ms), rate, lag, size, age, hour.is_full)


def _sum(hour: Hour, kind: str, seen: set[str] | None) -> list[float | None]:
    """Of those that the user sees; None: of all."""
    kept = hour.subjects(kind)
    if seen is None or (not hour.is_full and all(each.name in seen for each in kept)):
        return hour.total([Subject("all", kind)])
    return hour.total([subject for subject in kept if subject.name in seen])


async def _check_cluster_rights(cluster: Cluster, node: NodeId) -> None:
    """Who may describe the cluster may know how busy a broker is, topics aside."""
    if node not in cluster.brokers:
        await cluster.refresh([])
    if node not in cluster.brokers:
        raise Failure(f"there is no broker {node}")
    check(await (await cluster.link(node)).call(ApiKey.DESCRIBE_LOG_DIRS, {"topics": []}))


class Sampler:
    def __init__(self, shown: ShownCluster) -> None:
        """`shown`: with connections for this only, so that no page waits for a sample."""
        self._shown = shown
        self._at_ms = 0
        self._ends: Ends = {}
        self._ids: dict[str, TopicId] = {}
        self._bytes: dict[NodeId, dict[str, int]] = {}
        """What each broker has counted."""
        self._ask_from_s: dict[NodeId, float] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(PERIOD_S)  # whoever opens the first page does not wait for a sample
        while True:
            began_s, rest_s = loop.time(), 0.0
            try:
                await self.sample()
                rest_s = min(_REST * (loop.time() - began_s), _REST_S_MAX)
            except (BrokerError, OSError):
                pass  # a gap; the pages say that the cluster does not answer
            await asyncio.sleep(max(began_s + PERIOD_S - loop.time(), rest_s))

    async def sample(self) -> None:
        client = self._shown.client
        topics = await client.topics()
        at_ms = self._shown.clock.now_ms()
        ends, counted = await _ends(client, topics), await self._counted_bytes()
        if self._at_ms:
            passed_s = max(1, at_ms - self._at_ms) / 1000
            of_brokers, of_topics = self._rates(topics, ends, passed_s)
            of_groups, ages = await _lags(client, ends, at_ms)
            sums: Figures = {
                Subject("all", "topic"): sum(rate or 0 for rate in of_topics.values()),
                Subject("all", "group"): sum(lag or 0 for lag in of_groups.values()),
            }
            sizes = self._byte_rates(topics, counted, passed_s)
            # If they are too many, some topics have no series.
            figures = sums | of_brokers | of_groups | ages | of_topics | sizes
            self._shown.hour.has_bytes |= bool(counted)
            self._shown.hour.add(at_ms, figures)
        self._at_ms, self._ends, self._bytes = at_ms, ends, counted
        self._ids = {topic.name: topic.id for topic in topics}

    async def _counted_bytes(self) -> dict[NodeId, dict[str, int]]:
        """By broker and topic, of the brokers that are Suwi's."""
        client, now_s = self._shown.client, asyncio.get_running_loop().time()

        async def ask(node: NodeId) -> dict[str, int] | None:
            try:
                return await bytes_in_by_topic(client, node)
            except (BrokerError, ConnectionLost):
                self._ask_from_s[node] = now_s + _ASK_AGAIN_S
            except OSError:
                pass  # a gap
            return None

        asked = [node for node in client.brokers if self._ask_from_s.get(node, 0) <= now_s]
        answers = await asyncio.gather(*map(ask, asked))
        return {node: told for node, told in zip(asked, answers, strict=True) if told is not None}

    def _byte_rates(
        self,
        topics: Sequence[TopicInfo],
        counted: Mapping[NodeId, Mapping[str, int]],
        passed_s: float,
    ) -> Figures:
        """Of topics whose leaders have all counted since the last sample."""
        known = counted.keys() & self._bytes.keys()
        written: dict[str, int] = {}
        for node in known:
            for topic, size in counted[node].items():
                before = self._bytes[node].get(topic, 0)
                # A broker that was restarted, and a new topic of the same name, begin with 0.
                more = size - before if size >= before else size
                written[topic] = written.get(topic, 0) + more
        return {
            Subject("bytes", topic.name): written.get(topic.name, 0) / passed_s
            for topic in topics
            if all(partition.leader in known for partition in topic.partitions)
        }

    def _rates(
        self, topics: Sequence[TopicInfo], ends: Ends, passed_s: float
    ) -> tuple[Figures, Figures]:
        """Of brokers, and of topics."""
        of_topics: Figures = {}
        of_brokers: Figures = {
            Subject("broker", str(node)): 0.0 for node in self._shown.client.brokers
        }
        for topic in topics:
            rate: float | None = 0.0
            for info in topic.partitions:
                tp = TopicPartition(topic.name, info.index)
                if tp not in ends:
                    rate = None
                    break
                is_same = self._ids.get(topic.name) == topic.id and tp in self._ends
                records = max(0, ends[tp] - self._ends[tp]) if is_same else 0
                rate = (rate or 0) + records / passed_s
                leader = Subject("broker", str(info.leader))
                of_brokers[leader] = (of_brokers.get(leader) or 0) + records / passed_s
            of_topics[Subject("topic", topic.name)] = rate
        return of_brokers, of_topics


async def _ends(client: Cluster, topics: Sequence[TopicInfo]) -> dict[TopicPartition, Offset]:
    """Of the partitions whose leaders respond. A broker opens logs that nobody has used yet, which
    takes its time: few are asked for at once."""
    led = [
        TopicPartition(topic.name, partition.index)
        for topic in topics
        for partition in topic.partitions
        if partition.leader in client.brokers
    ]
    ends: dict[TopicPartition, Offset] = {}
    for at in range(0, len(led), _PARTITIONS_AT_ONCE):
        asked = dict.fromkeys(led[at : at + _PARTITIONS_AT_ONCE], LATEST)
        for tp, found in (await find_offsets(client, asked)).items():
            if isinstance(found, FoundOffset):
                ends[tp] = found.offset
    return ends


async def _lags(client: Cluster, ends: Ends, now_ms: int) -> tuple[Figures, Figures]:
    """Of groups: in records, and in time."""
    listed = await list_groups(client, timeout_s=TIMEOUT_S)
    turns = asyncio.Semaphore(_GROUPS_AT_ONCE)
    lags: Figures = {}
    ages: Figures = {}

    async def read(group: str) -> None:
        async with turns:
            try:
                committed = await committed_offsets(client, group)
                if not committed:
                    return  # nobody knows what it has read
                unread = {tp: at for tp, at in committed.items() if at < ends.get(tp, 0)}
                lags[Subject("group", group)] = sum(ends[tp] - at for tp, at in unread.items())
                ages[Subject("age", group)] = await _age_ms(client, unread, ends, now_ms)
            except (BrokerError, OSError):
                pass  # a gap

    await asyncio.gather(*(read(group.name) for group in listed.groups))
    return lags, ages


async def _age_ms(client: Cluster, unread: Ends, ends: Ends, now_ms: int) -> float | None:
    """Of the oldest unread record."""
    if not unread:
        return 0
    furthest = sorted(unread, key=lambda tp: unread[tp] - ends[tp])[:_AGES_MAX]
    starts = await find_offsets(client, dict.fromkeys(furthest, EARLIEST))
    positions = {
        tp: max(unread[tp], start.offset)
        for tp, start in starts.items()
        if isinstance(start, FoundOffset)
    }
    times_ms = (await first_timestamps(client, positions)).values()
    return max(0, now_ms - min(times_ms)) if times_ms else None
