"""Record batches: good ones, ones with a flaw in every field, and decompression bombs.

A flaw with a correct CRC reaches the code after the checksum; one without must be rejected by it.
"""

import random
import struct
import zlib
from functools import cache
from typing import Final

import cramjam

from suwi.records.batch import (
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    compute_crc,
    read_header,
)
from suwi.records.builder import build_batch, seal
from suwi.records.compression import Compression, compress
from suwi.records.record import Record, records_section

_TIME_MS: Final = 1_700_000_000_000  # long ago: retention may delete it
_MESSAGE_BYTES_MAX: Final = 1_048_588
_EXTREMES: Final = {
    "b": (0, 1, 2, 3, -1, 127, -128),
    "h": (0, 1, 3, 5, 8, 16, 32, 64, 0x7FFF, -0x8000, -1),
    "i": (0, 1, -1, 2, 61, 1000, 2**31 - 1, -(2**31)),
    "I": (0, 1, 2**32 - 1),
    "q": (0, 1, -1, -2, _TIME_MS, 2**63 - 1, -(2**63), 2**62),
}
_LAYOUT: Final = HEADER.format.removeprefix(">")
# 7 bytes: length 6, attributes, no time and offset delta, key of no bytes, null value, no headers.
_TINY_RECORD: Final = b"\x0c\x00\x00\x00\x00\x01\x00"
# About as many as fit into a message.
_TINY_RECORDS_MAX: Final = {
    Compression.NONE: 110_000,
    Compression.GZIP: 600_000,
    Compression.SNAPPY: 250_000,
    Compression.LZ4: 250_000,
    Compression.ZSTD: 600_000,
}


def good_batch(chance: random.Random, codec: Compression | None = None) -> bytes:
    """A batch that any topic accepts, unless its producer's sequence is out of order."""
    if codec is None:
        codec = chance.choice(tuple(Compression))
    producer_id = producer_epoch = base_sequence = -1
    if chance.random() < 0.5:
        producer_id = chance.choice((chance.randrange(20), chance.randrange(1 << 62)))
        producer_epoch, base_sequence = chance.randrange(32767), chance.choice((0, 0, 1, 2**31 - 1))
    return bytes(
        build_batch(
            [_record(chance) for _ in range(chance.choice((1,) * 6 + (2, 3, 30)))],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )
    )


def _record(chance: random.Random) -> Record:
    headers = tuple(
        (chance.choice(("", "h", "é")), chance.choice((None, b"", b"value")))
        for _ in range(chance.choice((0, 0, 1, 3)))
    )
    return Record(
        timestamp=_TIME_MS + chance.randrange(1000),
        key=chance.choice((None, b"", b"key", chance.randbytes(8))),
        value=chance.choice((None, b"", chance.randbytes(chance.choice((1, 50, 700))))),
        headers=headers,
    )


def any_batch(chance: random.Random) -> bytes:
    return good_batch(chance) if chance.random() < 0.6 else hostile_batch(chance)[1]


def hostile_batch(chance: random.Random) -> tuple[str, bytes]:
    """What was done to it, and the bytes for a partition's records field."""
    batch = bytearray(good_batch(chance))
    match chance.randrange(8):
        case 0 | 1:
            what = _change_field(chance, batch)
            return what, bytes(_repaired(batch) if chance.random() < 0.8 else batch)
        case 2 | 3:
            return "records changed", _with_other_records(chance, bytes(batch))
        case 4:
            size = chance.randrange(len(batch))
            return f"cut to {size} bytes", bytes(batch[:size])
        case 5:
            _flip(chance, batch, HEADER_BYTES)
            return "compressed bytes changed", bytes(_repaired(batch))
        case 6:
            other = good_batch(chance)
            return "two batches", bytes(batch) + other[: chance.choice((1, 61, len(other)))]
        case _:
            _flip(chance, batch, 0)
            return "bits flipped", bytes(batch)


def _change_field(chance: random.Random, batch: bytearray) -> str:
    """Change one field of the header."""
    header = read_header(batch)
    place = chance.randrange(len(_LAYOUT))
    name = BatchHeader._fields[place]
    old = header[place]
    value = chance.choice((*_EXTREMES[_LAYOUT[place]], old + 1, old - 1))
    try:
        HEADER.pack_into(batch, 0, *header._replace(**{name: value}))
    except struct.error:
        return f"{name} kept"
    if chance.random() < 0.3:  # If the count must match the delta, both have to be wrong.
        count = chance.choice(_EXTREMES["i"])
        lying = read_lying(batch)._replace(
            record_count=count, last_offset_delta=max(count - 1, -(2**31))
        )
        HEADER.pack_into(batch, 0, *lying)
        name += f" and count {count}"
    return f"{name} = {value}"


def read_lying(batch: bytes | bytearray) -> BatchHeader:
    """The header as it is, however wrong."""
    return BatchHeader._make(HEADER.unpack_from(batch))


def _repaired(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, CRC_AT, compute_crc(batch, 0, len(batch)))
    return batch


