"""Fixtures with the disks that a log must work on."""

import os

import pytest

from suwi.env import Disk, LocalDisk
from suwi.sim import SimDisk
from tests.log.compaction_kit import COMPACT
from tests.log.kit import Bench


@pytest.fixture(params=["simulated", "local"])
def bench(request: pytest.FixtureRequest, tmp_path: os.PathLike[str]) -> Bench:
    """An empty log, on a simulated disk and on the local disk."""
    if request.param == "simulated":
        return Bench()
    return Bench(disk=LocalDisk(), dir=f"{os.fspath(tmp_path)}/orders-0")


@pytest.fixture(params=["simulated", "local"])
def disk_and_dir(request: pytest.FixtureRequest, tmp_path: os.PathLike[str]) -> tuple[Disk, str]:
    if request.param == "simulated":
        disk = SimDisk()
        disk.make_dirs("/data")
        return disk, "/data"
    return LocalDisk(), os.fspath(tmp_path)


@pytest.fixture
def compacting(bench: Bench) -> Bench:
    """On a simulated disk and on the local disk."""
    bench.config = COMPACT
    return bench
