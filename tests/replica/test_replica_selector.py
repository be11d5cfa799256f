"""Reading from the nearest follower (KIP-392), and leader discovery in responses (KIP-951)."""

import asyncio
from types import MappingProxyType, SimpleNamespace

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.metadata.image import BrokerInfo, ClusterImage, PartitionState
from suwi.model.ids import LeaderEpoch, NodeId, Offset
from suwi.replica.leader_state import LeaderState
from suwi.replica.replica_selector import ReplicaSelector
from suwi.sim.simulation import Simulation
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import FetchResponse, decode_fetch_response
from suwi.wire.leaders import CurrentLeader, NodeEndpoint
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.replica.replicated import begin

RACKS = {
    "broker.rack": "rack-{node}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
_VERSION = 12
NODES = (NodeId(1), NodeId(2), NodeId(3))


async def fetch(
    client: PeerConnection, offset: int, *, rack: str = "", epoch: int = -1, wait_ms: int = 0
) -> FetchResponse:
    asked = FetchPartition(0, epoch, offset, -1, -1, 1 << 20)
    topics = [FetchTopic("orders", None, [asked])]
    request = FetchRequest(wait_ms, 1, 1 << 20, topics, rack_id=rack)
    body = await client.send(ApiKey.FETCH, _VERSION, [encode_fetch_request(_VERSION, request)])
    return decode_fetch_response(_VERSION, body)


def test_a_consumer_is_redirected_to_the_follower_in_its_rack_and_reads_there() -> None:
    simulation = Simulation(5)

    async def scenario() -> None:
        _, leader = await begin(simulation, settings=RACKS)
        assert (await produce(leader, "orders", [b"a", b"b"])).error_code == 0
        await asyncio.sleep(1)  # Followers have fetched, so the leader has their end offsets.
        (found,) = (await fetch(leader, 0, rack="rack-3")).topics[0].partitions
        assert found.preferred_read_replica == 3
        assert not found.records
        follower = await PeerConnection.open("b3", 9092)
        (read,) = (await fetch(follower, 0, rack="rack-3", epoch=0)).topics[0].partitions
        assert read.error_code == 0
        assert read.high_watermark == 2
        assert read.records

    simulation.run(scenario())


def test_a_consumer_is_not_redirected_to_a_follower_that_is_out_of_sync() -> None:
    state = PartitionState(NodeId(1), LeaderEpoch(0), 0, NODES, NODES[:2])
    leader_state = LeaderState(NodeId(1), 1, state, epoch_start=Offset(0), now_s=0)
    brokers = {node: BrokerInfo(node, (), rack=f"rack-{node}") for node in NODES}
    selector = ReplicaSelector(
        NodeId(1), SimpleNamespace(image=ClusterImage(unfenced_brokers=MappingProxyType(brokers)))
    )
    for node in NODES[1:]:
        leader_state.record_progress(
            node,
            Offset(5),
            start_offset=Offset(0),
            broker_epoch=1,
            leader_end=Offset(9),
            now_s=0,
        )
    assert selector.choose(leader_state, Offset(3), "rack-2") == 2
    assert selector.choose(leader_state, Offset(3), "rack-3") is None


def test_a_consumer_in_the_leaders_rack_or_in_none_stays_with_the_leader() -> None:
    simulation = Simulation(6)

    async def scenario() -> None:
        _, leader = await begin(simulation, settings=RACKS)
        assert (await produce(leader, "orders", [b"a"])).error_code == 0
        await asyncio.sleep(1)
        for rack in ("rack-1", "rack-9", ""):
            (read,) = (await fetch(leader, 0, rack=rack)).topics[0].partitions
            assert read.preferred_read_replica == -1
            assert read.records

    simulation.run(scenario())


def test_a_follower_wakes_a_consumer_that_waits_for_the_next_commit() -> None:
    simulation = Simulation(7)

    async def scenario() -> None:
        _, leader = await begin(simulation, settings=RACKS)
        follower = await PeerConnection.open("b2", 9092)
        waiting = asyncio.create_task(fetch(follower, 0, wait_ms=60_000))
        await asyncio.sleep(1)
        assert (await produce(leader, "orders", [b"a"])).error_code == 0
        (read,) = (await waiting).topics[0].partitions
        assert read.records

    simulation.run(scenario())


def test_a_producer_that_asks_a_follower_gets_the_leader_and_its_endpoint() -> None:
    simulation = Simulation(8)

    async def scenario() -> None:
        await begin(simulation)
        follower = await PeerConnection.open("b2", 9092)
        request = encode_produce_request(
            10, None, -1, 30_000, [("orders", None, [(0, memoryview(bytearray(61)))])]
        )
        await asyncio.sleep(1)
        answer = decode_produce_response(10, await follower.send(ApiKey.PRODUCE, 10, request))
        (refused,) = answer.topics[0].partitions
        assert refused.error_code == ErrorCode.not_leader_or_follower
        assert refused.current_leader == CurrentLeader(1, 0)
        assert answer.node_endpoints == [NodeEndpoint(1, "b1", 9092, None)]

    simulation.run(scenario())
