"""The four journeys in docs/architecture.md are what requests of a real client do.

The document is the only place that lists the steps. Each test sends a request with librdkafka to a
broker in this process, records which functions of suwi are entered on the thread of the event loop,
and looks for the steps in the listed order.
"""

import dis
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from suwi.testing import Cluster

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "suwi"
DOCUMENT = ROOT / "docs" / "architecture.md"
LOOP_THREAD = "suwi-cluster"
RESUMABLE = 0x20 | 0x80 | 0x200
"""co_flags of generators, coroutines and asynchronous generators."""
TOPIC = "water"
TIMEOUT_S = 120


class Function(NamedTuple):
    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file} → {self.name}"


def journey(title: str) -> list[Function]:
    """The steps that the document lists under this title."""
    _, found, after = DOCUMENT.read_text().partition(f"\n### {title}\n")
    assert found, f"the document has no journey of {title}"
    section = re.split(r"^#", after, maxsplit=1, flags=re.MULTILINE)[0]
    steps = re.findall(r"^\d+\. `([\w/]+\.py)` → `([\w.<>]+)`", section, re.MULTILINE)
    return [Function(*step) for step in steps]


@cache
def first_instruction(code: CodeType) -> int:
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


def is_entered(frame: FrameType) -> bool:
    """False if a coroutine or generator that has been entered before is resumed."""
    code = frame.f_code
    return not code.co_flags & RESUMABLE or frame.f_lasti <= first_instruction(code)


class Recorder:
    """Records the functions of suwi that the event loop's thread enters, between two calls."""

    def __init__(self) -> None:
        self._entered: list[Function] | None = None

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        entered = self._entered
        if entered is None or event != "call":
            return
        file = Path(frame.f_code.co_filename)
        if (
            file.is_relative_to(PACKAGE)
            and threading.current_thread().name == LOOP_THREAD
            and is_entered(frame)
        ):
            name = frame.f_code.co_qualname
            entered.append(Function(file.relative_to(PACKAGE).as_posix(), name))

    def entered_during(self, work: Callable[[], Any]) -> list[Function]:
        entered = self._entered = []
        try:
            work()
        finally:
            self._entered = None
        return entered


def check(steps: list[Function], entered: list[Function]) -> None:
    """Every step was entered, after the one before it.

    Other requests pass the same network layer, so the search starts at the step that was entered
    least often, and goes from there backwards and forwards.
    """
    for step in steps:
        inside = sorted({name for file, name in entered if file == step.file})
        assert step in entered, f"{step} was not entered; of this file were {inside}"
    rarest = min(steps, key=entered.count)
    at = steps.index(rarest)
    start = entered.index(rarest)
    before, after = entered[:start][::-1], entered[start + 1 :]
    for earlier in reversed(steps[:at]):
        assert earlier in before, f"{earlier} was not entered before the steps that follow it"
        before = before[before.index(earlier) + 1 :]
    for later in steps[at + 1 :]:
        assert later in after, f"{later} was not entered after the steps before it"
        after = after[after.index(later) + 1 :]


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def client(recorder: Recorder) -> Iterator[dict[str, Any]]:
    """The settings of clients. The broker has a topic with a record, and `__consumer_offsets`."""
    threading.setprofile(recorder.profile)  # for threads that start from now on
    cluster = Cluster(brokers=1)
    cluster.start()
    threading.setprofile(None)
    try:
        client: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers}
        cluster.create_topic(TOPIC)
        producer = Producer(client)
        producer.produce(TOPIC, b"first")
        producer.flush(TIMEOUT_S)
        consumer = Consumer(client | {"group.id": "creates the internal topic"})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 0)], asynchronous=False)
        consumer.close()
        yield client
    finally:
        cluster.stop()


def test_produce(recorder: Recorder, client: dict[str, Any]) -> None:
    producer = Producer(client)

    def produce() -> None:
        producer.produce(TOPIC, b"next")
        assert producer.flush(TIMEOUT_S) == 0

    check(journey("Produce"), recorder.entered_during(produce))


def test_fetch(recorder: Recorder, client: dict[str, Any]) -> None:
    consumer = Consumer(client | {"group.id": "fetch"})

    def fetch() -> None:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        record = consumer.poll(TIMEOUT_S)
        assert record is not None
        assert record.value() == b"first"

    check(journey("Fetch"), recorder.entered_during(fetch))
    consumer.close()


def test_join_group(recorder: Recorder, client: dict[str, Any]) -> None:
    """A static member is admitted by its first request: it does not have to ask for an id first."""
    member = {"group.id": "join", "group.instance.id": "one", "auto.offset.reset": "earliest"}
    consumer = Consumer(client | member)

    def join() -> None:
        consumer.subscribe([TOPIC])
        record = consumer.poll(TIMEOUT_S)
        assert record is not None
        assert record.value() == b"first"

    check(journey("JoinGroup"), recorder.entered_during(join))
    consumer.close()


def test_create_topics(recorder: Recorder, client: dict[str, Any]) -> None:
    admin = AdminClient(client)

    def create() -> None:
        admin.create_topics([NewTopic("ice", 1)])["ice"].result(TIMEOUT_S)

    check(journey("CreateTopics"), recorder.entered_during(create))


@pytest.mark.parametrize("title", ["Produce", "Fetch", "JoinGroup", "CreateTopics"])
def test_a_journey_is_short(title: str) -> None:
    assert 8 <= len(journey(title)) <= 14


def test_a_wrong_order_is_found() -> None:
    entered = [Function("a.py", "f"), Function("b.py", "g"), Function("a.py", "f")]
    check([entered[0], entered[1]], entered)
    check([entered[1], entered[2]], entered)
    with pytest.raises(
        AssertionError, match=r"b.py → h was not entered; of this file were \['g'\]"
    ):
        check([entered[0], Function("b.py", "h")], entered)
    with pytest.raises(AssertionError, match=r"a.py → f was not entered after"):
        check([entered[1], entered[0]], entered[:2])
