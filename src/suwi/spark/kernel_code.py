"""The inner loops of reading, in the part of Python that numba compiles.

Import it only where numba is (`kernel` does). Every read is checked against the end of its section:
compiled code checks nothing by itself.
"""

from typing import Any, Final

import numba
import numpy as np

OK: Final = 0
BROKEN: Final = 1

NO_APPEND_TIME: Final = -(2**63)
_TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
_HEADER_BYTES: Final = 61
_VARINT_SHIFT_MAX: Final = 28
_VARLONG_SHIFT_MAX: Final = 63

_BYTES: Final = "Array(uint8, 1, 'C', readonly=True)"
RECORDS_SIGNATURE: Final = (
    f"UniTuple(int64, 5)({_BYTES}, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], "
    "int64[::1], int64, int64, int64[::1], int64[::1], int32[::1], int32[::1], uint8[::1], "
    "uint8[::1], int32[::1], uint8[::1], uint8[::1], int64[::1], int32[::1])"
)
SCAN_SIGNATURE: Final = (
    f"UniTuple(int64, 4)({_BYTES}, Array(uint32, 1, 'C', readonly=True), int64, int64[::1], "
    "int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])"
)
HEADERS_SIGNATURE: Final = (
    f"UniTuple(int64, 3)({_BYTES}, int64[::1], int32[::1], int64, int32[::1], uint8[::1], "
    "int32[::1], uint8[::1], uint8[::1])"
)


@numba.njit(nogil=True)
def _varint(data: Any, at: int, end: int, shift_max: int) -> tuple[Any, int]:
    """A zig-zag number and the position after it, which is -1 where there is none."""
    number = np.uint64(0)
    shift = 0
    while at < end and shift <= shift_max:
        byte = data[np.uint64(at)]
        at += 1
        number |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return np.int64(number >> np.uint64(1)) ^ -np.int64(number & np.uint64(1)), at
        shift += 7
    return 0, -1


@numba.njit(nogil=True)
def _copy(source: Any, at: int, length: int, target: Any, to: int) -> None:
    # Unsigned: numba counts negative indexes from the end; looking for one is five times slower.
    read_at, write_at = np.uint64(at), np.uint64(to)
    for i in range(np.uint64(length)):
        target[write_at + i] = source[read_at + i]


@numba.njit(nogil=True)
def _int32(data: Any, at: int) -> Any:
    number = np.uint32(0)
    for i in range(np.uint64(4)):
        number = (number << np.uint32(8)) | np.uint32(data[np.uint64(at) + i])
    return np.int64(np.int32(number))


@numba.njit(nogil=True)
def _int64(data: Any, at: int) -> Any:
    number = np.uint64(0)
    for i in range(np.uint64(8)):
        number = (number << np.uint64(8)) | np.uint64(data[np.uint64(at) + i])
    return np.int64(number)


