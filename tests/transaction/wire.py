"""Transactional requests over the wire to a broker of production code, under simulated time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from suwi.client.connection import PeerConnection
from suwi.sim import Simulation
from suwi.transaction.transaction_coordinator_shard import TransactionCoordinatorShard
from suwi.transaction.transaction_metadata import Producer
from suwi.wire.versions import ApiKey
from tests.broker.simulated import PORT, SimBroker, create_topic, delete_topic

ID, TOPIC, GROUP = "copier", "orders", "g"
TRANSACTION = 1
"""The key type of FindCoordinator."""


class Wire:
    """A broker with a topic of two partitions, and a connection to it."""

    def __init__(self, broker: SimBroker, *, has_groups: bool) -> None:
        self.broker = broker
        self._has_groups = has_groups
        self.client: PeerConnection

    async def begin(self) -> None:
        await self.broker.start()
        await self.connect()
        await self.create_topic(TOPIC)
        for key_type in (0, TRANSACTION) if self._has_groups else (TRANSACTION,):
            await self.find(ID, key_type=key_type)
        await self.until_served()

    async def connect(self) -> None:
        self.client = await PeerConnection.open(self.broker.machine.name, PORT, client_id="raw")

    async def create_topic(self, name: str, partitions: int = 2) -> None:
        await create_topic(self.client, name, partitions=partitions)

    async def delete_topic(self, name: str) -> None:
        await delete_topic(self.client, name)

    async def find(self, *keys: str, version: int = 6, key_type: int = TRANSACTION) -> Any:
        fields = {"key": keys[0], "key_type": key_type, "coordinator_keys": keys}
        return await self.client.call(ApiKey.FIND_COORDINATOR, version, fields)

    async def until_served(self) -> None:
        while (await self.describe(ID)).error_code in (14, 15, 16):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    @property
    def machine(self) -> TransactionCoordinatorShard:
        assert self.broker.broker is not None
        machine: TransactionCoordinatorShard = self.broker.broker.transactions.runtime.shard_of(
            ID
        ).machine
        return machine

    async def init(
        self,
        name: str | None = ID,
        *,
        version: int = 5,
        expected: tuple[int, int] = (-1, -1),
        timeout_ms: int = 60_000,
    ) -> Any:
        fields = {
            "transactional_id": name,
            "transaction_timeout": timeout_ms,
            "producer_id": expected[0],
            "producer_epoch": expected[1],
        }
        return await self.client.call(ApiKey.INIT_PRODUCER_ID, version, fields)

    async def producer(self) -> Producer:
        answer = await self.init()
        assert answer.error_code == 0, answer
        return Producer(answer.producer_id, answer.producer_epoch)

    async def add(
        self,
        producer: tuple[int, int],
        partitions: Mapping[str, list[int]] | None = None,
        *,
        version: int = 3,
        name: str = ID,
        verify_only: bool = False,
    ) -> dict[tuple[str, int], int]:
        topics = [
            {"name": topic, "partitions": indexes}
            for topic, indexes in (partitions or {TOPIC: [0]}).items()
        ]
        fields: dict[str, Any] = {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": topics,
            "transactions": [
                {
                    "transactional_id": name,
                    "producer_id": producer[0],
                    "producer_epoch": producer[1],
                    "verify_only": verify_only,
                    "topics": topics,
                }
            ],
        }
        answer = await self.client.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)
        if version < 4:
            results = answer.results_by_topic_v3_and_below
        else:
            (of_transaction,) = answer.results_by_transaction
            results = of_transaction.topic_results
        return {
            (topic.name, each.partition_index): int(each.partition_error_code)
            for topic in results
            for each in topic.results_by_partition
        }

    async def add_offsets(
        self, producer: tuple[int, int], *, version: int = 4, name: str = ID
    ) -> int:
        fields = {
            "transactional_id": name,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "group_id": GROUP,
        }
        answer = await self.client.call(ApiKey.ADD_OFFSETS_TO_TXN, version, fields)
        return int(answer.error_code)

    async def end(
        self,
        producer: tuple[int, int],
        *,
        commit: bool = True,
        version: int = 4,
        name: str = ID,
    ) -> Any:
        fields = {
            "transactional_id": name,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": commit,
        }
        return await self.client.call(ApiKey.END_TXN, version, fields)

    async def describe(self, name: str = ID) -> Any:
        fields = {"transactional_ids": [name]}
        answer = await self.client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, fields)
        return answer.transaction_states[0]

    async def list(self, version: int = 2, **filters: Any) -> Any:
        fields = {"state_filters": (), "producer_id_filters": (), **filters}
        return await self.client.call(ApiKey.LIST_TRANSACTIONS, version, fields)

    async def until(self, state: str) -> Any:
        async with asyncio.timeout(100):
            while (described := await self.describe()).transaction_state != state:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return described


def on_broker(
    scenario: Callable[[Wire], Awaitable[None]], *, has_groups: bool = True, **settings: str
) -> None:
    """Run that against a broker whose internal topics have one partition."""
    simulation = Simulation(0)
    internal = {
        f"{topic}_{key}": "1"
        for topic in ("offsets_topic", "transaction_state_log")
        for key in ("num_partitions", "replication_factor")
    }
    wire = Wire(SimBroker(simulation, **internal, **settings), has_groups=has_groups)

    async def run() -> None:
        await wire.begin()
        await scenario(wire)
        # Whatever was asked: the shard serves on.
        assert (await wire.init("still there")).error_code == 0

    simulation.run(run())
