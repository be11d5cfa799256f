"""Values that Spark itself decodes: text in UTF-8, and JSON with a schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from suwi.spark.decoders.errors import CannotDecode
from suwi.spark.decoders.parsed import Parsed

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_CORRUPT = "__corrupt"
_SPACE = " \t\r\n"


def decode_string(body: Column) -> Parsed:
    from pyspark.sql import functions as f

    return Parsed(
        value=f.struct(body.cast("string").alias("value")),
        names=["value"],
        is_good=lambda parsed: parsed["value"].isNotNull() & f.is_valid_utf8(parsed["value"]),
        reason=lambda parsed: f.lit("not text in UTF-8"),
    )


def decode_json(body: Column, schema: str | StructType) -> Parsed:
    """JSON objects as a struct; strict about types and about what may not be null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    fields = json_schema(schema)
    text = body.cast("string")
    trimmed = f.btrim(text, f.lit(_SPACE))
    # The options also keep Spark from parsing only the fields that are asked for, which would
    # overlook mistakes in the others.
    value = f.from_json(
        text,
        StructType([*fields.fields, StructField(_CORRUPT, StringType())]),
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    # Spark takes the first object and is silent about what follows it.
    is_whole = trimmed.endswith(f.lit("}"))

    def is_good(parsed: Column) -> Column:
        good = parsed[_CORRUPT].isNull() & is_whole & f.is_valid_utf8(text)
        for _, is_missing in _required(parsed, fields):
            good &= ~is_missing
        return good

    def reason(parsed: Column) -> Column:
        why = f.when(trimmed == "", "the value is empty")
        why = why.when(~f.is_valid_utf8(text), "not text in UTF-8")
        why = why.when(f.try_parse_json(text).isNull(), "not valid JSON")
        why = why.when(~trimmed.startswith(f.lit("{")), "not a JSON object")
        for field in fields.fields:
            given = f.get_json_object(text, f"$['{field.name}']")
            kind = field.dataType.simpleString().upper()
            why = why.when(
                parsed[_CORRUPT].isNotNull() & parsed[field.name].isNull() & given.isNotNull(),
                f"field {field.name!r} is not of type {kind}",
            )
        for path, is_missing in _required(parsed, fields):
            why = why.when(is_missing, f"field {path!r} is missing or null")
        why = why.when(~is_whole, "there is text after the object")
        return why.otherwise("does not fit the schema")

    return Parsed(value, fields.names, is_good, reason, (_CORRUPT,))


def json_schema(schema: str | StructType) -> StructType:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql.types import StructType

    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except ParseException as error:
        raise CannotDecode(f"the schema {schema!r} is not understood: {error}") from None
    except AnalysisException as error:
        if "ATTEMPT_ANALYSIS_IN_PIPELINE" not in str(error):
            raise
        text = "in a declarative pipeline give the schema as a StructType: text cannot be parsed"
        raise CannotDecode(text) from None
    if not isinstance(parsed, StructType):
        raise CannotDecode(f"the schema {schema!r} names no columns")
    return parsed


def _required(parsed: Column, fields: StructType, above: str = "") -> Iterator[tuple[str, Column]]:
    """What may not be null, and whether it is; within a struct only where that is there."""
    from pyspark.sql.types import StructType

    for field in fields.fields:
        value, path = parsed[field.name], f"{above}{field.name}"
        if not field.nullable:
            yield path, value.isNull()
        if isinstance(field.dataType, StructType):
            for inner, is_missing in _required(value, field.dataType, f"{path}."):
                yield inner, value.isNotNull() & is_missing
