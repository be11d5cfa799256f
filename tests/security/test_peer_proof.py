"""Mutual authentication of brokers by the cluster secret."""

import asyncio
import struct

import pytest

from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.metadata.image import PEER_SECRET, BrokerInfo, Endpoint
from suwi.model.ids import NodeId
from suwi.security.mechanism import Refused
from suwi.security.peer_proof import PeerProver
from suwi.sim import Simulation
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.versions import ApiKey
from tests.broker.test_clients_posing_as_brokers import REFUSED, is_disconnected_by
from tests.broker.test_inter_broker_requests import heartbeat_fields
from tests.broker.test_simulated_cluster import controller, image, run, until

B1, B2, B3 = (NodeId(number) for number in (1, 2, 3))
SECRET, CLUSTER = b"a secret of the store", "cluster"


def prover(
    node: NodeId, *, secret: bytes = SECRET, cluster_id: str = CLUSTER, seed: int = 1
) -> PeerProver:
    made = PeerProver(node, Simulation(seed).random.stream(f"b{node}"))
    made.learn(secret, cluster_id)
    return made


# -- proofs ----------------------------------------------------------------------------------------


def test_two_brokers_of_a_cluster_prove_themselves_to_each_other() -> None:
    one, other = prover(B1), prover(B2)
    hello = one.hello()
    challenge, answer = other.accept(hello)
    assert challenge.connecting == B1
    assert other.is_proven(challenge, one.respond(B2, hello, answer))


@pytest.mark.parametrize(
    "outsider", [prover(B2, secret=b"guess"), prover(B2, cluster_id="another"), prover(B3)]
)
def test_the_accepting_side_must_be_the_intended_broker(outsider: PeerProver) -> None:
    one = prover(B1)
    hello = one.hello()
    _, answer = outsider.accept(hello)
    with pytest.raises(Refused, match="not broker 2"):
        one.respond(B2, hello, answer)


@pytest.mark.parametrize(
    "outsider", [prover(B1, secret=b"guess"), prover(B1, cluster_id="another")]
)
def test_the_connecting_side_must_know_the_clusters_secret(outsider: PeerProver) -> None:
    other = prover(B2)
    challenge, _ = other.accept(outsider.hello())
    assert not other.is_proven(challenge, outsider._proof(b"suwi peer 1, connecting\0", challenge))


def test_a_proof_is_valid_for_one_connection_and_one_broker() -> None:
    one, other, third = prover(B1), prover(B2), prover(B3)
    hello = one.hello()
    challenge, answer = other.accept(hello)
    proof = one.respond(B2, hello, answer)
    again, _ = other.accept(hello)
    assert again.answer != challenge.answer
    assert not other.is_proven(again, proof)
    elsewhere, _ = third.accept(hello)
    assert not third.is_proven(elsewhere._replace(answer=challenge.answer), proof)
    as_another = challenge._replace(connecting=B3)
    assert not other.is_proven(as_another, proof)


def test_a_proof_cannot_be_reflected_to_its_sender() -> None:
    other = prover(B2)
    challenge, answer = other.accept(prover(B1).hello())
    assert not other.is_proven(challenge, answer[32:])


@pytest.mark.parametrize("body", [b"", b"x", bytes(35), bytes(37), bytes(100_000)])
def test_bytes_of_another_length_prove_nothing(body: bytes) -> None:
    one, other = prover(B1), prover(B2)
    with pytest.raises(Refused):
        other.accept(body)
    with pytest.raises(Refused):
        one.respond(B2, one.hello(), body)
    challenge, _ = other.accept(one.hello())
    assert not other.is_proven(challenge, body)


def test_a_prover_does_not_show_its_secret() -> None:
    assert "secret" not in repr(prover(B1))


# -- over a connection -----------------------------------------------------------------------------


def broker_prover(cluster: SimCluster, number: int) -> PeerProver:
    broker = cluster[number].broker
    assert broker is not None
    return broker._prover


async def is_taken_for_a_peer(client: PeerConnection) -> bool:
    answer = await client.call(ApiKey.BROKER_HEARTBEAT, 1, heartbeat_fields(99, 1))
    return bool(answer.error_code != REFUSED)


def test_only_a_connection_with_a_proof_counts_as_a_brokers() -> None:
    async def scenario(cluster: SimCluster) -> None:
        prover = broker_prover(cluster, 2)
        client, other = [await PeerConnection.open("b1", PORT) for _ in range(2)]
        hello = prover.hello()
        answer = await client.send(ApiKey.PEER_CHALLENGE, 0, [hello])
        assert not await is_taken_for_a_peer(client)
        proof = prover.respond(B1, hello, bytes(answer))
        client.send_unanswered(ApiKey.PEER_PROOF, 0, [proof])
        assert await is_taken_for_a_peer(client)
        assert not await is_taken_for_a_peer(other)
        # A proof from another connection is not valid here.
        assert await is_disconnected_by(other, ApiKey.PEER_PROOF, proof)

    run(scenario)