@numba.njit(nogil=True)
def _crc32c(data: Any, at: int, end: int, table: Any) -> Any:
    crc = np.uint32(0xFFFFFFFF)
    for i in range(np.uint64(at), np.uint64(end)):
        crc = table[(crc ^ np.uint32(data[i])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return crc ^ np.uint32(0xFFFFFFFF)


def scan_batches(
    data: Any,
    crc_table: Any,
    crc_bytes_max: int,
    starts: Any,
    ends: Any,
    counts: Any,
    base_offsets: Any,
    base_timestamps: Any,
    append_times: Any,
) -> tuple[int, int, int, int]:
    """The headers of whole batches whose records are plain, in no transaction, and no markers.

    Status, batches, the offset after the last. BROKEN stands for all else: whoever asks has another
    way to read it. Checksums are checked of batches up to a size, beyond which other code is
    faster; the last number is how many were not.
    """
    at, end = 0, len(data)
    found, unchecked, position = 0, 0, 0
    while at + _HEADER_BYTES <= end:
        length = _int32(data, at + 8)
        if length < _HEADER_BYTES - 12 or data[at + 16] != 2:
            return BROKEN, found, 0, 0
        after = at + 12 + length
        if after > end:
            break
        # The codec, "transactional" and "control"; these are all in the second byte.
        attributes = data[at + 22]
        count = _int32(data, at + 57)
        if attributes & 0x37 or count < 0:
            return BROKEN, found, 0, 0
        if after - at > crc_bytes_max:
            unchecked += 1
        elif _crc32c(data, at + 21, after, crc_table) != np.uint32(_int32(data, at + 17)):
            return BROKEN, found, 0, 0
        starts[found] = at + _HEADER_BYTES
        ends[found] = after
        counts[found] = count
        base_offsets[found] = _int64(data, at)
        base_timestamps[found] = _int64(data, at + 27)
        append_times[found] = _int64(data, at + 35) if attributes & 0x08 else NO_APPEND_TIME
        position = base_offsets[found] + _int32(data, at + 23) + 1
        found += 1
        at = after
    return OK, found, position, unchecked


def decode_records(  # noqa: PLR0915 - one loop; calls would cost as much as they do
    data: Any,
    starts: Any,
    ends: Any,
    counts: Any,
    base_offsets: Any,
    base_timestamps: Any,
    append_times: Any,
    first: int,
    last: int,
    offsets: Any,
    times_us: Any,
    kinds: Any,
    key_ends: Any,
    keys: Any,
    key_is_there: Any,
    value_ends: Any,
    values: Any,
    value_is_there: Any,
    headers_at: Any,
    header_counts: Any,
) -> tuple[int, int, int, int, int]:
    """Records from offset `first` up to `last`, of sections of `data`, one column each.

    Status, rows, missing keys, missing values, headers. Where headers begin is kept for
    `decode_headers`. Room is needed for as many rows as the counts say, and for as many bytes of
    keys and of values as the sections have. Size: one loop of a compiled kernel.
    """
    rows, no_keys, no_values, headers = 0, 0, 0, 0
    keys_end, values_end = 0, 0
    key_ends[0] = 0
    value_ends[0] = 0
    for section in range(len(starts)):
        at, end = starts[section], ends[section]
        append_time = append_times[section]
        has_append_time = append_time != NO_APPEND_TIME
        previous = -1
        for _ in range(counts[section]):
            length, at = _varint(data, at, end, _VARINT_SHIFT_MAX)
            if at < 0 or length < 0 or length > end - at:
                return BROKEN, rows, 0, 0, 0
            record_end = at + length
            # After the attributes, which are unused.
            delta_ms, at = _varint(data, at + 1, record_end, _VARLONG_SHIFT_MAX)
            if at < 0:
                return BROKEN, rows, 0, 0, 0
            delta, at = _varint(data, at, record_end, _VARINT_SHIFT_MAX)
            if at < 0 or delta <= previous:
                return BROKEN, rows, 0, 0, 0
            previous = delta
            offset = base_offsets[section] + delta
            if offset < first or offset >= last:
                at = record_end
                continue
            key_bytes, at = _varint(data, at, record_end, _VARINT_SHIFT_MAX)
            if at < 0 or key_bytes < -1 or key_bytes > record_end - at:
                return BROKEN, rows, 0, 0, 0
            if key_bytes >= 0:
                _copy(data, at, key_bytes, keys, keys_end)
                keys_end += key_bytes
                at += key_bytes
                key_is_there[rows] = 1
            else:
                key_is_there[rows] = 0
                no_keys += 1
            value_bytes, at = _varint(data, at, record_end, _VARINT_SHIFT_MAX)
            if at < 0 or value_bytes < -1 or value_bytes > record_end - at:
                return BROKEN, rows, 0, 0, 0
            if value_bytes >= 0:
                _copy(data, at, value_bytes, values, values_end)
                values_end += value_bytes
                at += value_bytes
                value_is_there[rows] = 1
            else:
                value_is_there[rows] = 0
                no_values += 1
            header_count, at = _varint(data, at, record_end, _VARINT_SHIFT_MAX)
            # A header has two lengths of at least a byte each.
            if at < 0 or header_count < 0 or header_count > (record_end - at) // 2:
                return BROKEN, rows, 0, 0, 0
            if header_count == 0 and at != record_end:
                return BROKEN, rows, 0, 0, 0
            headers_at[rows] = at
            header_counts[rows] = header_count
            headers += header_count
            time_ms = append_time if has_append_time else base_timestamps[section] + delta_ms
            # What microseconds cannot hold is the nearest that they can.
            time_ms = max(-_TIMESTAMP_MS_MAX, min(time_ms, _TIMESTAMP_MS_MAX))
            times_us[rows] = time_ms * 1000
            kinds[rows] = 1 if has_append_time else 0
            offsets[rows] = offset
            rows += 1
            key_ends[rows] = keys_end
            value_ends[rows] = values_end
            at = record_end
        if at != end:
            return BROKEN, rows, 0, 0, 0
    return OK, rows, no_keys, no_values, headers


def decode_headers(
    data: Any,
    headers_at: Any,
    header_counts: Any,
    rows: int,
    key_ends: Any,
    keys: Any,
    value_ends: Any,
    values: Any,
    value_is_there: Any,
) -> tuple[int, int, int]:
    """The headers that `decode_records` found, all rows' in one column.

    Status, headers, missing values. A broken one may reach to the end of the data, not beyond.
    """
    end = len(data)
    count, no_values, keys_end, values_end = 0, 0, 0, 0
    key_ends[0] = 0
    value_ends[0] = 0
    for row in range(rows):
        at = headers_at[row]
        for _ in range(header_counts[row]):
            key_bytes, at = _varint(data, at, end, _VARINT_SHIFT_MAX)
            if at < 0 or key_bytes < 0 or key_bytes > end - at:
                return BROKEN, count, 0
            if keys_end + key_bytes > len(keys):
                return BROKEN, count, 0
            _copy(data, at, key_bytes, keys, keys_end)
            keys_end += key_bytes
            at += key_bytes
            value_bytes, at = _varint(data, at, end, _VARINT_SHIFT_MAX)
            if at < 0 or value_bytes < -1 or value_bytes > end - at:
                return BROKEN, count, 0
            value_is_there[count] = 1
            if value_bytes < 0:
                value_is_there[count] = 0
                no_values += 1
                value_bytes = 0
            if values_end + value_bytes > len(values):
                return BROKEN, count, 0
            _copy(data, at, value_bytes, values, values_end)
            values_end += value_bytes
            at += value_bytes
            count += 1
            key_ends[count] = keys_end
            value_ends[count] = values_end
    return OK, count, no_values
