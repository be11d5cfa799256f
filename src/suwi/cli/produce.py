"""Implementation of `suwi produce`."""

import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from suwi.cli.json_records import BadLine, GivenRecord, parse_record
from suwi.cli.lines import lines
from suwi.cli.options import Target
from suwi.cli.output import Failure, complain, count_text, document, say
from suwi.cli.session import existing_topic, is_input_a_terminal, run
from suwi.client.cluster import Cluster
from suwi.client.delivery import Delivered, Delivery
from suwi.client.errors import reason
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.env import SystemClock
from suwi.model.errors import BrokerError
from suwi.records.compression import Compression

_STDIN = 0
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\0": "\0", "\\\\": "\\"}


@dataclass(slots=True)
class LineForm:
    """How a line is parsed to a record."""

    key_separator: str | None
    headers: Mapping[str, str]
    """Added to every record."""
    partition: int | None
    """The partition of records that have none."""
    is_json: bool

    def parse(self, line: bytes) -> GivenRecord:
        """Raises `BadLine`."""
        common = tuple((name, value.encode()) for name, value in self.headers.items())
        if self.is_json:
            record = parse_record(line)
            return record._replace(
                headers=record.headers + common,
                partition=self.partition if record.partition is None else record.partition,
            )
        key, value = None, line
        if self.key_separator is not None:
            separator = _ESCAPES.get(self.key_separator, self.key_separator)
            key, found, value = line.partition(separator.encode("utf-8", "surrogateescape"))
            if not found:
                raise BadLine(f"there is no {self.key_separator!r} between key and value")
        return GivenRecord(key, value, common, self.partition, None)


class _Tally:
    """The delivered records by partition, and the first line that was not delivered."""

    def __init__(self) -> None:
        self.partitions: dict[int, tuple[int, int, int]] = {}
        """Records, first and last offset."""
        self.problem: str | None = None
        self._waiting: deque[tuple[int, Delivery]] = deque()

    def add(self, number: int, delivery: Delivery) -> None:
        self._waiting.append((number, delivery))
        while self._waiting and self._waiting[0][1].is_done:
            self._take()

    def finish(self) -> None:
        while self._waiting:
            self._take()

    @property
    def records(self) -> int:
        return sum(count for count, _, _ in self.partitions.values())

    def _take(self) -> None:
        number, delivery = self._waiting.popleft()
        try:
            delivered: Delivered = delivery.result()
        except (BrokerError, OSError) as error:
            if self.problem is None:
                self.problem = f"line {number} was not delivered: {reason(error)}"
            return
        index, offset = delivered.partition.partition, int(delivered.offset)
        count, first, last = self.partitions.get(index, (0, offset, offset))
        self.partitions[index] = (count + 1, min(first, offset), max(last, offset))


def produce(
    target: Target,
    topic: str,
    form: LineForm,
    *,
    path: str | None,
    codec: str,
    acks: int,
    timeout_s: float,
) -> None:
    settings = ProducerSettings(
        acks=acks,
        codec=Compression[codec.upper()],
        delivery_timeout_s=timeout_s,
        request_timeout_s=min(timeout_s, ProducerSettings().request_timeout_s),
    )

    async def work(cluster: Cluster) -> int:
        if path is None and sys.stdin is None:
            raise Failure("stdin is closed: name a file with --file")
        info = await existing_topic(cluster, topic)
        if form.partition is not None:
            info.partition(form.partition)
        fd = _STDIN if path is None else _open(path)
        if path is None and is_input_a_terminal():
            sys.stderr.write("one record per line; Ctrl-D ends the input\n")
        tally = _Tally()
        async with Producer(cluster, SystemClock(), settings) as producer:
            line_error = await _send_lines(fd, producer, topic, form, tally)
        tally.finish()
        _report(topic, tally, form.is_json)
        for problem in (tally.problem, line_error):
            if problem is not None:
                complain(problem)
        return 1 if tally.problem or line_error else 0

    run(target, work)


def _open(path: str) -> int:
    try:
        # A file named by the user is not a file of the broker.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # noqa: TID251
    except OSError as error:
        raise Failure(f"--file {path}: {error.strerror}") from None


async def _send_lines(
    fd: int, producer: Producer, topic: str, form: LineForm, tally: _Tally
) -> str | None:
    """Send every line up to the first invalid one. Returns its error."""
    number = 0
    async for line in lines(fd):
        number += 1
        if tally.problem is not None:
            return None
        try:
            record = form.parse(line)
            delivery = await producer.send(
                topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp=record.timestamp,
            )
        except (BadLine, BrokerError) as error:
            return f"line {number}: {error}"
        tally.add(number, delivery)
    return None


def _report(topic: str, tally: _Tally, is_json: bool) -> None:
    found = sorted(tally.partitions.items())
    if is_json:
        document(
            {
                "topic": topic,
                "records": tally.records,
                "partitions": [
                    {"partition": index, "records": n, "first_offset": first, "last_offset": last}
                    for index, (n, first, last) in found
                ],
            }
        )
        return
    positions = [
        f"{topic}-{index} offset {first}"
        if n == 1
        else f"{topic}-{index} offsets {first} to {last}"
        for index, (n, first, last) in found
        if first >= 0
    ]
    positions_text = f": {', '.join(positions)}" if positions else ""
    say(f"wrote {count_text(tally.records, 'record')}{positions_text}")
