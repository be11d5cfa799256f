"""A member of a consumer group that commits after processing, in its own process.

`python -m chaos.group_worker SERVERS TOPIC JOURNAL` reads until its standard input ends. What it
has processed is in its journal before it commits; `read_work` adds the journals of all members up.
Invariant: with such members every record is processed at least once, whatever happens.
"""

import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import TextIO

from confluent_kafka import Consumer, KafkaException, Message

GROUP = "workers"
_BATCH = 500
_SESSION_MS = 10_000

Range = tuple[int, int]
"""The first offset, and the one after the last."""


def process(messages: Sequence[Message], journal: TextIO) -> None:
    """Journal the offsets, in ranges without gaps."""
    places = [(m.partition(), m.offset()) for m in messages if m.error() is None]
    for _, run in groupby(enumerate(places), key=lambda p: (p[1][0], p[1][1] - p[0])):
        offsets = [place for _, place in run]
        journal.write(f"{offsets[0][0]} {offsets[0][1]} {offsets[-1][1] + 1}\n")
    journal.flush()


def main() -> None:
    servers, topic, journal_path = sys.argv[1:]
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": _SESSION_MS,
        }
    )
    consumer.subscribe([topic])
    with Path(journal_path).open("w") as journal:
        while not over.is_set():
            messages = consumer.consume(_BATCH, timeout=0.2)
            if messages:
                process(messages, journal)
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    # The next commit covers it, or another member processes the records again.
                    print(f"commit failed: {error}", file=sys.stderr, flush=True)
    consumer.close()


@dataclass(slots=True)
class Work:
    """What a group has processed."""

    ranges: dict[int, list[Range]] = field(default_factory=dict)
    """By partition, in order and without overlaps."""
    processed: int = 0
    again: int = 0

    def missing(self, ends: Mapping[int, int]) -> dict[int, list[Range]]:
        """The ranges below the ends of the partitions that nobody has processed."""
        found = {}
        for partition, end in ends.items():
            bounds = [(0, 0), *self.ranges.get(partition, []), (end, end)]
            gaps = [
                (before[1], after[0]) for before, after in pairwise(bounds) if before[1] < after[0]
            ]
            if gaps:
                found[partition] = gaps
        return found


def read_work(journals: Iterable[Path]) -> Work:
    work, all_ranges = Work(), dict[int, list[Range]]()
    for path in journals:
        lines = path.read_text() if path.exists() else ""
        # The last line may be incomplete while the member writes.
        for line in lines[: lines.rfind("\n") + 1].splitlines():
            partition, first, end = map(int, line.split())
            all_ranges.setdefault(partition, []).append((first, end))
            work.again += end - first
    for partition, ranges in all_ranges.items():
        merged = work.ranges.setdefault(partition, [])
        for first, end in sorted(ranges):
            if merged and first <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((first, end))
        work.processed += sum(end - first for first, end in merged)
    work.again -= work.processed
    return work


if __name__ == "__main__":
    main()
