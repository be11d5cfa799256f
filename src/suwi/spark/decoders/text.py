"""Values that Spark itself decodes: text in UTF-8, and JSON with a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from suwi.decoders.errors import CannotDecode
from suwi.spark.declarative import is_declarative
from suwi.spark.decoders.json_columns import CORRUPT as _CORRUPT
from suwi.spark.decoders.json_columns import can_be_plain, parse_plain
from suwi.spark.decoders.places import ROW, Fault, Parsed, is_time, places, variant_at

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DecimalType, StructType

_VARIANT = "__variant"
_PLAIN = "__plain"
_UTC = ("UTC", "Etc/UTC", "Z", "GMT")
_SPACE = " \t\r\n"
_BYTE_ORDER_MARK = "\ufeff"
# The options also keep Spark from parsing only the fields that are asked for, which would overlook
# mistakes in the others.
_LENIENT = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
_STRICT = {
    **_LENIENT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "enableDateTimeParsingFallback": "false",  # With it "5" is the sixth day of 1970.
}
# Spark takes a time of day as one of today: another moment in each replay.
_WITH_YEAR = r'^("\s*[+-]?\d{4}|null$)'
_DIGITS_MAX = 38
_DIGITS_BEHIND = 18


def decode_string(body: Column) -> Parsed:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    return Parsed(
        value=f.struct(f.struct(body.cast("string").alias("value")).alias(ROW)),
        schema=StructType([StructField("value", StringType())]),
        is_good=lambda one: f.is_valid_utf8(one[ROW]["value"]),
        reason=lambda one: f.when(~f.is_valid_utf8(one[ROW]["value"]), "not text in UTF-8"),
    )


def decode_json(body: Column, schema: str | StructType, *, lenient: bool = False) -> Parsed:
    """JSON objects as a struct; strict about syntax, types and what may not be null.

    Spark's parser takes the first object of a text, the last of equal keys, and a number for a
    moment. So in strict mode the text is parsed a second time, as a variant, which does none of
    that; a check of the text's syntax and of the kinds of its values is made there. Both are for
    texts that are not plain: the compiled kernel of `json_columns` parses those that are.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    fields = json_schema(schema)
    text = _without_mark(body.cast("string"))
    with_corrupt = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    row = f.from_json(text, with_corrupt, _LENIENT if lenient else _STRICT)
    plain = None if lenient else _plain(body, with_corrupt)
    parts = [(row if plain is None else f.coalesce(plain, row)).alias(ROW)]
    if not lenient:
        # In brackets: what follows the object then breaks the syntax, or is a second element.
        variant = f.try_parse_json(f.concat(f.lit("["), text, f.lit("]")))
        variant = f.when(f.is_valid_utf8(text), variant)
        if plain is not None:
            variant = f.when(plain.isNull(), variant)
            parts.append(plain.isNotNull().alias(_PLAIN))
        parts.append(variant.alias(_VARIANT))

    def is_good(one: Column) -> Column:
        return is_sure(one) if plain is None else one[_PLAIN] | is_sure(one)

    def is_sure(one: Column) -> Column:
        good = one[ROW][_CORRUPT].isNull()
        if lenient:
            good &= f.is_valid_utf8(text) & f.btrim(text, f.lit(_SPACE)).endswith(f.lit("}"))
        else:
            variant = one[_VARIANT]
            good &= variant.isNotNull() & variant_at(variant, "$[1]").isNull()
            for fault in _inexact(variant_at(variant, "$[0]"), one[ROW], fields):
                good &= ~fault.condition
        for fault in _missing(one[ROW], fields):
            good &= ~fault.condition
        return good

    def reason(one: Column) -> Column:
        return _json_reason(text, one[ROW], fields, lenient=lenient)

    return Parsed(f.struct(*parts), fields, is_good, reason)


