"""Decodes a large message in slices: the same verdict and the same entities as in one piece.

`compile_sliced_reader` makes a reader from a schema. It is a generator that yields after each slice
and returns kio's entity. What can be long, the arrays and what contains them, is read item by item;
everything else by kio in one piece, after the guard's step over it.
Invariant: no value refers to the buffer. A reader raises what kio and the guard raise.
"""

from collections.abc import Callable, Generator
from dataclasses import fields
from typing import Any, Final, TypeAlias, get_args, get_origin

from kio.serial import entity_reader
from kio.serial._parse import get_field_reader, get_reader

from suwi.wire.errors import TooManyItems
from suwi.wire.guard import (
    CountReader,
    Step,
    Walk,
    count_reader,
    field_step,
    item_step,
    structure_step,
    tags_step,
    without,
)
from suwi.wire.primitives import SliceCounter
from suwi.wire.schema import Field, Structure

_FEW_ITEMS: Final = 32

_Slices: TypeAlias = Generator[None, None, tuple[Any, int]]
# Take the bytes, the position and the walk; return the value and the position after it.
_InOnePiece: TypeAlias = Callable[[memoryview, int, "_Progress"], tuple[Any, int]]
_InSlices: TypeAlias = Callable[[memoryview, int, "_Progress"], _Slices]
SlicedReader: TypeAlias = Callable[[memoryview, int], Generator[None, None, Any]]


class _Progress(Walk):
    """The state of one decoding: the guard's, and how much of the slice is left."""

    __slots__ = ("_slice",)

    def __init__(self, items_max: int, at: int) -> None:
        super().__init__(items_max)
        self._slice = SliceCounter(at)

    def fills_slice(self, at: int, inner: int = 0) -> bool:
        """Count an item that ends at `at`, its tags, and `inner` items in it that were not counted
        yet. True if the slice ends with it."""
        items, self.tags = 1 + inner + self.tags, 0
        return self._slice.is_full(at, items)


def compile_sliced_reader(cls: type[Any], structure: Structure, items_max: int) -> SlicedReader:
    """Make a reader. It takes a buffer and the position of the message."""
    if not _can_be_long(structure):
        in_one_piece = _entity_in_one_piece(cls, structure)

        def read_at_once(buffer: memoryview, at: int) -> Generator[None, None, Any]:
            yield from ()
            return in_one_piece(buffer, at, _Progress(items_max, at))[0]

        return read_at_once
    in_slices = _structure_in_slices(cls, structure)

    def read(buffer: memoryview, at: int) -> Generator[None, None, Any]:
        value, _ = yield from in_slices(buffer, at, _Progress(items_max, at))
        return value

    return read


def _can_be_long(structure: Structure) -> bool:
    """Whether it has an array. No request has an array beside or within known tagged fields."""
    if structure.tagged:
        return False
    return any(
        field.is_array or (field.structure is not None and _can_be_long(field.structure))
        for field in structure.fields
    )


def _in_one_piece(step: Step, read: Callable[[Any, int], tuple[Any, int]]) -> _InOnePiece:
    def read_value(buffer: memoryview, at: int, progress: _Progress) -> tuple[Any, int]:
        after = step(buffer, at, progress)
        if not progress.cuts:
            return read(buffer, at)[0], after
        data = without(buffer, at, progress.cuts, after)
        progress.cuts.clear()
        return read(data, 0)[0], after

    return read_value


def _entity_in_one_piece(cls: type[Any], structure: Structure) -> _InOnePiece:
    return _in_one_piece(structure_step(structure), entity_reader(cls))


def _structure_in_slices(cls: type[Any], structure: Structure) -> _InSlices:
    kios = {field.name: field for field in fields(cls)}
    parts: list[tuple[str, _InOnePiece | None, _InSlices | None]] = []
    for field in structure.fields:
        if field.is_array:
            parts.append((field.name, None, _array_in_slices(cls, field, structure.flexible)))
            continue
        assert field.structure is None or not _can_be_long(field.structure)
        read = get_field_reader(cls, kios[field.name], False, False)
        step = field_step(field, structure.flexible)
        parts.append((field.name, _in_one_piece(step, read), None))
    end = tags_step(structure) if structure.flexible else None

    def read_structure(buffer: memoryview, at: int, progress: _Progress) -> _Slices:
        values = {}
        for name, in_one_piece, in_slices in parts:
            if in_one_piece is not None:
                values[name], at = in_one_piece(buffer, at, progress)
            elif in_slices is not None:
                values[name], at = yield from in_slices(buffer, at, progress)
        if end is not None:
            at = end(buffer, at, progress)
            progress.cuts.clear()
        return cls(**values), at

    return read_structure


def _array_in_slices(cls: type[Any], field: Field, flexible: bool) -> _InSlices:
    step, item_bytes_min, _ = item_step(field, flexible)
    read_count = count_reader(field, flexible, item_bytes_min)
    if field.structure is None:
        reader = get_reader(field.kafka_type, flexible, False)
        return _short_items(read_count, _in_one_piece(step, reader))
    item_cls = _item_class(cls, field.name)
    if not _can_be_long(field.structure):
        return _short_items(read_count, _entity_in_one_piece(item_cls, field.structure))
    return _long_items(
        read_count,
        _entity_in_one_piece(item_cls, field.structure),
        _structure_in_slices(item_cls, field.structure),
    )


def _item_class(cls: type[Any], name: str) -> type[Any]:
    """kio's class of the items of an array: `tuple[Item, ...]` or `tuple[Item, ...] | None`."""
    annotation = next(field.type for field in fields(cls) if field.name == name)
    parts = (annotation, *get_args(annotation))
    array = next(part for part in parts if get_origin(part) is tuple)
    item: type[Any] = get_args(array)[0]
    return item


def _short_items(read_count: CountReader, read_item: _InOnePiece) -> _InSlices:
    def read_array(buffer: memoryview, at: int, progress: _Progress) -> _Slices:
        count, at = read_count(buffer, at, progress)
        if count is None:
            return None, at
        items = []
        for _ in range(count):
            item, at = read_item(buffer, at, progress)
            items.append(item)
            if progress.fills_slice(at):
                yield
        return tuple(items), at

    return read_array


def _long_items(
    read_count: CountReader, read_small: _InOnePiece, read_item: _InSlices
) -> _InSlices:
    """Most items have few inner ones and are read in one piece, which takes half the time."""

    def read_array(buffer: memoryview, at: int, progress: _Progress) -> _Slices:
        count, at = read_count(buffer, at, progress)
        if count is None:
            return None, at
        items = []
        for _ in range(count):
            left = progress.items_left
            progress.items_left = few = min(left, _FEW_ITEMS)
            inner = 0
            try:
                item, at = read_small(buffer, at, progress)
                inner = few - progress.items_left
                progress.items_left = left - inner
            except TooManyItems:
                progress.items_left = left
                progress.cuts.clear()
                item, at = yield from read_item(buffer, at, progress)
            items.append(item)
            if progress.fills_slice(at, inner):
                yield
        return tuple(items), at

    return read_array
