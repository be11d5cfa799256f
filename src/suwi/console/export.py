"""Records as a file: JSON lines as `suwi consume --json` prints them, or CSV.

The address says which records, as for the page of records and for a search.
Invariant: a file is bounded, written as it is read, and no cell of a CSV file is a formula.
"""

import csv
import io
import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from suwi.admin.json_records import record_fields
from suwi.admin.text import time_text
from suwi.client.reader import Reader, ReadSettings
from suwi.console.clusters import ShownCluster
from suwi.console.page import Query
from suwi.console.record_values import Placed
from suwi.console.records import (
    Bounds,
    read_bounds,
    read_settings,
    size_bytes,
    start_positions,
)
from suwi.console.search import Search, Windows, backward_windows, is_backward, look_back
from suwi.model.ids import Offset, TopicPartition

_RECORDS_MAX = 10_000
_BYTES_MAX = 64 * 1024 * 1024
_SEARCHED_BYTES_MAX = 1024 * 1024 * 1024
_COLUMNS = "topic partition offset time key key_base64 value value_base64 headers".split()
# A spreadsheet takes a cell that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


async def export_records(shown: ShownCluster, query: Query) -> Response:
    form = query.choice("format", "jsonl", "csv")
    search = Search(shown, query) if query.text("text") else None
    count = query.number("rows", _RECORDS_MAX, most=_RECORDS_MAX)
    bounds = await read_bounds(shown, query)
    if search is not None and is_backward(query):
        _, windows = backward_windows(query, bounds)
        found_parts = _read_back(shown, query, search, bounds, windows)
    else:  # of the newest, as many of each partition
        each = max(1, count // len(bounds.ends))
        positions = await start_positions(shown, query, bounds, each)
        found_parts = _read(shown, positions, bounds, read_settings(query), search)

    async def parts() -> AsyncGenerator[bytes, None]:
        if form == "csv":
            yield _csv([_COLUMNS])
        written_bytes = written = searched_bytes = 0
        async for found, read_bytes in found_parts:
            searched_bytes += read_bytes
            taken = found[: count - written]
            part = _text(form, taken)
            yield part
            written += len(taken)
            written_bytes += len(part)
            is_full = written == count or written_bytes >= _BYTES_MAX
            if is_full or searched_bytes >= _SEARCHED_BYTES_MAX:
                return

    name = quote(f"{query.text('topic')}.{form}")
    return StreamingResponse(
        parts(),
        media_type="text/csv" if form == "csv" else "application/jsonl",
        headers={"content-disposition": f"attachment; filename*=UTF-8''{name}"},
    )


async def _read(
    shown: ShownCluster,
    positions: dict[TopicPartition, Offset],
    bounds: Bounds,
    settings: ReadSettings,
    search: Search | None,
) -> AsyncGenerator[tuple[Sequence[Placed], int], None]:
    """What is found, and how many bytes of records were read for it."""
    left = {tp: at for tp, at in positions.items() if at < bounds.ends[tp]}
    async with Reader(shown.client, left, settings) as reader:
        while reader.positions and not shown.is_closed:
            for fetched in await reader.read():
                tp, end = fetched.partition, bounds.ends[fetched.partition]
                records = [(tp, record) for record in fetched.records if record.offset < end]
                read_bytes = sum(size_bytes(record) for _, record in records)
                yield records if search is None else await search.matching(records), read_bytes
                if fetched.next_offset >= end:
                    del reader.positions[tp]


async def _read_back(
    shown: ShownCluster, query: Query, search: Search, bounds: Bounds, windows: Windows
) -> AsyncGenerator[tuple[Sequence[Placed], int], None]:
    async for part in look_back(shown, query, search, bounds, windows):
        for match in part.matches:
            yield [match], 0
        yield [], part.size_bytes
        if shown.is_closed:
            return


def _text(form: str, records: Iterable[Placed]) -> bytes:
    found = [record_fields(*tp, record) for tp, record in records]
    if form == "csv":
        return _csv(map(_row, found))
    lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in found)
    return "".join(f"{line}\n" for line in lines).encode()


def _row(fields: dict[str, Any]) -> list[object]:
    texts = [fields.get(column) for column in _COLUMNS[4:-1]]
    headers = json.dumps(fields["headers"], ensure_ascii=False)
    place = [fields["topic"], fields["partition"], fields["offset"]]
    return [*place, time_text(fields["timestamp"]), *texts, headers]


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows(
        [
            f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell
            for cell in row
        ]
        for row in rows
    )
    return file.getvalue().encode()
