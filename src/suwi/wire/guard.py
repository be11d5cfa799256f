"""Validates a message before kio decodes it, because kio trusts its input.

kio 0.6 allocates memory for as many array items as are announced and aborts the process if that
fails, so five bytes of a peer could stop a broker. It accepts as many items as fit in the bytes,
and a handler processes each; it returns None for a null array that the schema does not allow. It
also rejects unknown tagged fields, which KIP-482 requires to skip: a newer client may send them.

`compile_guard` makes a guard from a schema; `sliced_reader` takes the same steps item by item. A
guard returns a message that kio can decode: the same bytes, or a copy without the unknown tags. It
raises `MalformedMessage`.
Invariant: after a guard no count or length exceeds the bytes left, the sum of all counts is within
the limit, and null occurs only where the schema allows it.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from suwi.wire.errors import MalformedMessage, TooManyItems
from suwi.wire.primitives import STRING_BYTES_MAX, TAGS_MAX, read_uvarint, tag_section
from suwi.wire.schema import FIXED, UUID_BYTES, Field, Structure

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_BYTES_MAX: Final = 2**31 - 1
_NULL_STRUCTURE: Final = 0xFF  # KIP-893


class _Cut(NamedTuple):
    """A tag section to replace, because it has unknown tags."""

    start: int
    end: int
    replacement: bytes


class Walk:
    """The state of one validation: the sections to cut, and how many items are still allowed."""

    __slots__ = ("cuts", "items_left", "tags")

    def __init__(self, items_max: int) -> None:
        self.cuts: list[_Cut] = []
        self.items_left = items_max
        self.tags = 0

    def count(self, items: int) -> None:
        self.items_left -= items
        if self.items_left < 0:
            raise TooManyItems(f"too many items: {items} more")


# Validates one field: takes the bytes, the position and the walk; returns the position after it.
Step: TypeAlias = Callable[[memoryview, int, Walk], int]
# Returns the number of items of an array, None for null, and the position after it.
CountReader: TypeAlias = Callable[[memoryview, int, Walk], tuple[int | None, int]]
Guard: TypeAlias = Callable[[memoryview, int], tuple[memoryview, int]]


def compile_guard(structure: Structure, items_max: int) -> Guard:
    """Make a guard. It takes a buffer and the position of the message, and returns the same.

    `items_max` limits all arrays and tags of a message together.
    """
    step = structure_step(structure)

    def guard(buffer: memoryview, at: int) -> tuple[memoryview, int]:
        walk = Walk(items_max)
        step(buffer, at, walk)
        if not walk.cuts:
            return buffer, at
        return memoryview(without(buffer, at, walk.cuts)), 0

    return guard


def without(buffer: memoryview, at: int, cuts: Sequence[_Cut], end: int | None = None) -> bytes:
    """The bytes from `at` on, without what is cut."""
    pieces: list[bytes | memoryview] = []
    for cut in cuts:
        pieces += (buffer[at : cut.start], cut.replacement)
        at = cut.end
    pieces.append(buffer[at:end])
    return b"".join(pieces)


def structure_step(structure: Structure) -> Step:
    steps: list[Step] = []
    fixed_bytes = 0
    for field in structure.fields:
        size_bytes = _fixed_bytes(field)
        if size_bytes is not None:
            fixed_bytes += size_bytes
            continue
        if fixed_bytes:
            steps.append(_skip_step(fixed_bytes))
            fixed_bytes = 0
        steps.append(field_step(field, structure.flexible))
    if fixed_bytes:
        steps.append(_skip_step(fixed_bytes))
    if structure.flexible:
        steps.append(tags_step(structure))

    def step_all(buffer: memoryview, at: int, walk: Walk) -> int:
        for step in steps:
            at = step(buffer, at, walk)
        return at

    return steps[0] if len(steps) == 1 else step_all


def _fixed_bytes(field: Field) -> int | None:
    return None if field.is_array else _type_bytes(field.kafka_type)


def _type_bytes(kafka_type: str) -> int | None:
    if kafka_type == "uuid":
        return UUID_BYTES
    layout = FIXED.get(kafka_type)
    return None if layout is None else struct.calcsize(f">{layout}")


def _bytes_min(structure: Structure) -> int:
    """The minimum size of a structure."""
    least = 1 if structure.flexible else 0
    for field in structure.fields:
        fixed_bytes = _fixed_bytes(field)
        if fixed_bytes is not None:
            least += fixed_bytes
        elif structure.flexible or field.kafka_type == "struct":
            least += 1 if field.is_array or field.nullable or field.structure is None else 0
        else:
            least += 2 if field.kafka_type == "string" and not field.is_array else 4
    return least


def _skip_step(size_bytes: int) -> Step:
    def skip(buffer: memoryview, at: int, walk: Walk) -> int:
        at += size_bytes
        if at > len(buffer):
            raise MalformedMessage("the message ends early")
        return at

    return skip


def field_step(field: Field, flexible: bool) -> Step:
    size_bytes = _fixed_bytes(field)
    if size_bytes is not None:
        return _skip_step(size_bytes)
    if field.is_array:
        return _array_step(field, flexible)
    if field.structure is not None:
        inner = structure_step(field.structure)
        return _nullable_structure_step(inner) if field.nullable and field.tag is None else inner
    return _text_step(field, flexible, nullable=field.nullable)


def _text_step(field: Field, flexible: bool, *, nullable: bool) -> Step:
    """For strings and bytes: a length, then that many bytes."""
    bytes_max = STRING_BYTES_MAX if field.kafka_type == "string" else _BYTES_MAX
    layout = _INT16 if field.kafka_type == "string" else _INT32

    def step(buffer: memoryview, at: int, walk: Walk) -> int:
        if flexible:
            length, at = read_uvarint(buffer, at)
            length -= 1
        else:
            (length,) = layout.unpack_from(buffer, at)
            at += layout.size
        if length == -1 and nullable:
            return at
        after = at + length
        if not 0 <= length <= bytes_max or after > len(buffer):
            raise MalformedMessage(f"{length} bytes announced, {len(buffer) - at} left")
        return after

    return step


def _nullable_structure_step(inner: Step) -> Step:
    def step(buffer: memoryview, at: int, walk: Walk) -> int:
        if buffer[at] == _NULL_STRUCTURE:
            return at + 1
        return inner(buffer, at + 1, walk)

    return step


def _array_step(field: Field, flexible: bool) -> Step:
    item, item_bytes_min, item_bytes = item_step(field, flexible)
    read_count = count_reader(field, flexible, item_bytes_min)

    def step(buffer: memoryview, at: int, walk: Walk) -> int:
        count, at = read_count(buffer, at, walk)
        if count is None:
            return at
        if item_bytes is not None:
            return at + count * item_bytes
        for _ in range(count):
            at = item(buffer, at, walk)
        return at

    return step


def count_reader(field: Field, flexible: bool, item_bytes_min: int) -> CountReader:
    """Reads and validates the number of items of an array."""

    def read(buffer: memoryview, at: int, walk: Walk) -> tuple[int | None, int]:
        if flexible:
            count, at = read_uvarint(buffer, at)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(buffer, at)
            at += 4
        if count == -1 and field.nullable:
            return None, at
        left = len(buffer) - at
        if count < 0 or count * item_bytes_min > left:
            raise MalformedMessage(f"{count} items announced, {left} bytes left")
        walk.count(count)
        return count, at

    return read


def item_step(field: Field, flexible: bool) -> tuple[Step, int, int | None]:
    """The step over an item, the minimum size of an item, and its size if that is fixed."""
    if field.structure is not None:
        structure = field.structure
        sizes = [_fixed_bytes(inner) for inner in structure.fields]
        least = _bytes_min(structure)
        fixed = None if structure.flexible or None in sizes else least
        return structure_step(structure), least, fixed
    size_bytes = _type_bytes(field.kafka_type)
    if size_bytes is not None:
        return _skip_step(size_bytes), size_bytes, size_bytes
    step = _text_step(field, flexible, nullable=False)
    if flexible:
        return step, 1, None
    return step, 2 if field.kafka_type == "string" else 4, None


def tags_step(structure: Structure) -> Step:
    """The step over the tagged fields at the end of a flexible structure."""
    known = {field.tag: field_step(field, flexible=True) for field in structure.tagged}

    def step_tags(buffer: memoryview, at: int, walk: Walk) -> int:
        if buffer[at] == 0:
            return at + 1
        start = at
        kept: dict[int, bytes] = {}
        is_cut = False
        count, at = read_uvarint(buffer, at)
        if count > TAGS_MAX:
            raise MalformedMessage(f"{count} tags")
        walk.count(count)
        walk.tags += count
        for _ in range(count):
            tag, at = read_uvarint(buffer, at)
            size_bytes, at = read_uvarint(buffer, at)
            after = at + size_bytes
            if after > len(buffer):
                raise MalformedMessage(f"a tag of {size_bytes} bytes, {len(buffer) - at} left")
            step = known.get(tag)
            if step is None:
                is_cut = True
            else:
                inner = Walk(walk.items_left)
                value = buffer[at:after]
                if step(value, 0, inner) != size_bytes:
                    raise MalformedMessage(f"tag {tag} is not of its announced size")
                walk.items_left = inner.items_left
                is_cut = is_cut or bool(inner.cuts)
                kept[tag] = without(value, 0, inner.cuts)
            at = after
        if is_cut:
            walk.cuts.append(_Cut(start, at, tag_section(kept)))
        return at

    return step_tags
