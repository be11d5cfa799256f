"""A search in the records of a topic: for a text, literally, or for the value at a path.

From the newest it goes backward: it reads pieces of offsets from the end towards the start, each
piece forward, and returns the newest matches first.
Invariant: it says how far it looked, ends after so many matches, and goes on from there.
"""

import heapq
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from suwi.client.offsets import EARLIEST, list_offsets
from suwi.client.reader import Reader, ReadSettings
from suwi.console.clusters import ShownCluster, quoted
from suwi.console.json_path import PathMatch
from suwi.console.page import BadQuery, Query
from suwi.console.record_values import Placed, ShownRecord
from suwi.console.records import (
    FROM,
    Bounds,
    PartitionRange,
    consume_command,
    named_positions,
    partition_ranges,
    partition_windows,
    read_bounds,
    read_settings,
    size_bytes,
    start_positions,
)
from suwi.model.errors import OffsetOutOfRange
from suwi.model.ids import Offset, TopicPartition
from suwi.records.record import Record

_MATCHES_MAX = 100
_SEARCH_BYTES_MAX = 1024
_COMMAND_NEWEST = 100_000
"""How many of the newest offsets the command of a search looks at."""
_PIECE_OFFSETS = 256
_PIECE_FACTOR = 4
_PIECES_BYTES = 4 * 1024 * 1024
_PIECE_BYTES_MIN = 128 * 1024
_RECORD_COST_BYTES = 64


class SearchEvent(NamedTuple):
    matches: Sequence[ShownRecord]
    searched: int
    """How many records it has looked at, over all."""
    ranges: Sequence[PartitionRange]
    """Of all partitions in the first event, then of those that were read since the last one."""
    rest: int | None
    """From which partition on nothing was read yet; None: all were."""
    is_done: bool
    """It came to the end, or has found as many as are shown."""
    command: str = ""


class Search:
    """What is looked for, and where."""

    def __init__(self, shown: ShownCluster, query: Query) -> None:
        text = query.text("text")
        self._values = shown.values
        self._needle = text.encode()
        if not 0 < len(self._needle) <= _SEARCH_BYTES_MAX:
            raise BadQuery(f"text: give 1 to {_SEARCH_BYTES_MAX} bytes to look for")
        self._where = query.choice("in", "any", "key", "value", "header", "path")
        self._path = PathMatch(query.text("path"), text) if self._where == "path" else None
        self.decoding_options: list[str] = []
        """What `suwi consume --json` needs: a text is looked for in the bytes as they are."""
        if self._path is None:
            command = f"jq -c --arg text {quoted(text)} {quoted(_jq(self._where))}"
        else:
            self.decoding_options = shown.decoding_options() or ["--value-format", "auto"]
            command = f"jq -c {quoted(f'select({self._path.jq})')}"
        self.command = command
        """What searches the output of `suwi consume --json`."""

    async def matching(self, records: Sequence[Placed]) -> list[Placed]:
        if self._path is not None:
            return await self._values.matching(records, self._path)
        return [each for each in records if self._has_text(each[1])]

    def _has_text(self, record: Record) -> bool:
        needle, where = self._needle, self._where
        if where in ("any", "key") and record.key is not None and needle in record.key:
            return True
        if where in ("any", "value") and record.value is not None and needle in record.value:
            return True
        return where in ("any", "header") and any(
            needle in name.encode("utf-8", "surrogateescape") or (value and needle in value)
            for name, value in record.headers
        )


def _jq(where: str) -> str:
    """Looks for `$text`, also in what is no UTF-8 and therefore in base 64."""

    def field(name: str) -> str:
        return f".{name}, (.{name}_base64 | strings | @base64d)"

    header = f"(.headers[] | {field('name')}, {field('value')})"
    places = {"key": field("key"), "value": field("value"), "header": header}
    chosen = places.values() if where == "any" else [places[where]]
    return f"select(any({', '.join(chosen)}; strings | contains($text)))"


# -- the stream of a search ------------------------------------------------------------------------


