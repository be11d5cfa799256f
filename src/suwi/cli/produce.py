"""`suwi produce`."""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from suwi.admin.failure import Failure
from suwi.admin.json_records import BadLine, GivenRecord, parse_record
from suwi.admin.text import count_text
from suwi.admin.topic_descriptions import existing_topic
from suwi.cli.output import complain, document, say
from suwi.cli.session import Topic, is_input_a_terminal, on_cluster, pairs
from suwi.client.cluster import Cluster
from suwi.client.delivery import Delivered, Delivery
from suwi.client.errors import reason
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.env import SystemClock
from suwi.model.errors import BrokerError
from suwi.records.compression import Compression

_STDIN = 0
_CHUNK_BYTES = 64 * 1024
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\0": "\0", "\\\\": "\\"}


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    ALL = "all"
    ONE = "1"
    NONE = "0"


@on_cluster
async def produce(
    cluster: Cluster,
    topic: Topic,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read lines from a file, not stdin."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", metavar="TEXT", help="Text between key and value."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME=VALUE", help="Header of every record; repeatable."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Default: by the key."),
    ] = None,
    compression: Annotated[
        Codec, typer.Option("--compression", "-z", help="Compression of the batches.")
    ] = Codec.NONE,
    acks: Annotated[
        Acks,
        typer.Option(help="Required acknowledgements: all in-sync replicas, the leader, none."),
    ] = Acks.ALL,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time limit to deliver a record.")
    ] = 30,
    json: Annotated[
        bool, typer.Option("--json", help="Lines are JSON, as `suwi consume --json` prints them.")
    ] = False,
) -> int:
    """Write records, one per line of stdin.

    \b
    echo apple | suwi produce fruit
    suwi produce fruit --file fruit.txt --key-separator '\\t'

    \b
    With --json a line looks like this; all fields but the value are optional:
    {"key": "k", "value": "v", "headers": {"h": "1"}, "partition": 0, "timestamp": 0}
    """
    if json and key_separator is not None:
        raise typer.BadParameter("JSON lines have their own keys", param_hint="--key-separator")
    if key_separator == "":
        raise typer.BadParameter("it is empty", param_hint="--key-separator")
    form = _LineForm(key_separator, pairs(header, "--header"), partition, is_json=json)
    settings = ProducerSettings(
        acks=-1 if acks is Acks.ALL else int(acks),
        codec=Compression[compression.upper()],
        delivery_timeout_s=timeout,
        request_timeout_s=min(timeout, ProducerSettings().request_timeout_s),
    )
    if file is None and sys.stdin is None:
        raise Failure("stdin is closed: name a file with --file")
    info = await existing_topic(cluster, topic)
    if partition is not None:
        info.partition(partition)
    fd = _STDIN if file is None else _open(file)
    if file is None and is_input_a_terminal():
        sys.stderr.write("one record per line; Ctrl-D ends the input\n")
    tally = _Tally()
    async with Producer(cluster, SystemClock(), settings) as producer:
        line_error = await _send_lines(fd, producer, topic, form, tally)
    tally.finish()
    _report(topic, tally, is_json=json)
    problems = [problem for problem in (tally.problem, line_error) if problem is not None]
    for problem in problems:
        complain(problem)
    return int(bool(problems))


@dataclass(slots=True)
class _LineForm:
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


def _open(path: str) -> int:
    try:
        # A file named by the user is not a file of the broker.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # noqa: TID251
    except OSError as error:
        raise Failure(f"--file {path}: {error.strerror}") from None


async def _send_lines(
    fd: int, producer: Producer, topic: str, form: _LineForm, tally: _Tally
) -> str | None:
    """Send every line up to the first invalid one. Returns its error."""
    number = 0
    async for line in _lines(fd):
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


def _report(topic: str, tally: _Tally, *, is_json: bool) -> None:
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


# -- input -----------------------------------------------------------------------------------------


async def _lines(fd: int) -> AsyncIterator[bytes]:
    """Each line of a file, pipe or terminal without its line end, which the last one may lack.
    The event loop is not blocked, and no thread is used."""
    rest = b""
    while chunk := await _read(fd):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def _read(fd: int) -> bytes:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except (ValueError, OSError):
        return os.read(fd, _CHUNK_BYTES)  # a regular file is always ready
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
    return os.read(fd, _CHUNK_BYTES)
