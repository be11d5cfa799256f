"""The demo's producer: orders, sent from a thread at an even pace, and their outcome.

After the first half it pauses until `go_on`.
"""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import Producer

_START = datetime(2026, 1, 1, 8, tzinfo=UTC)
_SHOPS = ("Busan", "Incheon", "Seoul")
_STEP = 500
"""This many are sent before the pace is checked."""


class Orders:
    def __init__(self, servers: str, topic: str, count: int, send_s: float) -> None:
        self.acknowledged = 0
        self.failed: list[str] = []
        self._topic = topic
        self._count = count
        self._send_s = send_s
        self._stopped = threading.Event()
        self._second_half = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 20,
                "log_level": 0,  # It would report every broken connection.
            }
        )

    @property
    def is_done(self) -> bool:
        return self.acknowledged + len(self.failed) == self._count

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        """Send the second half."""
        self._second_half.set()

    def stop(self) -> None:
        self._stopped.set()
        self._second_half.set()
        if self._thread.is_alive():
            self._thread.join()

    def _send(self) -> None:
        half = self._count // 2
        self._send_some(range(half))
        while not self._second_half.is_set():
            self._producer.poll(0.1)
        self._send_some(range(half, self._count))
        while self._producer.flush(0.2) and not self._stopped.is_set():
            pass

    def _send_some(self, numbers: range) -> None:
        began_s = time.monotonic()
        for sent, number in enumerate(numbers):
            if self._stopped.is_set():
                return
            self._send_one(number)
            if sent % _STEP == 0:
                self._producer.poll(0)
                ahead_s = began_s + self._send_s * sent / self._count - time.monotonic()
                self._stopped.wait(max(ahead_s, 0))

    def _send_one(self, number: int) -> None:
        order = {
            "id": number,
            "shop": _SHOPS[number % len(_SHOPS)],
            "cents": 100 + number % 9900,
            "at": (_START + timedelta(seconds=number)).isoformat(),
        }
        value = json.dumps(order)
        while True:
            try:
                self._producer.produce(
                    self._topic, value, key=str(number), on_delivery=self._delivered
                )
                return
            except BufferError:
                self._producer.poll(0.1)

    def _delivered(self, error: Any, _: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed.append(str(error))
