"""Records as the console shows them: decoded, as text or hexadecimal digits, cut where long.

`RecordValues.shown` is the entrance. It decodes in a thread: the first value of a schema waits for
the schema registry.
Invariant: a shown text has no control characters but line breaks and tabs, and none that is not
seen or changes the direction of text: a record cannot disguise itself. The browser escapes HTML.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor  # noqa: TID251 - only given to run_in_executor
from typing import Any, NamedTuple

from suwi.decoders.decoder import Decoded, Decoder, as_json
from suwi.decoders.registry import Registry
from suwi.model.ids import TopicPartition
from suwi.records.record import Record

PREVIEW_LENGTH = 2 * 1024
WHOLE_LENGTH = 1024 * 1024
_PREVIEW_BYTES_MAX = 64 * 1024
"""In a list, larger values are not decoded: their beginning is shown."""
_HEADERS_MAX = 100
# As in `console/src/safe.ts`. Joiners are left: emoji and some scripts need them.
_HIDDEN_SPANS = (
    (0x00, 0x20),
    (0x7F, 0xA0),
    (0xAD, 0xAE),
    (0x061C, 0x061D),
    (0x180E, 0x180F),
    (0x200B, 0x200C),
    (0x200E, 0x2010),
    (0x2028, 0x202F),
    (0x2060, 0x2070),
    (0xFEFF, 0xFF00),
    (0xFFF9, 0xFFFC),
    (0xE0000, 0xE0080),
)
_HIDDEN = {
    code: f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    for span in _HIDDEN_SPANS
    for code in range(*span)
    if chr(code) not in "\n\t"
}


class ShownBytes(NamedTuple):
    form: str
    """`null`, `text`, `json`, `avro`, `protobuf` or `hex`."""
    text: str
    """Of Avro and Protobuf: as JSON."""
    size_bytes: int
    is_cut: bool
    """Whether there is more than the text shows."""
    schema: str = ""
    """What a schema called it: `shop.Order, schema 103`."""
    problem: str = ""
    """Why it could not be decoded."""


class ShownHeader(NamedTuple):
    name: str
    value: ShownBytes


class ShownRecord(NamedTuple):
    partition: int
    offset: int
    timestamp: int
    """-1 if it has none."""
    key: ShownBytes
    value: ShownBytes
    headers: Sequence[ShownHeader]
    headers_count: int


Placed = tuple[TopicPartition, Record]


class RecordValues:
    """Decodes the records of one cluster, one request after the other: a decoder is not shared by
    threads."""

    def __init__(self, registry: Registry | None) -> None:
        self._decoder = Decoder(registry=registry)
        self._without_schema = Decoder()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="suwi-console")

    async def shown(
        self, records: Sequence[Placed], length_max: int = PREVIEW_LENGTH
    ) -> list[ShownRecord]:
        def show() -> list[ShownRecord]:
            return [self._record(tp, record, length_max) for tp, record in records]

        return await self._in_thread(show) if records else []

    async def matching(
        self, records: Sequence[Placed], matches: Callable[[Any], bool]
    ) -> list[Placed]:
        """Those whose decoded value is a match."""

        def search() -> list[Placed]:
            return [each for each in records if matches(self._decoder.decode(each[1].value).value)]

        return await self._in_thread(search) if records else []

    async def _in_thread(self, work: Callable[[], list[Any]]) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _record(self, partition: TopicPartition, record: Record, length_max: int) -> ShownRecord:
        return ShownRecord(
            partition.partition,
            record.offset,
            record.timestamp,
            self._bytes(record.key, length_max, self._decoder),
            self._bytes(record.value, length_max, self._decoder),
            [
                ShownHeader(_safe(name), self._bytes(value, length_max, self._without_schema))
                for name, value in record.headers[:_HEADERS_MAX]
            ],
            len(record.headers),
        )

    def _bytes(self, data: bytes | None, length_max: int, decoder: Decoder) -> ShownBytes:
        if data is not None and len(data) > max(length_max, _PREVIEW_BYTES_MAX):
            part = _whole_characters(data[:length_max])
            shown = shown_bytes(part, self._without_schema.decode(part), length_max)
            return shown._replace(size_bytes=len(data), is_cut=True)
        return shown_bytes(data, decoder.decode(data), length_max)


def shown_bytes(data: bytes | None, decoded: Decoded, length_max: int) -> ShownBytes:
    if data is None:
        return ShownBytes("null", "", 0, False)
    form: str = decoded.read_as
    match form:
        case "bytes":
            form, text = "hex", data[: length_max // 4].hex(" ")
            is_cut = len(data) > length_max // 4
        case "text" | "json":
            text = data.decode()  # as it was written
            is_cut = len(text) > length_max
        case _:
            text = json.dumps(as_json(decoded.value), ensure_ascii=False)
            is_cut = len(text) > length_max
    problem = _safe(decoded.problem)
    text = _safe(text[:length_max])
    return ShownBytes(form, text, len(data), is_cut, _safe(decoded.schema), problem)


def is_shown_exactly(data: bytes) -> bool:
    """Whether it is text that nothing must be escaped in."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return _safe(text) == text


def _whole_characters(part: bytes) -> bytes:
    """Without the first bytes of a character whose other bytes were cut off."""
    for back in range(1, min(4, len(part)) + 1):
        byte = part[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return part if length <= back else part[:-back]
    return part


def _safe(text: str) -> str:
    return text.encode("utf-8", "replace").decode().translate(_HIDDEN)
