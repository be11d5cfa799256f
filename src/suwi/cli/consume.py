"""`suwi consume`: from given offsets, or as a member of a consumer group."""

import asyncio
import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import typer

from suwi.admin.failure import Failure
from suwi.admin.json_records import record_fields
from suwi.admin.text import bytes_text, parse_duration_ms, parse_time_ms, printable, time_text
from suwi.admin.topic_descriptions import existing_topic
from suwi.cli.output import (
    complain,
    flush,
    is_terminal,
    json_line,
    say,
    stop_when_output_closes,
    write,
)
from suwi.cli.session import DEFAULT_BROKER, OK, Broker, CommandConfig, Target, Topic, run
from suwi.client.cluster import Cluster
from suwi.client.group_consumer import GroupConsumer, GroupSettings
from suwi.client.offsets import EARLIEST, LATEST, FoundOffset, list_offsets
from suwi.client.reader import Fetched, Reader, ReadSettings
from suwi.decoders.decoder import FORMATS, Decoder, Format, json_bytes
from suwi.decoders.errors import CannotDecode
from suwi.decoders.registry import Registry
from suwi.env import SystemClock
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_OFFSET, Offset, TopicPartition
from suwi.records.record import Record

_MILLISECONDS = re.compile(r"\d{6,}")
_OFFSET = re.compile(r"[+-]?\d+")
_NEW_PARTITIONS_CHECK_S = 2.0
_PROBLEMS_SAID_MAX = 20
FORMATS_TEXT = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
_NO_END = Offset(1 << 63)


