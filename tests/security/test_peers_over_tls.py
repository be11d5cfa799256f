"""A cluster with TLS between brokers, with a certificate for each broker, with SASL, or tokens."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from suwi.broker.broker import Broker
from suwi.client.addresses import Address
from suwi.client.connection import PeerConnection
from suwi.client.security import ClientSecurity, connect_securely, read_client_security
from suwi.env import LocalDisk, SystemRandom, local_env
from suwi.metadata.memory import MemoryStore
from suwi.model.broker_config import parse_broker_config
from suwi.model.ids import NodeId
from suwi.security.oauthbearer import OAuthBearerClient
from suwi.sim import SimRandom
from suwi.wire.versions import ApiKey
from tests.broker.simulated import produce
from tests.broker.test_clients_posing_as_brokers import REFUSED
from tests.broker.test_inter_broker_requests import heartbeat_fields
from tests.broker.test_simulated_cluster import create
from tests.net.support import until
from tests.security.certificates import Authority
from tests.security.clients import Access, client_properties
from tests.security.issuer import AUDIENCE, Issuer

_JAAS = (
    'PlainLoginModule required username="broker" password="hush" '
    'user_broker="hush" user_alice="secret";'
)


def properties(authority: Authority, data: Path, protocol: str, node: int) -> dict[str, str]:
    # Each broker has a certificate with its own name.
    identity = authority.issue(f"{protocol}-{node}".lower(), f"/CN=broker-{node}")
    return {
        "node.id": str(node),
        "listeners": f"{protocol}://127.0.0.1:0",
        "log.dirs": str(data / str(node)),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(identity.both),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": _JAAS,
    }


async def start_two(settings: Callable[[int], dict[str, str]]) -> list[Broker]:
    """Two brokers, with the settings that a node has."""
    store = MemoryStore(SimRandom(0))
    brokers = [
        Broker(
            local_env(),
            parse_broker_config(settings(node)).config,
            store.view(),
            brokers_in_process=2,
            start_together=[NodeId(1), NodeId(2)],
        )
        for node in (1, 2)
    ]
    await asyncio.gather(*(broker.start() for broker in brokers))
    return brokers


async def check_is_no_broker(client: PeerConnection, broker: Broker) -> None:
    epoch = broker.replicas.image.registered_brokers[NodeId(1)].epoch
    answer = await client.call(ApiKey.BROKER_HEARTBEAT, 1, heartbeat_fields(1, epoch))
    assert answer.error_code == REFUSED


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_brokers_replicate_over_tls_and_a_client_certificate_is_not_a_brokers(
    authority: Authority, tmp_path: Path, protocol: str
) -> None:
    async def scenario() -> None:
        brokers = await start_two(partial(properties, authority, tmp_path, protocol))
        alice = authority.issue(f"alice-{protocol}".lower(), "/CN=alice")
        access = Access(protocol, authority.certificate, alice, "PLAIN", "alice", "secret")
        security = read_client_security(client_properties(access), LocalDisk(), SystemRandom())
        port = brokers[0].listeners[0].port
        client = await connect_securely(security, "me")(Address("127.0.0.1", port))
        assert (await create(client, assignments=[[1, 2]])).error_code == 0
        await until(lambda: "orders" in brokers[0].replicas.image.topics)
        assert (await produce(client, "orders", [b"x"])).error_code == 0
        assert set(brokers[0].replicas.image.topics["orders"].partitions[0].isr) == {1, 2}
        await check_is_no_broker(client, brokers[0])
        await client.close()
        await asyncio.gather(*(broker.stop() for broker in brokers))

    asyncio.run(asyncio.wait_for(scenario(), 240))


_TOKEN_S = 4


def test_brokers_log_in_with_tokens_and_read_the_file_again_before_one_ends(
    tmp_path: Path,
) -> None:
    issuer, token, keys = Issuer(), tmp_path / "token", tmp_path / "keys.json"
    issuer.publish(keys)

    def with_tokens(node: int) -> dict[str, str]:
        return {
            "node.id": str(node),
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / str(node)),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "min.insync.replicas": "2",
        }

    async def renew() -> None:
        while True:
            (tmp_path / "next").write_text(issuer.token("broker", _TOKEN_S))
            (tmp_path / "next").rename(token)
            await asyncio.sleep(_TOKEN_S / 4)

    async def scenario() -> None:
        renewing = asyncio.create_task(renew())
        await asyncio.sleep(0)
        brokers = await start_two(with_tokens)
        security = ClientSecurity(log_in=alice)
        port = brokers[0].listeners[0].port
        client = await connect_securely(security, "me")(Address("127.0.0.1", port))
        assert (await create(client, assignments=[[1, 2]])).error_code == 0
        await until(lambda: "orders" in brokers[0].replicas.image.topics)
        assert (await produce(client, "orders", [b"x"])).error_code == 0
        await asyncio.sleep(_TOKEN_S)  # what they had until here has ended
        assert (await produce(client, "orders", [b"y"])).error_code == 0
        assert set(brokers[0].replicas.image.topics["orders"].partitions[0].isr) == {1, 2}
        await check_is_no_broker(client, brokers[0])
        await client.close()
        await asyncio.gather(*(broker.stop() for broker in brokers))
        renewing.cancel()

    async def alice() -> OAuthBearerClient:
        return OAuthBearerClient(issuer.token("alice"))

    asyncio.run(asyncio.wait_for(scenario(), 240))
