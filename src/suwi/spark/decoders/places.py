"""Where a schema holds values: its fields, and what is inside of their structs, arrays and maps.

`places` walks a type once, for every check. A place's `where` makes of a check of one value a check
of all values there: of a row, or of the variant that the row's text was parsed to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

Check: TypeAlias = "Callable[[Column], Column]"
Where: TypeAlias = "Callable[[Column, Check], Column]"


class Fault(NamedTuple):
    """A condition under which a record is bad, which is never null, and the reason."""

    condition: Column
    reason: str


class Place(NamedTuple):
    path: str
    """The names of fields. What an array or map holds has the path of the field."""
    type: DataType
    nullable: bool
    field_type: DataType
    """That of the field: an array, where `type` is that of its elements."""
    where: Where
    """Whether a check holds for a value at this place, given what has the fields."""

    def fault(self, holder: Column, check: Check, reason: str) -> Fault:
        return Fault(surely(self.where(holder, check)), f"field {self.path!r} {reason}")

    @property
    def type_name(self) -> str:
        return self.field_type.simpleString().upper()


def places(schema: StructType, *, of_variant: bool = False) -> Iterator[Place]:
    for field in schema.fields:
        kind, member = field.dataType, _member(field.name, of_variant)
        yield from _within(Place(field.name, kind, field.nullable, kind, member), of_variant)


def _within(place: Place, of_variant: bool) -> Iterator[Place]:
    """The place, and those inside of it."""
    from pyspark.sql import types as t

    yield place
    match place.type:
        case t.StructType() as struct:
            for inner in places(struct, of_variant=of_variant):
                path, where = f"{place.path}.{inner.path}", _joined(place.where, inner.where)
                yield inner._replace(path=path, where=where)
            return
        case t.ArrayType() as array:
            inside, nullable = array.elementType, array.containsNull
        case t.MapType() as mapping:
            inside, nullable = mapping.valueType, mapping.valueContainsNull
        case _:
            return
    where = _joined(place.where, _element(place.type, of_variant))
    yield from _within(place._replace(type=inside, nullable=nullable, where=where), of_variant)


def _joined(outer: Where, inner: Where) -> Where:
    return lambda holder, check: outer(holder, lambda value: inner(value, check))


def _member(name: str, of_variant: bool) -> Where:
    def where(holder: Column, check: Check) -> Column:
        quote = '"' if "'" in name else "'"
        value = variant_at(holder, f"$[{quote}{name}{quote}]") if of_variant else holder[name]
        return holder.isNotNull() & check(value)

    return where


def _element(kind: DataType, of_variant: bool) -> Where:
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    is_map = isinstance(kind, t.MapType)

    def where(holder: Column, check: Check) -> Column:
        if of_variant:
            kind = "map<string,variant>" if is_map else "array<variant>"
            holder = f.try_variant_get(holder, "$", kind)
        elements = f.map_values(holder) if is_map else holder
        return f.exists(elements, lambda value: surely(check(value)))

    return where


def variant_at(variant: Column, path: str) -> Column:
    from pyspark.sql import functions as f

    return f.try_variant_get(variant, path, "variant")


def surely(condition: Column) -> Column:
    """False instead of null."""
    from pyspark.sql import functions as f

    return f.coalesce(condition, f.lit(False))
