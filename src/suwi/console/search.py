"""A search in the records of a topic: for a text, literally, or for the value at a path.

Invariant: it says how far it looked, ends after so many matches, and goes on from there.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

from suwi.client.reader import Reader
from suwi.console.clusters import ShownCluster, quoted
from suwi.console.json_path import PathMatch
from suwi.console.page import BadQuery, Query
from suwi.console.record_values import Placed, ShownRecord
from suwi.console.records import (
    PartitionRange,
    consume_command,
    partition_ranges,
    partition_windows,
    read_bounds,
    read_settings,
    start_positions,
)
from suwi.model.ids import Offset, TopicPartition
from suwi.records.record import Record

_MATCHES_MAX = 100
_SEARCH_BYTES_MAX = 1024
SEARCHED_NEWEST = 100_000


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
    command: str


async def search_records(
    shown: ShownCluster, query: Query
) -> AsyncGenerator[tuple[str, Any], None]:
    """Records with a text, literally: in the key, the value or a header, or as the value at a path
    of a decoded value. Says how far it looked."""
    search = Search(shown, query)
    bounds = await read_bounds(shown, query)
    each = max(1, SEARCHED_NEWEST // len(bounds.ends))
    positions = await start_positions(shown, query, bounds, each)
    options = ("--json", *search.decoding_options)
    command = f"{consume_command(shown, query, each, *options)} | {search.command}"
    searched, room, began = 0, _MATCHES_MAX, partition_ranges(bounds, positions, positions)
    windows = list(partition_windows(query, positions, bounds))
    yield "search", SearchEvent([], searched, began, windows[0][1], False, command)
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
                yield "search", SearchEvent(shown_matches, searched, ranges, rest, False, command)
        if not room:
            break
    yield "search", SearchEvent([], searched, [], rest, True, command)


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
