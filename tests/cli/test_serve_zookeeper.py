"""`suwi serve --zookeeper`: brokers as processes of their own, on a real ZooKeeper."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from tests.broker_process import BrokerProcess, unique_name
from tests.zookeeper import ZookeeperProcess, why_unavailable

PATIENCE_S = 120
SESSION_MS = 10_000
REASON = why_unavailable()
pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZookeeperProcess]:
    """For tests that stop it, or lose its data."""
    with ZookeeperProcess(tmp_path / "zookeeper") as process:
        yield process


@pytest.fixture(scope="module")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperProcess]:
    with ZookeeperProcess(tmp_path_factory.mktemp("shared") / "zookeeper") as process:
        yield process


@pytest.fixture
def tree(shared_zookeeper: ZookeeperProcess) -> str:
    """A tree of its own for the test's cluster."""
    return f"{shared_zookeeper.address}/{unique_name('test')}"


def make_broker(
    folder: Path, tree: str, number: int, *settings: str, wait: bool = True
) -> BrokerProcess:
    return BrokerProcess(
        folder / f"broker-{number}",
        "default.replication.factor=3",
        "min.insync.replicas=2",
        f"zookeeper.session.timeout.ms={SESSION_MS}",
        *settings,
        options=("--zookeeper", tree, "--id", str(number)),
        wait=wait,
    )


@contextmanager
def cluster(folder: Path, tree: str, *settings: str) -> Iterator[list[BrokerProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(make_broker(folder, tree, n, *settings)) for n in (1, 2, 3)]


def bootstrap(brokers: list[BrokerProcess]) -> str:
    return ",".join(broker.address for broker in brokers if broker.port)


def create_topic(brokers: list[BrokerProcess], name: str, partitions: int = 3) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap(brokers)})
    admin.create_topics([NewTopic(name, partitions, 3)])[name].result(PATIENCE_S)
    return admin


def produce(
    brokers: list[BrokerProcess], topic: str, *values: str, partition: int = 0
) -> list[int]:
    """The offsets of the records, all acknowledged by the in-sync replicas."""
    producer = Producer(
        {"bootstrap.servers": bootstrap(brokers), "acks": "all", "enable.idempotence": True}
    )
    offsets: list[int] = []

    def acked(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=acked)
    assert producer.flush(PATIENCE_S) == 0
    return offsets


def consume(brokers: list[BrokerProcess], topic: str, count: int, partition: int = 0) -> list[str]:
    # Without commits: with two brokers of three there is no coordinator, and close() would wait.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(brokers),
            "group.id": "none",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = [message.value().decode() for message in consumer.consume(count, PATIENCE_S)]
    consumer.close()
    return found


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def leader_of(admin: AdminClient, topic: str, partition: int = 0) -> int:
    return int(admin.list_topics(topic, PATIENCE_S).topics[topic].partitions[partition].leader)


def test_three_processes_are_a_cluster_that_survives_the_kill_of_a_leader(
    tmp_path: Path, tree: str
) -> None:
    with cluster(tmp_path, tree) as brokers:
        admin = create_topic(brokers, "orders")
        assert len(admin.list_topics(timeout=PATIENCE_S).brokers) == 3
        assert produce(brokers, "orders", "a", "b") == [0, 1]
        killed = leader_of(admin, "orders")
        brokers[killed - 1].kill()
        others = [broker for number, broker in enumerate(brokers, 1) if number != killed]
        assert produce(others, "orders", "c") == [2]
        assert consume(others, "orders", 3) == ["a", "b", "c"]
        wait_for(lambda: leader_of(admin, "orders") != killed, "all brokers know the new leader")

        brokers[killed - 1].start()
        wait_for(
            lambda: (
                len(admin.list_topics("orders", PATIENCE_S).topics["orders"].partitions[0].isrs)
                == 3
            ),
            "the killed broker is in sync again",
        )
        assert produce(brokers, "orders", "d") == [3]
        for broker in brokers:
            assert "stopped cleanly" in broker.stop()
            assert "Traceback" not in broker.log
    for broker in brokers:
        assert [record.value for record in broker.stored_records("orders")] == [
            b"a",
            b"b",
            b"c",
            b"d",
        ]