async def search_records(
    shown: ShownCluster, query: Query
) -> AsyncGenerator[tuple[str, Any], None]:
    """Records with a text, literally: in the key, the value or a header, or as the value at a path
    of a decoded value. Says how far it looked."""
    search = Search(shown, query)
    bounds = await read_bounds(shown, query)
    each = max(1, _COMMAND_NEWEST // len(bounds.ends))
    options = ("--json", *search.decoding_options)
    command = f"{consume_command(shown, query, each, *options)} | {search.command}"
    follow = _search_back if is_backward(query) else _search_forward
    async with aclosing(follow(shown, query, search, bounds)) as events:
        async for event in events:
            yield "search", event._replace(command=command)


async def _search_forward(
    shown: ShownCluster, query: Query, search: Search, bounds: Bounds
) -> AsyncGenerator[SearchEvent, None]:
    positions = await start_positions(shown, query, bounds, 0)
    searched, room, began = 0, _MATCHES_MAX, partition_ranges(bounds, positions, positions)
    windows = list(partition_windows(query, positions, bounds.ends))
    yield SearchEvent([], searched, began, windows[0][1], False)
    for window, rest in windows:
        left = {tp: at for tp, at in window.items() if at < bounds.ends[tp]}
        async with Reader(shown.client, left, read_settings(query)) as reader:
            while reader.positions and room:
                reached: dict[TopicPartition, Offset] = {}
                matches: list[Placed] = []
                for fetched in await reader.read():
                    tp = fetched.partition
                    records = [(tp, r) for r in fetched.records if r.offset < bounds.ends[tp]]
                    found = (await search.matching(records))[:room]
                    matches += found
                    room -= len(found)
                    reached[tp] = min(fetched.next_offset, bounds.ends[tp])
                    if not room:
                        reached[tp] = Offset(found[-1][1].offset + 1)
                    searched += sum(record.offset < reached[tp] for _, record in records)
                    if not room:
                        break
                    if reached[tp] >= bounds.ends[tp]:
                        del reader.positions[tp]
                ranges = partition_ranges(bounds, positions, reached)
                shown_matches = await shown.values.shown(matches)
                yield SearchEvent(shown_matches, searched, ranges, rest, False)
        if not room:
            break
    yield SearchEvent([], searched, [], rest, True)


# -- from the newest -------------------------------------------------------------------------------


def is_backward(query: Query) -> bool:
    """Whether a search looks from the newest towards the start: below the ends of all partitions,
    or `before` the offsets of those that `at` names."""
    return query.choice(*FROM, "before") in ("end", "before")


class Looked(NamedTuple):
    """What a search from the newest has looked at, a piece of each partition."""

    matches: Sequence[Placed]
    """The newest first."""
    offsets: Mapping[TopicPartition, Sequence[int]]
    """Those of all records."""
    reached: Mapping[TopicPartition, Offset]
    """Down to where."""
    starts: Mapping[TopicPartition, Offset]
    """Of the logs: they may have risen."""
    rest: int | None
    size_bytes: int


async def _search_back(
    shown: ShownCluster, query: Query, search: Search, bounds: Bounds
) -> AsyncGenerator[SearchEvent, None]:
    searched, room = 0, _MATCHES_MAX
    highs, windows = backward_windows(query, bounds)
    rest = windows[0][1]
    yield SearchEvent([], searched, _backward_ranges(bounds, highs, highs), rest, False)
    async with aclosing(look_back(shown, query, search, bounds, windows)) as parts:
        async for part in parts:
            taken, left = part.matches[:room], part.matches[room:]
            # The newest match that is left is the last one in this order.
            below = {tp: Offset(record.offset + 1) for tp, record in reversed(left)}
            reached, rest = {**part.reached, **below}, part.rest
            for tp, offsets in part.offsets.items():
                searched += len(offsets) - bisect_left(offsets, reached[tp])
            room -= len(taken)
            ranges = _backward_ranges(bounds._replace(starts=part.starts), highs, reached)
            yield SearchEvent(await shown.values.shown(taken), searched, ranges, rest, False)
            if not room:
                break
    yield SearchEvent([], searched, [], rest, True)


def _backward_ranges(
    bounds: Bounds,
    highs: Mapping[TopicPartition, Offset],
    reached: Mapping[TopicPartition, Offset],
) -> list[PartitionRange]:
    return [
        PartitionRange(tp.partition, bounds.starts[tp], first, highs[tp], bounds.ends[tp])
        for tp, first in sorted(reached.items())
    ]


Windows = Sequence[tuple[Mapping[TopicPartition, Offset], int | None]]


def backward_windows(
    query: Query, bounds: Bounds
) -> tuple[Mapping[TopicPartition, Offset], Windows]:
    """Below which offsets a search from the newest looks: of all partitions, and of those that are
    read together, with the partition from which on nothing was read yet."""
    highs = named_positions(query, bounds)
    if query.text("from") != "before":
        rest = query.number("rest", 0)
        highs = {tp: end for tp, end in bounds.ends.items() if tp.partition >= rest} | highs
    return highs, list(partition_windows(query, highs, bounds.starts))


async def look_back(
    shown: ShownCluster, query: Query, search: Search, bounds: Bounds, windows: Windows
) -> AsyncGenerator[Looked, None]:
    """Look for matches from given offsets down to the starts of the logs. A piece of offsets has
    four times as many as the one above it as long as these cost little: so gaps end soon."""
    starts, settings = dict(bounds.starts), read_settings(query)
    for window, rest in windows:
        highs, sizes = dict(window), dict.fromkeys(window, _PIECE_OFFSETS)
        while pieces := {
            tp: _Piece(Offset(max(starts[tp], high - sizes[tp])), high)
            for tp, high in highs.items()
            if high > starts[tp]
        }:
            try:
                await _read_pieces(shown, search, pieces, settings)
            except OffsetOutOfRange:  # old records were deleted meanwhile
                found = await list_offsets(shown.client, dict.fromkeys(pieces, EARLIEST))
                if all(found[tp].offset <= piece.low for tp, piece in pieces.items()):
                    raise
                starts |= {tp: at.offset for tp, at in found.items()}
                yield Looked([], {}, {tp: highs[tp] for tp in pieces}, starts, rest, 0)
                continue
            for tp, piece in pieces.items():
                highs[tp], sizes[tp] = piece.low, piece.high - piece.low
                if piece.cost_bytes < _piece_bytes(len(pieces)):
                    sizes[tp] *= _PIECE_FACTOR
            yield Looked(
                _newest_first(piece.matches for piece in pieces.values()),
                {tp: piece.offsets for tp, piece in pieces.items()},
                {tp: piece.low for tp, piece in pieces.items()},
                starts,
                rest,
                sum(piece.size_bytes for piece in pieces.values()),
            )


@dataclass(slots=True)
class _Piece:
    """Offsets of a partition from `low` to before `high`."""

    low: Offset
    high: Offset
    matches: list[Placed] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """Those of all records."""
    size_bytes: int = 0

    @property
    def cost_bytes(self) -> int:
        """The smallest records take time and memory, too."""
        return self.size_bytes + _RECORD_COST_BYTES * len(self.offsets)


def _piece_bytes(count: int) -> int:
    """What a piece should cost at least, if as many are read together."""
    return max(_PIECE_BYTES_MIN, _PIECES_BYTES // count)


async def _read_pieces(
    shown: ShownCluster,
    search: Search,
    pieces: dict[TopicPartition, _Piece],
    settings: ReadSettings,
) -> None:
    """Read each of them forward. One that costs far too much becomes smaller."""
    cost_bytes_max = _PIECE_FACTOR * _piece_bytes(len(pieces))
    lows = {tp: piece.low for tp, piece in pieces.items()}
    async with Reader(shown.client, lows, settings) as reader:
        while reader.positions:
            for fetched in await reader.read():
                tp, piece = fetched.partition, pieces[fetched.partition]
                records = [(tp, r) for r in fetched.records if r.offset < piece.high]
                piece.matches += await search.matching(records)
                piece.offsets += [record.offset for _, record in records]
                piece.size_bytes += sum(size_bytes(record) for _, record in records)
                if fetched.next_offset >= piece.high:
                    del reader.positions[tp]
                elif piece.cost_bytes > cost_bytes_max:
                    size = max(1, (piece.high - piece.low) // _PIECE_FACTOR)
                    reader.positions[tp] = Offset(piece.high - size)
                    pieces[tp] = _Piece(reader.positions[tp], piece.high)


def _newest_first(found: Iterable[Sequence[Placed]]) -> list[Placed]:
    """Of each partition in the order of offsets, whatever their times."""
    backward = [reversed(matches) for matches in found]
    return list(heapq.merge(*backward, key=_time_and_offset, reverse=True))


def _time_and_offset(placed: Placed) -> tuple[int, int]:
    return placed[1].timestamp, placed[1].offset
