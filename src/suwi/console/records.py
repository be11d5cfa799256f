"""The records of a topic: a page of them, one of them, the newest as they come.

Where to read from is in the address: `from=end` (the newest), `start`, `time` with `time_ms`, or
`at` with the offsets of partitions; with `committed=yes` records of aborted and open transactions
are left out. Offsets without a record are gaps, which `read_gap` explains. Nothing is committed,
and no group is joined. Many partitions are read some at a time, so that where each is read on fits
into an address: from partition `rest` on, they begin as `from` says, the others as `at` says.
Invariant: one request reads a bounded number of bytes, or says how far it came and can be stopped.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from suwi.admin.explainer import explain_gap, explain_offsets, explanation_text
from suwi.client.offsets import EARLIEST, LATEST, list_offsets
from suwi.client.reader import Reader, ReadSettings
from suwi.console.clusters import ShownCluster
from suwi.console.page import BadQuery, Query
from suwi.console.record_values import WHOLE_LENGTH, Placed, ShownRecord
from suwi.model.errors import OffsetOutOfRange
from suwi.model.ids import NO_OFFSET, Offset, PartitionIndex, TopicPartition
from suwi.records.record import Record

_ROWS = 50
_ROWS_MAX = 200
_NEWEST_MAX = 5000
_PARTITIONS_MAX = 200
FROM = ("from", "end", "start", "time", "at")
_READ_S_MAX = 3.0
_PAGE_BYTES_MAX = 16 * 1024 * 1024
_TAIL_PER_S_MAX = 200
_TAIL_PERIOD_S = 0.5
_EXPLAINED_MAX = 100
_SETTINGS = ReadSettings(max_wait_ms=250, partition_bytes_max=256 * 1024, max_bytes=4 * 1024 * 1024)


class PartitionRange(NamedTuple):
    """How far a partition was read."""

    partition: int
    start: int
    """The first offset of its log."""
    first: int
    """Where reading began."""
    next: int
    """Where to read on."""
    end: int
    """The offset after the last readable record."""


class Gap(NamedTuple):
    """Offsets without a record, or without one that is shown."""

    partition: int
    first: int
    end: int
    """The offset after them."""


class Records(NamedTuple):
    topic: str
    records: Sequence[ShownRecord]
    gaps: Sequence[Gap]
    ranges: Sequence[PartitionRange]
    rest: int | None
    """From which partition on nothing was read yet; None: all were."""
    partition_count: int
    is_cut: bool
    """It ends early: its records are large, or reading them took long."""
    command: str


class OneRecord(NamedTuple):
    record: ShownRecord | None
    """None if there is no record at the offset; the explanation says why."""
    what: str
    """`record`, `transaction marker`, `compacted away` …"""
    explanation: str
    producer_id: int | None
    producer_epoch: int | None
    transaction: str | None
    """`committed`, `aborted` …; None if it is of none."""
    transactional_id: str | None
    command: str


class GapPart(NamedTuple):
    """Offsets of a gap with one explanation."""

    first: int
    last: int
    what: str
    explanation: str
    transactional_id: str | None


class ExplainedGap(NamedTuple):
    parts: Sequence[GapPart]
    next: int
    """Up to where it is explained."""
    command: str


class TailEvent(NamedTuple):
    records: Sequence[ShownRecord]
    skipped: int
    """Records that came meanwhile and are not shown: more than a person can read."""
    command: str


# -- one page of records ---------------------------------------------------------------------------


async def read_records(shown: ShownCluster, query: Query) -> Records:
    topic, rows = query.text("topic"), query.number("rows", _ROWS, most=_ROWS_MAX)
    bounds = await read_bounds(shown, query)
    is_end = query.choice(*FROM) == "end"
    # The newest may all be of one partition; of very many, not so many are read of each.
    each = max(1, min(rows, _NEWEST_MAX // len(bounds.ends)))
    while True:
        positions = await start_positions(shown, query, bounds, each)
        if is_end:
            window, rest = positions, None
            wanted = sum(bounds.ends[tp] - at for tp, at in positions.items())
        else:
            (window, rest), wanted = next(partition_windows(query, positions, bounds.ends)), rows
        found, reached, is_cut = await _read(shown, window, bounds, wanted, read_settings(query))
        if not (is_cut and is_end and each > 1):
            break
        each = max(1, each // 8)  # they are too large: fewer, but the newest
    gaps = _gaps(query, window, found, reached)
    if is_end:
        found = sorted(found, key=lambda each: (each[1].timestamp, each[1].offset))[-rows:][::-1]
        beside = {(tp.partition, record.offset) for tp, record in found}
        beside |= {(tp.partition, end) for tp, end in bounds.ends.items()}
        gaps = [gap for gap in gaps if (gap.partition, gap.end) in beside]
    return Records(
        topic,
        await shown.values.shown(found),
        gaps,
        partition_ranges(bounds, positions, {**positions, **reached}),
        rest,
        len((await shown.client.topic(topic)).partitions),
        is_cut,
        consume_command(shown, query, rows, "--verbose", *shown.decoding_options(), rows=rows),
    )


def _gaps(
    query: Query,
    positions: Mapping[TopicPartition, Offset],
    found: Sequence[Placed],
    reached: Mapping[TopicPartition, Offset],
) -> list[Gap]:
    """Also what was asked for and lies below the start of the log."""
    asked = query.partitions("at")
    expected = {tp: min(asked.get(tp.partition, at), at) for tp, at in positions.items()}
    gaps = []
    ends: list[tuple[TopicPartition, int]] = [(tp, record.offset) for tp, record in found]
    for tp, offset in [*ends, *reached.items()]:
        if offset > expected[tp]:
            gaps.append(Gap(tp.partition, expected[tp], offset))
        expected[tp] = offset + 1
    return gaps


def read_settings(query: Query) -> ReadSettings:
    return replace(_SETTINGS, committed_only=query.choice("committed", "no", "yes") == "yes")


def consume_command(
    shown: ShownCluster, query: Query, newest: int, *options: str, rows: int | None = None
) -> str:
    """`suwi consume` for the same records; without `rows` up to the end. `newest`: how many of each
    partition are the newest. It reads from an offset in one partition only."""
    partition = query.number("partition", -1)
    words: list[object] = [] if partition < 0 else ["--partition", partition]
    match query.choice(*FROM, "before"):
        case "end" | "before":
            words += ["--offset", -newest]
        case "start":
            words.append("--from-beginning")
        case "time":
            words += ["--from-time", query.number("time_ms", 0)]
        case _:
            index, offset = next(iter(query.partitions("at").items()), (0, 0))
            words = ["--partition", index, "--offset", offset]
    if rows is not None and query.choice(*FROM) != "end":
        words += ["--count", rows]
    committed = ["--committed"] if read_settings(query).committed_only else []
    words += ["--no-follow", *options, *committed]
    return shown.command("consume", query.text("topic"), options=words)


class Bounds(NamedTuple):
    starts: Mapping[TopicPartition, Offset]
    ends: Mapping[TopicPartition, Offset]


async def read_bounds(shown: ShownCluster, query: Query) -> Bounds:
    """Of the wanted partition, or of all."""
    topic = await shown.client.topic(query.text("topic"))
    partition = query.number("partition", -1)
    chosen = topic.partitions if partition < 0 else [topic.partition(partition)]
    wanted = [TopicPartition(topic.name, each.index) for each in chosen]
    committed_only = read_settings(query).committed_only
    latest = dict.fromkeys(wanted, LATEST)
    starts = await list_offsets(shown.client, dict.fromkeys(wanted, EARLIEST))
    ends = await list_offsets(shown.client, latest, committed_only=committed_only)
    return Bounds(
        {tp: found.offset for tp, found in starts.items()},
        {tp: found.offset for tp, found in ends.items()},
    )


async def start_positions(
    shown: ShownCluster, query: Query, bounds: Bounds, newest: int
) -> dict[TopicPartition, Offset]:
    """Where reading begins; `newest` is how many offsets of each partition are the newest."""
    positions: dict[TopicPartition, Offset] = {}
    rest = query.number("rest", 0)
    others = [tp for tp in bounds.ends if tp.partition >= rest]
    match query.choice(*FROM):
        case "start":
            positions = {tp: bounds.starts[tp] for tp in others}
        case "end":
            for tp in others:
                positions[tp] = Offset(max(bounds.starts[tp], bounds.ends[tp] - newest))
        case "time":
            times = dict.fromkeys(others, query.number("time_ms", 0))
            for tp, at in (await list_offsets(shown.client, times)).items():
                positions[tp] = bounds.ends[tp] if at.offset == NO_OFFSET else at.offset
    return positions | named_positions(query, bounds)


def named_positions(query: Query, bounds: Bounds) -> dict[TopicPartition, Offset]:
    """Those of `at`."""
    positions = {}
    for index, offset in query.partitions("at").items():
        tp = TopicPartition(query.text("topic"), index)
        if tp not in bounds.ends:
            raise BadQuery(f"at: partition {index} is not among those that are read")
        positions[tp] = Offset(min(max(offset, bounds.starts[tp]), bounds.ends[tp]))
    return positions


def partition_windows(
    query: Query,
    positions: dict[TopicPartition, Offset],
    stops: Mapping[TopicPartition, Offset],
) -> Iterator[tuple[dict[TopicPartition, Offset], int | None]]:
    """The partitions that are read together, without those at their stops, and from which one on
    nothing was read yet then."""
    if query.text("from") in ("at", "before"):
        yield positions, None
        return
    unread = [tp for tp in sorted(positions) if positions[tp] != stops[tp]]
    for first in range(0, max(1, len(unread)), _PARTITIONS_MAX):
        end = first + _PARTITIONS_MAX
        rest = unread[end].partition if end < len(unread) else None
        yield {tp: positions[tp] for tp in unread[first:end]}, rest


async def _read(
    shown: ShownCluster,
    positions: dict[TopicPartition, Offset],
    bounds: Bounds,
    wanted: int,
    settings: ReadSettings,
) -> tuple[list[Placed], dict[TopicPartition, Offset], bool]:
    """Up to `wanted` records, where to read on, and whether that is less than there is."""
    reached = dict(positions)
    left = {tp: at for tp, at in positions.items() if at < bounds.ends[tp]}
    found: list[Placed] = []
    left_bytes = _PAGE_BYTES_MAX
    async with Reader(shown.client, left, settings) as reader:
        try:
            async with asyncio.timeout(_READ_S_MAX):
                while reader.positions and len(found) < wanted and left_bytes > 0:
                    for fetched in await reader.read():
                        tp = fetched.partition
                        reached[tp] = min(fetched.next_offset, bounds.ends[tp])
                        for record in fetched.records:
                            if record.offset >= bounds.ends[tp]:
                                break
                            if len(found) == wanted or left_bytes <= 0:
                                reached[tp] = Offset(record.offset)
                                break
                            found.append((tp, record))
                            left_bytes -= size_bytes(record)
                        if reached[tp] >= bounds.ends[tp]:
                            del reader.positions[tp]
        except TimeoutError:
            left_bytes = 0  # what was read until now, and where to read on
    is_cut = bool(reader.positions) and left_bytes <= 0 and len(found) < wanted
    return found, reached, is_cut


def size_bytes(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def partition_ranges(
    bounds: Bounds,
    began: Mapping[TopicPartition, Offset],
    reached: Mapping[TopicPartition, Offset],
) -> list[PartitionRange]:
    return [
        PartitionRange(tp.partition, bounds.starts[tp], began[tp], next_offset, bounds.ends[tp])
        for tp, next_offset in sorted(reached.items())
    ]


# -- one record ------------------------------------------------------------------------------------


async def read_record(shown: ShownCluster, query: Query) -> OneRecord:
    """The whole record, whether it was committed, by which transaction, or why there is none."""
    topic, index = query.text("topic"), query.number("partition", 0)
    offset = Offset(query.number("offset", 0))
    (fields,) = await explain_offsets(shown.client, topic, index, [offset])
    tp = TopicPartition(topic, PartitionIndex(index))
    record = await find_record(shown, tp, offset) if fields["what"] == "record" else None
    whole = await shown.values.shown([(tp, record)], WHOLE_LENGTH) if record is not None else []
    return OneRecord(
        whole[0] if whole else None,
        str(fields["what"]),
        explanation_text(fields),
        fields.get("producer_id"),
        fields.get("producer_epoch"),
        fields.get("transaction"),
        fields.get("transactional_id"),
        shown.command("explain", topic, index, offset),
    )


async def find_record(shown: ShownCluster, tp: TopicPartition, offset: Offset) -> Record | None:
    """None if there is none, also if it was deleted meanwhile."""
    try:
        async with Reader(shown.client, {tp: offset}, _SETTINGS) as reader:
            found = [record for fetched in await reader.read() for record in fetched.records]
    except OffsetOutOfRange:
        return None
    return next((record for record in found if record.offset == offset), None)


async def read_gap(shown: ShownCluster, query: Query) -> ExplainedGap:
    """Why the offsets from `first` to before `end` have no record that is shown."""
    topic, index = query.text("topic"), query.number("partition", 0)
    first, end = query.number("first", 0), query.number("end", 0)
    parts, next_offset = await explain_gap(shown.client, topic, index, first, end)
    return ExplainedGap(
        [
            GapPart(
                fields["offset"],
                last,
                str(fields["what"]),
                explanation_text(fields),
                fields.get("transactional_id"),
            )
            for fields, last in parts
        ],
        next_offset,
        shown.command("explain", topic, index, *range(first, min(end, first + _EXPLAINED_MAX))),
    )


# -- as they come ----------------------------------------------------------------------------------


async def follow_tail(shown: ShownCluster, query: Query) -> AsyncGenerator[tuple[str, Any], None]:
    bounds = await read_bounds(shown, query)
    per_period = round(_TAIL_PER_S_MAX * _TAIL_PERIOD_S)
    partition = query.number("partition", -1)
    only = [] if partition < 0 else ["--partition", partition]
    options = [*only, "--verbose", *shown.decoding_options()]
    command = shown.command("consume", query.text("topic"), options=options)
    loop = asyncio.get_running_loop()
    yield "tail", TailEvent([], 0, command)  # it has begun: later records are shown
    async with Reader(shown.client, bounds.ends, read_settings(query)) as reader:
        while True:
            until_s = loop.time() + _TAIL_PERIOD_S
            kept: list[Placed] = []
            skipped = 0
            while (left_s := until_s - loop.time()) > 0:
                for fetched in await reader.read():
                    room = max(0, per_period - len(kept))
                    kept += [(fetched.partition, record) for record in fetched.records[:room]]
                    skipped += max(0, len(fetched.records) - room)
                    behind = fetched.end_offset - fetched.next_offset
                    if behind > per_period:  # more comes than is read: go on with the newest
                        skipped += behind
                        reader.positions[fetched.partition] = fetched.end_offset
                if not kept:
                    break  # nothing comes: the reader itself has waited
                await asyncio.sleep(min(left_s, _TAIL_PERIOD_S))
            records = await shown.values.shown(kept)
            yield ("tail", TailEvent(records, skipped, command)) if kept else ("", None)
