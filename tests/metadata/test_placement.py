"""Replica placement: leaders evenly, replicas in different racks and hosts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.metadata.image import BrokerInfo, Endpoint
from suwi.metadata.placement import Site, extend, place, sites_of
from suwi.model.errors import InvalidReplicationFactor
from suwi.model.ids import NodeId


@st.composite
def clusters(draw: st.DrawFn) -> list[Site]:
    count = draw(st.integers(1, 12))
    racks = draw(st.integers(1, 4))
    hosts = draw(st.integers(1, 6))
    return [
        Site(
            NodeId(number),
            f"rack {draw(st.integers(1, racks))}",
            f"host {draw(st.integers(1, hosts))}",
        )
        for number in range(count)
    ]


@given(
    sites=clusters(),
    partitions=st.integers(1, 60),
    factor=st.integers(1, 12),
    start=st.integers(0, 20),
    shift=st.integers(0, 20),
    first=st.integers(0, 20),
)
def test_replicas_are_distinct_and_spread_over_racks_and_hosts(
    sites: list[Site], partitions: int, factor: int, start: int, shift: int, first: int
) -> None:
    factor = min(factor, len(sites))
    by_node = {site.node: site for site in sites}
    placed = place(sites, partitions, factor, first_partition=first, start=start, shift=shift)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == factor
        chosen = [by_node[node] for node in replicas]
        in_racks = Counter(site.rack for site in chosen)
        available = Counter(site.rack for site in sites)
        for rack, used in in_racks.items():
            # A rack gets a second replica only if every other rack has as many, or is full.
            assert all(
                in_racks[other] >= used - 1 or in_racks[other] == available[other]
                for other in available
            )
            on_hosts = Counter(site.host for site in chosen if site.rack == rack)
            there = Counter(site.host for site in sites if site.rack == rack)
            for times in on_hosts.values():
                assert all(
                    on_hosts[host] >= times - 1 or on_hosts[host] == there[host] for host in there
                )
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[site.node] for site in sites) <= 1


def test_the_partitions_of_a_lost_leader_spread_over_all_others() -> None:
    sites = [Site(NodeId(number), "", "") for number in range(4)]
    placed = place(sites, 120, 3)
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert heirs == {1: 10, 2: 10, 3: 10}


def test_with_as_many_replicas_as_racks_every_rack_has_one() -> None:
    sites = [Site(NodeId(number), f"rack {number % 3}", f"host {number}") for number in range(9)]
    racks = {site.node: site.rack for site in sites}
    for replicas in place(sites, 90, 3, start=2, shift=1):
        assert {racks[node] for node in replicas} == {"rack 0", "rack 1", "rack 2"}
    everything = Counter(node for replicas in place(sites, 90, 3) for node in replicas)
    assert max(everything.values()) <= 1.5 * min(everything.values())


def test_a_host_gets_no_second_replica_while_another_host_has_none() -> None:
    hosts = ["a", "a", "b", "b", "c", "c"]
    sites = [Site(NodeId(number), "", host) for number, host in enumerate(hosts)]
    for replicas in place(sites, 60, 3):
        assert {hosts[node] for node in replicas} == {"a", "b", "c"}


def test_racks_are_used_only_if_every_broker_has_one() -> None:
    def broker(node: int, rack: str | None) -> BrokerInfo:
        return BrokerInfo(NodeId(node), (Endpoint("PLAINTEXT", f"h{node}", 1),), rack)

    assert sites_of([broker(1, "a"), broker(2, None)]) == [
        Site(NodeId(1), "", "h1"),
        Site(NodeId(2), "", "h2"),
    ]
    assert [site.rack for site in sites_of([broker(1, "a"), broker(2, "b")])] == ["a", "b"]


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(InvalidReplicationFactor, match="live brokers, 1"):
        place([Site(NodeId(1), "", "")], 1, 2)
    with pytest.raises(InvalidReplicationFactor):
        place([], 1, 1)


def test_a_replica_is_added_on_another_rack_then_another_host_then_where_the_fewest_are() -> None:
    sites = [
        Site(NodeId(1), "a", "h1"),
        Site(NodeId(2), "a", "h2"),
        Site(NodeId(3), "b", "h3"),
        Site(NodeId(4), "b", "h3"),
        Site(NodeId(5), "b", "h4"),
    ]
    loads = {NodeId(3): 5, NodeId(4): 1, NodeId(5): 2}
    assert extend(sites, [NodeId(1)], 2, loads) == (1, 4)
    assert loads[NodeId(4)] == 2
    assert extend(sites, [NodeId(1), NodeId(3)], 4, loads) == (1, 3, 2, 5)
    assert extend(sites, [NodeId(9), NodeId(1)], 2, loads) == (9, 1)  # A broker that is down.
    with pytest.raises(InvalidReplicationFactor):
        extend(sites, [NodeId(1)], 6, loads)
