"""One partition live: what the console streams is what the brokers' files say afterwards."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from suwi.client.addresses import Address
from suwi.console import live
from suwi.console.clusters import ClusterAddress, ShownCluster
from suwi.console.live import NOT_SUWIS, follow_live
from suwi.console.page import Problem, Query
from suwi.env import local_env
from suwi.lab.events import Election, Fault, Recording, Replicas, SendResult, read
from suwi.records.batch import batches
from suwi.testing import Cluster
from tests.broker_process import unique_name
from tests.cli.support import Suwi
from tests.client.fakes import PORT, TOPIC, FakeCluster, on_fake_cluster
from tests.console.support import Browser, ConsoleThread
from tests.testing.clients import until

SETTINGS = {
    "log.flush.scheduler.interval.ms": 20,
    "replica.high.watermark.checkpoint.interval.ms": 50,
}
PATIENCE_S = 120


class Load:
    """A producer that sends until it is stopped; nothing is lost and nothing is there twice."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "client.id": "load",
                "enable.idempotence": True,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        self.sent = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.005):
            self.send()
            self._producer.poll(0)

    def send(self) -> None:
        self._producer.produce(self._topic, b"x" * 20, partition=0)
        self.sent += 1

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0


class KilledLeader(threading.Thread):
    """The leader is killed under load and started again; then all are in sync."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__()
        self._cluster = cluster
        self._topic = topic
        self._load = Load(cluster.bootstrap_servers, topic)
        self.leaders: list[int] = []
        self.end = 0
        """Where all logs end, once it is known."""

    def run(self) -> None:
        cluster, topic = self._cluster, self._topic
        until(lambda: self._load.sent > 200)
        self.leaders.append(cluster.wait_leader(topic))
        cluster.kill(self.leaders[0])
        self.leaders.append(cluster.wait_leader(topic))
        sent = self._load.sent
        until(lambda: self._load.sent > sent + 200)
        cluster.restart(self.leaders[0])
        cluster.wait_isr(topic, 0, cluster.brokers)
        self._load.stop()
        self.end = self._load.sent + 1
        self._load.send()  # So that there is an event after the end is known.
        self._load.stop()


def checkpoint(path: Path) -> list[list[int]]:
    """The numbers of a checkpoint's lines, without the topic."""
    lines = path.read_text().splitlines()[2:]
    return [[int(word) for word in line.split() if word.isdigit()] for line in lines]


def wait_checkpoint(path: Path, wanted: list[int]) -> None:
    until(lambda: wanted in checkpoint(path), lambda: checkpoint(path))


def log_end(directory: Path) -> int:
    segment = max(directory.glob("*.log"))
    *_, (_, last) = batches(memoryview(segment.read_bytes()))
    return last.last_offset + 1