@pytest.mark.parametrize("proof", [bytes(32), b"", bytes(1000)])
def test_a_wrong_proof_closes_the_connection_and_is_counted(proof: bytes) -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open("b1", PORT)
        await client.send(ApiKey.PEER_CHALLENGE, 0, [struct.pack(">i32s", 2, b"nonce")])
        assert await is_disconnected_by(client, ApiKey.PEER_PROOF, proof)
        broker = cluster[1].broker
        assert broker is not None
        assert broker.listeners[0].failed_authentications.by_mechanism == {"PEER": 1}

    run(scenario)


def test_a_repeated_or_malformed_hello_closes_the_connection() -> None:
    async def scenario(cluster: SimCluster) -> None:
        hello = struct.pack(">i32s", 2, b"nonce")
        for first, second in [(hello, hello), (hello[1:], b""), (b"", b"")]:
            client = await PeerConnection.open("b1", PORT)
            if first is hello:
                await client.send(ApiKey.PEER_CHALLENGE, 0, [first])
                assert await is_disconnected_by(client, ApiKey.PEER_CHALLENGE, second)
            else:
                assert await is_disconnected_by(client, ApiKey.PEER_CHALLENGE, first)
        client = await PeerConnection.open("b1", PORT)
        assert await is_disconnected_by(client, ApiKey.PEER_PROOF, bytes(32))

    run(scenario)


def test_a_proof_is_not_accepted_on_other_listeners() -> None:
    settings = {
        "listeners": "INSIDE://127.0.0.1:9092",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }

    class TwoListeners(SimCluster):
        def config_of(self, node_id: NodeId):  # type: ignore[no-untyped-def]
            self._settings["listeners"] = (
                f"OUTSIDE://b{node_id}:{PORT + 1},INSIDE://b{node_id}:{PORT}"
            )
            return super().config_of(node_id)

    simulation = Simulation(1)

    async def main() -> None:
        cluster = TwoListeners(simulation, brokers=2, settings=settings)
        await cluster.start()
        await until(lambda: len(image(cluster, 1).unfenced_brokers) == 2)
        hello = broker_prover(cluster, 2).hello()
        outside = await PeerConnection.open("b1", PORT + 1)
        assert not await is_taken_for_a_peer(outside)
        assert await is_disconnected_by(outside, ApiKey.PEER_CHALLENGE, hello)
        inside = await PeerConnection.open("b1", PORT)
        assert len(await inside.send(ApiKey.PEER_CHALLENGE, 0, [hello])) == 64

    simulation.run(main())


def test_a_broker_disconnects_from_a_peer_without_a_proof() -> None:
    async def scenario(cluster: SimCluster) -> None:
        broker = cluster[2].broker
        assert broker is not None
        # Broker 1 listens there, and claims to be broker 3.
        impostor = BrokerInfo(B3, (Endpoint("PLAINTEXT", "b1", PORT),))
        with pytest.raises(ConnectionError, match="not broker 3 of this cluster"):
            await broker.peers.connect_to(impostor)
        machine = cluster.simulation.machine("nobody")
        machine.start()
        await machine.spawn(listen())
        unknown = BrokerInfo(B3, (Endpoint("PLAINTEXT", "nobody", PORT),))
        with pytest.raises(ConnectionLost):
            await broker.peers.connect_to(unknown)

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(Silent, "nobody", PORT)

    class Silent(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()

    run(scenario)


def test_the_secret_is_created_once_and_is_in_no_image() -> None:
    async def scenario(cluster: SimCluster) -> None:
        secret = cluster.store.ledger.entries[PEER_SECRET].value
        assert len(secret) == 32
        assert repr(secret)[2:-1] not in repr(image(cluster, 1))
        provers = [broker_prover(cluster, number) for number in (1, 2, 3)]
        assert {each._secret for each in provers} == {secret}
        victim = next(number for number in (1, 2, 3) if number != controller(cluster))
        await cluster[victim].stop()
        await cluster[victim].start()
        assert broker_prover(cluster, victim)._secret == secret
        await until(lambda: len(image(cluster, victim).unfenced_brokers) == 3)

    run(scenario)


def test_a_store_without_a_secret_gets_one_when_a_broker_starts() -> None:
    async def scenario(cluster: SimCluster) -> None:
        for node in cluster.nodes.values():
            node.kill()
        del cluster.store.ledger.entries[PEER_SECRET]
        await asyncio.sleep(30)
        await cluster.start()
        assert len(cluster.store.ledger.entries[PEER_SECRET].value) == 32
        await until(lambda: all(len(image(cluster, n).unfenced_brokers) == 3 for n in (1, 2, 3)))

    run(scenario)
