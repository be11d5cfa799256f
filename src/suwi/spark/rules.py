"""Rules for rows: named conditions, and what becomes of rows that break them.

`expect` adds a column with the names of the rules that a row breaks, and lets Spark count them for
the progress of the query. `RowRules` is the part of a sink's tasks: it counts, drops, sends away or
refuses these rows, and removes the column.
Invariant: every broken rule of a row that reaches the sink is counted in the commit of its batch,
if there is one.
"""

import base64
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from suwi.spark.declarative import columns_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PREFIX: Final = "suwi.dead."
"""Of the headers of dead letters."""
BROKEN: Final = "__broken_rules"
BAD: Final = "__bad"
"""The column with the dead letter of a record that could not be decoded, where rows have it."""
OBSERVED: Final = "suwi_rules"
ACTIONS: Final = ("warn", "drop", "dead_letters", "fail")
_TAKEN: Final = ("drop", "dead_letters")


Send: TypeAlias = "Callable[[Mapping[str, str], pa.RecordBatch], object]"
"""Writes records, with `value` and `headers`, to the topic that options of the sink name."""


class RuleBroken(Exception):
    """A row breaks a rule whose action is `fail`."""


def expect(rows: "DataFrame", rules: Mapping[str, str]) -> "DataFrame":
    """Mark the rows for which a condition is not true; null is not true.

    rules: conditions of Spark SQL by name. Give the actions to the sink: `to_delta(…, rules=…)`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    is_row = F.col(BAD).isNull() if BAD in columns_of(rows, ()) else F.lit(True)
    broken = [
        F.when(is_row & ~F.coalesce(F.expr(condition), F.lit(False)), F.lit(name))
        for name, condition in rules.items()
    ]
    marked = rows.withColumn(BROKEN, F.array_compact(F.array(*broken)))
    counts = [F.count_if(F.array_contains(BROKEN, name)).alias(name) for name in rules]
    return marked.observe(OBSERVED, *counts)


def read_actions(given: str) -> dict[str, str]:
    """Actions by rule, from JSON. Raises ValueError."""
    found = json.loads(given)
    if not isinstance(found, dict) or not all(action in ACTIONS for action in found.values()):
        raise ValueError
    return found


def without_marks(schema: "StructType") -> "StructType":
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != BROKEN])


class RowRules(NamedTuple):
    actions: Mapping[str, str]
    dead_letters: Mapping[str, str]
    """Options of the sink for rows of the action `dead_letters`."""

    def apply(
        self, batches: Iterator["pa.RecordBatch"], counts: "Counter[str]", send: Send
    ) -> Iterator["pa.RecordBatch"]:
        """The rows to be written, without the marks. Raises `RuleBroken`, and what `send` does."""
        for batch in batches:
            if BROKEN not in batch.schema.names:
                yield batch
                continue
            rows = batch.select([name for name in batch.schema.names if name != BROKEN])
            kept = self.kept(rows, batch.column(BROKEN).to_pylist(), counts, send)
            yield rows if kept is None else rows.filter(kept)

    def kept(
        self,
        rows: "pa.RecordBatch",
        broken: list[list[str] | None],
        counts: "Counter[str]",
        send: Send,
    ) -> "pa.Array | None":
        """Which rows are to be written; None: all. Raises `RuleBroken`, and what `send` does."""
        import pyarrow as pa

        if not any(broken):
            return None
        marks = [tuple(names or ()) for names in broken]
        counts.update(name for names in marks for name in names)
        unknown = {name for broken in marks for name in broken} - self.actions.keys()
        if unknown:
            raise RuleBroken(f"the sink was given no action for rule {min(unknown)}")
        by_action = {
            action: [at for at, broken in enumerate(marks) if self._has(broken, action)]
            for action in ACTIONS
        }
        if by_action["fail"]:
            at = by_action["fail"][0]
            names = ", ".join(name for name in marks[at] if self.actions.get(name) == "fail")
            raise RuleBroken(f"a row breaks rule {names}: {_as_json(rows, at)}")
        if by_action["dead_letters"]:
            dead = [(_as_json(rows, at), marks[at]) for at in by_action["dead_letters"]]
            send(self.dead_letters, _letters(dead))
        taken = {at for action in _TAKEN for at in by_action[action]}
        return pa.array([at not in taken for at in range(rows.num_rows)])

    def _has(self, broken: tuple[str, ...], action: str) -> bool:
        return any(self.actions.get(name) == action for name in broken)


def letter_schema() -> "pa.Schema":
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema([("key", pa.binary()), ("value", pa.string()), ("headers", pa.list_(header))])


def _letters(rows: list[tuple[str, tuple[str, ...]]]) -> "pa.RecordBatch":
    """Rows as records."""
    import pyarrow as pa

    reasons = [f"breaks rule {', '.join(broken)}".encode() for _, broken in rows]
    return pa.record_batch(
        {
            "key": [None for _ in rows],
            "value": [value for value, _ in rows],
            "headers": [[{"key": f"{PREFIX}reason", "value": reason}] for reason in reasons],
        },
        letter_schema(),
    )


def _as_json(rows: "pa.RecordBatch", at: int) -> str:
    row = {
        name: _value(column[at])
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }
    return json.dumps(_plain(row), ensure_ascii=False, default=str)


def _value(scalar: "pa.Scalar") -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (OverflowError, ValueError):  # A time that Python cannot have, beyond the year 9999.
        return str(pa.array([scalar.value], scalar.type).cast(pa.string())[0])


def _plain(value: Any) -> Any:
    """As JSON can have it: bytes in base 64, NaN and infinity as text."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return str(value)
    return value
