"""A cluster of processes gets access rules while clients use it, by the steps of security.md."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from chaos.copier import About, Batch, Librdkafka, copy_all
from chaos.copy_checker import violations
from chaos.journal import Journal, Notes, read_journal, value_with
from chaos.writer import write_with_librdkafka
from suwi.local_cluster import zookeeper
from suwi.local_cluster.cluster import LocalCluster
from suwi.local_cluster.layout import Layout, broker_name, broker_settings
from tests.cli.support import Suwi
from tests.local_cluster.ports import free_ports
from tests.security.access import AUTHORIZER

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.zookeeper,
    pytest.mark.slow,
    pytest.mark.skipif(zookeeper.why_unavailable() is not None, reason="no ZooKeeper here"),
]
_PATIENCE_S = 180
_BROKERS = 3
_PARTITIONS = 3
_OUTSIDE = 50
"""From the port of a broker without users to the one with users."""
_MECHANISM = "SCRAM-SHA-256"
_PASSWORD = "hush"
_USERS = ("writer", "reader", "copier", "mallory", "admin")
"""Where the last is known, all are."""
_CLOSED = {"authorizer.class.name": AUTHORIZER, "super.users": "User:admin"}
_OPEN = "allow.everyone.if.no.acl.found"
_STILL_OPEN = _CLOSED | {_OPEN: "true"}
_REFUSALS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError._AUTHENTICATION,
}
RULES = [
    ("topic:orders", ("writer", "write"), ("reader", "read"), ("copier", "read")),
    ("topic:copies", ("copier", "write")),
    ("group:readers", ("reader", "read")),
    ("group:copiers", ("copier", "read")),
    ("transactional-id:copier-*", ("copier", "write")),
]
"""Each resource with those who use it."""


class Brokers:
    """Three brokers with a listener for users beside the one without."""

    def __init__(self, folder: Path) -> None:
        self.layout = Layout(_BROKERS, 1, "", free_ports(), has_links=False)
        self.local = LocalCluster(str(folder / "cluster"))
        ports = [self.layout.client_port(broker) for broker in self.layout.broker_ids]
        self.servers = ",".join(f"127.0.0.1:{port + _OUTSIDE}" for port in ports)
        properties = folder / "admin.properties"
        properties.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={_MECHANISM}\n"
            f'sasl.jaas.config=ScramLoginModule required username="admin" password="{_PASSWORD}";\n'
        )
        self._admin = ("--command-config", properties, "--broker", self.servers)
        for broker in self.layout.broker_ids:
            self.configure(broker, {})

    def configure(self, broker: int, access: Mapping[str, str]) -> None:
        """Its settings from its next start on."""
        settings = broker_settings(self.layout, broker, self.local.data_directory(broker)) | {
            "sasl.enabled.mechanisms": _MECHANISM,
            "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3",
            # Once the copier stood still until an idle connection was closed, after ten minutes.
            # Probably librdkafka waited for a change of any connection to ask for a coordinator
            # again; it was not seen a second time, so an answer that we lost is not ruled out.
            "connections.max.idle.ms": "3000",
            **access,
        }
        outside = f",OUTSIDE://127.0.0.1:{self.layout.client_port(broker) + _OUTSIDE}"
        settings["listeners"] += outside
        settings["advertised.listeners"] += outside
        settings["listener.security.protocol.map"] += ",OUTSIDE:SASL_PLAINTEXT"
        file = Path(self.local.directory) / broker_name(broker) / "server.properties"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def __enter__(self) -> "Brokers":
        try:
            self.local.start(self.layout)
        except BaseException:
            self.local.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.local.stop()

    def suwi(self, *arguments: object) -> str:
        """A command of the administrator. Others write to stderr meanwhile."""
        result = Suwi("")(*arguments, *self._admin)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    def differences(self) -> list[str]:
        """In what the brokers differ, once all is well otherwise; `status` and `doctor` agree."""

        def status() -> str | None:
            result = Suwi("")("status", "--brokers", _BROKERS, *self._admin)
            return result.stdout if result.exit_code == 0 else None

        told = [line.strip() for line in until(status).splitlines() if "brokers differ" in line]
        found = Suwi("")("doctor", *self._admin).stdout
        assert [
            line.partition("cluster: ")[2] for line in found.splitlines() if "differ" in line
        ] == told
        return [text.split()[3].rstrip(",") for text in told]

    def restart_one_by_one(self, access: Mapping[str, str]) -> list[list[str]]:
        """In what the brokers differ after each restart."""
        found = []
        for broker in self.layout.broker_ids:
            self.configure(broker, access)
            self.local.restart(broker_name(broker))
            found.append(self.differences())
        return found

    def log_in(self, user: str) -> dict[str, str]:
        """The settings of a client."""
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": _MECHANISM,
            "sasl.username": user,
            "sasl.password": _PASSWORD,
        }


class Watched(Librdkafka):
    """Notes what makes the application of a copier end."""

    def __init__(self, about: About, errors: list[str]) -> None:
        super().__init__(about)
        self.copied = 0
        self._errors = errors

    async def copy(self, batch: Batch) -> None:
        try:
            await super().copy(batch)
        except KafkaException as error:
            # A restart may abort a transaction, which is copied again then.
            if not error.args[0].txn_requires_abort():
                self._errors.append(f"copier: {error}")
            raise
        self.copied += 0 if batch.aborts else len(batch.copies)


class Load:
    """A producer, a consumer group and a transactional copier, each with a user of its own."""

    def __init__(self, brokers: Brokers, folder: Path) -> None:
        self.errors: list[str] = []
        self.read: set[bytes] = set()
        self._brokers = brokers
        self._journal = folder / "journal"
        self._written, self._over = threading.Event(), threading.Event()
        about = About("copier-1", brokers.servers, "copiers", "orders", "copies")
        security = {k: v for k, v in brokers.log_in("copier").items() if not k.startswith("boot")}
        self._copier = Watched(about._replace(security=security), self.errors)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._write, self._read, self._copy)
        ]

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(repr(error))

    def _write(self) -> None:
        journal = Journal(self._journal, 1)
        config: dict[str, Any] = self._brokers.log_in("writer")
        write_with_librdkafka(1, "orders", _PARTITIONS, journal, config, self._written.is_set)
        journal.close()

    def _read(self) -> None:
        def on_error(error: KafkaError) -> None:
            if error.fatal() or error.code() in _REFUSALS:
                self.errors.append(f"reader: {error}")

        how = {"group.id": "readers", "auto.offset.reset": "earliest", "error_cb": on_error}
        consumer = Consumer({**self._brokers.log_in("reader"), **how})
        consumer.subscribe(["orders"])
        with closing(consumer):
            while not self._over.is_set():
                for message in consumer.consume(500, 0.2):
                    if (error := message.error()) is None:
                        self.read.add(message.value())
                    elif not error.retriable():
                        self.errors.append(f"reader: {error}")

    def _copy(self) -> None:
        targets, chance = range(_PARTITIONS), random.Random(1)
        with closing(self._copier._consumer):
            asyncio.run(copy_all(self._copier, "copier", targets, self._over.is_set, chance))

    @contextmanager
    def running(self) -> Iterator["Load"]:
        for thread in self._threads:
            thread.start()
        try:
            self.go_on()
            yield self
        finally:
            self._written.set()
            self._over.set()
            for thread in self._threads:
                thread.join()

    def go_on(self) -> None:
        """Until each of the clients has done more than before."""
        read, copied = len(self.read), self._copier.copied
        until(lambda: self.errors or (len(self.read) > read and self._copier.copied > copied))
        assert self.errors == []

    def end(self) -> tuple[dict[int, list[bytes]], dict[int, list[bytes]]]:
        """What was written and what was copied, when all is read and copied."""
        self._written.set()
        self._threads[0].join()
        notes = Notes()
        read_journal(self._journal, "writer", 1, notes)
        assert (notes.failed, notes.fatal, notes.unanswered) == ([], [], {})
        written = {value_with(key) for key in notes.offsets}
        until(lambda: self.errors or self.read >= written)
        assert self.read == written
        return (
            read_all(self._brokers, "orders", len(written)),
            read_all(self._brokers, "copies", len(written)),
        )


def read_all(brokers: Brokers, topic: str, count: int) -> dict[int, list[bytes]]:
    """All records by partition, when there are so many."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(_PARTITIONS)}
    ended: set[int] = set()
    how = {"group.id": "none", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    consumer = Consumer({**brokers.log_in("admin"), **how})
    consumer.subscribe([topic])

    def is_read() -> bool:
        for message in consumer.consume(500, 0.5):
            if (error := message.error()) is None:
                found[message.partition()].append(message.value())
                ended.discard(message.partition())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return len(ended) == _PARTITIONS and sum(map(len, found.values())) >= count

    with closing(consumer):
        until(is_read)
    return found


def until(attempt: Callable[[], Any]) -> Any:
    ends_s = time.monotonic() + _PATIENCE_S
    while not (found := attempt()):
        assert time.monotonic() < ends_s
        time.sleep(0.1)
    return found


def sent(brokers: Brokers, user: str, topic: str) -> int:
    """The error code of a record."""
    told: list[KafkaError | None] = []
    producer = Producer(brokers.log_in(user))
    try:
        producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    except KafkaException as refused:
        told.append(refused.args[0])
    producer.flush(_PATIENCE_S)
    (error,) = told
    return 0 if error is None else int(error.code())


def add_users(brokers: Brokers, folder: Path) -> None:
    """Through the listener that needs none."""
    password = folder / "password"
    password.write_text(_PASSWORD)
    suwi = Suwi(brokers.local.bootstrap_servers)
    for name in _USERS:
        how = ("--password-file", password, "--mechanism", _MECHANISM, "--iterations", 4096)
        suwi.ok("users", "add", name, *how)


def close(brokers: Brokers, resource: str, *rights: tuple[str, str]) -> None:
    """Everybody has the right until all who need it have a rule of their own."""
    brokers.suwi("acls", "add", "User:*", "all", resource)
    for user, operation in rights:
        brokers.suwi("acls", "add", user, operation, resource)
        wait_for_rule(brokers, user, operation, resource.replace("*", "1"))
    brokers.suwi("acls", "remove", "User:*", "all", resource)


def wait_for_rule(brokers: Brokers, user: str, operation: str, resource: str) -> None:
    """The broker that is asked may have it a moment later than the controller."""
    rule = f"(allow User:{user} {operation} on "
    until(lambda: rule in brokers.suwi("acls", "check", user, operation, resource))


def test_a_cluster_is_closed_without_an_interruption_for_who_has_the_rights(tmp_path: Path) -> None:
    with Brokers(tmp_path) as brokers:
        # 1. Users, and a listener that asks for them.
        add_users(brokers, tmp_path)
        assert brokers.differences() == []
        for topic in ("orders", "copies", "free"):
            brokers.suwi("topics", "create", topic, "--partitions", _PARTITIONS)
        with Load(brokers, tmp_path).running() as load:
            # 2. Restarted with an authorizer that refuses nothing.
            differ = sorted(_STILL_OPEN)
            assert brokers.restart_one_by_one(_STILL_OPEN) == [differ, differ, []]
            load.go_on()
            assert sent(brokers, "mallory", "free") == 0
            # 3. Rules, one resource after the other.
            for rules in RULES:
                close(brokers, *rules)
                load.go_on()
            assert sent(brokers, "mallory", "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
            assert sent(brokers, "mallory", "free") == 0
            # 4. Restarted again: what has no rule is closed.
            assert brokers.restart_one_by_one(_CLOSED) == [[_OPEN], [_OPEN], []]
            load.go_on()
            for topic in ("orders", "free"):
                assert sent(brokers, "mallory", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
            source, copies = load.end()
        assert load.errors == []
        assert violations(source, copies) == []
