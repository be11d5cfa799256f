"""docs/damage.md, row by row: the damage is produced for real, and everything is compared."""

import asyncio
import ctypes
import re
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from suwi.client.addresses import parse_addresses
from suwi.client.admin import Admin
from suwi.client.cluster import Cluster
from suwi.env import local_env
from suwi.env.problems import ProblemKind
from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from tests.broker_process import BrokerProcess
from tests.cli.support import Suwi
from tests.damage.test_full_disk import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "damage.md"
SETTINGS = ("log.segment.bytes=16384", "log.index.interval.bytes=1024")
RECORDS = 80
DELETED = 3
ORDERS = "orders-0"
_PR_CAPBSET_DROP = 24
_CAPS_THAT_IGNORE_PERMISSIONS = (1, 2)


class Row(NamedTuple):
    damaged: str
    problem: str
    doctor: str
    log: str
    clients_of_one: str
    clients_of_three: str


def rows() -> list[Row]:
    files = PAGE.read_text().partition("## Used up")[0]
    lines = [line for line in files.splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[1:]]


def quoted(cell: str) -> str:
    """The text in backticks; empty if there is none."""
    found = re.search("`([^`]+)`", cell)
    return found[1] if found else ""


# -- the damages -----------------------------------------------------------------------------------


def of_directory(name: str, damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda data: damage(data / name)


def of_partition(pattern: str, damage: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(data: Path) -> None:
        found = sorted((data / ORDERS).glob(pattern))
        assert found
        for path in found:
            damage(path)

    return apply


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(b"\x01" * max(path.stat().st_size, 24) if path.exists() else b"\x01" * 24)


def garble(path: Path) -> None:
    path.write_bytes(b"rubbish\n")


def kill_without_mark(data: Path) -> None:
    remove(data / ".kafka_cleanshutdown")
    remove(data / ".suwi-running")


def lose_topic_id(data: Path) -> None:
    empty(data / ORDERS / "partition.metadata")
    empty(data / "recovery-point-offset-checkpoint")


def damage_txn_index(data: Path) -> None:
    first = min((data / ORDERS).glob("*.log"))
    first.with_suffix(".txnindex").write_bytes(b"\x00" * 10)


def change_byte(data: Path) -> None:
    path = sorted((data / ORDERS).glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 500, len(content) // 2)] ^= 0xFF
    path.write_bytes(content)


def change_byte_and_kill(data: Path) -> None:
    """Without the leader epochs all batches are read again, not only those that were not synced."""
    change_byte(data)
    remove(data / ".kafka_cleanshutdown")
    remove(data / ORDERS / "leader-epoch-checkpoint")


def lose_segment(data: Path) -> None:
    first, lost, *more = sorted((data / ORDERS).glob("*.log"))
    assert more, first
    for suffix in (".log", ".index", ".timeindex"):
        lost.with_suffix(suffix).unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "`recovery-point-offset-checkpoint` truncated": of_directory(
        "recovery-point-offset-checkpoint", truncate
    ),
    "`recovery-point-offset-checkpoint` removed": of_directory(
        "recovery-point-offset-checkpoint", remove
    ),
    "`replication-offset-checkpoint` truncated": of_directory(
        "replication-offset-checkpoint", truncate
    ),
    "`log-start-offset-checkpoint` truncated": of_directory(
        "log-start-offset-checkpoint", truncate
    ),
    "`cleaner-offset-checkpoint` damaged": of_directory("cleaner-offset-checkpoint", garble),
    "`leader-epoch-checkpoint` truncated": of_partition("leader-epoch-checkpoint", truncate),
    "`partition.metadata` emptied": of_partition("partition.metadata", empty),
    "`partition.metadata` and `recovery-point-offset-checkpoint` emptied": lose_topic_id,
    "producer snapshots truncated": of_partition("*.snapshot", truncate),
    "producer snapshots removed": of_partition("*.snapshot", remove),
    "`.index` files removed": of_partition("*.index", remove),
    "`.index` files overwritten": of_partition("*.index", overwrite),
    "`.timeindex` files overwritten": of_partition("*.timeindex", overwrite),
    "a `.txnindex` file damaged": damage_txn_index,
    "`meta.properties` removed": of_directory("meta.properties", remove),
    "`meta.properties` damaged": of_directory("meta.properties", garble),
    "`suwi-metadata.sqlite` removed": of_directory("suwi-metadata.sqlite", remove),
    "`suwi-metadata.sqlite` overwritten": of_directory("suwi-metadata.sqlite", overwrite),
    "`.kafka_cleanshutdown` removed": of_directory(".kafka_cleanshutdown", remove),
    "`.kafka_cleanshutdown` and `.suwi-running` removed": kill_without_mark,
    "a partition's directory without read permission": of_directory(
        ORDERS, lambda path: path.chmod(0)
    ),
    "a byte changed in a closed segment": change_byte,
    "a byte changed in a closed segment, and the broker was killed": change_byte_and_kill,
    "a segment in the middle lost": lose_segment,
}
FAST = frozenset(
    {
        "`log-start-offset-checkpoint` truncated",
        "`.index` files overwritten",
        "a partition's directory without read permission",
    }
)
"""The others take minutes together."""


def test_every_row_of_the_page_is_tried() -> None:
    assert [row.damaged for row in rows()] == list(DAMAGES)


# -- the brokers -----------------------------------------------------------------------------------


def obey_permissions() -> None:
    """As for other users: root may read everything else."""
    libc = ctypes.CDLL(None)
    for capability in _CAPS_THAT_IGNORE_PERMISSIONS:
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def process(data: Path, brokers: int) -> BrokerProcess:
    options = ("--brokers", str(brokers)) if brokers > 1 else ("--metrics-port", "0")
    return BrokerProcess(data, *SETTINGS, options=options, in_child=obey_permissions)


@contextmanager
def stopped_in_the_end(broker: BrokerProcess) -> Iterator[BrokerProcess]:
    try:
        yield broker
    finally:
        if broker.is_running:
            broker.kill()


def written(first: int = 0) -> list[str]:
    return [f"{number} {'x' * 1_000}" for number in range(first, RECORDS)]


async def _delete_records(address: str) -> None:
    async with Cluster(parse_addresses(address), random=local_env().random) as cluster:
        partition = TopicPartition("orders", PartitionIndex(0))
        deleted = await Admin(cluster).delete_records({partition: Offset(DELETED)})
        assert deleted == {partition: DELETED}


def make_data(data: Path, brokers: int) -> Path:
    with process(data, brokers) as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "orders", "--replication-factor", brokers)
        for first in range(0, RECORDS, 8):
            lines = "".join(f"{line}\n" for line in written()[first : first + 8])
            suwi.produce("orders", lines)
        asyncio.run(_delete_records(broker.address))
        broker.stop()
    return data


@pytest.fixture(scope="module")
def data_of_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("one") / "data", 1)


