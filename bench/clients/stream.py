"""A producer that sends all the time, and knows how long each partition took no writes."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from confluent_kafka import KafkaError, Message, Producer

TOPIC = "orders"
_PAUSE_S = 0.002
_PATIENCE_S = 60


def wait_a_while(stream: "Stream") -> None:
    """Until records flow; its timers have a period of a second: a kill is at any moment of it."""
    stream.watch(time.perf_counter() + random.uniform(0.5, 1.5))
    stream.acknowledged()


class Stream:
    """Sends records to all partitions in turn, and finds when each takes writes again."""

    def __init__(self, servers: str, partitions: int = 1, **settings: object) -> None:
        more = {key.replace("_", "."): value for key, value in settings.items()}
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0, **more})
        self._partitions = partitions
        self._news = threading.Condition()
        self._since = 0.0
        self._firsts: dict[int, float] = {}
        """By partition: when the first record sent since then was acknowledged."""
        self._lasts: dict[int, float] = {}
        """By partition: when the last record was acknowledged."""
        self._silence_s = 0.0
        self._ends = threading.Event()

    @contextmanager
    def running(self) -> Iterator["Stream"]:
        sender = threading.Thread(target=self._send)
        sender.start()
        try:
            yield self
        finally:
            self._ends.set()
            sender.join()
            self._producer.flush(_PATIENCE_S)

    def watch(self, moment: float) -> None:
        """From now on look at records that are sent after this moment."""
        with self._news:
            self._since, self._firsts = moment, {}
            self._silence_s = 0.0

    def acknowledged(self) -> float:
        """When every partition had acknowledged a record that was sent after the moment."""
        with self._news:
            if not self._news.wait_for(lambda: len(self._firsts) == self._partitions, _PATIENCE_S):
                raise RuntimeError("no acknowledgements any more")
            return max(self._firsts.values())

    def silence_s(self) -> float:
        """The longest time since `watch` without an acknowledgement of a partition."""
        with self._news:
            return self._silence_s

    def _send(self) -> None:
        for number in count():
            if self._ends.is_set():
                return
            told = partial(self._delivered, time.perf_counter())
            partition = number % self._partitions
            self._producer.produce(TOPIC, b"x", partition=partition, on_delivery=told)
            self._producer.poll(_PAUSE_S)

    def _delivered(self, sent: float, error: KafkaError | None, message: Message) -> None:
        with self._news:
            if error is not None:
                return
            now, partition = time.perf_counter(), message.partition() or 0
            self._silence_s = max(self._silence_s, now - self._lasts.get(partition, now))
            self._lasts[partition] = now
            if sent > self._since:
                self._firsts.setdefault(partition, now)
                self._news.notify_all()
