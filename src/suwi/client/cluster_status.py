"""The state of the whole cluster: brokers and disks, partitions, events, groups that are behind.

`read_status` asks all brokers concurrently, each with the client's time limits: a broker that does
not respond is `silent`, and what only it knows is listed in `unknown`. Raises `Unreachable` only
if no broker responds. Works with Apache Kafka too, without what only Suwi's brokers report.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from suwi.client.addresses import Address
from suwi.client.admin import Admin, ClusterDescription, bytes_or_none
from suwi.client.cluster import Cluster, PartitionInfo
from suwi.client.connection import ConnectionLost
from suwi.client.errors import reason
from suwi.client.group_lag import Lag, find_lags
from suwi.client.groups import ListedGroup, committed_offsets, list_groups
from suwi.client.versioned_connection import VersionedConnection
from suwi.client.zookeeper_servers import ServerStatus, ask_servers, parse_connect
from suwi.env import Clock
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_NODE, NodeId, Offset, TopicPartition
from suwi.wire.versions import ApiKey

_T = TypeVar("_T")
_U = TypeVar("_U")

ALIVE, STOPPING, FENCED = "alive", "stopping", "fenced"
SILENT = "silent"
"""It is registered and does not respond."""
MISSING = "missing"
"""It has replicas and is not registered."""
_GROUPS_AT_ONCE = 20
_CONNECTED = "connected"
_ON_ZOOKEEPER = "ZooKeeper "
_BY_TLS = " (TLS)"


@dataclass(frozen=True, slots=True)
class DiskStatus:
    directory: str
    is_offline: bool
    total_bytes: int | None
    """None: the broker does not report it; the same for the free bytes."""
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class ElectionStatus:
    """One decision of a controller that elected leaders."""

    at_ms: int
    cause: str
    partitions: int


@dataclass(frozen=True, slots=True)
class BrokerProblem:
    """What a broker says is wrong with it."""

    kind: str
    place: str
    reason: str
    advice: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    node: int
    address: str | None
    rack: str | None
    state: str
    is_controller: bool
    leaders: int
    replicas: int
    out_of_sync: int
    """How many of its replicas are not in the ISR, without those that a reassignment adds."""
    version: str | None = None
    store: str | None = None
    is_store_connected: bool | None = None
    clock_ahead_ms: int | None = None
    """How far its clock is ahead of this machine's; the time of the request is the error."""
    disks: tuple[DiskStatus, ...] = ()
    elections: tuple[ElectionStatus, ...] = ()
    """The last ones that it decided as the controller."""
    problem: str | None = None
    """Why its state is not known."""
    problems: tuple[BrokerProblem, ...] = ()
    problems_count: int = 0
    """More than `problems` if they were too many to be described."""
    access: Mapping[str, str] | None = None
    """Its settings of access rules, if it tells them."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    group: str
    state: str
    lag: int


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    cluster_id: str | None
    controller: int | None
    brokers: tuple[BrokerStatus, ...]
    topics: int
    partitions: int
    under_replicated: tuple[PartitionStatus, ...]
    """As in Kafka, a replica that a reassignment adds is not missing yet."""
    under_min_isr: tuple[PartitionStatus, ...]
    offline: tuple[PartitionStatus, ...]
    events: tuple[dict[str, Any], ...]
    """The recorded events, above all losses, the oldest first."""
    groups: int
    groups_behind: tuple[GroupStatus, ...]
    """The groups with at least the given lag, the largest first."""
    unknown: tuple[str, ...] = ()
    """What could not be read, and why."""
    ensemble: tuple[ServerStatus, ...] = ()
    """The ZooKeeper servers that the controller, or else another broker, is configured with."""


async def read_status(
    cluster: Cluster,
    clock: Clock,
    *,
    lag_min: int | None,
    timeout_s: float,
    with_ensemble: bool = False,
) -> ClusterStatus:
    """With `lag_min` None the groups are not read. Raises OSError if no broker responds."""
    try:
        topics = await cluster.topics()
    except ConnectionLost:
        topics = await cluster.topics()  # the broker is silent: from another one
    reader = _Reader(cluster, clock, timeout_s)
    placed = {TopicPartition(t.name, p.index): p for t in topics for p in t.partitions}
    short = {tp: info for tp, info in placed.items() if len(info.isr) < len(info.replicas)}
    found, adding = await asyncio.gather(
        reader.ask_brokers(list(placed.values())),
        reader.part("reassignments", partial(_adding, cluster, short), {}),
    )
    brokers = reader.brokers(found, placed, adding)
    answering = {NodeId(b.node) for b in brokers if b.state in (ALIVE, STOPPING)}
    events, min_isrs, (groups, behind), ensemble = await asyncio.gather(
        reader.part("events", partial(describe_events, cluster), ()),
        reader.part("min.insync.replicas", partial(_min_isrs, cluster, short), {}),
        reader.groups(
            {tp for tp, info in placed.items() if info.leader in answering},
            {n: found[n]["problem"] for n in cluster.brokers if "problem" in found.get(n, {})},
            lag_min,
        ),
        ask_servers(_servers(brokers) if with_ensemble else ()),
    )
    is_led = {tp: info.leader in cluster.brokers for tp, info in placed.items()}
    return ClusterStatus(
        cluster.id,
        reader.controller,
        tuple(brokers),
        len(topics),
        len(placed),
        tuple(
            _partition(tp, info)
            for tp, info in short.items()
            if len(info.isr) < len(info.replicas) - len(adding.get(tp, ()))
        ),
        tuple(
            _partition(tp, info)
            for tp, info in short.items()
            if len(info.isr) < min(min_isrs.get(tp.topic, 0), len(info.replicas))
        ),
        tuple(_partition(tp, info) for tp, info in placed.items() if not is_led[tp]),
        tuple(events),
        groups,
        tuple(behind),
        tuple(reader.unknown),
        ensemble,
    )


def _servers(brokers: Sequence[BrokerStatus]) -> tuple[Address, ...]:
    """Those of the controller if it tells; with TLS they cannot be asked."""
    told = [broker for broker in brokers if _is_plain(broker.store)]
    if not told:
        return ()
    store = min(told, key=lambda broker: not broker.is_controller).store
    assert store is not None
    try:
        return parse_connect(store.removeprefix(_ON_ZOOKEEPER)).servers
    except ValueError:
        return ()


def _is_plain(store: str | None) -> bool:
    return store is not None and store.startswith(_ON_ZOOKEEPER) and not store.endswith(_BY_TLS)


def _partition(tp: TopicPartition, info: PartitionInfo) -> PartitionStatus:
    leader = None if info.leader == NO_NODE else info.leader
    return PartitionStatus(tp.topic, tp.partition, leader, info.replicas, info.isr)


async def describe_events(cluster: Cluster) -> list[dict[str, Any]]:
    """The cluster's recorded events. Raises ConnectionLost if the broker is not Suwi's."""
    return await read_events(await cluster.any_own_link())


async def read_events(link: VersionedConnection) -> list[dict[str, Any]]:
    """The same by a connection of the caller's own."""
    return list((await link.call_json(ApiKey.DESCRIBE_EVENTS, {}))["events"])


