"""A writer in its own process: idempotent, acks=all, a real client with its defaults.

`python -m chaos.writer KIND NUMBER SERVERS TOPIC PARTITIONS JOURNAL` sends until its standard input
ends, waits for outstanding responses and ends. Kinds: `librdkafka`, `librdkafka-impatient` (retries
after two seconds), `librdkafka-bulk` (more records, in larger batches), `aiokafka`.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from chaos.journal import Journal, value_of

_ROUND = 60
_BULK_ROUND = 1_500
_PAUSE_S = 0.5
_OUTSTANDING_MAX = 20_000
"""Enough that one partition without a leader does not stop the others."""
FLUSH_S = 120.0
"""How long to wait at the end for outstanding responses."""


class Numbers:
    """The records in the order of sending: each partition in turn, with its own numbers."""

    def __init__(self, partitions: int, journal: Journal, per_round: int = _ROUND) -> None:
        self._partitions = range(partitions)
        self._journal = journal
        self._step = per_round // partitions
        self._next = 0

    def round(self) -> Iterator[tuple[int, int]]:
        numbers = range(self._next, self._next + self._step)
        self._next = numbers.stop
        for partition in self._partitions:
            self._journal.sends(partition, numbers.stop)
        for number in numbers:
            for partition in self._partitions:
                yield partition, number


def write_with_librdkafka(
    writer: int,
    topic: str,
    partitions: int,
    journal: Journal,
    config: dict[str, Any],
    is_over: Callable[[], bool],
    per_round: int = _ROUND,
) -> None:
    from confluent_kafka import KafkaError, Producer

    def on_error(error: KafkaError) -> None:
        if error.fatal():
            journal.fatal(f"{error.name()} {error.str()}")

    def on_delivery(place: tuple[int, int], error: KafkaError | None, message: Any) -> None:
        if error is None:
            # Without an offset if a later batch was acknowledged and this one with it.
            offset = message.offset()
            journal.acked(*place, -1 if offset is None else offset)
        else:
            journal.failed(*place, error.name())

    producer = Producer(
        {
            "enable.idempotence": True,
            "acks": "all",
            # Small batches, so that several of a partition are in flight at once.
            "batch.num.messages": 4,
            "error_cb": on_error,
            **config,
        }
    )
    numbers = Numbers(partitions, journal, per_round)
    while not is_over():
        for place in numbers.round():
            value = value_of(writer, *place)
            producer.produce(
                topic, value, partition=place[0], on_delivery=partial(on_delivery, place)
            )
        ends_s = time.monotonic() + _PAUSE_S
        while time.monotonic() < ends_s or (len(producer) > _OUTSTANDING_MAX and not is_over()):
            producer.poll(0.05)
    producer.flush(FLUSH_S)


async def write_with_aiokafka(
    writer: int,
    topic: str,
    partitions: int,
    journal: Journal,
    servers: str,
    is_over: Callable[[], bool],
) -> None:
    from aiokafka import AIOKafkaProducer

    unanswered = 0

    def on_delivery(place: tuple[int, int], future: "asyncio.Future[Any]") -> None:
        nonlocal unanswered
        unanswered -= 1
        error = future.exception()
        if error is None:
            journal.acked(*place, future.result().offset)
        else:
            journal.failed(*place, type(error).__name__)

    producer = AIOKafkaProducer(
        bootstrap_servers=servers, enable_idempotence=True, acks="all", max_batch_size=1_000
    )
    await producer.start()
    numbers = Numbers(partitions, journal)
    while not is_over():
        for place in numbers.round():
            unanswered += 1
            future = await producer.send(topic, value_of(writer, *place), partition=place[0])
            future.add_done_callback(partial(on_delivery, place))
        await asyncio.sleep(_PAUSE_S)
        while unanswered > _OUTSTANDING_MAX and not is_over():  # noqa: ASYNC110 - both may change
            await asyncio.sleep(0.05)
    async with asyncio.timeout(FLUSH_S):
        await producer.stop()


def main() -> None:
    kind, writer, servers, topic, partitions, journal_path = sys.argv[1:]
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    journal = Journal(Path(journal_path), int(writer))
    about = (int(writer), topic, int(partitions), journal)
    match kind:
        case "aiokafka":
            asyncio.run(write_with_aiokafka(*about, servers, over.is_set))
        case "librdkafka":
            write_with_librdkafka(*about, {"bootstrap.servers": servers}, over.is_set)
        case "librdkafka-impatient":
            config = {"bootstrap.servers": servers, "socket.timeout.ms": 2_000}
            write_with_librdkafka(*about, config, over.is_set)
        case "librdkafka-bulk":
            config = {"bootstrap.servers": servers, "batch.num.messages": 200, "linger.ms": 50}
            write_with_librdkafka(*about, config, over.is_set, _BULK_ROUND)
        case _:
            raise ValueError(f"no such kind of writer: {kind}")
    journal.close()


if __name__ == "__main__":
    main()