def lines_of(steps: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """The lines of a recording, as the page keeps them."""
    for name, step in steps:
        assert name == "live", step
        if step["begin"] is not None:
            yield step["begin"]["head"]
        yield from (event["fields"] for event in step["events"])


def test_under_load_with_a_kill_the_events_add_up_to_what_the_files_say(
    static: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_SILENT_S", PATIENCE_S)  # Nobody but who was killed is silent.
    topic = unique_name("live")
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic(topic)
        cluster.wait_leader(topic)
        with ConsoleThread(static, local=cluster.bootstrap_servers) as console:
            browser = Browser(console).log_in(console)
            steps = browser.events("live", topic=topic, partition=0)
            faults, kept, total = KilledLeader(cluster, topic), list[str](), Replicas()
            faults.start()

            def is_final() -> bool:
                views = [view for (name, _), view in total.replicas.items() if name]
                ends = {(view.end, view.high_watermark) for view in views}
                return len(views) == 3 and ends == {(faults.end, faults.end)}

            for line in lines_of(steps):
                kept.append(json.dumps(line))
                if len(kept) > 1:
                    (event,) = read([kept[0], kept[-1]]).events
                    total.add(event)
                if faults.end and is_final():
                    break
            steps.close()  # type: ignore[attr-defined]
            faults.join()
        recording = read(kept)
        name = f"{topic}-0"
        killed, elected = faults.leaders
        assert [(e.broker, e.epoch) for e in elections(recording, name)] == [
            (killed, 0),
            (elected, 1),
        ]
        assert total.leaders[name] == (elected, 1)
        assert set(total.in_sync[name]) == set(cluster.brokers)
        down = [event.broker for event in recording.events if isinstance(event, Fault)]
        assert down == [killed, killed]
        results = [event for event in recording.events if isinstance(event, SendResult)]
        assert {event.client for event in results} == {"load"}
        for broker in cluster.brokers:
            files, view = cluster.files(broker), total.replicas[name, broker]
            epochs = checkpoint(files / name / "leader-epoch-checkpoint")
            assert [list(entry) for entry in view.epochs] == epochs
            assert view.end == log_end(files / name) == faults.end
            wait_checkpoint(files / "replication-offset-checkpoint", [0, view.high_watermark])
    saved = tmp_path / "live.jsonl"
    saved.write_text("".join(f"{line}\n" for line in kept))
    shown = Suwi("").run("lab", "show", saved)
    assert shown.returncode == 0, shown.stderr
    assert f"{recording.source}: " in shown.stdout.decode()


def elections(recording: Recording, partition: str) -> list[Election]:
    return [e for e in recording.events if isinstance(e, Election) and e.partition == partition]


def test_a_producer_that_waits_is_told_with_the_time_out_of_its_request(static: Path) -> None:
    topic = unique_name("held")
    with Cluster(brokers=3, settings={"replica.lag.time.max.ms": 30_000}) as cluster:
        cluster.create_topic(topic)
        leader = cluster.wait_leader(topic)
        with ConsoleThread(static, local=cluster.bootstrap_servers) as console:
            steps = Browser(console).log_in(console).events("live", topic=topic)
            next(steps)
            cluster.partition([leader], [each for each in cluster.brokers if each != leader])
            producer = Producer(
                {
                    "bootstrap.servers": cluster.bootstrap_servers,
                    "client.id": "shop",
                    "request.timeout.ms": 25_000,
                    "log_level": 0,
                }
            )
            producer.produce(topic, b"x", partition=0)
            producer.poll(0)
            waiting = next(step["waiting"] for _, step in steps if step["waiting"])
            ((client, sends, waited_ms, left_ms),) = [each.values() for each in waiting]
            assert (client, sends) == ("shop", 1)
            assert waited_ms >= 1000
            assert 0 < left_ms <= 25_000 - waited_ms
            cluster.heal()
            assert producer.flush(PATIENCE_S) == 0
            next(step for _, step in steps if not step["waiting"])
            steps.close()  # type: ignore[attr-defined]


def test_the_page_of_a_partition_that_is_not_there_says_so(browser: Browser, topic: str) -> None:
    for query in ({"topic": "nothing-of-this-name"}, {"topic": topic, "partition": 9}):
        ((name, problem),) = browser.events("live", **query)
        assert (name, problem["kind"]) == ("problem", "missing")


def test_the_words_of_the_drawing_are_those_of_the_language(browser: Browser, topic: str) -> None:
    for language, word in (("en", "controller"), ("ko", "컨트롤러")):
        _, step = next(browser.events("live", topic=topic, language=language))
        assert step["begin"]["words"]["controller"] == word
    ((name, problem),) = browser.events("live", topic=topic, language="fr")
    assert (name, problem["kind"]) == ("problem", "bad")


@pytest.mark.parametrize("brokers", [1, 2])
def test_on_apache_kafka_it_says_why_there_is_nothing_to_see(brokers: int) -> None:
    async def scenario(fake: FakeCluster) -> None:
        addresses = [Address(machine.name, PORT) for machine in fake.machines]
        shown = ShownCluster(ClusterAddress("kafka", addresses, None, ()), local_env())
        async with shown.client:
            found = [each async for each in follow_live(shown, Query({"topic": TOPIC}))]
        assert found[-1] == ("problem", Problem("unsupported", NOT_SUWIS))

    on_fake_cluster(scenario, brokers=brokers)
