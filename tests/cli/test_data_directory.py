"""Permissions and path of the data directory."""

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from suwi.wire.versions import ApiKey
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi, write_lines
from tests.raw_client import RawClient

WARNING = "other users can read the data"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _set_umask(umask: int) -> None:
    os.umask(umask)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_new_data_directory_is_readable_by_its_owner_only(tmp_path: Path, umask: int) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, in_child=partial(_set_umask, umask)) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "orders")
        suwi.ok("produce", "orders", "--file", write_lines(tmp_path / "lines", "a"))
        broker.stop()
    found = [data, *data.rglob("*")]
    assert {"suwi-metadata.sqlite", "meta.properties", "partition.metadata"} < {
        path.name for path in found
    }
    assert {path.name: oct(mode(path)) for path in found if mode(path) & 0o077} == {}
    assert all(mode(path) == (0o700 if path.is_dir() else 0o600) for path in found)
    assert WARNING not in broker.log


def test_a_data_directory_that_others_can_read_causes_one_warning(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    with BrokerProcess(data) as broker:
        assert broker.log.count(WARNING) == 1
        broker.stop()


def test_a_relative_data_directory_is_shown_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with BrokerProcess(Path("data")) as broker:
        with RawClient(broker.address) as client:
            answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
        assert [found.log_dir for found in answer.results] == [str(tmp_path / "data")]
        broker.stop()
