"""Plain JSON objects by a schema, in the part of Python that numba compiles.

`parse_texts` takes what Spark's parser and the strict checks understand in the same way, and writes
what they would give. What it is not sure of it leaves to them: a text is plain, or it is not.
Import it only where numba is (`json_columns` does). Every read is checked against the end of the
text: compiled code checks nothing by itself.

The schema is a table of nodes, and a node is where its columns begin there. The first is the object
of the text; the fields of an object lie one after another. A node has a row of slots: of 8 bytes
each, and whether there is a value. Fields of an object share the index of the object; elements of
arrays are counted, in a container for each array.
"""

from typing import Any, Final

import numba
import numba.extending
import numpy as np

OBJECT: Final = 0
ARRAY: Final = 1
STRING: Final = 2
INTEGER: Final = 3
DOUBLE: Final = 4
FLOAT: Final = 5
BOOLEAN: Final = 6
DECIMAL: Final = 7
DATE: Final = 8
MOMENT: Final = 9
LOCAL_MOMENT: Final = 10
MOMENT_OR_LOCAL: Final = 11
"""A moment that is in UTC where it names no zone."""
_ANY: Final = -1
"""The node of a value that the schema does not name."""

TEXT_BYTES_MAX: Final = 1 << 20
"""Parsers have limits for long texts, each its own."""
DEPTH_MAX: Final = 64
NAMES_MAX: Final = 1024
"""Of keys that the schema does not name, in objects that are open at one time."""
_KEY_BYTES_MAX: Final = 1024
_EXACT_DIGITS: Final = 18
_DIGITS_MAX: Final = 40

_BYTES: Final = "Array(uint8, 1, 'C', readonly=True)"
PARSE_SIGNATURE: Final = (
    f"void({_BYTES}, Array(int32, 1, 'C', readonly=True), {_BYTES}, int64[::1], int64[::1], "
    "float64[::1], uint8[::1], int64[::1], int64[::1], uint8[::1], int64[::1], uint8[::1], "
    "int64[::1], int64[::1], int64[::1])"
)
GATHER_SIGNATURE: Final = (
    f"void({_BYTES}, uint8[::1], int64[::1], uint8[::1], int32[::1], uint8[::1])"
)
# Columns of the table of nodes.
KIND: Final = 0
FIRST: Final = 1
LAST: Final = 2
"""After the last field."""
NAME_START: Final = 3
NAME_END: Final = 4
CONTAINER: Final = 5
BASE: Final = 6
NULLABLE: Final = 7
LOW: Final = 8
"""The least number; of decimals, the digits before the point."""
HIGH: Final = 9
"""The largest number; of decimals, the digits behind the point."""
ELEMENTS: Final = 10
"""Of an array: what counts its elements."""
SEEN: Final = 11
"""Of a field: the object where it was last."""
NODE_COLUMNS: Final = 12

# What is known of an open object or array, in a frame of the stack.
_HOLDER: Final = 0
_INDEX: Final = 1
_CLOSE: Final = 2
_SERIAL: Final = 3
_OTHERS: Final = 4
"""How many keys that the schema does not name there were before it."""
_EXPECTED: Final = 5
"""The field that comes next if the text has the order of the schema."""
FRAME: Final = 6
# What is used, over all texts.
_EXTRA: Final = 0
HARD: Final = 1
_OPENED: Final = 2
_DATA: Final = 3
_NAMES: Final = 4
USED: Final = 5

_TENS = np.array([10**i for i in range(19)], np.int64)
_TENS_EXACT = np.array([10.0**i for i in range(23)], np.float64)
_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_NO_DATE: Final = -(1 << 40)
_DAY_US: Final = 86_400_000_000


