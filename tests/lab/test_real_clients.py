"""The clients of scenarios do what real ones do: each schedule also with librdkafka on a broker.

Not compared: what is the Java client's alone. It commits automatically in `poll` only, where
librdkafka does so in the background; kafka-python, which follows Java, is asked instead. The pauses
of a rebalance are virtual time, so only who owns what in the end is compared.
"""

import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from suwi.lab.scenario import parse
from suwi.lab.stage import changes, play
from suwi.testing import Cluster
from tests.lab.held_answers import HeldAnswers
from tests.testing.clients import PATIENCE_S, read, send, subscribe, until

with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
    # kafka-python reads its schemas with a call that is deprecated in Python 3.11.
    from kafka import KafkaConsumer, KafkaProducer

TOPIC = "orders"
NONE: Mapping[str, object] = {}
_LIMIT_S = 200.0
IN_FLIGHT = "max.in.flight.requests.per.connection"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """For tests that only write to topics of their own."""
    with Cluster(brokers=1) as cluster:
        yield cluster


def lab(*steps: str) -> list[str]:
    """All that the steps of a scenario change."""
    return [line for step in changes(play(parse("\n\n".join(steps)))) for line in step]


def values(lines: Sequence[str]) -> list[str]:
    """What the last `read` or `poll` has shown."""
    (shown, *_) = (line for line in reversed(lines) if " shows " in line or " receives " in line)
    return re.findall(r'"(.*?)"', shown)


def producer(address: str, settings: Mapping[str, object]) -> Producer:
    return Producer({"bootstrap.servers": address, "log_level": 0, "linger.ms": 0, **settings})


def consumer(address: str, group: str, settings: Mapping[str, object] = NONE) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **settings,
        }
    )


def take(reader: Consumer, count: int) -> list[str]:
    """The values of that many records."""
    found: list[str] = []

    def has_all() -> bool:
        message = reader.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return len(found) >= count

    until(has_all)
    return found


# -- producers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_lost_answer(shared: Cluster, is_idempotent: bool) -> None:
    topic = f"lost-answer-{is_idempotent}"
    shared.create_topic(topic)
    with HeldAnswers(shared.address(1)) as proxy:
        real = producer(
            proxy.addresses[0], {"enable.idempotence": is_idempotent, "socket.timeout.ms": 1000}
        )
        zeros = send_zeros(real, shared, topic)
        proxy.hold()
        assert send_one(real, topic, "x") is None  # It times out, reconnects and sends it again.
    written = ["0", "x"] if is_idempotent else ["0", "x", "x"]
    assert read(shared.bootstrap_servers, topic, zeros - 1 + len(written))[zeros - 1 :] == written
    flag = str(is_idempotent).lower()
    found = lab(
        f"topic orders b1\nproducer p1 enable.idempotence={flag} request.timeout.ms=1000",
        'send p1 "0"',
        'cut b1 -> p1\nsend p1 "x"\nwait 2s\nheal\nwait 3s',
        "read b1",
    )
    assert values(found) == written


def test_a_lost_answer_with_retries_0(shared: Cluster) -> None:
    """It is written, and the application is told that it failed."""
    topic = "lost-answer-without-retries"
    shared.create_topic(topic)
    with HeldAnswers(shared.address(1)) as proxy:
        real = producer(proxy.addresses[0], {"retries": 0, "socket.timeout.ms": 1000})
        zeros = send_zeros(real, shared, topic)
        proxy.hold()
        assert send_one(real, topic, "x") is not None
    assert read(shared.bootstrap_servers, topic, zeros + 1)[zeros - 1 :] == ["0", "x"]
    found = lab(
        "topic orders b1\nproducer p1 retries=0 request.timeout.ms=1000",
        'send p1 "0"',
        'cut b1 -> p1\nsend p1 "x"\nwait 5s',
        "read b1",
    )
    assert 'p1: "x" gets no answer' in found
    assert values(found) == ["0", "x"]


def send_zeros(real: Producer, shared: Cluster, topic: str) -> int:
    """Until one is acknowledged: on a busy machine an answer may take longer than the client's
    timeout. How many are written."""
    until(lambda: send_one(real, topic, "0") is None)
    return shared.replicas(topic)[1].log_end


