"""The demo's messages: readings of water gauges, sent and read with a real client.

confluent-kafka is the client that most Python programs use; underneath it is librdkafka.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

TOPIC = "water-levels"
PARTITIONS = 3
STATIONS = [f"{river}-{number:02}" for river in ("han", "geum", "nakdong") for number in range(9)]
HEADERS = [("unit", b"cm"), ("from", b"demo")]
_READ_S = 60
_FLUSH_S = 60
_QUIET = {"log_level": 0}  # librdkafka's own messages about an unreachable broker


class Reading(NamedTuple):
    """One complete message, with a unique number."""

    number: int
    key: bytes
    value: bytes
    timestamp_ms: int


class Place(NamedTuple):
    partition: int
    offset: int


def readings(first: int, count: int, since_ms: int) -> Iterator[Reading]:
    """Readings number `first` and following, half a second apart from `since_ms` on."""
    for number in range(first, first + count):
        chance = Random(number)
        station = STATIONS[number % len(STATIONS)]
        level, seal = chance.randrange(900), f"{chance.getrandbits(96):024x}"
        value = json.dumps({"n": number, "level": level, "seal": seal})
        yield Reading(number, station.encode(), value.encode(), since_ms + number * 500)


@dataclass
class Gauge:
    """Sends readings and records which the broker has acknowledged, with their offsets."""

    address: str
    sent: int = 0
    acknowledged: dict[int, Place] = field(default_factory=dict)
    failed: list[KafkaError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,  # and with it acks=all
                "compression.type": "zstd",
                "linger.ms": 20,
                "batch.num.messages": 50,
                "reconnect.backoff.max.ms": 500,
                **_QUIET,
            }
        )

    def send(self, reading: Reading) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.failed.append(error)
            else:
                place = Place(message.partition(), message.offset())
                self.acknowledged[reading.number] = place

        self._producer.produce(
            TOPIC,
            key=reading.key,
            value=reading.value,
            headers=HEADERS,
            timestamp=reading.timestamp_ms,
            on_delivery=delivered,
        )
        self.sent += 1

    def wait_for(self, acknowledged_min: int) -> None:
        """Wait for acknowledgements until there are this many."""
        give_up_at = time.monotonic() + _FLUSH_S
        while len(self.acknowledged) < acknowledged_min:
            if time.monotonic() > give_up_at:
                raise RuntimeError("the broker does not acknowledge any more")
            self._producer.poll(0.01)

    def take_in_arrived(self) -> None:
        """Handle the acknowledgements that the client has received and not yet passed on."""
        while self._producer.poll(0.05):
            pass

    def flush(self) -> int:
        """Wait for every acknowledgement; returns how many are missing when time is up."""
        return self._producer.flush(_FLUSH_S)


def number_of(value: bytes | None) -> int:
    """The reading in a message's value."""
    return int(json.loads(value or b"")["n"])


def read_all(address: str, ends: dict[int, int]) -> Iterator[Message]:
    """Every message of the topic, from offset 0 to the given ends."""
    consumer = _consumer(address)
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
        left = sum(ends.values())
        while left:
            messages = consumer.consume(min(left, 500), timeout=_READ_S)
            if not messages:
                raise RuntimeError(f"{left} messages did not come within {_READ_S} s")
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(str(message.error()))
                yield message
            left -= len(messages)
    finally:
        consumer.close()


def ends(address: str) -> dict[int, int]:
    """The end offset of each partition."""
    consumer = _consumer(address)
    try:
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), _READ_S)[1]
            for partition in range(PARTITIONS)
        }
    finally:
        consumer.close()


def offset_at(address: str, partition: int, timestamp_ms: int) -> int:
    """The first offset whose message is at least as new as the time given."""
    consumer = _consumer(address)
    try:
        asked = TopicPartition(TOPIC, partition, timestamp_ms)
        (found,) = consumer.offsets_for_times([asked], _READ_S)
        return int(found.offset)
    finally:
        consumer.close()


def _consumer(address: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "demo",  # the client requires one, also to assign partitions itself
            "enable.auto.commit": False,
            **_QUIET,
        }
    )
