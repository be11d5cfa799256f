"""A real consumer that reads every partition from its first record, and tells what it has read.

`Tail` follows the writers in a thread; `read_to` stops it at given ends.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition


class Reading(Protocol):
    """What a reader has read."""

    name: str

    def saw(self, partition: int, offset: int, value: bytes | None) -> None: ...


class Tail:
    def __init__(self, servers: str, topic: str, partitions: int, reading: Reading) -> None:
        self._topic = topic
        self._partitions = partitions
        self.reading = reading
        self._next = dict.fromkeys(range(partitions), 0)
        self._ends: dict[int, int] | None = None
        self._ends_s = float("inf")
        self._error: BaseException | None = None
        self._advanced_s = dict.fromkeys(range(partitions), time.monotonic())
        self._silence_s = 0.0
        self.started_s = time.monotonic()
        self._per_second: Counter[int] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "none",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                # The last of a partition may be markers of transactions.
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> "Tail":
        self._thread.start()
        return self

    def read_to(self, ends: Mapping[int, int], timeout_s: float) -> bool:
        """Whether everything below these offsets arrived in time. Raises an error of the reader."""
        self._ends_s = time.monotonic() + timeout_s
        self._ends = dict(ends)
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._is_done(ends)

    def has_all_partitions(self) -> bool:
        """Whether it has read something of each."""
        return all(self._next.values())

    def start_silence(self) -> None:
        """Measure silences from now on."""
        self._silence_s = 0.0
        self._advanced_s = dict.fromkeys(self._next, time.monotonic())

    def longest_silence_s(self) -> float:
        """How long a partition at most had no new record for the reader, since the start."""
        now_s = time.monotonic()
        return max(self._silence_s, *(now_s - each for each in self._advanced_s.values()))

    def per_second(self) -> list[int]:
        """How many records arrived in each second since the reader was made."""
        seconds = max(self._per_second, default=-1) + 1
        return [self._per_second[second] for second in range(seconds)]

    def _is_done(self, ends: Mapping[int, int]) -> bool:
        return all(self._next[partition] >= end for partition, end in ends.items())

    def _run(self) -> None:
        try:
            self._consumer.assign(
                [TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in range(self._partitions)]
            )
            while time.monotonic() < self._ends_s:
                ends = self._ends
                if ends is not None and self._is_done(ends):
                    return
                self._take()
        except BaseException as error:
            self._error = error
        finally:
            self._consumer.close()

    def _take(self) -> None:
        messages = self._consumer.consume(1_000, timeout=0.1)
        now_s = time.monotonic()
        for message in messages:
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._next[message.partition()] = message.offset()
                continue
            if error is not None:
                if error.fatal() or not error.retriable():
                    raise KafkaException(error)
                continue
            partition, offset = message.partition(), message.offset()
            self.reading.saw(partition, offset, message.value())
            self._next[partition] = offset + 1
            self._per_second[int(now_s - self.started_s)] += 1
            self._silence_s = max(self._silence_s, now_s - self._advanced_s[partition])
            self._advanced_s[partition] = now_s
