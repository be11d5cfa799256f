"""Implementation of `suwi consume`."""

import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from suwi.cli.json_records import record_fields
from suwi.cli.options import Target
from suwi.cli.output import (
    Failure,
    bytes_text,
    flush,
    is_terminal,
    json_line,
    printable,
    say,
    stop_when_output_closes,
    time_text,
    write,
)
from suwi.cli.session import existing_topic, run
from suwi.cli.times import parse_duration_ms, parse_time_ms
from suwi.client.cluster import Cluster
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from suwi.client.reader import Reader, ReadSettings
from suwi.env import SystemClock
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_OFFSET, Offset, TopicPartition
from suwi.records.record import Record

_MILLISECONDS = re.compile(r"\d{6,}")
_OFFSET = re.compile(r"[+-]?\d+")
_NEW_PARTITIONS_CHECK_S = 2.0


@dataclass(frozen=True, slots=True)
class Start:
    """The start position: a timestamp, EARLIEST, LATEST, or an offset."""

    time: int = LATEST
    offset: int | None = None
    """A negative offset counts from the end."""


def parse_start(offset: str | None, time: str | None) -> Start:
    if time is not None:
        return Start(time=_parse_time(time))
    match offset:
        case None | "latest":
            return Start()
        case "earliest":
            return Start(time=EARLIEST)
    if not _OFFSET.fullmatch(offset) or len(offset) > 19:
        raise typer.BadParameter(
            f"{offset!r}: give a number, -N for the last N, earliest or latest",
            param_hint="--offset",
        )
    return Start(offset=int(offset))


def _parse_time(text: str) -> int:
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    ago_ms = parse_duration_ms(text)
    if ago_ms is not None:
        return max(0, SystemClock().now_ms() - ago_ms)
    time_ms = parse_time_ms(text)
    if time_ms is None:
        raise typer.BadParameter(
            f"{text!r}: give 2026-01-31T12:00, milliseconds since 1970, or how long ago: 10m",
            param_hint="--from-time",
        )
    return time_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """Which parts of a record are printed, and how."""

    is_json: bool
    offsets: bool
    timestamps: bool
    headers: bool
    keys: bool

    def show(self, partition: TopicPartition, record: Record) -> None:
        if self.is_json:
            json_line(record_fields(partition.topic, partition.partition, record))
            return
        parts = []
        if self.offsets:
            parts += [str(partition), str(record.offset)]
        if self.timestamps:
            parts.append(time_text(record.timestamp))
        if self.headers:
            parts.append(",".join(f"{name}={bytes_text(v)}" for name, v in record.headers) or "-")
        if self.keys:
            parts.append(bytes_text(record.key))
        if is_terminal():
            parts.append(bytes_text(record.value))
            say("\t".join(printable(part) for part in parts))
            return
        head = "".join(f"{part}\t" for part in parts).encode("utf-8", "surrogateescape")
        write(head + (b"null" if record.value is None else record.value) + b"\n")


def consume(
    target: Target,
    topic: str,
    start: Start,
    form: RecordForm,
    *,
    partitions: Sequence[int],
    count: int | None,
    follow: bool,
    committed: bool,
) -> None:
    async def work(cluster: Cluster) -> None:
        info = await existing_topic(cluster, topic)
        chosen = [info.partition(index).index for index in dict.fromkeys(partitions)]
        if start.offset is not None and start.offset >= 0 and not chosen:
            if len(info.partitions) > 1:
                raise Failure(f"--offset {start.offset}: give the --partition as well")
            chosen = [info.partitions[0].index]
        partitions_to_read = [
            TopicPartition(topic, index)
            for index in chosen or [partition.index for partition in info.partitions]
        ]
        ends = await list_offsets(
            cluster, dict.fromkeys(partitions_to_read, LATEST), committed_only=committed
        )
        positions = await _positions(cluster, start, ends)
        if follow and start == Start() and sys.stderr.isatty():
            sys.stderr.write("waiting for new records; --from-beginning shows earlier ones\n")
        reader = Reader(cluster, positions, ReadSettings(committed_only=committed))
        new_partitions = None if chosen else _NewPartitions(cluster, topic, partitions_to_read)
        async with reader, stop_when_output_closes():
            if follow:
                await _follow(reader, form, count, new_partitions)
            else:
                await _print_to_end(reader, form, count, ends)

    run(target, work, interrupted=0)


async def _positions(
    cluster: Cluster, start: Start, ends: dict[TopicPartition, FoundOffset]
) -> dict[TopicPartition, Offset]:
    if start == Start():
        return {tp: end.offset for tp, end in ends.items()}
    if start.offset is None:
        found = await list_offsets(cluster, dict.fromkeys(ends, start.time))
        return {
            tp: ends[tp].offset if at.offset == NO_OFFSET else at.offset for tp, at in found.items()
        }
    firsts = await list_offsets(cluster, dict.fromkeys(ends, EARLIEST))
    if start.offset < 0:
        return {
            tp: Offset(max(firsts[tp].offset, end.offset + start.offset))
            for tp, end in ends.items()
        }
    for tp, end in ends.items():
        if not firsts[tp].offset <= start.offset <= end.offset:
            range_text = f"has offsets {firsts[tp].offset} to {end.offset - 1}"
            if firsts[tp].offset == end.offset:
                range_text = f"is empty; its next offset is {end.offset}"
            raise Failure(f"--offset {start.offset}: {tp} {range_text}")
    return dict.fromkeys(ends, Offset(start.offset))


class _NewPartitions:
    """Detects partitions that are added to a topic while it is followed."""

    def __init__(self, cluster: Cluster, topic: str, known: Sequence[TopicPartition]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._known = set(known)
        self._checked_s = asyncio.get_running_loop().time()

    async def positions(self) -> dict[TopicPartition, Offset]:
        """The start offsets of partitions added since the last check, which is periodic."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._checked_s < _NEW_PARTITIONS_CHECK_S:
            return {}
        self._checked_s = now_s
        try:
            topic = await self._cluster.topic(self._topic, fresh=True)
            partitions_to_read = (
                TopicPartition(topic.name, partition.index) for partition in topic.partitions
            )
            new = [tp for tp in partitions_to_read if tp not in self._known]
            found = await list_offsets(self._cluster, dict.fromkeys(new, EARLIEST)) if new else {}
        except (OSError, BrokerError):
            return {}  # a lasting error is raised by the reader
        self._known.update(found)
        return {tp: first.offset for tp, first in found.items()}


async def _follow(
    reader: Reader, form: RecordForm, count: int | None, new_partitions: _NewPartitions | None
) -> None:
    """Print records until `count` are printed."""
    printed = 0
    while True:
        for fetched in await reader.read():
            for record in fetched.records:
                form.show(fetched.partition, record)
                printed += 1
                if printed == count:
                    return
        flush()
        if new_partitions is not None:
            reader.positions.update(await new_partitions.positions())


async def _print_to_end(
    reader: Reader, form: RecordForm, count: int | None, ends: dict[TopicPartition, FoundOffset]
) -> None:
    """Print records until `count` are printed, or each partition is read to its end."""
    for tp, found in ends.items():
        if reader.positions[tp] >= found.offset:
            del reader.positions[tp]
    printed = 0
    while reader.positions:
        for fetched in await reader.read():
            tp = fetched.partition
            end = ends[tp].offset
            for record in fetched.records:
                if record.offset >= end:
                    break
                form.show(tp, record)
                printed += 1
                if printed == count:
                    return
            if fetched.next_offset >= end:
                del reader.positions[tp]
        flush()
