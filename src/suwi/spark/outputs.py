"""`to_outputs`: one read into several tables and topics, exactly once together (ADR 20).

Usable alone in any PySpark job. Where a row goes is evaluated once: `_wide` gives the rows one
column for each output, and `output_batches.py` writes them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from suwi.env import SystemRandom
from suwi.spark.options import BadOption
from suwi.spark.output_batches import DEAD_LETTERS, ROW, Output, OutputBatches, output_column
from suwi.spark.query_plan import plan_of
from suwi.spark.rules import BAD, BROKEN, RowRules
from suwi.spark.spark_session import register
from suwi.spark.write import (
    DELTA,
    ICEBERG,
    TOPIC,
    dead_letters,
    delta_options,
    iceberg_options,
    streaming,
    topic_options,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"
_VALIDATION: Final = "spark.sql.streaming.stateStore.commitValidation.enabled"
# A star that stands for all columns; literals and quoted names are passed over.
_STAR: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|([(,]\s*)\*(?=\s*[,)])""", re.DOTALL
)
_FORMAT: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def delta_output(
    path: str, *, when: str | None = None, select: str | None = None, **options: Any
) -> Output:
    """Rows for the Delta table at `path`; the options are those of `to_delta`."""
    return Output(DELTA, delta_options(path, **options), when, select)


def iceberg_output(
    table: str, *, when: str | None = None, select: str | None = None, **options: Any
) -> Output:
    """Rows for the Iceberg table `namespace.name`; the options are those of `to_iceberg`."""
    return Output(ICEBERG, iceberg_options(table, **options), when, select)


def topic_output(
    servers: str,
    topic: str | None = None,
    *,
    when: str | None = None,
    select: str | None = None,
    options: Mapping[str, str] | None = None,
) -> Output:
    """Rows for a topic, as with `to_topic`: `select` should make the column `value`."""
    return Output(TOPIC, topic_options(servers, topic, options), when, select)


