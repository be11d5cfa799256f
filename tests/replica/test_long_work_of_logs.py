"""Periodic work on the logs of very many partitions takes several turns of the event loop."""

import asyncio
from types import SimpleNamespace
from typing import Any

from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.replica.log_manager import LogManager


def test_others_run_while_many_partitions_are_looked_at_for_a_sync() -> None:
    async def scenario() -> int:
        partitions = [
            SimpleNamespace(partition=TopicPartition("t", PartitionIndex(number)), is_closed=True)
            for number in range(10_000)
        ]
        manager: Any = SimpleNamespace(
            _replicas=SimpleNamespace(take_dirty_partitions=lambda: partitions),
            _unsynced={},
            _moved={},
            _last_sync_s={},
        )
        turns = 0
        syncing = asyncio.ensure_future(LogManager._sync_dirty_partitions(manager))
        while not syncing.done():
            await asyncio.sleep(0)
            turns += 1
        assert manager._unsynced == {}
        return turns

    assert asyncio.run(scenario()) >= 10
