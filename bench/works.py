"""Kinds of work that may block a broker, as its clients and administrators cause them.

A work is done when its call returns. `prepare` creates what it needs, before every
repetition, and is not measured.
"""

import itertools
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache

from bench import admin
from bench.admin import Admin, Topics
from bench.clients.sockets import Wire
from bench.messages import base_offset, produce_request
from bench.plan import StallPlan
from bench.servers import Server
from suwi.records.builder import build_batch
from suwi.records.record import Record

_PATIENCE_S = 300
_LOOK_AGAIN_S = 0.1
_ROLL_MS = 1_000  # records that are further apart are in different segments
_KEYS_SHARE = 4  # of this many records with a key, compaction leaves one
_COMPACTED_BATCH = 500
_COMPACTED_SEGMENTS = 20
_COMPACTED_VALUE_BYTES = 200
IDLE = "idle"
_EACH = 10
_TOPICS_AT_ONCE = 100  # Apache Kafka accepts no more than 10,000 changes in one request


@dataclass
class Stage:
    """A broker and what is on it."""

    server: Server
    plan: StallPlan
    metrics_url: str = ""
    many: Topics = field(default_factory=dict)
    """Topics that exist all the time."""
    topic: str = ""
    """What `prepare` created for this repetition."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def admin(self) -> Admin:
        return Admin(self.server.address)

    def new_topic(self, **config: str) -> str:
        self.topic = f"beside-{next(self._numbers)}"
        with self.admin() as connection:
            connection.create({self.topic: 1}, replicas=None, **config)
        return self.topic

    def drop_topic(self) -> None:
        """Delete what `prepare` created; the files are deleted a second later."""
        if self.topic:
            with self.admin() as connection:
                connection.delete([self.topic])
            self.topic = ""


def make_many(server: Server, partitions: int) -> Topics:
    """This many, in topics of ten."""
    names = [f"many-{number:05}" for number in range(partitions // _EACH)]
    with Admin(server.address) as connection:
        for at in range(0, len(names), _TOPICS_AT_ONCE):
            connection.create(dict.fromkeys(names[at : at + _TOPICS_AT_ONCE], _EACH))
    return dict.fromkeys(names, _EACH)


def _nothing(_stage: Stage) -> None: ...


@dataclass(frozen=True)
class Kind:
    name: str
    work: Callable[[Stage], None]
    prepare: Callable[[Stage], None] = _nothing
    in_kafka: bool = True
    """Whether Apache Kafka has it, and clients see it."""


def kinds_with_few(plan: StallPlan) -> list[Kind]:
    """On a broker that has nothing else."""
    return [
        Kind(IDLE, lambda _: None),
        Kind(f"create and delete {plan.created:,} partitions", _create_and_delete),
        Kind(f"roll {plan.segments:,} segments", _roll, _topic_that_rolls),
        Kind(f"retention of {plan.segments:,} segments", _expire, _many_segments),
        Kind(f"compaction of {plan.compacted:,} records", _compact, _many_keys),
        Kind(f"{plan.describes:,} pipelined DescribeConfigs", _flood_of_describes),
        Kind(
            f"{plan.closed} connections with {plan.closed_requests:,} DescribeConfigs each, "
            "closed at once",
            _flood_and_close,
        ),
    ]


def kinds_with_many(plan: StallPlan) -> list[Kind]:
    """On a broker that has `plan.many` partitions."""
    beside = f"{plan.many:,} partitions"
    return [
        Kind(f"{IDLE}, {beside}", lambda _: None),
        Kind(f"describe everything, {beside}", _describe_everything),
        Kind(f"Fetch, ListOffsets, OffsetForLeaderEpoch of {beside}", _ask_for_everything),
        Kind(f"scrape metrics, {beside}", _scrape, in_kafka=False),
        Kind(f"{plan.metadatas} pipelined Metadata of {beside}", _flood_of_metadata),
    ]


# -- pipelining --------------------------------------------------------------------------------


def pipeline(wire: Wire, requests: Iterable[bytes]) -> bytes:
    """Send them without waiting and read all responses; returns the last one."""
    frames = list(requests)

    def send() -> None:
        for at in range(0, len(frames), 1_000):
            wire.send(b"".join(frames[at : at + 1_000]))

    sender = threading.Thread(target=send)
    sender.start()
    wire.socket.settimeout(_PATIENCE_S)
    reply = b""
    for _ in frames:
        reply = wire.reply()
    sender.join()
    return reply


def _ask_all(stage: Stage, requests: Iterable[bytes]) -> None:
    with stage.admin() as connection:
        for _ in range(stage.plan.rounds):
            for request in requests:
                connection.ask(request)


def wait(is_done: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + _PATIENCE_S
    while not is_done():
        if time.monotonic() > limit:
            raise RuntimeError(f"it did not end in time: {what}")
        time.sleep(_LOOK_AGAIN_S)


# -- partitions and segments -------------------------------------------------------------------


def _create_and_delete(stage: Stage) -> None:
    wide = f"wide-{next(stage._numbers)}"
    with stage.admin() as connection:
        connection.create({wide: stage.plan.created})
        connection.delete([wide])
    # Files are deleted a second later.
    time.sleep(1.5)


def _topic_that_rolls(stage: Stage) -> None:
    stage.new_topic(segment_ms=str(_ROLL_MS), retention_ms="-1")


def _roll(stage: Stage) -> None:
    """A pipelined producer whose every batch goes to a new segment."""
    first_ms = int(time.time() * 1000) - 2 * _ROLL_MS * stage.plan.segments
    batches = (
        bytes(build_batch([Record(timestamp=first_ms + number * 2 * _ROLL_MS, value=b"x" * 100)]))
        for number in range(stage.plan.segments)
    )
    with Wire(stage.server.address) as wire:
        request = produce_request(stage.topic, _old_batch(), -1)
        wire.first_produce(request)
        last = pipeline(wire, (produce_request(stage.topic, batch, -1) for batch in batches))
    assert base_offset(last) == stage.plan.segments


@cache
def _old_batch() -> bytes:
    return bytes(build_batch([Record(timestamp=1_000, key=b"first", value=b"x")]))


def _many_segments(stage: Stage) -> None:
    _topic_that_rolls(stage)
    _roll(stage)


def _expire(stage: Stage) -> None:
    """Lower the limit, wait until the log start has advanced, and until the files are gone."""
    with stage.admin() as connection:
        connection.alter(stage.topic, retention_ms="1000")
        wait(
            lambda: connection.start_offset(stage.topic) >= stage.plan.segments,
            "retention of all segments",
        )
    time.sleep(1.5)


def _many_keys(stage: Stage) -> None:
    """A log with many records for each key, in many segments; not compacted yet."""
    stage.new_topic(segment_ms=str(_ROLL_MS), retention_ms="-1", min_cleanable_dirty_ratio="0.01")
    with Wire(stage.server.address) as wire:
        wire.first_produce(produce_request(stage.topic, _old_batch(), -1))
        batches = _keyed_batches(stage.plan.compacted)
        last = pipeline(wire, (produce_request(stage.topic, batch, -1) for batch in batches))
        assert base_offset(last) is not None


@cache
def _keyed_batches(records: int) -> list[bytes]:
    first_ms = int(time.time() * 1000) - records * 100
    value = b"x" * _COMPACTED_VALUE_BYTES
    keys = max(1, records // _KEYS_SHARE)
    made = []
    for at in range(0, records, _COMPACTED_BATCH):
        # The active segment, which is not compacted, has only a small part.
        now_ms = first_ms + at * _COMPACTED_SEGMENTS // records * 2 * _ROLL_MS
        batch = [
            Record(timestamp=now_ms, key=b"%d" % (number % keys), value=value)
            for number in range(at, at + _COMPACTED_BATCH)
        ]
        made.append(bytes(build_batch(batch)))
    return made


def _compact(stage: Stage) -> None:
    with stage.admin() as connection:
        before = connection.size_bytes(stage.topic)
        connection.alter(stage.topic, cleanup_policy="compact")
        wait(lambda: connection.size_bytes(stage.topic) < before * 0.6, "compaction")
    time.sleep(1.5)


# -- questions about everything ----------------------------------------------------------------


def _describe_everything(stage: Stage) -> None:
    _ask_all(
        stage,
        [
            admin.describe_topics(stage.many),
            admin.describe_broker(),
            admin.describe_log_dirs(),
            admin.describe_cluster(),
            admin.metadata_of_everything(),
        ],
    )


def _ask_for_everything(stage: Stage) -> None:
    _ask_all(
        stage,
        [
            admin.fetch(stage.many),
            admin.list_offsets(stage.many),
            admin.offsets_for_leader_epoch(stage.many),
        ],
    )


def _scrape(stage: Stage) -> None:
    for _ in range(stage.plan.rounds):
        with urllib.request.urlopen(stage.metrics_url, timeout=_PATIENCE_S) as page:
            assert page.read()


# -- floods ------------------------------------------------------------------------------------


def _flood_of_describes(stage: Stage) -> None:
    with Wire(stage.server.address) as wire:
        pipeline(wire, [admin.describe_broker()] * stage.plan.describes)


def _flood_of_metadata(stage: Stage) -> None:
    with Wire(stage.server.address) as wire:
        pipeline(wire, [admin.metadata_of_everything()] * stage.plan.metadatas)


def _flood_and_close(stage: Stage) -> None:
    """Each sends as much as possible without waiting, and closes without reading."""
    flood = admin.describe_broker() * stage.plan.closed_requests
    wires = [Wire(stage.server.address) for _ in range(stage.plan.closed)]
    for wire in wires:
        wire.socket.settimeout(0.05)
        try:
            wire.send(flood)
        except (TimeoutError, ConnectionError):
            pass
    for wire in wires:
        wire.socket.close()
    with stage.admin() as connection:
        connection.socket.settimeout(_PATIENCE_S)
        connection.ask(admin.describe_cluster())