@numba.extending.intrinsic
def _address(_: Any, array: Any) -> Any:
    """Where an array begins. A call with an array counts it as used, and not, as slowly as the
    rest of a call; whoever calls holds them all."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, values[0]).data

    return numba.types.CPointer(array.dtype)(array), generate


@numba.njit(nogil=True)
def _signed(byte: Any) -> Any:
    return np.int64(byte)


@numba.njit(nogil=True)
def _space(data: Any, at: int, end: int) -> int:
    while at < end:
        byte = data[at]
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@numba.njit(nogil=True)
def _utf8(data: Any, at: int, end: int) -> int:
    """After one character of several bytes; -1: it is none."""
    first = data[at]
    low, high = 0x80, 0xBF
    if 0xC2 <= first <= 0xDF:
        more = 1
    elif 0xE0 <= first <= 0xEF:
        more = 2
        if first == 0xE0:
            low = 0xA0
        elif first == 0xED:
            high = 0x9F
    elif 0xF0 <= first <= 0xF4:
        more = 3
        if first == 0xF0:
            low = 0x90
        elif first == 0xF4:
            high = 0x8F
    else:
        return -1
    if at + more >= end:
        return -1
    for i in range(1, more + 1):
        byte = data[at + i]
        if byte < low or byte > high:
            return -1
        low, high = 0x80, 0xBF
    return at + more + 1


@numba.njit(nogil=True)
def _hex4(data: Any, at: int, end: int) -> int:
    if at + 4 > end:
        return -1
    number = 0
    for i in range(4):
        byte = _signed(data[at + i])
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= (byte | 32) <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        number = number * 16 + digit
    return number


@numba.njit(nogil=True)
def _escape(data: Any, at: int, end: int) -> tuple[int, int]:
    """The character of an escape that begins at the backslash, and what follows; -1: none."""
    if at + 1 >= end:
        return -1, -1
    byte = data[at + 1]
    if byte == 117:  # u
        code = _hex4(data, at + 2, end)
        if not 0xD800 <= code <= 0xDFFF:
            return code, at + 6
        if code >= 0xDC00 or at + 7 >= end or data[at + 6] != 92:
            return -1, -1
        if data[at + 7] != 117:
            return -1, -1
        low = _hex4(data, at + 8, end)
        if not 0xDC00 <= low <= 0xDFFF:
            return -1, -1
        return 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00), at + 12
    code = -1
    if byte == 34 or byte == 92 or byte == 47:
        code = _signed(byte)
    elif byte == 110:
        code = 10
    elif byte == 116:
        code = 9
    elif byte == 114:
        code = 13
    elif byte == 98:
        code = 8
    elif byte == 102:
        code = 12
    return code, at + 2


@numba.njit(nogil=True)
def _string(data: Any, at: int, end: int) -> tuple[int, bool]:
    """The closing quote of a text that begins here, and whether it has escapes; -1: none."""
    has_escapes = False
    while at < end:
        byte = data[at]
        if byte == 34:
            return at, has_escapes
        if byte < 32:
            return -1, False
        if byte == 92:
            has_escapes = True
            code, at = _escape(data, at, end)
            if code < 0:
                return -1, False
        elif byte >= 0x80:
            at = _utf8(data, at, end)
            if at < 0:
                return -1, False
        else:
            at += 1
    return -1, False


@numba.njit(nogil=True)
def _unescape(data: Any, at: int, end: int, extra: Any, to: int) -> int:
    """Write a checked text without its escapes; the position after it."""
    while at < end:
        byte = data[at]
        if byte != 92:
            extra[to] = byte
            at += 1
            to += 1
            continue
        code, at = _escape(data, at, end)
        if code < 0x80:
            extra[to] = code
            to += 1
            continue
        if code < 0x800:
            extra[to] = 0xC0 | (code >> 6)
            to += 1
        else:
            if code < 0x10000:
                extra[to] = 0xE0 | (code >> 12)
            else:
                extra[to] = 0xF0 | (code >> 18)
                to += 1
                extra[to] = 0x80 | ((code >> 12) & 0x3F)
            to += 1
            extra[to] = 0x80 | ((code >> 6) & 0x3F)
            to += 1
        extra[to] = 0x80 | (code & 0x3F)
        to += 1
    return to


@numba.njit(nogil=True)
def _number(data: Any, at: int, end: int) -> tuple[int, int, int, int, int, bool]:
    """After it (-1: none), its digits as a number, how many, those behind the point, the exponent,
    and whether it has a point or an exponent. Digits beyond 18 are only counted."""
    none = (-1, 0, 0, 0, 0, False)
    if at < end and data[at] == 45:
        at += 1
    start, point, number, digits = at, -1, 0, 0
    while at < end:
        byte = data[at]
        if byte == 46 and point < 0 and at > start:
            point = at
        elif 48 <= byte <= 57:
            if digits or byte != 48:
                digits += 1
                if digits <= _EXACT_DIGITS:
                    number = number * 10 + (_signed(byte) - 48)
        else:
            break
        at += 1
    last = at
    whole = (last if point < 0 else point) - start
    behind = 0 if point < 0 else last - point - 1
    if whole == 0 or (point >= 0 and behind == 0) or last - start > _DIGITS_MAX:
        return none
    if whole > 1 and data[start] == 48:
        return none
    exponent = 0
    if at < end and (data[at] | 32) == 101:
        at += 1
        sign = 1
        if at < end and (data[at] == 43 or data[at] == 45):
            sign = 44 - _signed(data[at])
            at += 1
        begin = at
        while at < end and at < begin + 3 and 48 <= data[at] <= 57:
            exponent = exponent * 10 + (_signed(data[at]) - 48)
            at += 1
        # With two digits of an exponent nothing is too large or too small.
        if at == begin or at == begin + 3:
            return none
        exponent *= sign
    return at, number, digits, behind, exponent, at > last or point >= 0


@numba.njit(nogil=True)
def _two(data: Any, at: int) -> int:
    tens = _signed(data[at]) - 48
    ones = _signed(data[at + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -1
    return tens * 10 + ones


@numba.njit(nogil=True)
def _date(data: Any, at: int) -> int:
    """Days since 1970 of the ten characters of a date."""
    century, years = _two(data, at), _two(data, at + 2)
    month, day = _two(data, at + 5), _two(data, at + 8)
    if data[at + 4] != 45 or data[at + 7] != 45:
        return _NO_DATE
    if century < 0 or years < 0 or not 1 <= month <= 12 or day < 1:
        return _NO_DATE
    year = century * 100 + years
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if year < 1 or day > _DAYS[month - 1] + (1 if is_leap and month == 2 else 0):
        return _NO_DATE
    # Years that begin in March: the leap day is the last.
    if month <= 2:
        year -= 1
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719_468


@numba.njit(nogil=True)
def _moment(data: Any, at: int, end: int, kind: int) -> tuple[bool, int]:
    """Whether it is one of this kind, and microseconds since 1970."""
    if end - at < 19:
        return False, 0
    days = _date(data, at)
    hour, minute, second = _two(data, at + 11), _two(data, at + 14), _two(data, at + 17)
    middle = data[at + 10]
    if days == _NO_DATE or (middle != 84 and middle != 32):
        return False, 0
    if data[at + 13] != 58 or data[at + 16] != 58:
        return False, 0
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59):
        return False, 0
    us, unit = 0, 1_000_000
    at += 19
    if at < end and data[at] == 46:
        at += 1
        begin = at
        while at < end and unit > 1 and 48 <= data[at] <= 57:
            unit //= 10
            us += (_signed(data[at]) - 48) * unit
            at += 1
        if at == begin:
            return False, 0
    us += ((hour * 60 + minute) * 60 + second) * 1_000_000 + days * _DAY_US
    if at == end:
        return kind != MOMENT, us
    if kind == LOCAL_MOMENT:
        return False, 0
    sign = 44 - _signed(data[at])  # Of + and -.
    if data[at] == 90:
        return at + 1 == end, us
    if (sign != 1 and sign != -1) or at + 6 != end or data[at + 3] != 58:
        return False, 0
    hours, minutes = _two(data, at + 1), _two(data, at + 4)
    if not (0 <= hours <= 14 and 0 <= minutes <= 59):
        return False, 0
    us -= sign * (hours * 60 + minutes) * 60_000_000
    # Years 1 to 9999, also in UTC.
    return -62_135_596_800_000_000 <= us < 253_402_300_800_000_000, us


@numba.njit(nogil=True)
def _write_number(
    parsed: Any, is_negative: bool, nodes: Any, node: int, slots: Any, doubles: Any, slot: int
) -> int:
    """1: written; 0: not plain; 2: a double that is to be parsed by others."""
    _, number, digits, behind, exponent, is_float = parsed
    kind = nodes[node + KIND]
    if number == 0 and is_negative and not is_float:
        return 0  # -0: as a double it is not what it is as an integer.
    is_exact = digits <= _EXACT_DIGITS
    if kind in (DOUBLE, FLOAT):
        power = exponent - behind
        numbers_max, powers_max = (1 << 53, 22) if kind == DOUBLE else (1 << 24, 10)
        if not is_exact or number > numbers_max or power > powers_max or power < -powers_max:
            return 2 if kind == DOUBLE else 0
        # Both are exact, so the result is rounded once.
        if power < 0:
            real = np.float64(number) / _TENS_EXACT[-power]
        else:
            real = np.float64(number) * _TENS_EXACT[power]
        doubles[slot] = -real if is_negative else real
        return 1
    if kind == INTEGER:
        value = -number if is_negative else number
        if is_float or not is_exact or value < nodes[node + LOW] or value > nodes[node + HIGH]:
            return 0
        slots[slot] = value
        return 1
    if kind == DECIMAL:
        whole, scale = nodes[node + LOW], nodes[node + HIGH]
        if exponent or not is_exact or behind > scale or digits - behind > whole:
            return 0
        number *= _TENS[scale - behind]
        slots[slot] = -number if is_negative else number
        return 1
    return 0


@numba.njit(nogil=True)
def _find(data: Any, at: int, end: int, names: Any, nodes: Any, node: int, guess: int) -> int:
    """The field of an object that is called so; -1: none. The guess is tried first: texts mostly
    have the order of the schema."""
    first, last = nodes[node + FIRST], nodes[node + LAST]
    field = guess
    for _ in range(first, last, NODE_COLUMNS):
        if field == last:
            field = first
        start = nodes[field + NAME_START]
        if nodes[field + NAME_END] - start == end - at:
            j = 0
            while j < end - at and names[start + j] == data[at + j]:
                j += 1
            if j == end - at:
                return field
        field += NODE_COLUMNS
    return _ANY


@numba.njit(nogil=True)
def _hash(data: Any, at: int, end: int) -> Any:
    value = np.uint64(0xCBF29CE484222325)
    for i in range(np.uint64(at), np.uint64(end)):
        value = (value ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return np.int64(value)


@numba.njit(nogil=True)
def _word(data: Any, at: int, end: int) -> tuple[int, int]:
    """1: true, 0: false, 2: null, and what follows; -1: none of them."""
    none = (-1, -1)
    if end - at < 4:
        return none
    a, b, c, d = (
        data[at],
        data[at + 1],
        data[at + 2],
        data[at + 3],
    )
    if a == 116 and b == 114 and c == 117 and d == 101:
        return 1, at + 4
    if a == 110 and b == 117 and c == 108 and d == 108:
        return 2, at + 4
    is_false = a == 102 and b == 97 and c == 108 and d == 115
    if is_false and at + 4 < end and data[at + 4] == 101:
        return 0, at + 5
    return none


@numba.njit(nogil=True)
def _quoted(
    data: Any,
    at: int,
    close: int,
    has_escapes: bool,
    kind: int,
    slots: Any,
    slot: int,
    extra: Any,
    used: Any,
) -> bool:
    """Write what stands in quotes, if a node of this kind takes it."""
    if kind == STRING:
        begin, length = at, close - at
        if has_escapes:
            to = _unescape(data, at, close, extra, used[_EXTRA])
            begin, length = used[_DATA] + used[_EXTRA], to - used[_EXTRA]
            used[_EXTRA] = to
        slots[slot] = (begin << 32) | length
        return True
    if kind == DATE:
        days = _date(data, at) if close - at == 10 else _NO_DATE
        slots[slot] = days
        return days != _NO_DATE
    if MOMENT <= kind <= MOMENT_OR_LOCAL:
        is_one, us = _moment(data, at, close, kind)
        slots[slot] = us
        return is_one
    return False


@numba.njit(nogil=True)
def _scalar(
    data: Any,
    at: int,
    end: int,
    nodes: Any,
    node: int,
    index: int,
    slots: Any,
    doubles: Any,
    there: Any,
    extra: Any,
    hard: Any,
    used: Any,
) -> int:
    """Parse a text, a number or a word, and write it where the node wants it; what follows, or -1.

    hard: doubles that are to be parsed by others.
    """
    byte = data[at]
    slot = nodes[node + BASE] + index if node >= 0 else 0
    if byte == 34:
        close, has_escapes = _string(data, at + 1, end)
        if close < 0 or node < 0:
            return close + 1 if close >= 0 else -1
        kind = nodes[node + KIND]
        if not _quoted(data, at + 1, close, has_escapes, kind, slots, slot, extra, used):
            return -1
        there[slot] = 1
        return close + 1
    if byte == 45 or 48 <= byte <= 57:
        parsed = _number(data, at, end)
        if parsed[0] < 0 or node < 0:
            return parsed[0]
        written = _write_number(parsed, byte == 45, nodes, node, slots, doubles, slot)
        if written == 0:
            return -1
        if written == 2:
            hard[used[HARD] * 2] = slot
            hard[used[HARD] * 2 + 1] = (at << 32) | (parsed[0] - at)
            used[HARD] += 1
        there[slot] = 1
        return parsed[0]
    word, after = _word(data, at, end)
    if word < 0 or node < 0:
        return after
    if word == 2:
        return after if nodes[node + NULLABLE] else -1
    slots[slot] = word
    there[slot] = 1
    return after if nodes[node + KIND] == BOOLEAN else -1


@numba.njit(nogil=True)
def _is_complete(nodes: Any, node: int, index: int, there: Any) -> bool:
    """Whether an object has what may not be null."""
    for field in range(nodes[node + FIRST], nodes[node + LAST], NODE_COLUMNS):
        if not nodes[field + NULLABLE] and not there[nodes[field + BASE] + index]:
            return False
    return True


@numba.njit(nogil=True)
def _open(
    byte: int,
    nodes: Any,
    node: int,
    index: int,
    slots: Any,
    there: Any,
    used: Any,
    stack: Any,
    depth: int,
) -> bool:
    """Begin an object or an array, if the node takes it."""
    if depth == DEPTH_MAX:
        return False
    frame = depth * FRAME
    stack[frame + _EXPECTED] = 0
    if node >= 0:
        if nodes[node + KIND] != (OBJECT if byte == 123 else ARRAY):
            return False
        slot = nodes[node + BASE] + index
        there[slot] = 1
        slots[slot] = 0
        stack[frame + _EXPECTED] = nodes[node + FIRST]
    used[_OPENED] += 1
    stack[frame + _HOLDER] = node
    stack[frame + _INDEX] = index
    stack[frame + _CLOSE] = byte + 2
    stack[frame + _SERIAL] = used[_OPENED]
    stack[frame + _OTHERS] = used[_NAMES]
    return True


@numba.njit(nogil=True)
def _go_on(
    data: Any,
    at: int,
    end: int,
    is_first: bool,
    nodes: Any,
    there: Any,
    used: Any,
    stack: Any,
    depth: int,
) -> tuple[int, int]:
    """Where the next key or element begins, and the depth there, after all that ends here; -1: the
    text is not plain."""
    while depth:
        if at >= end:
            return -1, depth
        frame = (depth - 1) * FRAME
        byte = data[at]
        if byte == stack[frame + _CLOSE]:
            holder = stack[frame + _HOLDER]
            is_known = byte == 125 and holder >= 0
            if is_known and not _is_complete(nodes, holder, stack[frame + _INDEX], there):
                return -1, depth
            used[_NAMES] = stack[frame + _OTHERS]
            depth -= 1
            is_first = False
            at = _space(data, at + 1, end)
            continue
        if is_first:
            return at, depth
        if byte != 44:
            return -1, depth
        at = _space(data, at + 1, end)
        return (at if at < end else -1), depth
    return (at if at == end else -1), 0


@numba.njit(nogil=True)
def _key(
    data: Any,
    at: int,
    end: int,
    names: Any,
    nodes: Any,
    used: Any,
    stack: Any,
    frame: int,
    hashes: Any,
) -> tuple[int, int]:
    """Where the value of the key begins, and its node; -1: the text is not plain."""
    none = (-1, -1)
    if data[at] != 34:
        return none
    close, has_escapes = _string(data, at + 1, end)
    # A key with escapes may be the same as one without.
    if close < 0 or has_escapes or close - at > _KEY_BYTES_MAX:
        return none
    node, holder = _ANY, stack[frame + _HOLDER]
    if holder >= 0:
        node = _find(data, at + 1, close, names, nodes, holder, stack[frame + _EXPECTED])
    if node >= 0:
        if nodes[node + SEEN] == stack[frame + _SERIAL]:
            return none
        nodes[node + SEEN] = stack[frame + _SERIAL]
        stack[frame + _EXPECTED] = node + NODE_COLUMNS
    else:
        # Equal keys have equal hashes; of others that have, nothing is claimed.
        found, others = _hash(data, at + 1, close), used[_NAMES]
        if others == NAMES_MAX:
            return none
        for i in range(stack[frame + _OTHERS], others):
            if hashes[i] == found:
                return none
        hashes[others] = found
        used[_NAMES] = others + 1
    at = _space(data, close + 1, end)
    if at >= end or data[at] != 58:
        return none
    at = _space(data, at + 1, end)
    return (at if at < end else -1), node


@numba.njit(nogil=True)
def _parse(
    data: Any,
    at: int,
    end: int,
    row: int,
    names: Any,
    nodes: Any,
    slots: Any,
    doubles: Any,
    there: Any,
    extra: Any,
    hard: Any,
    used: Any,
    counts: Any,
    stack: Any,
    hashes: Any,
) -> bool:
    """Whether a text is plain."""
    at = _space(data, at, end)
    if at >= end or data[at] != 123:
        return False
    depth, node, index = 0, 0, row
    used[_NAMES] = 0
    while True:
        # A value for `node` begins here.
        byte = data[at]
        is_first = byte == 123 or byte == 91
        if is_first:
            if not _open(byte, nodes, node, index, slots, there, used, stack, depth):
                return False
            depth += 1
            at += 1
        else:
            at = _scalar(
                data, at, end, nodes, node, index, slots, doubles, there, extra, hard, used
            )
            if at < 0:
                return False
        at = _space(data, at, end)
        at, depth = _go_on(data, at, end, is_first, nodes, there, used, stack, depth)
        if at < 0 or depth == 0:
            return at >= 0
        frame = (depth - 1) * FRAME
        holder = stack[frame + _HOLDER]
        if stack[frame + _CLOSE] == 125:
            at, node = _key(data, at, end, names, nodes, used, stack, frame, hashes)
            if at < 0:
                return False
            index = stack[frame + _INDEX]
        elif holder >= 0:
            node, container = nodes[holder + FIRST], nodes[holder + ELEMENTS]
            index = counts[container]
            counts[container] += 1
            slots[nodes[holder + BASE] + stack[frame + _INDEX]] += 1
        else:
            node = _ANY


@numba.njit(nogil=True)
def _take_back(
    nodes: Any, length: int, there: Any, counts: Any, before: Any, containers: int
) -> None:
    """What a text that is not plain has written."""
    for node in range(0, length, NODE_COLUMNS):
        container, base = nodes[node + CONTAINER], nodes[node + BASE]
        for slot in range(base + before[container], base + counts[container]):
            there[slot] = 0
    for container in range(1, containers):
        counts[container] = before[container]


def parse_texts(
    data: Any,
    ends: Any,
    names: Any,
    nodes: Any,
    slots: Any,
    doubles: Any,
    there: Any,
    counts: Any,
    before: Any,
    extra: Any,
    hard: Any,
    is_plain: Any,
    used: Any,
    stack: Any,
    hashes: Any,
) -> None:
    """Parse each text.

    doubles: the same memory as `slots`. there, used: all 0. counts: rows, and elements by
    container; all 0. is_plain: 1 where there is a text to try. Others are room.
    """
    texts, node_table, filled = _address(data), _address(nodes), _address(there)
    counted, counted_before, taken = _address(counts), _address(before), _address(used)
    used[_DATA] = len(data)
    for row in range(len(is_plain)):
        start, end = np.int64(ends[row]), np.int64(ends[row + 1])
        counts[0] = row + 1
        before[:] = counts
        before[0] = row
        extra_before, hard_before = used[_EXTRA], used[HARD]
        if (
            is_plain[row]
            and end - start <= TEXT_BYTES_MAX
            and _parse(
                texts,
                start,
                end,
                row,
                _address(names),
                node_table,
                _address(slots),
                _address(doubles),
                filled,
                _address(extra),
                _address(hard),
                taken,
                counted,
                _address(stack),
                _address(hashes),
            )
        ):
            continue
        is_plain[row] = 0
        _take_back(node_table, len(nodes), filled, counted, counted_before, len(counts))
        used[_EXTRA], used[HARD] = extra_before, hard_before


def gather(data: Any, extra: Any, spans: Any, there: Any, ends: Any, texts: Any) -> None:
    """Texts, each a part of `data` or of `extra`, one after another."""
    to = np.uint64(0)
    ends[0] = 0
    for row in range(len(spans)):
        if there[row]:
            at, length = np.uint64(spans[row] >> 32), np.uint64(spans[row] & 0xFFFFFFFF)
            if at < len(data):
                for i in range(length):
                    texts[to + i] = data[at + i]
            else:
                at -= np.uint64(len(data))
                for i in range(length):
                    texts[to + i] = extra[at + i]
            to += length
        ends[row + 1] = to
