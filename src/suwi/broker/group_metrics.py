"""Prometheus metrics of the consumer groups that a broker coordinates.

What is told of single groups is gathered in slices, kept for a while, and bounded: a broker may
have ten thousand groups, and a scrape must not wait for them.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from suwi.coordinator.shard import Shard
from suwi.coordinator.shard_replica import Status
from suwi.group.classic_group import ClassicState
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.group.history import Trigger
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.replica.end_offsets import EndOffsets, Ends

if TYPE_CHECKING:
    from suwi.broker.broker import Broker

SERIES_MAX: Final = 1_000
"""Of lag, and of members: the largest are told."""
_NAME_CHARACTERS_MAX: Final = 255
_KEPT_S: Final = 10.0
_ITEMS_PER_SLICE: Final = 250
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class _Lag(NamedTuple):
    records: int
    group: str
    topic: str
    partition: int


class _Size(NamedTuple):
    members: int
    group: str


class GroupFigures:
    """What scrapes tell of the groups, for as long as it is kept."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._end_offsets = EndOffsets(broker.node_id, broker.peers)
        self._states: Counter[str] = Counter()
        self._members = 0
        self._left_out = 0
        self.text = b""
        """The series of single groups, in the format of Prometheus."""
        self._made_s: float | None = None
        self._making = asyncio.Lock()

    async def refresh(self) -> None:
        """Gather anew where what is known is too old."""
        loop = asyncio.get_running_loop()
        async with self._making:
            if self._made_s is not None and loop.time() - self._made_s < _KEPT_S:
                return
            gathered = _Gathered()
            for _ in gathered.find_partitions(self._broker):
                await asyncio.sleep(0)
            ends = await self._end_offsets.refresh(gathered.partitions, self._broker.replicas)
            for _ in gathered.gather(self._broker, ends):
                await asyncio.sleep(0)
            self._states, self._members = gathered.states, gathered.members
            self.text, self._left_out = gathered.text()
            self._made_s = loop.time()

    def collect(self) -> Iterator[Metric]:
        stats, runtime = self._broker.groups.stats, self._broker.groups.runtime
        usual = {state.value: 0 for state in ClassicState if state is not ClassicState.DEAD}
        groups = [([state], count) for state, count in (usual | self._states).items()]
        doc = "Consumer groups that this broker coordinates."
        yield labelled(GaugeMetricFamily, "suwi_groups", doc, "state", groups)
        doc = "Members of all groups coordinated here."
        yield GaugeMetricFamily("suwi_group_members_all", doc, self._members)
        doc = f"Series of suwi_group_lag and suwi_group_members beyond the {SERIES_MAX} largest."
        yield GaugeMetricFamily("suwi_group_series_left_out", doc, self._left_out)
        rebalances = [
            ([trigger.value], stats.rebalances[trigger])
            for trigger in Trigger
            if trigger is not Trigger.COORDINATOR_MOVED  # An event, not a rebalance.
        ]
        doc = "Rebalances of groups coordinated here."
        yield labelled(CounterMetricFamily, "suwi_group_rebalances", doc, "trigger", rebalances)
        doc = "Offsets committed here."
        yield CounterMetricFamily("suwi_group_offsets_committed", doc, stats.offsets_committed)
        by_status = Counter(shard.status for shard in runtime)
        shards = [([s.value], by_status[s]) for s in Status if s is not Status.CLOSED]
        doc = "Replicas of partitions of __consumer_offsets here; active: its groups are served."
        yield labelled(GaugeMetricFamily, "suwi_group_coordinator_shards", doc, "status", shards)
        doc = "How often the whole log of a partition of __consumer_offsets was read."
        yield CounterMetricFamily("suwi_group_coordinator_loads", doc, runtime.loads)
        doc = "Partitions of __consumer_offsets taken out of service after an error."
        yield CounterMetricFamily("suwi_group_coordinator_failures", doc, stats.shard_failures)


def labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    doc: str,
    labels: str,
    series: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    """A metric with a series for each combination of labels."""
    metric = family(name, doc, labels=labels.split())
    for values, number in series:
        metric.add_metric(values, number)
    return metric


