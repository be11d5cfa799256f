"""Requests forwarded to the controller: executed with the identity of the original client."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from suwi.client.addresses import Address
from suwi.client.connection import PeerConnection
from suwi.client.security import connect_securely, read_client_security
from suwi.controller.controller_election import ActiveController, ControllerElection
from suwi.env import LocalDisk
from suwi.handlers.create_topics import CreateTopics
from suwi.handlers.envelope import Envelope
from suwi.net.dispatch import Request
from suwi.net.fair_turns import SliceTurns
from suwi.sim import Simulation
from suwi.sim.cluster import PORT, SimCluster
from suwi.wire.codec import encode_request
from suwi.wire.headers import request_header
from suwi.wire.primitives import SLICE_ITEMS
from suwi.wire.versions import APIS, ApiKey
from tests.broker.test_clients_posing_as_brokers import REFUSED, is_disconnected_by
from tests.broker.test_inter_broker_requests import other_than, peer
from tests.broker.test_simulated_cluster import controller, create, image, run, until
from tests.security.clients import Access, client_properties

_SASL = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        'PlainLoginModule required username="broker" password="hush" '
        'user_broker="hush" user_alice="secret";'
    ),
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that reach the controller's CreateTopics handler."""
    requests: list[Request] = []
    handle = CreateTopics.__call__

    async def remember(self: CreateTopics, request: Request) -> Any:
        requests.append(request)
        return await handle(self, request)

    monkeypatch.setattr(CreateTopics, "__call__", remember)
    return requests


def identity_of(request: Request) -> tuple[str, str | None, str]:
    return str(request.client.principal), request.client_id, request.client.host


def test_a_forwarded_request_keeps_the_clients_identity(served: list[Request]) -> None:
    async def scenario(cluster: SimCluster) -> None:
        to = other_than(controller(cluster))
        client = await PeerConnection.open(f"b{to}", PORT, client_id="me")
        created = await create(client)
        assert created.error_code == 0
        (request,) = served
        assert identity_of(request) == ("User:ANONYMOUS", "me", "outside")
        # The connection belongs to a broker, but the request's client is not a broker.
        assert request.connection.client.is_peer
        assert not request.client.is_peer

    run(scenario)


def test_a_forwarded_request_keeps_the_authenticated_principal(
    served: list[Request],
) -> None:
    simulation = Simulation(1)
    alice = Access("SASL_PLAINTEXT", None, None, "PLAIN", "alice", "secret")

    async def main() -> None:
        cluster = SimCluster(simulation, settings=_SASL)
        await cluster.start()
        random = simulation.random.stream("client")
        security = read_client_security(client_properties(alice), LocalDisk(), random)
        to = other_than(controller(cluster))
        client = await connect_securely(security, "me")(Address(f"b{to}", PORT))
        created = await create(client)
        assert created.error_code == 0
        assert [identity_of(request) for request in served] == [("User:alice", "me", "outside")]

    simulation.run(main())