@pytest.fixture(scope="module")
def data_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("three") / "data", 3)


def _params() -> Iterator[object]:
    for row in rows():
        marks = [] if row.damaged in FAST else [pytest.mark.slow]
        yield pytest.param(row, id=row.damaged.replace("`", ""), marks=marks)


def check_directory(row: Row, data: Path) -> None:
    found = Suwi("")("doctor", "--data", data)
    if row.doctor == "nothing":
        assert found.exit_code == 0, found.output
    else:
        assert found.exit_code == 1
        assert quoted(row.doctor).strip() in found.output


def check_metrics(row: Row, url: str) -> None:
    with urllib.request.urlopen(url) as response:
        lines = response.read().decode().splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if line.startswith("suwi_problems{"))
    shown = [name for name, count in counts.items() if float(count)]
    kind = quoted(row.problem)
    assert shown == ([f'suwi_problems{{kind="{kind}"}}'] if kind else [])


def check_brokers(row: Row, broker: BrokerProcess, clients: str) -> None:
    if row.problem == "does not start":
        assert quoted(row.log) in broker.refused_start()
        return
    broker.start()
    suwi = Suwi(broker.address)
    read = suwi.run("consume", "orders", "--from-beginning", "--no-follow")
    if clients.startswith("get"):
        assert read.returncode != 0
        assert quoted(clients).lower().replace("_", " ") in read.stderr.decode()
    else:
        starts = [0] if "also deleted" in clients else [DELETED]
        if "if it leads" in clients:
            starts = [0, DELETED]
        assert read.stdout.decode().splitlines() in [written(first) for first in starts], (
            read.stderr
        )
    is_replaced = "copied anew" in clients
    line = quoted(clients) if is_replaced else quoted(row.log)
    wait_until(lambda: line in broker.log)
    kind = "" if is_replaced else quoted(row.problem)
    wait_until(lambda: suwi("status").exit_code == (1 if kind else 0))
    status, doctor = suwi("status").output, suwi("doctor").output
    assert kind.replace("-", " ") in status
    if kind:
        (advice,) = [each.advice for each in ProblemKind if each.label == kind]
        assert advice in doctor
        assert f"kind={kind}" in broker.log
    elif not is_replaced:
        assert "problem kind=" not in broker.log
    assert "Traceback" not in broker.log


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="permissions are Linux's")
@pytest.mark.parametrize("row", list(_params()))
def test_damage_of_one_broker(row: Row, data_of_one: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(data_of_one, data)
    DAMAGES[row.damaged](data)
    try:
        if "without read permission" not in row.damaged:
            check_directory(row, data)  # root reads it nevertheless
        with stopped_in_the_end(process(data, 1)) as broker:
            check_brokers(row, broker, row.clients_of_one)
            if broker.is_running:
                check_metrics(row, broker.metrics_url())
    finally:
        (data / ORDERS).chmod(0o700)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="permissions are Linux's")
@pytest.mark.parametrize("row", list(_params()))
def test_damage_of_one_broker_of_three(row: Row, data_of_three: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(data_of_three, data)
    is_metadata = "sqlite" in row.damaged
    DAMAGES[row.damaged](data if is_metadata else data / "1")
    try:
        with stopped_in_the_end(process(data, 3)) as broker:
            check_brokers(row, broker, row.clients_of_three)
    finally:
        (data / "1" / ORDERS).chmod(0o700)
