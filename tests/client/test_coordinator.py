"""When a coordinator is asked again, and when that would be of no use."""

import asyncio

import pytest

from suwi.client.addresses import Address
from suwi.client.cluster import BrokerInfo, Cluster
from suwi.client.coordinator import Coordinator
from suwi.client.errors import Unreachable
from suwi.client.settings import ClientSettings
from suwi.env import SystemRandom
from suwi.model.ids import NodeId

NOWHERE = Address("nowhere", 9092)


class Attempts:
    """Fails as if no broker could be reached, a number of times; counts the calls."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise Unreachable([(NOWHERE, ConnectionRefusedError())])
        return "answer"


def test_a_coordinator_is_not_waited_for_where_no_broker_has_ever_answered() -> None:
    async def main() -> None:
        attempts = Attempts(failures=1)
        with pytest.raises(Unreachable):
            await _coordinator().ask(attempts)
        assert attempts.calls == 1

    asyncio.run(main())


def test_a_coordinator_of_a_known_cluster_is_waited_for() -> None:
    async def main() -> None:
        attempts = Attempts(failures=3)
        coordinator = _coordinator()
        coordinator.cluster.brokers[NodeId(1)] = BrokerInfo(NodeId(1), NOWHERE, None)
        assert await coordinator.ask(attempts) == "answer"

    asyncio.run(main())


def _coordinator() -> Coordinator:
    settings = ClientSettings(retry_pause_s_min=0.001, retry_timeout_s=60)
    return Coordinator(Cluster([NOWHERE], random=SystemRandom(), settings=settings), "g")
