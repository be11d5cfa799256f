"""Replica placement. Pure: random numbers are arguments.

`place` assigns new partitions, `extend` adds replicas to a partition that has some.

The replicas of a partition are spread over racks, within a rack over hosts, then over brokers, so
that a failure of a rack or host affects as few of them as possible.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from suwi.metadata.image import BrokerInfo
from suwi.model.errors import InvalidReplicationFactor
from suwi.model.ids import NodeId


class Site(NamedTuple):
    """A broker with its failure domains."""

    node: NodeId
    rack: str
    host: str


def sites_of(brokers: Iterable[BrokerInfo]) -> list[Site]:
    """As in Kafka, racks are used only if every broker has one."""
    brokers = list(brokers)
    uses_racks = all(broker.rack for broker in brokers)
    return [
        Site(
            broker.id,
            (broker.rack or "") if uses_racks else "",
            broker.endpoints[0].host if broker.endpoints else "",
        )
        for broker in brokers
    ]


def place(
    sites: Sequence[Site],
    partitions: int,
    replication_factor: int,
    *,
    first_partition: int = 0,
    start: int = 0,
    shift: int = 0,
) -> list[tuple[NodeId, ...]]:
    """The replicas of each new partition; the first is the preferred leader.

    Leaders are assigned round-robin from `start` on. The other replicas follow at a distance that
    grows with every round, so that the partitions of a failed leader spread over all others.
    """
    count = len(sites)
    if replication_factor > count:
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor} is larger than the number of live brokers, "
            f"{count}"
        )
    ordered = _alternating(sites)
    known: dict[tuple[int, int], tuple[NodeId, ...]] = {}
    placed = []
    for index in range(first_partition, first_partition + partitions):
        leader = (index + start) % count
        distance = (shift + (index + start) // count) % max(1, count - 1)
        if (leader, distance) not in known:
            chosen = _choose(ordered, leader, distance, replication_factor)
            known[leader, distance] = tuple(site.node for site in chosen)
        placed.append(known[leader, distance])
    return placed


def extend(
    sites: Sequence[Site], kept: Sequence[NodeId], wanted: int, loads: dict[NodeId, int]
) -> tuple[NodeId, ...]:
    """`kept` with as many more replicas as wanted, on the brokers with the fewest replicas of those
    that share the fewest racks and hosts with the others. Counts what it adds in `loads`."""
    if wanted > len({*kept, *(site.node for site in sites)}):
        raise InvalidReplicationFactor(
            f"replication factor {wanted} is larger than the number of live brokers, {len(sites)}"
        )
    chosen = [site for site in sites if site.node in kept]
    replicas = list(kept)
    while len(replicas) < wanted:
        best = min(
            (site for site in sites if site.node not in replicas),
            key=lambda site: (
                sum(other.rack == site.rack for other in chosen),
                sum((other.rack, other.host) == (site.rack, site.host) for other in chosen),
                loads.get(site.node, 0),
                site.node,
            ),
        )
        chosen.append(best)
        replicas.append(best.node)
        loads[best.node] = loads.get(best.node, 0) + 1
    return tuple(replicas)


def _alternating(sites: Sequence[Site]) -> list[Site]:
    """Order the brokers so that neighbours are in different racks and hosts where possible."""
    by_rack: dict[str, dict[str, list[Site]]] = {}
    for site in sites:
        by_rack.setdefault(site.rack, {}).setdefault(site.host, []).append(site)
    racks = [_interleaved(list(hosts.values())) for hosts in by_rack.values()]
    return _interleaved(racks)


def _interleaved(rows: Sequence[Sequence[Site]]) -> list[Site]:
    """The first of each row, then the second of each, and so on."""
    longest = max((len(row) for row in rows), default=0)
    return [row[column] for column in range(longest) for row in rows if column < len(row)]


def _choose(ordered: Sequence[Site], leader: int, distance: int, wanted: int) -> list[Site]:
    """The leader, then the brokers from `distance` on that share the fewest racks and hosts with
    the ones chosen before."""
    count = len(ordered)
    chosen = [ordered[leader]]
    candidates = [
        ordered[(leader + 1 + (distance + step) % (count - 1)) % count] for step in range(count - 1)
    ]
    racks, hosts = {chosen[0].rack: 1}, {(chosen[0].rack, chosen[0].host): 1}
    while len(chosen) < wanted:
        best = min(
            candidates,
            key=lambda site: (racks.get(site.rack, 0), hosts.get((site.rack, site.host), 0)),
        )
        candidates.remove(best)
        chosen.append(best)
        racks[best.rack] = racks.get(best.rack, 0) + 1
        host = (best.rack, best.host)
        hosts[host] = hosts.get(host, 0) + 1
    return chosen