def send_one(real: Producer, topic: str, value: str) -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    real.produce(topic, value, partition=0, on_delivery=lambda error, _: outcome.append(error))
    assert real.flush(PATIENCE_S) == 0
    return outcome[0]


class PythonProducer:
    """kafka-python's, with the methods of librdkafka's."""

    def __init__(self, address: str, settings: Mapping[str, object]) -> None:
        given = {name.replace(".", "_"): value for name, value in settings.items()}
        self._real = KafkaProducer(bootstrap_servers=address, **given)

    def produce(self, topic: str, value: str, partition: int) -> None:
        self._real.send(topic, value.encode(), partition=partition)

    def flush(self, timeout_s: float) -> int:
        self._real.flush(timeout_s)
        return 0

    def close(self) -> None:
        self._real.close()


@pytest.mark.parametrize(
    ("is_idempotent", "in_flight", "order"),
    [(False, 5, ["0", "2", "1"]), (False, 1, ["0", "1", "2"]), (True, 5, ["0", "1", "2"])],
)
def test_a_refused_batch_behind_one_in_flight(
    is_idempotent: bool, in_flight: int, order: list[str]
) -> None:
    """With one in flight kafka-python is asked: librdkafka 2.16 does not always keep the order."""
    with Cluster(brokers=2, settings={"replica.lag.time.max.ms": 30_000}) as cluster:
        cluster.create_topic(TOPIC, replication_factor=2, configs={"min.insync.replicas": "2"})
        leader = cluster.wait_leader(TOPIC)
        (follower,) = set(cluster.brokers) - {leader}
        cluster.wait_isr(TOPIC, 0, cluster.brokers)
        with HeldAnswers(*map(cluster.address, cluster.brokers)) as proxy:
            settings = {"enable.idempotence": is_idempotent, IN_FLIGHT: in_flight}
            real: Producer | PythonProducer = (
                PythonProducer(proxy.addresses[0], settings)
                if in_flight == 1
                else producer(proxy.addresses[0], settings)
            )
            real.produce(TOPIC, "0", partition=0)
            assert real.flush(PATIENCE_S) == 0
            cluster.pause(follower)
            cluster.wait_isr(TOPIC, 0, {leader})
            proxy.hold()
            real.produce(TOPIC, "1", partition=0)
            proxy.wait_held()
            cluster.resume(follower)
            cluster.wait_isr(TOPIC, 0, cluster.brokers)
            real.produce(TOPIC, "2", partition=0)
            if in_flight > 1:
                proxy.wait_sent(2)
            if order == ["0", "2", "1"]:
                until(lambda: cluster.replicas(TOPIC)[leader].log_end == 2)
            proxy.release()
            assert real.flush(PATIENCE_S) == 0
            if isinstance(real, PythonProducer):
                real.close()
            assert read(cluster.bootstrap_servers, TOPIC, 3) == order
    flag = str(is_idempotent).lower()
    found = lab(
        "topic orders b1 b2 min.insync.replicas=2\n"
        f"producer p1 enable.idempotence={flag} {IN_FLIGHT}={in_flight}",
        'send p1 "0"',
        "freeze b2\nuntil in-sync b1",
        'slow p1 5s\nsend p1 "1"\nwait 6s',
        'thaw b2\nuntil in-sync b1 b2\nsend p1 "2"\nwait 30s',
        "read b1",
    )
    assert values(found) == order


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_an_aborted_and_a_committed_transaction(shared: Cluster, isolation: str) -> None:
    topic = f"aborted-{isolation}"
    shared.create_topic(topic)
    real = producer(shared.bootstrap_servers, {"transactional.id": topic})
    real.init_transactions(PATIENCE_S)
    for value, end in (("7", real.abort_transaction), ("8", real.commit_transaction)):
        real.begin_transaction()
        assert send_one(real, topic, value) is None
        end(PATIENCE_S)
    seen = ["8"] if isolation == "read_committed" else ["7", "8"]
    reader = consumer(shared.bootstrap_servers, topic, {"isolation.level": isolation})
    reader.subscribe([topic])
    assert take(reader, len(seen)) == seen
    reader.close()
    found = lab(
        'topic orders b1\nproducer p1 transactional.id=t\nsend p1 "7"',
        'abort p1\nsend p1 "8"',
        f"commit p1\nconsumer c1 orders group.id=g isolation.level={isolation} "
        "auto.offset.reset=earliest\npoll c1",
    )
    assert values(found) == seen


