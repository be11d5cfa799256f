"""After an unclean shutdown a broker checks every log, and logs its progress."""

import asyncio
import logging

import pytest

from suwi.log import names
from suwi.model.ids import Offset
from suwi.replica import log_loader
from suwi.replica.log_loader import recover_all
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