def _flip(chance: random.Random, batch: bytearray, start: int) -> None:
    for _ in range(chance.choice((1, 1, 2, 8))):
        if start < len(batch):
            batch[chance.randrange(start, len(batch))] ^= 1 << chance.randrange(8)


def _with_other_records(chance: random.Random, batch: bytes) -> bytes:
    """The plain records changed, compressed again, count and lengths unchanged."""
    header = read_header(batch)
    plain = bytearray(records_section(batch, header))
    for _ in range(chance.choice((1, 1, 3))):
        at = chance.randrange(len(plain)) if plain else 0
        match chance.randrange(5):
            case 0:
                plain[at : at + 1] = chance.choice((b"\xff" * 5, b"\xff" * 10, b"\x01", b"\x80"))
            case 1:
                del plain[at:]
            case 2:
                plain[at:at] = chance.randbytes(chance.choice((1, 4)))
            case 3:
                plain += plain[:at]
            case _:
                _flip(chance, plain, 0)
    return bytes(seal(header, compress(header.codec, bytes(plain))))


# -- bombs ---------------------------------------------------------------------------------------

BOMBS: Final = ("zeros", "tiny records", "one record of headers", "members", "lies about size")


def bomb(kind: str, codec: Compression, size_bytes: int) -> bytes:
    """A small batch that decompresses to `size_bytes`, or claims to."""
    return _bomb(kind, codec, size_bytes)


@cache
def _bomb(kind: str, codec: Compression, size_bytes: int) -> bytes:
    count = 1
    match kind:
        case "zeros":
            section = _squeeze(codec, bytes(size_bytes))
        case "tiny records":
            count = min(size_bytes // 9, _TINY_RECORDS_MAX[codec])
            section = _squeeze(codec, _tiny_records(count))
        case "one record of headers":
            section = _squeeze(codec, _record_of_headers(size_bytes // 2))
        case "members":
            section = _many_members(codec, size_bytes)
        case _:
            section = _liar(codec)
    if len(section) > _MESSAGE_BYTES_MAX - HEADER_BYTES:
        section = section[: _MESSAGE_BYTES_MAX - HEADER_BYTES]
    return bytes(
        seal(
            BatchHeader(
                base_offset=0,
                batch_length=len(section) + HEADER_BYTES - LOG_OVERHEAD_BYTES,
                partition_leader_epoch=-1,
                magic=MAGIC,
                crc=0,
                attributes=codec,
                last_offset_delta=count - 1,
                base_timestamp=_TIME_MS,
                max_timestamp=_TIME_MS,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                record_count=count,
            ),
            section,
        )
    )


def _squeeze(codec: Compression, plain: bytes) -> bytes:
    level = 1 if codec in (Compression.GZIP, Compression.LZ4) else None
    return compress(codec, plain, level)


def _tiny_records(count: int) -> bytes:
    """Good records, as small and as many as possible."""
    size_bytes = 0
    for offset_bytes, first in enumerate((0, 64, 8192, 1 << 20), 1):
        following = 64 << 7 * (offset_bytes - 1)
        size_bytes += max(0, min(count, following) - first) * (6 + offset_bytes)
    return most_tiny_records()[:size_bytes]


@cache
def most_tiny_records() -> bytes:
    """Takes seconds: to be called before the time is measured."""
    section = bytearray()
    for delta in range(max(_TINY_RECORDS_MAX.values())):
        offset = _varint(delta)
        section += _varint(5 + len(offset)) + b"\0\0" + offset + b"\0\1\0"
    return bytes(section)


def _record_of_headers(count: int) -> bytes:
    """One record with very many empty headers: two bytes each here, an object each in memory."""
    body = b"\x00\x00\x00\x00\x01" + _varint(count) + b"\x00\x01" * count
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    out = bytearray()
    number <<= 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _many_members(codec: Compression, size_bytes: int) -> bytes:
    """As many empty streams as fit, one after another."""
    match codec:
        case Compression.GZIP:
            member = zlib.compress(b"", wbits=31)
        case Compression.ZSTD:
            member = bytes(cramjam.zstd.compress(b""))
        case Compression.LZ4:
            member = bytes(cramjam.lz4.compress(b""))
        case Compression.SNAPPY:
            return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"\0\0\0\x01\0" * 50_000
        case _:
            member = _TINY_RECORD
    return member * (min(size_bytes, 1_000_000) // len(member))


def _liar(codec: Compression) -> bytes:
    """A header that announces far more than follows."""
    match codec:
        case Compression.ZSTD:  # a frame of 2^40 bytes in a window of 2^41
            return b"\x28\xb5\x2f\xfd\xc0\xf8" + (1 << 40).to_bytes(8, "little") + b"\x01\0\0"
        case Compression.SNAPPY:
            return b"\xff\xff\xff\xff\x0f" + bytes(100)
        case Compression.LZ4:  # 4 MiB blocks, content size given
            return b"\x04\x22\x4d\x18\x48\x70" + (1 << 40).to_bytes(8, "little") + b"\0\xff\xff"
        case Compression.GZIP:
            return zlib.compress(b"x", wbits=31)[:-4] + b"\xff\xff\xff\xff"
        case _:
            return b"\xfe\xff\xff\xff\x0f"