def test_another_producer_with_the_transactional_id_fences_the_first(shared: Cluster) -> None:
    topic = "fenced"
    shared.create_topic(topic)
    first, second = (producer(shared.bootstrap_servers, {"transactional.id": topic}) for _ in "12")
    first.init_transactions(PATIENCE_S)
    first.begin_transaction()
    second.init_transactions(PATIENCE_S)
    first.produce(topic, "x", partition=0)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    found = lab(
        "topic orders b1\nproducer p1 transactional.id=t\nproducer p2 transactional.id=t",
        'send p1 "x"',
    )
    assert 'p1: "x" is refused: INVALID_PRODUCER_EPOCH' in found


@pytest.mark.parametrize("commits", [False, True])
def test_offsets_in_a_transaction(shared: Cluster, commits: bool) -> None:
    topic = f"offsets-{commits}"
    shared.create_topic(topic)
    assert send(shared.bootstrap_servers, topic, "1") == []
    reader = consumer(shared.bootstrap_servers, topic, {"enable.auto.commit": False})
    reader.subscribe([topic])
    assert take(reader, 1) == ["1"]
    real = producer(shared.bootstrap_servers, {"transactional.id": topic})
    real.init_transactions(PATIENCE_S)
    real.begin_transaction()
    position = [TopicPartition(topic, 0, 1)]
    real.send_offsets_to_transaction(position, reader.consumer_group_metadata(), PATIENCE_S)
    (real.commit_transaction if commits else real.abort_transaction)(PATIENCE_S)
    assert committed(shared, topic) == (1 if commits else OFFSET_INVALID)
    reader.close()
    found = lab(
        'topic orders b1\nproducer p2\nsend p2 "1"\nproducer p1 transactional.id=t',
        f"{LAB_CONSUMER} enable.auto.commit=false\npoll c1\nsend-offsets p1 c1",
        f"{'commit' if commits else 'abort'} p1\nwait 1s\ncommitted g",
    )
    assert found[-1] == f"g has committed {'orders-0 1' if commits else 'nothing'}"


def test_a_transaction_that_its_producer_does_not_end_is_aborted_after_its_timeout() -> None:
    often = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with Cluster(brokers=1, settings=often) as cluster:
        cluster.create_topic(TOPIC)
        servers = cluster.bootstrap_servers
        real = producer(servers, {"transactional.id": "t", "transaction.timeout.ms": 5000})
        real.init_transactions(PATIENCE_S)
        real.begin_transaction()
        assert send_one(real, TOPIC, "7") is None
        assert send(servers, TOPIC, "8") == []
        reader = consumer(servers, "g", {"isolation.level": "read_committed"})
        reader.subscribe([TOPIC])
        assert take(reader, 1) == ["8"]
        reader.close()
        with pytest.raises(KafkaException):
            real.commit_transaction(PATIENCE_S)
    found = lab(
        "topic orders b1\nproducer p1 transactional.id=t transaction.timeout.ms=1000\nproducer p2",
        'send p1 "7"\nwait 100ms\nsend p2 "8"',
        f"wait 20s\n{LAB_CONSUMER} isolation.level=read_committed\npoll c1\ncommit p1",
    )
    assert values(found) == ["8"]
    assert any(line.startswith("p1: commit is refused: ") for line in found)