def _plain(body: Column, schema: StructType) -> Column | None:
    """The row of a text that is plain; null where it is not. None: nothing can be said so."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    arrow_udf = getattr(f, "arrow_udf", None)
    if arrow_udf is None or not can_be_plain(schema):
        return None
    written = schema.json()
    nullable = written
    for name in ("nullable", "containsNull"):
        nullable = nullable.replace(f'"{name}":false', f'"{name}":true')

    def parsed(is_utc: bool) -> Column:
        def parse(values: pa.Array) -> pa.Array:
            return parse_plain(values, written, is_utc=is_utc)

        kind = StructType.fromJson(json.loads(nullable))
        plain: Column = arrow_udf(parse, kind)(body.cast("binary"))
        return plain

    # The conditions are constants for the optimizer, which leaves one branch.
    plain = parsed(False)
    if '"timestamp"' in written:
        # The zone that from_json has: the session's when this was called, not when it is run.
        zone = f.date_format(f.timestamp_micros(f.lit(1)), "VV")
        plain = f.when(zone.isin(*_UTC), parsed(True)).otherwise(plain)
    if '"timestamp"' in written or '"date"' in written:
        # By the legacy policy of times, which the kernel does not know, S is milliseconds.
        is_known = f.date_format(f.timestamp_micros(f.lit(1)), "SSSSSS") == "000001"
        plain = f.when(is_known, plain)
    return plain


def _json_reason(text: Column, row: Column, fields: StructType, *, lenient: bool) -> Column:
    """The first thing that is wrong with a text, by the field where it can be named."""
    from pyspark.sql import functions as f

    trimmed = f.btrim(text, f.lit(_SPACE))
    options = _LENIENT if lenient else _STRICT
    is_json = f.from_json(text, f"{_CORRUPT} STRING", options)[_CORRUPT].isNull()
    why = f.when(trimmed == "", "the value is empty")
    why = why.when(~f.is_valid_utf8(text), "not text in UTF-8")
    why = why.when(f.try_parse_json(text).isNull() & ~is_json, "not valid JSON")
    why = why.when(~trimmed.startswith(f.lit("{")), "not a JSON object")
    if lenient:
        why = why.when(~trimmed.endswith(f.lit("}")), "there is text after the object")
    else:
        why = why.when(f.try_parse_json(text).isNull(), "a key occurs twice in an object")
        whole = f.try_parse_json(f.concat(f.lit("["), text, f.lit("]")))
        is_more = whole.isNull() | variant_at(whole, "$[1]").isNotNull()
        why = why.when(is_more, "there is text after the object")
        for fault in _inexact(variant_at(whole, "$[0]"), row, fields):
            why = why.when(fault.condition, fault.reason)
    for fault in (*_mismatched(text, row, fields, options), *_missing(row, fields)):
        why = why.when(fault.condition, fault.reason)
    return why.when(row[_CORRUPT].isNotNull(), "does not fit the schema")


def _without_mark(text: Column) -> Column:
    """RFC 8259, 8.1: a parser may ignore a byte order mark."""
    from pyspark.sql import functions as f

    is_marked = text.startswith(f.lit(_BYTE_ORDER_MARK))
    return f.when(is_marked, f.substring(text, 2, 2**31 - 1)).otherwise(text)


def json_schema(schema: str | StructType) -> StructType:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as error:
        why = " ".join(str(error).split("== SQL")[0].split())  # It begins with an empty line.
        raise CannotDecode(f"the schema {schema!r} is not understood: {why}") from None
    except AnalysisException:
        if not is_declarative():
            raise
        text = "in a declarative pipeline call StructType.fromDDL outside of functions"
        raise CannotDecode(text) from None
    if not isinstance(parsed, StructType):
        raise CannotDecode(f"the schema {schema!r} names no columns")
    return parsed


# -- what is wrong with a field --------------------------------------------------------------------


def _missing(row: Column, fields: StructType) -> Iterator[Fault]:
    """What may not be null, and is; within a struct only where that is there."""
    for place in places(fields):
        if not place.nullable:
            yield place.fault(row, lambda value: value.isNull(), "is missing or null")


def _inexact(variant: Column, row: Column, fields: StructType) -> Iterator[Fault]:
    """What Spark's parser takes and makes something else of."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    for place in places(fields, of_variant=True):
        if is_time(place.type):
            reason = f"is not of type {place.type_name}"
            yield place.fault(variant, lambda one: ~f.to_json(one).rlike(_WITH_YEAR), reason)
        elif isinstance(place.type, t.DecimalType):
            check = partial(_is_rounded, place.type)
            yield place.fault(variant, check, f"has more decimals than {place.type_name}")
    for place in places(fields):
        if isinstance(place.type, t.FloatType | t.DoubleType):
            reason = f"is too large for {place.type_name}"
            yield place.fault(row, lambda one: f.abs(one) == float("inf"), reason)


def _is_rounded(kind: DecimalType, variant: Column) -> Column:
    from pyspark.sql import functions as f

    scale = min(_DIGITS_MAX, kind.scale + _DIGITS_BEHIND)
    exact = f.try_variant_get(variant, "$", f"decimal({_DIGITS_MAX},{scale})")
    return exact != f.round(exact, kind.scale)


def _mismatched(
    text: Column, row: Column, fields: StructType, options: dict[str, str], above: str = ""
) -> Iterator[Fault]:
    """Fields that are in the text, and not in the row: the innermost that can be named."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    for field in fields.fields:
        value, path = row[field.name], f"{above}{field.name}"
        steps = "".join(f"['{step}']" for step in path.split("."))
        given = f.get_json_object(text, f"${steps}")
        if isinstance(field.dataType, StructType):
            yield from _mismatched(text, value, field.dataType, options, f"{path}.")
        bad = value.isNull()
        if isinstance(field.dataType, ArrayType | MapType):
            # Spark keeps the elements that fit: ask again, for this field alone.
            alone = f.concat(f.lit('{"x":'), given, f.lit("}"))
            kind = f"x {field.dataType.simpleString()}, {_CORRUPT} STRING"
            bad = f.from_json(alone, kind, options)[_CORRUPT].isNotNull()
        kind = field.dataType.simpleString().upper()
        yield Fault(given.isNotNull() & bad, f"field {path!r} is not of type {kind}")
