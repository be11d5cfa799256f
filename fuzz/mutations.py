"""Changes to bytes that were well-formed: what a broken or hostile client may send instead."""

import random
from collections.abc import Callable
from typing import Final

_NUMBERS: Final = (0, 1, -1, -2, 2**31 - 1, -(2**31), 2**15 - 1, -(2**15), 10**6, 10**8)
_VARINTS: Final = (
    b"\xff\xff\xff\xff\x0f",  # -1 as unsigned
    b"\xff\xff\xff\xff\x07",  # the largest int32
    b"\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # over-long
    b"\xff" * 12,
    b"\x80",
    b"\x00",
)
_UNKNOWN_TAGS: Final = (
    b"\x01\x63\x00",
    b"\x02\x00\x01\x00\x7f\x02\xab\xcd",
    b"\x01\xff\xff\xff\xff\x07\x01\x00",
    b"\xff\xff\x03" + b"\x05\x00" * 200,
    b"\x01\x05\xff\xff\xff\xff\x07",
    b"\x03\x01\x00\x01\x00\x01\x00",
)


def mutate(chance: random.Random, data: bytes, start: int = 0) -> tuple[str, bytes]:
    """Change the bytes from `start` on in a few places; returns what was done, and the result."""
    changed = bytearray(data)
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        change = chance.choice(_CHANGES)
        at = chance.randrange(start, len(changed)) if start < len(changed) else len(changed)
        change(chance, changed, at)
        done.append(f"{change.__name__.strip('_')} at {at}")
    return ", ".join(done), bytes(changed)


def _flip_bits(chance: random.Random, data: bytearray, at: int) -> None:
    if at < len(data):
        data[at] ^= 1 << chance.randrange(8)


def _set_byte(chance: random.Random, data: bytearray, at: int) -> None:
    data[at : at + 1] = chance.choice((b"\0", b"\1", b"\x7f", b"\x80", b"\xff"))


def _truncate(chance: random.Random, data: bytearray, at: int) -> None:
    del data[at:]


def _remove(chance: random.Random, data: bytearray, at: int) -> None:
    del data[at : at + chance.choice((1, 2, 4, 16))]


def _insert(chance: random.Random, data: bytearray, at: int) -> None:
    data[at:at] = chance.randbytes(chance.choice((1, 2, 4, 50)))


def _number(chance: random.Random, data: bytearray, at: int) -> None:
    """Overwrite a length, a count or any other field of two, four or eight bytes."""
    size = chance.choice((2, 4, 4, 8))
    number = chance.choice(_NUMBERS) & ((1 << 8 * size) - 1)
    data[at : at + size] = number.to_bytes(size, "big")


def _varint(chance: random.Random, data: bytearray, at: int) -> None:
    data[at : at + 1] = chance.choice(_VARINTS)


def _tags(chance: random.Random, data: bytearray, at: int) -> None:
    """In place of an empty tag section, which is a zero byte."""
    zero = data.find(0, at)
    place = zero if zero >= 0 else at
    data[place : place + 1] = chance.choice(_UNKNOWN_TAGS)


def _swap(chance: random.Random, data: bytearray, at: int) -> None:
    """Two neighbouring fields change places."""
    size = chance.choice((1, 2, 4, 8, 16))
    first, second = bytes(data[at : at + size]), bytes(data[at + size : at + 2 * size])
    data[at : at + len(first) + len(second)] = second + first


def _repeat(chance: random.Random, data: bytearray, at: int) -> None:
    piece = bytes(data[at : at + chance.choice((4, 20, 100))])
    data[at:at] = piece * chance.choice((1, 2, 50))


def _noise(chance: random.Random, data: bytearray, at: int) -> None:
    size = chance.choice((4, 30, 200))
    data[at : at + size] = chance.randbytes(size)


_CHANGES: Final[tuple[Callable[[random.Random, bytearray, int], None], ...]] = (
    _flip_bits,
    _set_byte,
    _truncate,
    _remove,
    _insert,
    _number,
    _number,
    _varint,
    _varint,
    _tags,
    _swap,
    _repeat,
    _noise,
)