def test_with_acks_0_nobody_is_told_of_a_refusal(shared: Cluster) -> None:
    topic, large = "no-acks", "x" * 200
    shared.create_topic(topic, configs={"max.message.bytes": "100"})
    for acks, is_told in (("0", False), ("all", True)):
        error = send_one(producer(shared.bootstrap_servers, {"acks": acks}), topic, large)
        assert (error is not None) == is_told
    found = lab(
        "topic orders b1 max.message.bytes=100\nproducer p1 acks=0\nproducer p2 acks=all",
        f"send p1 {large}\nsend p2 {large}",
    )
    assert f'p1: "{large}" is sent and forgotten' in found
    assert f'p2: "{large}" is refused: MESSAGE_TOO_LARGE' in found


# -- consumers ------------------------------------------------------------------------------------

LAB_GROUP = 'topic orders b1\nproducer p1\nsend p1 "1" "2" "3" "4"'
LAB_CONSUMER = "consumer c1 orders group.id=g auto.offset.reset=earliest"


def committed(shared: Cluster, topic: str) -> int:
    asked = consumer(shared.bootstrap_servers, topic)
    (found,) = asked.committed([TopicPartition(topic, 0)], PATIENCE_S)
    asked.close()
    return int(found.offset)


@pytest.mark.parametrize("interval_ms", [500, 60_000])
def test_auto_commit_commits_what_was_returned_once_the_interval_is_over(
    shared: Cluster, interval_ms: int
) -> None:
    topic = f"auto-commit-{interval_ms}"
    shared.create_topic(topic)
    assert send(shared.bootstrap_servers, topic, "1", "2", "3", "4") == []
    reader = consumer(shared.bootstrap_servers, topic, {"auto.commit.interval.ms": interval_ms})
    reader.subscribe([topic])
    assert take(reader, 4) == ["1", "2", "3", "4"]
    is_over = interval_ms < 1000
    if is_over:
        until(lambda: reader.poll(0.2) is None and committed(shared, topic) == 4)
    else:
        assert reader.poll(1) is None
        assert committed(shared, topic) < 0
    reader.close()
    assert committed(shared, topic) == 4  # A clean end commits.
    found = lab(
        LAB_GROUP,
        f"{LAB_CONSUMER} auto.commit.interval.ms={interval_ms}\npoll c1\nwait 1s\npoll c1",
        "committed g",
        "close c1\ncommitted g",
    )
    assert ("g has committed orders-0 4" in found[:-1]) == is_over
    assert found[-1] == "g has committed orders-0 4"


def test_the_interval_alone_commits_nothing(shared: Cluster) -> None:
    """As in Java, and in kafka-python, whose poll commits. librdkafka has a thread for it."""
    topic = "auto-commit-in-poll"
    shared.create_topic(topic)
    assert send(shared.bootstrap_servers, topic, "1", "2", "3", "4") == []
    real = KafkaConsumer(
        bootstrap_servers=shared.bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=100,
    )
    subscribe(real, topic)
    found: list[object] = []

    def has_all() -> bool:
        # One long poll: `subscribe` says what becomes of a join that a short one cuts in two.
        found.extend(returned(real, timeout_ms=60_000))
        return len(found) >= 4

    try:
        until(has_all, timeout_s=_LIMIT_S)
        time.sleep(1)  # ten intervals
        assert committed(shared, topic) < 4
        until(lambda: not returned(real) and committed(shared, topic) == 4, timeout_s=_LIMIT_S)
    finally:
        real.close()
    lines = lab(
        LAB_GROUP,
        f"{LAB_CONSUMER} auto.commit.interval.ms=100\npoll c1",
        "wait 1s\ncommitted g",
        "poll c1\ncommitted g",
    )
    assert [line for line in lines if "committed" in line] == [
        "g has committed nothing",
        "g has committed orders-0 4",
    ]


def returned(real: KafkaConsumer, *, timeout_ms: int = 200) -> list[object]:
    return [record for records in real.poll(timeout_ms).values() for record in records]


