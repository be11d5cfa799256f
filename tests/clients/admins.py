"""A common interface to the admin clients. Results are Kafka's error codes."""

import asyncio
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from typing import Any, ClassVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python reads its schemas with a call that is deprecated in Python 3.11.
    from kafka.admin import KafkaAdminClient


class Admin(ABC):
    name: ClassVar[str]

    def __init__(self, address: str) -> None:
        self._address = address

    @abstractmethod
    def create(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> int: ...

    @abstractmethod
    def delete(self, topic: str) -> int: ...

    @abstractmethod
    def topics(self) -> set[str]: ...


class ConfluentAdmin(Admin):
    name = "confluent-kafka"

    def create(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> int:
        new = NewTopic(topic, partitions, replication_factor, config=dict(configs or {}))
        client = self._client()
        return self._code_of(client.create_topics([new])[topic])

    def delete(self, topic: str) -> int:
        client = self._client()
        return self._code_of(client.delete_topics([topic])[topic])

    def topics(self) -> set[str]:
        return set(self._client().list_topics(timeout=120).topics)

    def _client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._address})

    def _code_of(self, future: Any) -> int:
        try:
            future.result(timeout=120)
        except KafkaException as error:
            return error.args[0].code()
        return 0


class KafkaPythonAdmin(Admin):
    name = "kafka-python"

    def create(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> int:
        wanted = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": dict(configs or {}),
        }
        with closing(self._client()) as client:
            answer = client.create_topics({topic: wanted}, raise_errors=False)
        return answer["topics"][0]["error_code"]

    def delete(self, topic: str) -> int:
        with closing(self._client()) as client:
            answer = client.delete_topics([topic], raise_errors=False)
        return answer["topics"][0]["error_code"]

    def topics(self) -> set[str]:
        with closing(self._client()) as client:
            return set(client.list_topics())

    def _client(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self._address)


class AioKafkaAdmin(Admin):
    name = "aiokafka"

    def create(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> int:
        new = AioNewTopic(topic, partitions, replication_factor, topic_configs=dict(configs or {}))
        return self._ask("create_topics", [new]).topic_errors[0][1]

    def delete(self, topic: str) -> int:
        return self._ask("delete_topics", [topic]).topic_error_codes[0][1]

    def topics(self) -> set[str]:
        return set(self._ask("list_topics"))

    def _ask(self, method: str, *arguments: Any) -> Any:
        async def run() -> Any:
            client = AIOKafkaAdminClient(bootstrap_servers=self._address)
            await client.start()
            try:
                return await getattr(client, method)(*arguments)
            finally:
                await client.close()

        return asyncio.run(run())


ADMINS = {admin.name: admin for admin in (ConfluentAdmin, KafkaPythonAdmin, AioKafkaAdmin)}
