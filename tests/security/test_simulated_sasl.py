"""SASL with Suwi's client in simulated time: sessions that expire and reauthentication."""

import asyncio
import logging
from typing import Any

import pytest

from suwi.client.addresses import Address
from suwi.client.cluster import Cluster
from suwi.client.connection import ConnectionLost, PeerConnection
from suwi.client.security import AuthenticationFailed, connect_securely, read_client_security
from suwi.client.users import Users
from suwi.env import LocalDisk
from suwi.model.errors import UnsupportedSaslMechanism
from suwi.security.scram import ScramMechanism
from suwi.sim import Simulation
from suwi.wire.versions import ApiKey
from tests.broker.simulated import PORT, SimBroker
from tests.security.clients import Access, client_properties
from tests.security.secure_broker import jaas

ALICE = Access("SASL_PLAINTEXT", None, None, "PLAIN", "alice", "secret")
SESSION_S = 60
DELAY_S = 0.4


def sasl_broker(simulation: Simulation, **settings: str) -> SimBroker:
    return SimBroker(
        simulation,
        listeners=f"SASL://b1:{PORT}",
        listener_security_protocol_map="SASL:SASL_PLAINTEXT",
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        listener_name_sasl_plain_sasl_jaas_config=jaas({"alice": "secret"}),
        connection_failed_authentication_delay_ms=str(int(DELAY_S * 1000)),
        **settings,
    )


def connector(simulation: Simulation, access: Access) -> Any:
    random = simulation.random.stream("client")
    security = read_client_security(client_properties(access), LocalDisk(), random)
    return connect_securely(security, "test")


async def connect(simulation: Simulation, access: Access) -> PeerConnection:
    connection: PeerConnection = await connector(simulation, access)(Address("b1", PORT))
    return connection


async def ask(connection: PeerConnection) -> None:
    answer = await connection.call(
        ApiKey.METADATA, 4, {"topics": [], "allow_auto_topic_creation": False}
    )
    assert len(answer.brokers) == 1


def test_a_client_reauthenticates_as_long_as_the_connection_is_open() -> None:
    simulation = Simulation(1)

    async def scenario() -> None:
        broker = sasl_broker(simulation, connections_max_reauth_ms=str(SESSION_S * 1000))
        await broker.start()
        connection = await connect(simulation, ALICE)
        for _ in range(60):
            # Several at once, so that some are sent during the reauthentication.
            await asyncio.gather(*(ask(connection) for _ in range(5)))
            await asyncio.sleep(SESSION_S / 10)
        assert connection.is_open
        await connection.close()
        await broker.stop()

    simulation.run(scenario())


def test_without_reauthentication_the_next_request_closes_the_connection() -> None:
    simulation = Simulation(2)

    async def scenario() -> None:
        broker = sasl_broker(simulation, connections_max_reauth_ms=str(SESSION_S * 1000))
        await broker.start()
        connection = await PeerConnection.open("b1", PORT)
        await connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        answer = await connection.call(
            ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0secret"}
        )
        assert answer.session_lifetime.total_seconds() == SESSION_S
        await asyncio.sleep(SESSION_S - 1)
        await ask(connection)
        await asyncio.sleep(2)
        assert connection.is_open
        with pytest.raises(ConnectionLost):
            await ask(connection)
        await broker.stop()

    simulation.run(scenario())


def test_a_peer_that_does_not_log_in_is_disconnected() -> None:
    simulation = Simulation(3)

    async def scenario() -> None:
        broker = sasl_broker(simulation)
        await broker.start()
        connection = await PeerConnection.open("b1", PORT)
        names = {"client_software_name": "x", "client_software_version": "1"}
        began_s = asyncio.get_running_loop().time()
        while connection.is_open:
            await connection.call(ApiKey.API_VERSIONS, 3, names)
            await asyncio.sleep(1)
        assert 29 < asyncio.get_running_loop().time() - began_s < 40
        await broker.stop()

    simulation.run(scenario())


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_a_user_added_over_sasl_can_log_in_until_it_is_removed(mechanism: ScramMechanism) -> None:
    simulation = Simulation(4)
    bob = Access("SASL_PLAINTEXT", None, None, mechanism.sasl_name, "bob", "hidden")

    async def scenario() -> None:
        broker = sasl_broker(simulation)
        await broker.start()
        random = simulation.random.stream("admin")
        cluster = Cluster(
            [Address("b1", PORT)], random=random, connect=connector(simulation, ALICE)
        )
        async with cluster:
            users = Users(cluster)
            with pytest.raises(AuthenticationFailed):
                await connect(simulation, bob)
            await users.set("bob", "hidden", [mechanism], 4096)
            assert [user.name for user in await users.describe()] == ["bob"]
            connection = await connect(simulation, bob)
            await ask(connection)
            await users.remove("bob", [mechanism])
            with pytest.raises(AuthenticationFailed):
                await connect(simulation, bob)
            await ask(connection)
            await connection.close()
        await broker.stop()

    simulation.run(scenario())


@pytest.mark.parametrize("user", ["alice", "nobody"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_failed_login_takes_the_same_time_with_the_same_error(
    user: str, mechanism: str
) -> None:
    simulation = Simulation(5)
    access = Access("SASL_PLAINTEXT", None, None, mechanism, user, "guess")

    async def scenario() -> None:
        broker = sasl_broker(simulation)
        await broker.start()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(AuthenticationFailed, match=r"^Authentication failed"):
            await connect(simulation, access)
        assert asyncio.get_running_loop().time() - began_s >= DELAY_S
        await broker.stop()

    simulation.run(scenario())


def test_the_error_for_a_disabled_mechanism_lists_the_enabled_ones() -> None:
    simulation = Simulation(6)

    async def scenario() -> None:
        broker = sasl_broker(simulation, listener_name_sasl_sasl_enabled_mechanisms="PLAIN")
        await broker.start()
        access = ALICE._replace(mechanism="SCRAM-SHA-256")
        with pytest.raises(UnsupportedSaslMechanism, match=r"only PLAIN$"):
            await connect(simulation, access)
        await broker.stop()

    simulation.run(scenario())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_failed_log_in_is_counted_and_logged_with_its_user_but_not_its_password(
    mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    simulation = Simulation(7)
    access = Access("SASL_PLAINTEXT", None, None, mechanism, "mallory", "a-guess")

    async def scenario() -> None:
        broker = sasl_broker(simulation)
        await broker.start()
        with pytest.raises(AuthenticationFailed):
            await connect(simulation, access)
        assert broker.broker is not None
        (listener,) = broker.broker.listeners
        assert listener.failed_authentications.by_mechanism == {mechanism: 1}
        await broker.stop()

    simulation.run(scenario())
    (record,) = [each for each in caplog.records if each.msg == "authentication failed"]
    facts = vars(record)
    assert (facts["listener"], facts["mechanism"], facts["user"]) == ("SASL", mechanism, "mallory")
    assert "a-guess" not in repr(facts)


def test_an_unknown_mechanism_does_not_become_a_metric_label() -> None:
    simulation = Simulation(8)

    async def scenario() -> None:
        broker = sasl_broker(simulation)
        await broker.start()
        connection = await PeerConnection.open("b1", PORT)
        answer = await connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "x" * 1000})
        assert answer.error_code == UnsupportedSaslMechanism.code
        assert broker.broker is not None
        (listener,) = broker.broker.listeners
        assert listener.failed_authentications.by_mechanism == {"unknown": 1}
        await broker.stop()

    simulation.run(scenario())