class _Gathered:
    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self.members = 0
        self.partitions: set[TopicPartition] = set()
        self._lags: list[_Lag] = []
        self._sizes: list[_Size] = []
        self._left_out = 0

    def find_partitions(self, broker: "Broker") -> Iterator[None]:
        """Find the partitions of which a group has committed an offset, in slices."""
        items = 0
        for shard, group_id in _groups(broker):
            offsets = shard.machine.offsets.of(group_id)
            if offsets is None:
                continue
            for topic, index in offsets.known_partitions():
                if offsets.get((topic, index)) is not None:
                    self.partitions.add(TopicPartition(topic, PartitionIndex(index)))
                items += 1
                if items % _ITEMS_PER_SLICE == 0:
                    yield
            items += 1
            if items % _ITEMS_PER_SLICE == 0:
                yield

    def gather(self, broker: "Broker", ends: Ends) -> Iterator[None]:
        """Yields after each slice, so that others have a turn."""
        items = 0
        for shard, group_id in _groups(broker):
            for _ in self._add(shard, group_id, ends):
                items += 1
                if items % _ITEMS_PER_SLICE == 0:
                    self._bound()
                    yield

    def _add(
        self, shard: Shard[GroupCoordinatorShard], group_id: str, ends: Ends
    ) -> Iterator[None]:
        """Yields for the group and for each offset that there is to look at."""
        yield
        group = shard.machine.group(group_id)
        if group is None:
            return
        self.states[group.state.value] += 1
        self.members += len(group.members)
        offsets = shard.machine.offsets.of(group_id)
        if len(group_id) > _NAME_CHARACTERS_MAX:
            self._left_out += 1
            return
        if group.members:
            self._sizes.append(_Size(len(group.members), group_id))
        if offsets is None:
            return
        for topic, index in offsets.known_partitions():
            end = ends.get(TopicPartition(topic, PartitionIndex(index)))
            committed = offsets.get((topic, index))
            if end is not None and committed is not None:
                lag = max(0, end - committed.offset)
                self._lags.append(_Lag(lag, group_id, topic, index))
            yield

    def _bound(self) -> None:
        """Keep the largest, so that no more are held than are told."""
        if len(self._lags) > 2 * SERIES_MAX:
            self._left_out += len(self._lags) - SERIES_MAX
            self._lags = nlargest(SERIES_MAX, self._lags)
        if len(self._sizes) > 2 * SERIES_MAX:
            self._left_out += len(self._sizes) - SERIES_MAX
            self._sizes = nlargest(SERIES_MAX, self._sizes)

    def text(self) -> tuple[bytes, int]:
        """And how many series are not in it."""
        lags, sizes = nlargest(SERIES_MAX, self._lags), nlargest(SERIES_MAX, self._sizes)
        left_out = self._left_out + len(self._lags) - len(lags) + len(self._sizes) - len(sizes)
        lines = [_head("suwi_group_lag", "Records that a group coordinated here has not read")]
        lines += [
            f'suwi_group_lag{{group="{_escaped(group)}",topic="{topic}",partition="{partition}"}} '
            f"{records}\n"
            for records, group, topic, partition in lags
        ]
        lines.append(_head("suwi_group_members", "Members of a group coordinated here"))
        lines += [
            f'suwi_group_members{{group="{_escaped(group)}"}} {members}\n'
            for members, group in sizes
        ]
        return "".join(lines).encode(), left_out


def _groups(broker: "Broker") -> Iterator[tuple[Shard[GroupCoordinatorShard], str]]:
    """The groups that this broker coordinates, also if that changes between two turns."""
    for shard in broker.groups.runtime.active():
        machine = shard.machine
        for group_id in list(machine.groups.ids()):
            if shard.status is not Status.ACTIVE or shard.machine is not machine:
                break
            yield shard, group_id


def _head(name: str, doc: str) -> str:
    return f"# HELP {name} {doc}; the {SERIES_MAX} largest.\n# TYPE {name} gauge\n"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