def test_a_consumer_that_does_not_poll_loses_its_partition_and_cannot_commit(
    shared: Cluster,
) -> None:
    topic = "no-poll"
    shared.create_topic(topic)
    assert send(shared.bootstrap_servers, topic, "1", "2") == []
    settings = {"enable.auto.commit": False, "session.timeout.ms": 6000}
    slow = consumer(shared.bootstrap_servers, topic, {**settings, "max.poll.interval.ms": 6000})
    slow.subscribe([topic])
    assert take(slow, 2) == ["1", "2"]
    other = consumer(shared.bootstrap_servers, topic, settings)
    other.subscribe([topic])
    assert take(other, 2) == ["1", "2"]
    with pytest.raises(KafkaException) as refused:
        slow.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    assert refused.value.args[0].code() in (
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
    )
    other.close()
    # It polls again, and is a member again. Before that librdkafka may wait for ever in close().
    assert take(slow, 2) == ["1", "2"]
    slow.close()
    found = lab(
        'topic orders b1\nproducer p1\nsend p1 "1" "2"',
        f"{LAB_CONSUMER} max.poll.interval.ms=6000 enable.auto.commit=false\npoll c1",
        "consumer c2 orders group.id=g auto.offset.reset=earliest enable.auto.commit=false\n"
        "loop c2\nwait 15s",
        "commit c1",
    )
    assert 'c2 processes 0 "1", 1 "2"' in found
    assert found[-1] == "c1: commit of orders-0 2 is refused: UNKNOWN_MEMBER_ID"


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"partition.assignment.strategy": "range"}, [0, 2, 2]),
        ({"partition.assignment.strategy": "roundrobin"}, [1, 1, 2]),
        ({"partition.assignment.strategy": "cooperative-sticky"}, [1, 1, 2]),
        ({"group.protocol": "consumer"}, [1, 1, 2]),
    ],
)
def test_who_is_assigned_what(shared: Cluster, settings: dict[str, str], sizes: list[int]) -> None:
    """Which member has how much does not depend on member ids, which clients choose."""
    strategy = "-".join(settings.values())
    topics = [f"{name}-{strategy}" for name in "AB"]
    for topic in topics:
        shared.create_topic(topic, partitions=2)
    group = [
        consumer(shared.bootstrap_servers, strategy, {**settings, "client.id": f"c{number}"})
        for number in (1, 2, 3)
    ]
    for member in group:
        member.subscribe(topics)

    def owned() -> list[int]:
        for member in group:
            member.poll(0.1)
        return sorted(len(member.assignment()) for member in group)

    until(lambda: owned() == sizes)
    for member in group:
        member.close()
    words = " ".join(f"{name}={value}" for name, value in settings.items())
    found = lab(
        "topic A b1 partitions=2\ntopic B b1 partitions=2",
        "\n".join(f"consumer c{n} A B group.id=g {words}\nloop c{n}" for n in (1, 2, 3))
        + "\nwait 30s",
    )
    has = [line.split(" -> ")[1] for line in found if re.match(r"c\d has nothing -> ", line)]
    assert sorted([0] * (3 - len(has)) + [len(each.split()) for each in has]) == sizes


def test_a_static_member_that_returns_in_time_has_its_partition_again(shared: Cluster) -> None:
    topic = "static"
    shared.create_topic(topic, partitions=2)

    def member(number: int) -> Consumer:
        started = consumer(shared.bootstrap_servers, topic, {"group.instance.id": f"pod-{number}"})
        started.subscribe([topic])
        return started

    def assignment(each: Consumer) -> list[int]:
        each.poll(0.1)
        return [partition.partition for partition in each.assignment()]

    first, second = member(1), member(2)
    until(lambda: [len(assignment(first)), len(assignment(second))] == [1, 1])
    before = [assignment(first), assignment(second)]
    first.close()
    first = member(1)
    until(lambda: len(assignment(first)) == 1)
    assert [assignment(first), assignment(second)] == before
    first.close()
    second.close()
    line = "consumer {} orders group.id=g group.instance.id={}\nloop {}\nwait 8s"
    found = lab(
        "topic orders b1 partitions=2",
        line.format("c1", "pod-1", "c1") + "\n" + line.format("c2", "pod-2", "c2"),
        "close c1\nwait 5s",
        line.format("c1", "pod-1", "c1"),
    )
    assert [line for line in found if line.startswith("c2 has")] == ["c2 has nothing -> orders-1"]
    assert [line for line in found if line.startswith("c1 has")] == [
        "c1 has nothing -> orders-0"
    ] * 2
