"""The start of a broker with many logs, and their recovery after an unclean shutdown."""

import asyncio
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from suwi.log import names
from suwi.model.ids import NodeId, Offset, PartitionIndex, TopicId, TopicPartition
from suwi.replica import log_loader
from suwi.replica.log_loader import LogLoader, recover_all
from suwi.sim import SimDisk
from tests.log.directory_kit import write_high_watermarks
from tests.replica.alone import ORDERS, partition_and_directory, partitions


def test_recovery_logs_its_progress(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_loader, "_PROGRESS_EVERY_S", 0.0)
    many = partitions(100)
    with caplog.at_level(logging.INFO, "suwi.replica.log_loader"):
        asyncio.run(recover_all(many))
    assert all(partition.is_open for partition in many)
    done = [record.done for record in caplog.records if record.message == "logs recovered"]  # type: ignore[attr-defined]
    assert done == [32, 64, 96, 100]


def test_recovery_writes_lowered_high_watermarks_before_it_ends() -> None:
    """The controller will query them soon, and a replica that is not ready cannot respond."""
    disk = SimDisk()
    partition, directory = partition_and_directory(disk=disk)
    partition.replica_log.open()
    write_high_watermarks(directory, [(ORDERS, Offset(7))])
    disk = disk.crash()
    partition, _ = partition_and_directory(disk=disk)
    asyncio.run(recover_all([partition]))
    assert partition.high_watermark == 0
    assert b"orders 0 0" in disk.read_bytes(f"/data/{names.HIGH_WATERMARKS}")


def test_others_run_while_the_directories_of_deleted_topics_are_looked_for() -> None:
    """The topic id of each is read then."""
    found = [TopicPartition("kept", PartitionIndex(index)) for index in range(2_000)]
    turn, looked_at = 0, Counter[int]()

    def topic_id_of(_: TopicPartition) -> TopicId:
        looked_at[turn] += 1
        return TopicId(UUID(int=1))

    directory = SimpleNamespace(
        found_partitions=lambda: found, topic_id_of=topic_id_of, was_clean=True
    )
    directories: Any = SimpleNamespace(usable=lambda: [directory])

    class Replicas(list[Any]):
        applying = asyncio.Lock()
        image = SimpleNamespace(deletions={1: {0: {UUID(int=2)}}}, topics={"kept": None})

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def main() -> None:
        replicas: Any = Replicas(SimpleNamespace(partition=tp) for tp in found)
        counting = asyncio.ensure_future(count_turns())
        await LogLoader(NodeId(1), directories, replicas, lambda _: None, adopts=False).load()
        counting.cancel()

    asyncio.run(main())
    assert looked_at.total() == len(found)
    assert max(looked_at.values()) < 200