def consume(
    topic: Topic,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="NAME",
            help="Read as a member of a consumer group, from where it left off, and commit.",
        ),
    ] = None,
    instance_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --group: be a static member (group.instance.id), which a restart keeps.",
        ),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Default: all; repeatable."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="N",
            help="Where to start: an offset, -N for the last N, earliest or latest.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the oldest record.")
    ] = False,
    from_time: Annotated[
        str | None,
        typer.Option(
            "--from-time",
            "-t",
            metavar="TIME",
            help="Start at a time: 2026-01-31T12:00 (UTC), milliseconds, or 10m ago as 10m.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after N records.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for new records, or stop at the end.")
    ] = True,
    committed: Annotated[
        bool, typer.Option("--committed", help="Skip aborted and open transactions.")
    ] = False,
    key_format: Annotated[
        Format | None,
        typer.Option(metavar="FORMAT", help=f"What keys are: {FORMATS_TEXT}. Default: bytes."),
    ] = None,
    value_format: Annotated[
        Format | None,
        typer.Option(metavar="FORMAT", help=f"What values are: {FORMATS_TEXT}. Default: bytes."),
    ] = None,
    schema_registry: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the schemas of Avro and Protobuf are. Formats are auto by default then.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record.")] = False,
    keys: Annotated[bool, typer.Option("--keys", "-k", help="Print keys.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Print headers.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print times.")] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Print partitions and offsets.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print all of that.")] = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Print records until Ctrl-C.

    By default only new records are printed.

    \b
    suwi consume fruit --from-beginning --no-follow --keys
    suwi consume fruit --partition 0 --offset 42 -n 1 --json
    suwi consume fruit --group juicers --from-beginning
    """
    given = [o for o in (offset, from_time, "earliest" if from_beginning else None) if o]
    if len(given) > 1:
        raise typer.BadParameter("give one of --offset, --from-time and --from-beginning")
    if group is not None and (partition or offset or from_time):
        raise typer.BadParameter(
            "a group assigns the partitions and knows the offsets; use --from-beginning at most, "
            "or `suwi groups reset`",
            param_hint="--group",
        )
    if instance_id is not None and group is None:
        raise typer.BadParameter("requires --group", param_hint="--instance-id")
    form = _RecordForm(
        key_decoder=_decoder("--key-format", key_format, schema_registry),
        value_decoder=_decoder("--value-format", value_format, schema_registry),
        is_json=json,
        offsets=offsets or verbose,
        timestamps=timestamps or verbose,
        headers=headers or verbose,
        keys=keys or verbose,
    )
    read = ReadSettings(committed_only=committed)
    start = _parse_start("earliest" if from_beginning else offset, from_time)

    async def work(cluster: Cluster) -> None:
        if group is None:
            await _consume(cluster, topic, start, form, read, partition or [], count, follow)
            return
        settings = GroupSettings(
            instance_id=instance_id,
            offset_reset="earliest" if from_beginning else "latest",
            read=read,
        )
        await _consume_in_group(cluster, topic, group, settings, form, count, follow)

    run(Target(broker, command_config), work, interrupted=OK)


def _decoder(option: str, form: Format | None, registry: str | None) -> Decoder | None:
    if form is None and registry is None:
        return None
    try:
        return Decoder(form or "auto", registry=Registry(registry) if registry else None)
    except CannotDecode as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@dataclass(frozen=True, slots=True)
class _Start:
    """The start position: a timestamp, EARLIEST, LATEST, or an offset."""

    time: int = LATEST
    offset: int | None = None
    """A negative offset counts from the end."""


def _parse_start(offset: str | None, time: str | None) -> _Start:
    if time is not None:
        return _Start(time=_parse_time(time))
    match offset:
        case None | "latest":
            return _Start()
        case "earliest":
            return _Start(time=EARLIEST)
    if not _OFFSET.fullmatch(offset) or len(offset) > 19:
        raise typer.BadParameter(
            f"{offset!r}: give a number, -N for the last N, earliest or latest",
            param_hint="--offset",
        )
    return _Start(offset=int(offset))


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
class _RecordForm:
    """Which parts of a record are printed, and how."""

    key_decoder: Decoder | None
    value_decoder: Decoder | None
    is_json: bool
    offsets: bool
    timestamps: bool
    headers: bool
    keys: bool
    problems: set[str] = field(default_factory=set)
    """Those that were said."""

    def show(self, partition: TopicPartition, record: Record) -> None:
        if self.is_json:
            decoders = self.key_decoder, self.value_decoder
            json_line(record_fields(*partition, record, *decoders))
            return
        where = f"{partition} offset {record.offset}"
        parts = []
        if self.offsets:
            parts += [str(partition), str(record.offset)]
        if self.timestamps:
            parts.append(time_text(record.timestamp))
        if self.headers:
            parts.append(",".join(f"{name}={bytes_text(v)}" for name, v in record.headers) or "-")
        if self.keys:
            key = self._decoded(self.key_decoder, record.key, f"key of {where}")
            parts.append(bytes_text(key))
        value = self._decoded(self.value_decoder, record.value, f"value of {where}")
        if is_terminal():
            parts.append(bytes_text(value))
            say("\t".join(printable(part) for part in parts))
            return
        head = "".join(f"{part}\t" for part in parts).encode("utf-8", "surrogateescape")
        write(head + (b"null" if value is None else value) + b"\n")

    def _decoded(self, decoder: Decoder | None, data: bytes | None, where: str) -> bytes | None:
        """Of JSON, Avro and Protobuf one line of JSON; anything else as it is."""
        if decoder is None:
            return data
        found = decoder.decode(data)
        is_new = bool(found.problem) and found.problem not in self.problems
        if is_new and len(self.problems) < _PROBLEMS_SAID_MAX:
            complain(printable(f"{where}: {found.problem}"))
            self.problems.add(found.problem)
        if found.read_as in ("null", "text", "bytes"):
            return data
        return json_bytes(found.value)


# -- from given offsets ----------------------------------------------------------------------------


async def _consume(
    cluster: Cluster,
    topic: str,
    start: _Start,
    form: _RecordForm,
    settings: ReadSettings,
    partitions: Sequence[int],
    count: int | None,
    follow: bool,
) -> None:
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
        cluster, dict.fromkeys(partitions_to_read, LATEST), committed_only=settings.committed_only
    )
    positions = await _positions(cluster, start, ends)
    if follow and start == _Start() and sys.stderr.isatty():
        sys.stderr.write("waiting for new records; --from-beginning shows earlier ones\n")
    reader = Reader(cluster, positions, settings)
    new_partitions = None
    if follow and not chosen:
        new_partitions = _NewPartitions(cluster, topic, partitions_to_read)
    async with reader, stop_when_output_closes():
        await _print_records(reader, form, count, {} if follow else ends, new_partitions)


async def _positions(
    cluster: Cluster, start: _Start, ends: dict[TopicPartition, FoundOffset]
) -> dict[TopicPartition, Offset]:
    if start == _Start():
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


async def _print_records(
    reader: Reader,
    form: _RecordForm,
    count: int | None,
    ends: Mapping[TopicPartition, FoundOffset],
    new_partitions: _NewPartitions | None,
) -> None:
    """Print until `count` records are printed, or each partition is read to its end. Without
    `ends` the partitions are followed, and those that are added."""
    for tp, found in ends.items():
        if reader.positions[tp] >= found.offset:
            del reader.positions[tp]
    printed = 0
    while reader.positions:
        for fetched in await reader.read():
            tp = fetched.partition
            end = ends[tp].offset if ends else _NO_END
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
        if new_partitions is not None:
            reader.positions.update(await new_partitions.positions())


# -- as a member of a group ------------------------------------------------------------------------


async def _consume_in_group(
    cluster: Cluster,
    topic: str,
    group: str,
    settings: GroupSettings,
    form: _RecordForm,
    count: int | None,
    follow: bool,
) -> None:
    """The records that were printed are committed before the next ones are read."""
    info = await existing_topic(cluster, topic)
    partitions = [TopicPartition(topic, partition.index) for partition in info.partitions]
    ends = await list_offsets(
        cluster, dict.fromkeys(partitions, LATEST), committed_only=settings.read.committed_only
    )
    left = count
    async with (
        GroupConsumer(cluster, group, [topic], settings) as consumer,
        stop_when_output_closes(),
    ):
        while left is None or left > 0:
            printed, offsets = _print_fetched(await consumer.poll(), form, left)
            left = None if left is None else left - printed
            if offsets:
                # In a rebalance another member reads these records again.
                with contextlib.suppress(BrokerError):
                    await consumer.commit(offsets)
            if not follow and _is_at_end(consumer, {p: e.offset for p, e in ends.items()}):
                return


def _print_fetched(
    fetched: list[Fetched], form: _RecordForm, count: int | None
) -> tuple[int, dict[TopicPartition, Offset]]:
    """How many records were printed, and the offsets after them."""
    printed = 0
    offsets: dict[TopicPartition, Offset] = {}
    for each in fetched:
        for record in each.records:
            if printed == count:
                break
            form.show(each.partition, record)
            printed += 1
            offsets[each.partition] = Offset(record.offset + 1)
        else:
            if each.records:
                offsets[each.partition] = each.next_offset
    flush()
    return printed, offsets


def _is_at_end(consumer: GroupConsumer, ends: dict[TopicPartition, Offset]) -> bool:
    """Whether this member has read its partitions up to the ends that they had at the start."""
    if not consumer.is_stable or len(consumer.positions) < len(consumer.assignment):
        return False
    return all(at >= ends.get(partition, Offset(0)) for partition, at in consumer.positions.items())