def test_automatic_topic_creation_is_forwarded_with_the_clients_identity(
    served: list[Request],
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        to = other_than(controller(cluster))
        client = await PeerConnection.open(f"b{to}", PORT, client_id="me")
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        answer = await client.call(ApiKey.METADATA, 4, asked)
        assert answer.topics[0].error_code == 0
        assert [identity_of(request) for request in served] == [("User:ANONYMOUS", "me", "outside")]

    run(scenario)


def test_the_creation_of_an_internal_topic_is_forwarded_as_the_brokers_own(
    served: list[Request],
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        to = other_than(controller(cluster))
        client = await PeerConnection.open(f"b{to}", PORT, client_id="me")
        await client.call(ApiKey.FIND_COORDINATOR, 0, {"key": "group"})
        (request,) = served
        assert identity_of(request) == ("Broker:internal", "me", "outside")
        assert request.client.is_peer

    run(scenario)


def test_a_large_forwarded_request_is_decoded_in_slices_by_both_brokers(
    served: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[SliceTurns] = []
    run_slices = SliceTurns.run

    async def counted(self: SliceTurns, work: Any) -> Any:
        runs.append(self)
        return await run_slices(self, work)

    monkeypatch.setattr(SliceTurns, "run", counted)
    names = [f"topic-{number}" for number in range(3 * SLICE_ITEMS)]
    fields = {
        "topics": [
            {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            for name in names
        ],
        "validate_only": True,
    }

    async def scenario(cluster: SimCluster) -> None:
        to = other_than(controller(cluster))
        client = await PeerConnection.open(f"b{to}", PORT, client_id="me")
        answer = await client.call(ApiKey.CREATE_TOPICS, 7, fields)
        assert [topic.name for topic in answer.topics] == names
        assert {topic.error_code for topic in answer.topics} == {0}
        (request,) = served
        assert len(request.message.topics) == len(names)
        assert len(set(map(id, runs))) >= 2

    run(scenario)


def envelope(api_key: int, version: int, body: bytes, principal: bytes = b"User:alice") -> bytes:
    fields = {
        "request_data": request_header(api_key, version, 7, "me") + body,
        "request_principal": principal,
        "client_host_address": b"10.0.0.1",
    }
    return encode_request(ApiKey.ENVELOPE, 0, fields)


_CREATE_NOTHING = encode_request(
    ApiKey.CREATE_TOPICS, 7, {"topics": [], "timeout": 1000, "validate_only": False}
)


def test_a_forwarded_request_waits_until_the_elected_controller_is_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = ControllerElection._process_registrations

    async def process_slowly(self: ControllerElection, active: ActiveController) -> None:
        if not self.is_active_controller:
            await asyncio.sleep(3)
        await process(self, active)

    async def scenario(cluster: SimCluster) -> None:
        monkeypatch.setattr(ControllerElection, "_process_registrations", process_slowly)
        first = controller(cluster)
        cluster[first].kill()
        others = [number for number in (1, 2, 3) if number != first]
        await until(lambda: all(image(cluster, n).controller in others for n in others))
        for number in others:  # the elected one sends it to itself
            client = await PeerConnection.open(f"b{number}", PORT)
            created = await create(client, name=f"t{number}", assignments=[others])
            assert created.error_code == 0

    run(scenario)


def test_an_envelope_from_a_client_is_refused(served: list[Request]) -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = await PeerConnection.open(f"b{controller(cluster)}", PORT)
        answer = await client.call(
            ApiKey.ENVELOPE,
            0,
            {
                "request_data": request_header(ApiKey.CREATE_TOPICS, 7, 7, "me") + _CREATE_NOTHING,
                "request_principal": b"User:admin",
                "client_host_address": b"",
            },
        )
        assert (answer.error_code, answer.response_data) == (REFUSED, None)
        assert served == []

    run(scenario)


@pytest.mark.parametrize(
    "body",
    [
        envelope(ApiKey.METADATA, 9, b""),
        envelope(ApiKey.ENVELOPE, 0, b""),
        envelope(ApiKey.ALTER_PARTITION, 3, b""),
        envelope(ApiKey.CREATE_TOPICS, 1, b""),
        envelope(ApiKey.CREATE_TOPICS, 99, b""),
        envelope(ApiKey.CREATE_TOPICS, 7, b"\xff\xff"),
        envelope(ApiKey.CREATE_TOPICS, 7, _CREATE_NOTHING, b""),
        envelope(ApiKey.CREATE_TOPICS, 7, _CREATE_NOTHING, b"alice"),
        envelope(ApiKey.CREATE_TOPICS, 7, _CREATE_NOTHING, b"User:\xff"),
        encode_request(
            ApiKey.ENVELOPE,
            0,
            {"request_data": b"", "request_principal": None, "client_host_address": b""},
        ),
    ],
    ids=lambda body: f"{len(body)} bytes {body[:12].hex()}",
)
def test_an_envelope_with_anything_else_inside_closes_the_connection(body: bytes) -> None:
    async def scenario(cluster: SimCluster) -> None:
        active = controller(cluster)
        connection = await peer(cluster, other_than(active), active)
        assert await is_disconnected_by(connection, ApiKey.ENVELOPE, body)
        await asyncio.sleep(1)
        assert controller(cluster) == active

    run(scenario)


def test_only_apis_marked_as_forwarded_are_forwarded() -> None:
    async def scenario(cluster: SimCluster) -> None:
        broker = cluster[1].broker
        assert broker is not None
        handlers: dict[int, Callable[..., Any]] = dict(broker._apis().handlers())
        opened = handlers[ApiKey.ENVELOPE]
        assert isinstance(opened, Envelope)
        assert set(opened._handlers) == {key for key in handlers if APIS[key].is_forwarded}
        await until(lambda: len(image(cluster, 1).unfenced_brokers) == 3)

    run(scenario)


def test_brokers_replicate_over_sasl_and_other_users_are_not_brokers() -> None:
    simulation = Simulation(2)
    alice = Access("SASL_PLAINTEXT", None, None, "PLAIN", "alice", "secret")

    async def main() -> None:
        cluster = SimCluster(simulation, settings=_SASL)
        await cluster.start()
        random = simulation.random.stream("client")
        security = read_client_security(client_properties(alice), LocalDisk(), random)
        active = controller(cluster)
        client = await connect_securely(security, "me")(Address(f"b{active}", PORT))
        assert (await create(client)).error_code == 0
        refused = await client.call(
            ApiKey.BROKER_HEARTBEAT,
            1,
            {
                "broker_id": 1,
                "broker_epoch": image(cluster, active).registered_brokers[1].epoch,  # type: ignore[index]
                "current_metadata_offset": 0,
                "want_fence": True,
                "want_shut_down": True,
            },
        )
        assert refused.error_code == REFUSED
        # On a SASL listener brokers are not authenticated by the cluster secret.
        assert await is_disconnected_by(client, ApiKey.PEER_CHALLENGE, bytes(36))
        leader = cluster[1].broker
        assert leader is not None
        partition = leader.replicas.leader_of("orders", 0)
        await until(
            lambda: all(f.end_offset == 0 for f in partition.leader_state.followers.values())  # type: ignore[union-attr]
        )

    simulation.run(main())