def test_a_group_goes_on_with_another_coordinator(tmp_path: Path, tree: str) -> None:
    with cluster(tmp_path, tree) as brokers:
        admin = create_topic(brokers, "orders", 1)
        produce(brokers, "orders", "a")
        settings = {
            "bootstrap.servers": bootstrap(brokers),
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(settings)
        consumer.subscribe(["orders"])
        (message,) = consumer.consume(1, PATIENCE_S)
        assert message.value() == b"a"
        consumer.commit(asynchronous=False)

        group = admin.describe_consumer_groups(["readers"])["readers"].result(PATIENCE_S)
        brokers[group.coordinator.id - 1].kill()
        produce(brokers, "orders", "b")
        (message,) = consumer.consume(1, PATIENCE_S)
        assert message.value() == b"b"
        wait_for(lambda: _commits(consumer), "an offset is committed to another coordinator")
        consumer.close()
        after = Consumer(settings)
        (position,) = after.committed([TopicPartition("orders", 0)], PATIENCE_S)
        assert position.offset == 2
        after.close()


def _commits(consumer: Consumer) -> bool:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException:
        consumer.poll(0.1)
        return False
    return True


def test_a_broker_started_before_zookeeper_waits_and_says_for_what(tmp_path: Path) -> None:
    zookeeper = ZookeeperProcess(tmp_path / "zookeeper")
    with make_broker(tmp_path, zookeeper.tree, 1, wait=False) as broker:
        line = f"waiting for ZooKeeper at {zookeeper.address}"
        wait_for(lambda: line in broker.log, "it says what it waits for")
        assert broker.is_running
        with zookeeper:
            broker.wait_until_ready()
            assert "connected to ZooKeeper" in broker.log
            assert "stopped cleanly" in broker.stop()
        assert "kazoo" not in broker.log, "a line for every attempt"


def test_ctrl_c_ends_a_broker_that_waits_for_zookeeper(tmp_path: Path) -> None:
    zookeeper = ZookeeperProcess(tmp_path / "zookeeper")
    with make_broker(tmp_path, zookeeper.tree, 1, wait=False) as broker:
        wait_for(lambda: "waiting for ZooKeeper" in broker.log, "it waits")
        assert broker.interrupt() == 128 + signal.SIGINT


def test_a_connection_timeout_ends_the_wait(tmp_path: Path) -> None:
    zookeeper = ZookeeperProcess(tmp_path / "zookeeper")
    broker = make_broker(tmp_path, zookeeper.tree, 1, "zookeeper.connection.timeout.ms=500")
    assert f"suwi: no ZooKeeper at {zookeeper.address}" in broker.refused_start()


def test_a_second_process_with_the_same_id_and_address_exits_and_the_first_stays(
    tmp_path: Path, tree: str
) -> None:
    with make_broker(tmp_path, tree, 1) as first:
        (directory_id,) = [
            line.removeprefix("directory.id=")
            for line in (first.data / "meta.properties").read_text().splitlines()
            if line.startswith("directory.id=")
        ]
        advertised = f"advertised.listeners=PLAINTEXT://{first.address}"
        second = make_broker(tmp_path / "second", tree, 1, advertised)
        second.data.parent.mkdir()
        said = second.refused_start()
        assert f"broker id 1 is in use: a broker with data directory {directory_id}" in said
        assert first.address in said
        assert first.log.count("broker registered") == 2  # once by itself, once as the controller
        assert "registration lost" not in first.log


def test_a_broker_killed_and_started_again_takes_over_its_registration_at_once(
    tmp_path: Path, tree: str
) -> None:
    with make_broker(tmp_path, tree, 1, "zookeeper.session.timeout.ms=30000") as broker:
        broker.kill()
        broker.start()
        assert "waiting for the end of an earlier registration" not in broker.log


# -- ZooKeeper is away (hazard Z6) -----------------------------------------------------------------


@pytest.mark.slow
def test_while_zookeeper_is_down_writers_and_groups_go_on_and_nothing_changes(
    tmp_path: Path, zookeeper: ZookeeperProcess
) -> None:
    # The brokers must be back before it ends.
    session = "zookeeper.session.timeout.ms=30000"
    with cluster(tmp_path, zookeeper.tree, session) as brokers, writer_and_group(brokers) as work:
        before = [broker.log.count("broker registered") for broker in brokers]
        zookeeper.kill()
        work.go_on(15)
        wait_for(
            lambda: any("resigned as controller" in broker.log for broker in brokers),
            "the controller has resigned",
        )
        zookeeper.start()
        wait_for(lambda: can_create_topic(brokers), "there is a controller again")
        work.go_on(1)
        assert [broker.log.count("broker registered") for broker in brokers] == before
        assert not any("session lost" in broker.log for broker in brokers)


@pytest.mark.slow
def test_while_zookeeper_is_silent_writers_and_groups_go_on(
    tmp_path: Path, zookeeper: ZookeeperProcess
) -> None:
    with cluster(tmp_path, zookeeper.tree) as brokers, writer_and_group(brokers) as work:
        zookeeper.suspend()
        work.go_on(3 * SESSION_MS / 1000)
        zookeeper.resume()
        wait_for(lambda: can_create_topic(brokers), "there is a controller again")
        work.go_on(1)


def test_a_broker_stops_in_bounded_time_while_zookeeper_is_silent(
    tmp_path: Path, zookeeper: ZookeeperProcess
) -> None:
    """Hazard Z15."""
    with make_broker(tmp_path, zookeeper.tree, 1) as broker:
        zookeeper.suspend()
        assert "stopped cleanly" in broker.stop()


def test_a_broker_is_copied_to_kafkas_znodes_on_request_and_not_into_another_tree(
    tmp_path: Path, tree: str
) -> None:
    settings = ("zookeeper.copy.enable=true", "zookeeper.auth=digest:suwi:secret")
    address, _, root = tree.partition("/")
    anybody = KazooClient(address)
    anybody.start(PATIENCE_S)
    try:
        with make_broker(tmp_path, tree, 1, *settings) as broker:
            wait_for(lambda: anybody.exists(f"/{root}/controller") is not None, "it is copied")
            endpoints = json.loads(anybody.get(f"/{root}/brokers/ids/1")[0])["endpoints"]
            assert endpoints == [f"PLAINTEXT://{broker.address}"]
            cluster_id = json.loads(anybody.get(f"/{root}/cluster/id")[0])["id"]
            properties = (tmp_path / "broker-1" / "meta.properties").read_text()
            assert f"cluster.id={cluster_id}" in properties
            assert "stopped cleanly" in broker.stop()
            assert anybody.get_children(f"/{root}/brokers/ids") == []
        anybody.add_auth("digest", "suwi:secret")
        anybody.set(f"/{root}/cluster/id", b'{"version":"1","id":"other"}')
        refused = make_broker(tmp_path, tree, 2, *settings).refused_start()
        assert "are of another cluster (the tree belongs to cluster other" in refused
        assert "zookeeper.copy.enable=false" in refused
    finally:
        anybody.stop()
        anybody.close()


def can_create_topic(brokers: list[BrokerProcess]) -> bool:
    name = unique_name("topic")
    admin = AdminClient({"bootstrap.servers": bootstrap(brokers)})
    try:
        # One that was under way as the controller changed may not be answered: others follow.
        admin.create_topics([NewTopic(name, 1, 3)], request_timeout=10)[name].result(PATIENCE_S)
    except KafkaException:
        return False
    return True


class Work:
    """A writer with acks=all and idempotence, and a group that commits what it has read."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self._acked = self._read = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap(brokers),
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
            }
        )
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap(brokers),
                "group.id": "work",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe(["work"])

    def go_on(self, seconds: float) -> None:
        """Write, read and commit for this long: each record within the patience of the test."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._producer.produce("work", str(self._acked), on_delivery=self._delivered)
            assert self._producer.flush(PATIENCE_S) == 0
            while not self._reads_next():
                pass
            self._read += 1
            wait_for(lambda: _commits(self.consumer), "the offset is committed")
            time.sleep(0.2)
        assert self._acked == self._read

    def _reads_next(self) -> bool:
        """Records whose commit was refused may come again, and none is skipped."""
        (message,) = self.consumer.consume(1, PATIENCE_S)
        assert message.error() is None, message.error()
        assert int(message.value()) <= self._read
        return int(message.value()) == self._read

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        assert error is None, error
        self._acked += 1


@contextmanager
def writer_and_group(brokers: list[BrokerProcess]) -> Iterator[Work]:
    create_topic(brokers, "work", 1)
    work = Work(brokers)
    work.go_on(1)
    yield work
    work.consumer.close()


# -- ZooKeeper has lost data (hazard Z11) ----------------------------------------------------------


def test_a_broker_refuses_an_ensemble_that_has_lost_its_data(
    tmp_path: Path, zookeeper: ZookeeperProcess
) -> None:
    with make_broker(tmp_path, zookeeper.tree, 1) as broker:
        broker.stop()
        zookeeper.kill()
        zookeeper.wipe()
        zookeeper.start()
        said = broker.refused_start()
        assert "belongs to cluster" in said
        assert "the metadata store holds no cluster" in said
        assert "restore the data" in said


@pytest.mark.slow
def test_a_broker_refuses_an_ensemble_that_was_restored_from_an_older_copy(
    tmp_path: Path, zookeeper: ZookeeperProcess
) -> None:
    with make_broker(tmp_path, zookeeper.tree, 1) as broker:
        broker.stop()
        zookeeper.kill()
        shutil.copytree(tmp_path / "zookeeper" / "data", tmp_path / "copy")
        zookeeper.start()
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("later", 1, 1)])["later"].result(PATIENCE_S)
        broker.stop()
        zookeeper.kill()
        zookeeper.wipe()
        shutil.copytree(tmp_path / "copy", tmp_path / "zookeeper" / "data")
        zookeeper.start()
        assert "was restored from an older copy. Restore newer data" in broker.refused_start()


@pytest.mark.slow
def test_a_running_broker_stops_when_its_ensemble_has_lost_its_data(
    tmp_path: Path, zookeeper: ZookeeperProcess
) -> None:
    with make_broker(tmp_path, zookeeper.tree, 1) as broker:
        zookeeper.kill()
        zookeeper.wipe()
        zookeeper.start()
        wait_for(lambda: not broker.is_running, "it stops")
        assert "ZooKeeper has lost data or was restored from an older copy" in broker.log
