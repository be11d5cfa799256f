"""Checks of a running cluster: what `suwi status` counts as a problem, with causes, and more.

`check_cluster` reads the state once, `check_status` is given it; the functions of the table
`_CHECKS` judge it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from suwi.admin.cluster_health import (
    HealthCriteria,
    access_differences,
    problem_text,
    problems,
    read_health,
)
from suwi.admin.finding import ERROR, WARNING, Finding
from suwi.admin.text import duration_text, size_text
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster, TopicInfo
from suwi.client.cluster_status import ALIVE, ClusterStatus
from suwi.client.replicas import PartitionReplicas, describe_replicas
from suwi.env import Clock

_CLOCK_MS_MAX = 500
_FREE_MIN = 0.1
_EXPLAINED_MAX = 20
"""How many under-replicated partitions are explained."""
_CLUSTER = "cluster"


class Found(NamedTuple):
    status: ClusterStatus
    topics: Sequence[TopicInfo]
    min_isrs: Mapping[str, int]
    replicas: Sequence[PartitionReplicas]
    """Of the under-replicated partitions."""


async def check_cluster(cluster: Cluster, clock: Clock, criteria: HealthCriteria) -> list[Finding]:
    """Raises OSError if no broker responds."""
    return await check_status(cluster, await read_health(cluster, clock, criteria), criteria)


async def check_status(
    cluster: Cluster, status: ClusterStatus, criteria: HealthCriteria
) -> list[Finding]:
    """The findings for a state that was just read."""
    topics = await cluster.topics(age_s_max=math.inf)  # as they were for this state
    short = {(p.topic, p.partition) for p in status.under_replicated[:_EXPLAINED_MAX]}
    names = {name for name, _ in short}
    affected = [topic for topic in topics if topic.name in names]
    described = await describe_replicas(cluster, affected) if affected else []
    values = await Admin(cluster).topic_settings([t.name for t in topics], "min.insync.replicas")
    found = Found(
        status,
        topics,
        {name: int(value) for name, value in values.items()},
        [d for d in described if (d.topic.name, d.partition.index) in short],
    )
    told = {problem_text(b, p): p.advice for b in status.brokers for p in b.problems}
    seen = [
        Finding(ERROR, _CLUSTER, text, told.get(text) or _advice(text))
        for text in problems(status, criteria)
    ]
    return seen + [finding for check in _CHECKS for finding in check(found)]


_ADVICE = (
    ("missing", "start it, or move its replicas to another broker if it is gone for good"),
    ("is silent", "look at its process and its log; restart it if it does not recover"),
    ("is fenced", "it has lost its session: look at its log and at its way to the controller"),
    ("is stopping", "wait until it has stopped"),
    ("not connected", "check ZooKeeper and the network; brokers serve on meanwhile"),
    ("is offline", "check the disk, then restart the broker"),
    ("without a leader", "start the broker that was in sync last; see operations.md, offline"),
    ("under min.insync", "producers with acks=all are refused: bring the brokers back"),
    ("under-replicated", "the causes are listed below"),
    ("no controller", "check that brokers reach the metadata store"),
)


def _advice(text: str) -> str:
    return next((advice for part, advice in _ADVICE if part in text), "start the others")


def _causes(found: Found) -> Iterator[Finding]:
    states = {broker.node: broker.state for broker in found.status.brokers}
    for each in found.replicas:
        partition = each.partition
        followers = {
            follower["node"]: follower["lag_ms"]
            for state in each.states.values()
            for follower in state["followers"]
        }
        for node in sorted(set(partition.replicas) - set(partition.isr)):
            about, own = f"{each.topic.name}-{partition.index}", each.states.get(node)
            if states.get(node) != ALIVE:
                continue  # reported as a broker
            if own is None or own["problem"] is not None:
                why = each.unavailable.get(node) if own is None else own["problem"]
                problem, advice = f"broker {node}: {why}", "look at the log of that broker"
            elif followers.get(node) is None:
                problem = f"broker {node} has not fetched from the leader yet"
                advice = f"look for `replica fetch` in the log of broker {node}"
            else:
                problem = f"broker {node} has been behind for {duration_text(followers[node])}"
                advice = "wait if it catches up (`suwi topics describe --replicas --follow`)"
            yield Finding(WARNING, about, problem, advice)


def _clocks(found: Found) -> Iterator[Finding]:
    for broker in found.status.brokers:
        ahead_ms = broker.clock_ahead_ms
        if ahead_ms is not None and abs(ahead_ms) > _CLOCK_MS_MAX:
            how = "ahead of" if ahead_ms > 0 else "behind"
            yield Finding(
                WARNING,
                f"broker {broker.node}",
                f"its clock is {duration_text(abs(ahead_ms))} {how} this machine's",
                "synchronize the clocks (chrony): retention and timestamps depend on them",
            )


def _versions(found: Found) -> Iterator[Finding]:
    versions = sorted({b.version for b in found.status.brokers if b.version is not None})
    if len(versions) > 1:
        yield Finding(
            WARNING,
            _CLUSTER,
            f"brokers of several versions: {', '.join(versions)}",
            "finish the upgrade, one broker at a time",
        )


def _access(found: Found) -> Iterator[Finding]:
    for text in access_differences(found.status):
        yield Finding(ERROR, _CLUSTER, text, "finish the change, one broker at a time")


def _replication(found: Found) -> Iterator[Finding]:
    brokers = sum(broker.state == ALIVE for broker in found.status.brokers)
    for topic in found.topics:
        replicas = min((len(p.replicas) for p in topic.partitions), default=0)
        least = found.min_isrs.get(topic.name, 1)
        if replicas == 1 and brokers > 1:
            yield Finding(
                WARNING,
                topic.name,
                "one replica in a cluster of several brokers: it is lost with its broker",
                "give it more replicas: "
                f"suwi topics alter {topic.name} --replication-factor {min(3, brokers)}",
            )
        elif least >= replicas > 1:
            yield Finding(
                WARNING,
                topic.name,
                f"min.insync.replicas={least} with {replicas} replicas: acks=all is refused as "
                "soon as one broker is away",
                f"suwi configs set topic {topic.name} min.insync.replicas={replicas - 1}",
            )


def _disks(found: Found) -> Iterator[Finding]:
    for broker in found.status.brokers:
        for disk in broker.disks:
            free, total = disk.free_bytes, disk.total_bytes
            if free is not None and total and free / total < _FREE_MIN:
                yield Finding(
                    WARNING,
                    f"broker {broker.node}",
                    f"{disk.directory}: only {size_text(free)} of {size_text(total)} are free",
                    "extend the volume, or lower the retention of large topics",
                )


def _losses(found: Found) -> Iterator[Finding]:
    if found.status.events:
        yield Finding(
            WARNING,
            _CLUSTER,
            f"{len(found.status.events)} elections or losses of records are recorded",
            "suwi cluster events",
        )


def _unknown(found: Found) -> Iterator[Finding]:
    for text in found.status.unknown:
        yield Finding(WARNING, _CLUSTER, f"not known: {text}", "check that broker")


_CHECKS = (_causes, _clocks, _versions, _access, _replication, _disks, _losses, _unknown)
