"""Members of consumer groups: librdkafka's consumers, each polled by a thread of its own."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 120


class Member:
    """Reads topics in a group from the start on; `stop` leaves the group, and commits."""

    def __init__(
        self, servers: str, group: str, *topics: str, client: str = "member", **settings: Any
    ) -> None:
        self.assigned: set[tuple[str, int]] = set()
        self.read = 0
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": group,
                "client.id": client,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 200,
                "auto.commit.interval.ms": 100,
                "topic.metadata.refresh.interval.ms": 200,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._consumer.subscribe(list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke)
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned |= {(p.topic, p.partition) for p in partitions}

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned -= {(p.topic, p.partition) for p in partitions}

    def _poll(self) -> None:
        while not self._stopping.is_set():
            record = self._consumer.poll(0.05)
            self.read += record is not None and record.error() is None
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def until(is_so: Callable[[], object]) -> None:
    """Wait for what must come."""
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s, "it has not come"
        time.sleep(0.05)