async def _adding(
    cluster: Cluster, short: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """The replicas that reassignments add."""
    reassignments = await Admin(cluster).reassignments() if short else {}
    return {tp: reassignment.adding_replicas for tp, reassignment in reassignments.items()}


async def _min_isrs(cluster: Cluster, short: Collection[TopicPartition]) -> dict[str, int]:
    names = list(dict.fromkeys(tp.topic for tp in short))
    values = await Admin(cluster).topic_settings(names, "min.insync.replicas")
    return {name: int(value) for name, value in values.items()}


@dataclass(slots=True)
class _Reader:
    cluster: Cluster
    clock: Clock
    timeout_s: float
    unknown: list[str] = field(default_factory=list)
    controller: NodeId | None = None

    async def part(self, name: str, work: Callable[[], Awaitable[_T]], otherwise: _U) -> _T | _U:
        """One part of the status; if it cannot be read, that is noted in `unknown`."""
        try:
            async with asyncio.timeout(2 * self.timeout_s):
                return await work()
        except (BrokerError, OSError) as error:
            self.unknown.append(f"{name}: {reason(error)}")
            return otherwise

    # -- brokers ---------------------------------------------------------------------------------

    async def ask_brokers(
        self, partitions: Sequence[PartitionInfo]
    ) -> dict[NodeId, dict[str, Any]]:
        """What each broker reports of itself."""
        registered = list(self.cluster.brokers)
        told = None if self.cluster.controller == NO_NODE else self.cluster.controller
        (self.controller, unfenced), *answers = await asyncio.gather(
            self.part(
                "fenced brokers",
                Admin(self.cluster).describe_cluster,
                ClusterDescription(told, frozenset(registered)),
            ),
            *(self._ask(node) for node in registered),
        )
        found: dict[NodeId, dict[str, Any]] = dict(zip(registered, answers, strict=True))
        for node in {n for p in partitions for n in p.replicas} - found.keys():
            found[node] = {"state": MISSING, "problem": "not registered"}
        for node in found.keys() & set(registered) - unfenced:
            found[node]["state"] = FENCED
        return found

    def brokers(
        self,
        found: dict[NodeId, dict[str, Any]],
        placed: Mapping[TopicPartition, PartitionInfo],
        adding: Mapping[TopicPartition, Sequence[NodeId]],
    ) -> list[BrokerStatus]:
        """The brokers with the number of their replicas."""
        for tp, info in placed.items():
            in_sync = {*info.isr, *adding.get(tp, ())}
            for node in info.replicas:
                for name, counts in (("replicas", True), ("out_of_sync", node not in in_sync)):
                    found[node][name] = found[node].get(name, 0) + counts
            if info.leader in found:
                found[info.leader]["leaders"] = found[info.leader].get("leaders", 0) + 1
        return [self._broker(node, found[node]) for node in sorted(found)]

    def _broker(self, node: NodeId, found: Mapping[str, Any]) -> BrokerStatus:
        known = self.cluster.brokers.get(node)
        return BrokerStatus(
            node,
            None if known is None else str(known.address),
            None if known is None else known.rack,
            is_controller=node == self.controller,
            **{"leaders": 0, "replicas": 0, "out_of_sync": 0, **found},
        )

    async def _ask(self, node: NodeId) -> dict[str, Any]:
        """What a broker reports of itself and of its disks."""
        try:
            async with asyncio.timeout(2 * self.timeout_s):
                link = await self.cluster.link(node)
                answer = await link.call(ApiKey.DESCRIBE_LOG_DIRS, {"topics": []})
        except (BrokerError, OSError) as error:
            return {"state": SILENT, "problem": reason(error)}
        fields: dict[str, Any] = {"state": ALIVE, "disks": tuple(map(_disk, answer.results))}
        try:
            link = await self.cluster.own_link(node)
            sent_ms = self.clock.now_ms()
            told = await link.call_json(ApiKey.DESCRIBE_BROKER, {})
            between_ms = (sent_ms + self.clock.now_ms()) // 2
            if told["stopping"]:
                fields["state"] = STOPPING
            fields |= {"version": told["version"], "store": told["store"]}
            fields["is_store_connected"] = told["store_state"] == _CONNECTED
            fields["clock_ahead_ms"] = told["now_ms"] - between_ms
            elections = told.get("elections", ())
            fields["elections"] = tuple(ElectionStatus(**election) for election in elections)
            problems = told.get("problems", ())
            fields["problems"] = tuple(BrokerProblem(**problem) for problem in problems)
            fields["problems_count"] = told.get("problems_count", 0)
            fields["access"] = told.get("access")
        except (BrokerError, OSError, KeyError):
            pass  # Apache Kafka, or a version that does not report them
        return fields

    # -- groups ----------------------------------------------------------------------------------

    async def groups(
        self,
        readable: set[TopicPartition],
        silent: Mapping[NodeId, str],
        lag_min: int | None,
    ) -> tuple[int, list[GroupStatus]]:
        """`readable`: the partitions whose leader responds. `silent`: the brokers that do not; to
        ask them again would take as long again."""
        if lag_min is None:
            return 0, []
        ask = partial(list_groups, self.cluster, timeout_s=self.timeout_s, silent=silent)
        listed = await self.part("groups", ask, None)
        if listed is None:
            return 0, []
        self.unknown += [f"groups of broker {n}: {why}" for n, why in listed.silent.items()]
        committed: dict[str, dict[TopicPartition, Offset]] = {}
        await self.part(
            "offsets of groups", partial(self._committed, listed.groups, committed), None
        )
        wanted = sorted({tp for offsets in committed.values() for tp in offsets} & readable)
        nothing: dict[TopicPartition, Offset | None] = dict.fromkeys(wanted)
        find = partial(find_lags, self.cluster, nothing, with_age=False)
        lags: dict[TopicPartition, Lag] = await self.part("ends of logs", find, {})
        ends = {tp: lag.end for tp, lag in lags.items() if lag.end is not None}
        behind = [
            GroupStatus(group.name, group.state, lag)
            for group in listed.groups
            if (lag := _lag(committed.get(group.name, {}), ends)) >= lag_min
        ]
        return len(listed.groups), sorted(behind, key=lambda group: (-group.lag, group.group))

    async def _committed(
        self,
        groups: Sequence[ListedGroup],
        committed: dict[str, dict[TopicPartition, Offset]],
    ) -> None:
        """Fills `committed`, so that a timeout keeps what was read until then."""
        turns = asyncio.Semaphore(_GROUPS_AT_ONCE)

        async def read(name: str) -> None:
            async with turns:
                try:
                    committed[name] = await committed_offsets(self.cluster, name)
                except (BrokerError, OSError) as error:
                    self.unknown.append(f"offsets of group {name}: {reason(error)}")

        await asyncio.gather(*(read(group.name) for group in groups))


def _lag(committed: Mapping[TopicPartition, Offset], ends: Mapping[TopicPartition, Offset]) -> int:
    return sum(max(0, ends[tp] - offset) for tp, offset in committed.items() if tp in ends)


def _disk(result: Any) -> DiskStatus:
    return DiskStatus(
        result.log_dir,
        result.error_code != ErrorCode.none,
        bytes_or_none(result, "total_bytes"),
        bytes_or_none(result, "usable_bytes"),
    )
