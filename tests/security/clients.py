"""A common interface to several Kafka clients: produce, consume, fail to authenticate."""

import asyncio
import json
import logging
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import confluent_kafka
from aiokafka.structs import TopicPartition as AioTopicPartition

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.security import connect_securely, read_client_security
from suwi.env import LocalDisk, SystemRandom
from suwi.wire.versions import ApiKey
from tests.security.certificates import Identity

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    import kafka
    from kafka.structs import TopicPartition as PythonTopicPartition

PATIENCE_S = 120
_T = TypeVar("_T")


class Access(NamedTuple):
    """Protocol and credentials."""

    protocol: str
    ca: Path | None = None
    identity: Identity | None = None
    mechanism: str = ""
    user: str = ""
    password: str = ""


class Client(Protocol):
    def produce(
        self, address: str, access: Access, topic: str, values: Sequence[bytes]
    ) -> None: ...

    def consume(self, address: str, access: Access, topic: str, count: int) -> list[bytes]: ...

    def failure(self, address: str, access: Access) -> str:
        """Connect where that must fail; returns the client's error."""


class Confluent:
    def _settings(self, address: str, access: Access) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap.servers": address,
            "security.protocol": access.protocol,
            "broker.address.family": "v4",
        }
        if access.ca is not None:
            settings["ssl.ca.location"] = str(access.ca)
        if access.identity is not None:
            settings["ssl.certificate.location"] = str(access.identity.certificate)
            settings["ssl.key.location"] = str(access.identity.key)
        if access.mechanism:
            settings["sasl.mechanism"] = access.mechanism
            settings["sasl.username"] = access.user
            settings["sasl.password"] = access.password
        return settings

    def produce(self, address: str, access: Access, topic: str, values: Sequence[bytes]) -> None:
        producer = confluent_kafka.Producer(self._settings(address, access))
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0

    def consume(self, address: str, access: Access, topic: str, count: int) -> list[bytes]:
        settings = self._settings(address, access)
        settings |= {"group.id": "none", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(settings)
        with closing(consumer):
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
            values: list[bytes] = []
            while len(values) < count:
                message = consumer.poll(PATIENCE_S)
                assert message is not None
                assert message.error() is None, message.error()
                values.append(message.value())
        return values

    def failure(self, address: str, access: Access) -> str:
        errors: list[str] = []
        settings = self._settings(address, access)
        settings["error_cb"] = lambda error: errors.append(str(error))
        quiet = logging.getLogger("librdkafka")
        quiet.setLevel(logging.CRITICAL)
        producer = confluent_kafka.Producer(settings, logger=quiet)
        ends = time.monotonic() + PATIENCE_S
        while not errors and time.monotonic() < ends:
            producer.poll(0.1)
        return errors[0] if errors else ""


# kafka-python tells the reason in its log only, and tries again until its time is over.
_FAIL_TO_CONNECT = """
import json, logging, os, sys, kafka

class UpToFailure(logging.StreamHandler):
    def emit(self, record):
        super().emit(record)
        if record.msg.startswith("Bootstrap connection to %s failed"):
            os._exit(1)

logging.basicConfig(handlers=[UpToFailure()])
kafka.KafkaProducer(**json.loads(sys.argv[1])).close()
"""


class KafkaPython:
    def _settings(self, address: str, access: Access) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": access.protocol,
        }
        if access.ca is not None:
            settings["ssl_cafile"] = str(access.ca)
        if access.identity is not None:
            settings["ssl_certfile"] = str(access.identity.certificate)
            settings["ssl_keyfile"] = str(access.identity.key)
        if access.mechanism:
            settings["sasl_mechanism"] = access.mechanism
            settings["sasl_plain_username"] = access.user
            settings["sasl_plain_password"] = access.password
        return settings

    def produce(self, address: str, access: Access, topic: str, values: Sequence[bytes]) -> None:
        with closing(kafka.KafkaProducer(**self._settings(address, access))) as producer:
            sent = [producer.send(topic, value, partition=0) for value in values]
            for future in sent:
                future.get(PATIENCE_S)

    def consume(self, address: str, access: Access, topic: str, count: int) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            **self._settings(address, access), consumer_timeout_ms=PATIENCE_S * 1000
        )
        with closing(consumer):
            partition = PythonTopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            values: list[bytes] = []
            for record in consumer:
                values.append(record.value)
                if len(values) == count:
                    break
        return values

    def failure(self, address: str, access: Access) -> str:
        # In a process of its own, because it leaves a thread and sockets behind.
        limit_ms = PATIENCE_S * 1000
        settings = {**self._settings(address, access), "bootstrap_timeout_ms": limit_ms}
        ended = subprocess.run(
            [sys.executable, "-c", _FAIL_TO_CONNECT, json.dumps(settings)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return ended.stderr if ended.returncode else ""


class AioKafka:
    def _settings(self, address: str, access: Access) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": address,
            "security_protocol": access.protocol,
        }
        if access.protocol.endswith("SSL"):
            context = ssl.create_default_context(cafile=access.ca)
            if access.identity is not None:
                context.load_cert_chain(access.identity.certificate, access.identity.key)
            settings["ssl_context"] = context
        if access.mechanism:
            settings["sasl_mechanism"] = access.mechanism
            settings["sasl_plain_username"] = access.user
            settings["sasl_plain_password"] = access.password
        return settings

    def produce(self, address: str, access: Access, topic: str, values: Sequence[bytes]) -> None:
        async def work() -> None:
            async with aiokafka.AIOKafkaProducer(**self._settings(address, access)) as producer:
                for value in values:
                    await producer.send_and_wait(topic, value, partition=0)

        _run(work)

    def consume(self, address: str, access: Access, topic: str, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(**self._settings(address, access))
            async with consumer:
                partition = AioTopicPartition(topic, 0)
                consumer.assign([partition])
                consumer.seek(partition, 0)
                return [(await consumer.getone()).value for _ in range(count)]

        return _run(work)

    def failure(self, address: str, access: Access) -> str:
        said: list[str] = []
        listening = logging.Handler()
        listening.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]

        async def work() -> str:
            producer = aiokafka.AIOKafkaProducer(**self._settings(address, access))
            try:
                await producer.start()
            except Exception as error:
                return f"{type(error).__name__} {error}"
            finally:
                await producer.stop()
            return ""

        # The reason is in its log only.
        logging.getLogger("aiokafka").addHandler(listening)
        try:
            return "\n".join([_run(work), *said])
        finally:
            logging.getLogger("aiokafka").removeHandler(listening)


class Suwi:
    """Suwi's client: logs in and describes users; the rest is tested elsewhere."""

    def ask_users(self, address: str, access: Access) -> list[str]:
        async def work() -> list[str]:
            async with suwi_cluster(address, access) as cluster:
                answer = await cluster.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
                return [result.user for result in answer.results]

        return _run(work)

    def failure(self, address: str, access: Access) -> str:
        try:
            self.ask_users(address, access)
        except Exception as error:
            return f"{type(error).__name__} {error}"
        return ""


def client_properties(access: Access) -> dict[str, str]:
    """Properties for a Java client, which Suwi's client reads too."""
    properties = {"security.protocol": access.protocol}
    if access.ca is not None:
        properties["ssl.truststore.type"] = "PEM"
        properties["ssl.truststore.location"] = str(access.ca)
    if access.identity is not None:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.location"] = str(access.identity.both)
    if access.mechanism:
        module = "plain.Plain" if access.mechanism == "PLAIN" else "scram.Scram"
        password = access.password.replace("\\", "\\\\").replace('"', '\\"')
        properties["sasl.mechanism"] = access.mechanism
        properties["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="{access.user}" password="{password}";'
        )
    return properties


def suwi_cluster(address: str, access: Access) -> Cluster:
    random = SystemRandom()
    security = read_client_security(client_properties(access), LocalDisk(), random)
    connect = connect_securely(security, "test")
    return Cluster(parse_addresses(address), random=random, connect=connect)


CLIENTS: dict[str, Callable[[], Client]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


def _run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    return asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