def to_outputs(
    rows: "DataFrame",
    outputs: Mapping[str, Output],
    *,
    checkpoint: str | None = None,
    mode: str = "append",
    bad: "DataFrame | None" = None,
    dead_letters: Output | None = None,
    pipeline: str | None = None,
    rules: Mapping[str, str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    tables: Mapping[str, str] | None = None,
    txn: tuple[str, int] | None = None,
) -> "StreamingQuery | None":
    """Write each row to the outputs whose condition it meets, exactly once.

    A streaming DataFrame starts a query, which is returned; any other is written when this
    returns, and into tables once for each `txn`. Topics are written in transactions: exactly
    once for those who read committed records.

    outputs: by name. The name is part of how an output knows a batch: keep it. Between two runs
        with one checkpoint outputs may be added and removed.
    checkpoint: a directory of this machine.
    mode: `append`, or `update` for rows that changed; then each table needs keys.
    bad: what `decode` could not decode, for `dead_letters`, a topic.
    pipeline: who could not use it; without it the query's name.
    rules: what becomes of rows that break a rule of `expect`: warn, drop, dead_letters or fail, by
        its name. They hold for all outputs.
    tables: the paths, by name, of tables that `read_delta(…, each_batch=True)` reads.
    """
    spark = rows.sparkSession
    register(spark)
    if not outputs or DEAD_LETTERS in outputs:
        raise ValueError(f"outputs are to be given, none by the name {DEAD_LETTERS!r}")
    if dead_letters is not None:
        outputs = {**outputs, DEAD_LETTERS: dead_letters}
    _check(rows, outputs, mode, bad, rules)
    wide = _wide(rows, outputs, bad, pipeline or name)
    taken = RowRules(rules, {}) if rules else None
    if not rows.isStreaming:
        OutputBatches(outputs, None, taken).write(wide, *(txn or (SystemRandom().uuid(), 1)))
        return None
    plan = plan_of(wide)
    if plan["steps"] != plan_of(rows)["steps"]:
        raise ValueError(
            "when and select of an output take one row at a time: what needs state of its own is a "
            "query of its own, which reads a table that this one writes"
        )
    check_is_local(spark, checkpoint or "")
    batches = OutputBatches(outputs, checkpoint or "", taken, tables=tables, plan=plan)
    batches.create(wide.schema)
    if plan["steps"]:
        # A batch that has a manifest is not computed again, and its state is there (ADR 20). Spark
        # asks the session for this whenever a batch ends.
        spark.conf.set(_VALIDATION, "false")
    writer = streaming(wide, mode, checkpoint, trigger, name).foreachBatch(batches)
    # Adaptive execution runs shuffles before it calls the function: also of a batch that has a
    # manifest, and before the versions of tables are chosen. A query has its session's settings of
    # this moment.
    is_adaptive = spark.conf.get(_ADAPTIVE, None)
    try:
        spark.conf.set(_ADAPTIVE, "false")
        return writer.start()
    finally:
        if is_adaptive is None:
            spark.conf.unset(_ADAPTIVE)
        else:
            spark.conf.set(_ADAPTIVE, is_adaptive)


def check_is_local(spark: "SparkSession", checkpoint: str) -> None:
    """Raises `BadOption` if an address without a scheme does not mean this machine to Spark."""
    default = str(spark._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///")
    if ":/" not in checkpoint and not default.startswith("file:"):
        raise BadOption(
            f"the checkpoint {checkpoint!r} lies in {default}, Hadoop's default file system: with "
            "several outputs the driver writes manifests into it. Give it as file:///…, a "
            "directory that every driver of the query has"
        )


def _check(
    rows: "DataFrame",
    outputs: Mapping[str, Output],
    mode: str,
    bad: "DataFrame | None",
    rules: Mapping[str, str] | None,
) -> None:
    """Raises ValueError."""
    from pyspark.sql import is_remote

    if is_remote():
        raise ValueError("to_outputs does not work over Spark Connect: use a classic session")
    if mode not in ("append", "update"):
        raise ValueError(f"mode={mode!r}: several outputs take append, update")
    for name, output in outputs.items():
        if mode == "update" and output.form == ICEBERG:
            raise ValueError(f"mode='update': output {name} is an Iceberg table: only append")
        if mode == "update" and output.form == DELTA and not output.options.get("keys"):
            raise ValueError(f"mode='update' needs keys: output {name} has none")
    has_bad = bad is not None or BAD in rows.columns
    if DEAD_LETTERS not in outputs and (has_bad or "dead_letters" in (rules or {}).values()):
        raise ValueError("there is no output for dead letters: give dead_letters=topic_output(…)")
    if BROKEN in rows.columns and not rules:
        raise ValueError("the rows were marked by expect(): give rules=, an action for each")
    if rows.isStreaming and str(rows.sparkSession.conf.get(_FORMAT, "1")) != "1":
        raise ValueError(f"{_FORMAT} must be 1: a replayed batch does not compute its state again")


def _wide(
    rows: "DataFrame",
    outputs: Mapping[str, Output],
    bad: "DataFrame | None",
    pipeline: str | None,
) -> "DataFrame":
    """The rows as tasks get them: one column for each output says whether the row goes there."""
    from pyspark.sql import functions as F  # noqa: N812

    names = [name for name in rows.columns if name not in (BROKEN, BAD)]
    routed = {name: output for name, output in outputs.items() if name != DEAD_LETTERS}
    columns = []
    if BROKEN in rows.columns or not all(one.select for one in routed.values()):
        columns.append(F.struct(*(F.col(_quoted(name)) for name in names)).alias(ROW))
    columns += [F.col(name) for name in (BROKEN, BAD) if name in rows.columns]
    is_good = F.col(BAD).isNull() if BAD in rows.columns else F.lit(True)
    for at, output in enumerate(routed.values()):
        goes = is_good
        if output.when is not None:
            goes &= F.expr(with_names(f"({output.when}\n)", names))
        if output.select is not None:
            goes = F.when(goes, F.expr(with_names(f"struct({output.select}\n)", names)))
        columns.append(goes.alias(output_column(at)))
    wide = rows.select(*columns)
    if bad is not None:
        letter = F.struct("key", "value", "headers").alias(BAD)
        letters = dead_letters(bad, pipeline=pipeline).select(letter)
        wide = wide.unionByName(letters, allowMissingColumns=True)
    return wide


def with_names(expression: str, names: Sequence[str]) -> str:
    """With the columns for `*`: Spark's would have the marks as well."""
    listed = ", ".join(map(_quoted, names))
    return _STAR.sub(
        lambda found: found[0] if found[1] is None else f"{found[1]}{listed}", expression
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
