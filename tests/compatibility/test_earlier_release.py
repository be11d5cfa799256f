"""What an earlier release wrote still works: its data directories, its JSON, its imports.

The fixture is of commit a174b75; `write_fixture.py` has made it. Its brokers ran under another boot
of another machine, so for those that were killed the start is one after a power loss.
"""

import importlib
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from suwi.records.batch import batches
from tests.broker_process import BrokerProcess
from tests.compatibility.observe import dump, observe, run
from tests.raw_client import RawClient

ARCHIVE = Path(__file__).parent / "data" / "a174b75.tar.gz"
CLUSTERS = {"clean": (), "killed": (), "three-killed": ("--brokers", "3")}
HEALTHY_WITHIN_S = 120
# The broker changes nothing by itself: no compaction, no expiry of the fixture's producers.
SETTINGS = ("log.cleaner.enable=false", "producer.id.expiration.check.interval.ms=2147483647")

Json = Any


def unpacked(parent: Path, name: str) -> Json:
    """Unpack one cluster; what the command line of its release said about it."""
    with tarfile.open(ARCHIVE) as archive:
        members = [m for m in archive if m.name.split("/")[0] in (name, f"{name}.json")]
        archive.extractall(parent, members, filter="data")
    return json.loads((parent / f"{name}.json").read_text())


class Upgraded(NamedTuple):
    """A cluster of the present code on the fixture's data."""

    address: str
    data: Path
    before: Json
    now: Json
    """What the command line said before the upgrade, and after it."""


@pytest.fixture(params=CLUSTERS, scope="module")
def upgraded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Upgraded]:
    name, parent = request.param, tmp_path_factory.mktemp("upgraded")
    before = unpacked(parent, name)
    with BrokerProcess(parent / name, *SETTINGS, options=CLUSTERS[name]) as broker:
        wait_until_healthy(broker.address)
        yield Upgraded(broker.address, broker.data, before, observe(broker.address))


def wait_until_healthy(address: str) -> None:
    end_s = time.monotonic() + HEALTHY_WITHIN_S
    while True:
        topics = json.loads(run(address, "topics", "describe", "--json"))
        partitions = [partition for topic in topics for partition in topic["partitions"]]
        # A partition without a leader has None.
        if all(p["leader"] is not None and set(p["isr"]) == set(p["replicas"]) for p in partitions):
            return
        assert time.monotonic() < end_s, topics
        time.sleep(0.2)


def key_paths(value: Json, path: str = "") -> set[str]:
    """Where in a document there are which keys, whatever the values."""
    if isinstance(value, dict):
        return set().union(
            *({f"{path}.{k}"} | key_paths(v, f"{path}.{k}") for k, v in value.items())
        )
    if isinstance(value, list):
        return set().union(*(key_paths(each, f"{path}[]") for each in value))
    return set()


def facts(topics: Json) -> Json:
    """What of topics outlives a restart."""
    return {
        topic["topic"]: (
            topic["topic_id"],
            topic["configs"],
            [(p["replicas"], p["start_offset"], p["end_offset"]) for p in topic["partitions"]],
        )
        for topic in topics
    }


def without_doc(settings: Json) -> Json:
    return [{key: value for key, value in each.items() if key != "doc"} for each in settings]


def test_records_topic_ids_settings_and_users_are_as_before(upgraded: Upgraded) -> None:
    before, now = upgraded.before, upgraded.now
    assert now["records"] == before["records"]
    assert facts(now["topics"]) == facts(before["topics"])
    assert now["list"] == before["list"]
    assert now["users"] == before["users"]
    assert without_doc(now["broker configs"]) == without_doc(before["broker configs"])
    for topic, settings in before["configs"].items():
        assert without_doc(now["configs"][topic]) == without_doc(settings)


def test_json_has_the_keys_that_it_had(upgraded: Upgraded) -> None:
    before = {key: value for key, value in upgraded.before.items() if key != "dump"}
    assert key_paths(before) - key_paths(upgraded.now) == set()


def test_producers_are_known_by_their_sequences(upgraded: Upgraded) -> None:
    """The last batch of an idempotent producer, sent again, is answered with its first offset."""
    if not (upgraded.data / "orders-0").exists():
        pytest.skip("the leader may be any of three brokers")
    data = (upgraded.data / "orders-0" / "00000000000000000060.log").read_bytes()
    found = [(position, header) for position, header in batches(data) if header.base_offset == 70]
    ((position, header),) = found
    batch = bytes(8) + data[position + 8 : position + header.size_bytes]
    with RawClient(upgraded.address) as client:
        again = client.produce("orders", batch)
    assert (again.error, again.base_offset) == (0, 70)


def test_writing_goes_on_where_it_ended(upgraded: Upgraded) -> None:
    words = ("produce", "orders", "--partition", "0", "--json")
    said = json.loads(run(upgraded.address, *words, stdin='{"value":"new"}\n'))
    assert said["partitions"] == [
        {"partition": 0, "records": 1, "first_offset": 80, "last_offset": 80}
    ]


def test_files_read_as_before(tmp_path: Path) -> None:
    before = unpacked(tmp_path, "clean")["dump"]
    now = dump(tmp_path / "clean")
    assert [e for e in now if e["type"] != "note"] == [e for e in before if e["type"] != "note"]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("suwi.testing", ("AsyncCluster", "Cluster", "NotInTime")),
        ("suwi.testing.pytest_plugin", ("suwi", "suwi_cluster")),
        ("suwi.broker.broker", ("Broker",)),
        ("suwi.client.admin", ("Admin",)),
        ("suwi.client.cluster", ("Cluster",)),
        ("suwi.client.producer", ("Producer",)),
        ("suwi.client.reader", ("Reader",)),
        ("suwi.spark", ("register", "read_topics", "decode", "to_delta", "to_topic")),
        ("suwi.spark.delta.maintenance", ("compact", "clean_orphans")),
        ("suwi.spark.java", ("use_java",)),
    ],
)
def test_documented_imports_work(module: str, names: tuple[str, ...]) -> None:
    if module.startswith("suwi.spark"):
        pytest.importorskip("pyspark")
    imported = importlib.import_module(module)
    assert [name for name in names if not hasattr(imported, name)] == []


def test_the_test_kit_has_its_methods() -> None:
    """Those that docs/testing.md names."""
    from suwi.testing import AsyncCluster, Cluster

    methods = """
        create_topic kill stop_broker restart pause resume partition slow heal fill_disk free_disk
        power_loss expire_session wait_leader wait_isr wait_until_healthy wait_event replicas
        controller events files bootstrap_servers snapshot fork
    """
    for kit in (Cluster, AsyncCluster):
        assert [name for name in methods.split() if not hasattr(kit, name)] == []
