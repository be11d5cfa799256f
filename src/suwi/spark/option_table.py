"""Every option of `format("suwi")` and `format("suwi-delta")`, with the parser of its value.

Each is supported, accepted with a word, or refused by name, for each use that it has: reading
topics as a stream or a batch, writing to topics, reading a table, writing to a table. The names are
those of Spark's Kafka connector and of Delta's own source and sink and, after `kafka.`, of Apache
Kafka's consumer and producer. `find` looks an option up, `suggest` names the one that may be meant;
the documents show the table, and a test compares the two.
Invariant: an option that is not here is an error, so nothing is ignored in silence.
"""

import difflib
from typing import Final

from suwi.spark.kafka_options import KAFKA_OPTIONS
from suwi.spark.option_kinds import (
    READ,
    TABLE_ANY,
    TABLE_READ,
    Option,
    Use,
    duration_ms,
    file_size,
    flag,
    noted,
    one_of,
    refused,
    supported,
    whole,
    words,
)

KAFKA: Final = "kafka."
STORAGE: Final = "storage."

_SOURCE: Final = (
    supported("subscribe", "", "topics, separated by commas"),
    supported(
        "subscribePattern", "", "a regular expression of Python's; it may match any part of a name"
    ),
    supported("assign", "", 'partitions by topic: `{"a":[0,1],"b":[2]}`'),
    supported(
        "startingOffsets",
        "",
        "where a new query begins: `earliest`, `latest` (streaming only, and the default there) or "
        '`{"a":{"0":23,"1":-2}}`, where -2 is earliest and -1 latest. Partitions found later start '
        "at earliest",
    ),
    supported(
        "startingOffsetsByTimestamp",
        "",
        'milliseconds since 1970 by partition: `{"a":{"0":1000}}`; goes before startingOffsets',
    ),
    supported(
        "startingTimestamp",
        "",
        "milliseconds since 1970, for all partitions; goes before startingOffsetsByTimestamp",
    ),
    supported(
        "startingOffsetsByTimestampStrategy",
        "error",
        "where no record is that new: `error`, or `latest` to start at the end",
        parse=one_of("error", "latest"),
    ),
    supported("endingOffsets", "latest", "`latest` or JSON as above", Use.BATCH),
    supported(
        "endingOffsetsByTimestamp",
        "",
        "as above; latest where no record is that new; goes before endingOffsets",
        Use.BATCH,
    ),
    supported("endingTimestamp", "", "as above; goes before endingOffsetsByTimestamp", Use.BATCH),
    supported(
        "failOnDataLoss",
        "true",
        "whether records that are gone before they were read stop the query, naming topic, "
        "partition and offsets, or are skipped with a warning",
        parse=flag,
    ),
    supported("includeHeaders", "false", "adds the column `headers`", parse=flag),
    supported(
        "maxOffsetsPerTrigger",
        "",
        "at most this many offsets in a micro-batch, shared out by what each partition has; "
        "needs PySpark 4.2",
        Use.STREAM,
        parse=whole(1),
    ),
    supported(
        "minOffsetsPerTrigger",
        "",
        "wait until this many offsets have come, at most for maxTriggerDelay; needs PySpark 4.2",
        Use.STREAM,
        parse=whole(1),
    ),
    supported(
        "maxTriggerDelay",
        "15m",
        "how long minOffsetsPerTrigger may wait: `90s`, `15m`, `1h`, plain numbers are "
        "milliseconds; needs PySpark 4.2",
        Use.STREAM,
        parse=duration_ms,
    ),
    supported(
        "minPartitions",
        "",
        "split large partitions until there are about so many tasks",
        parse=whole(1),
    ),
    supported(
        "maxRecordsPerPartition",
        "",
        "split partitions into tasks of at most so many",
        parse=whole(1),
    ),
    supported(
        "kafkaConsumer.pollTimeoutMs",
        "120000",
        "how long a task waits for records that must be there",
        parse=whole(1),
    ),
    supported(
        "fetchOffset.numRetries", "3", "attempts of a question about offsets", parse=whole(1)
    ),
    supported("fetchOffset.retryIntervalMs", "1000", "the pause between them", parse=whole(0)),
    supported(
        "partition.metadata.cache.ttl.ms",
        "1000",
        "how long the list of partitions is believed; -1: it is asked for before every batch",
        parse=whole(-1),
    ),
    supported("columns", "", "the columns to read, separated by commas", READ | TABLE_READ, words),
    supported(
        "where",
        "",
        "the rows to read: comparisons of a column with a value, joined by AND (see Columns and "
        "rows); what cannot have such rows is not read",
        READ | TABLE_READ,
    ),
    *noted(
        "groupIdPrefix",
        "no consumer group is joined, so none needs a name; see kafka.group.id for progress",
    ),
    *refused("path", "topics are not files: use load() without a path, and `subscribe`"),
)

_SINK: Final = (
    supported("topic", "", "the topic of every row; without it the column `topic`", Use.WRITE),
    supported(
        "transactionalIdPrefix",
        "",
        "exactly once: what the transactional ids of the query begin with; no other query may "
        "have the same",
        Use.WRITE,
    ),
    *noted("includeHeaders", "headers are written where there is a column `headers`", Use.WRITE),
    *refused("path", "a topic is not a path: use save() without one, and `topic`", Use.WRITE),
)

_DELTA: Final = (
    supported(
        "path", "", "where the table is: a directory, `s3://…`, `gs://…`, `abfss://…`", TABLE_ANY
    ),
    supported("versionAsOf", "", "the table as it was at this version", Use.TABLE_BATCH, whole(0)),
    supported(
        "timestampAsOf",
        "",
        "the table as it was at this time: `2026-01-31T12:00:00Z`",
        Use.TABLE_BATCH,
    ),
    supported(
        "startingVersion",
        "",
        "a number: no snapshot first, only what was added from this version on; `latest`: from the "
        "next one on",
        Use.TABLE_STREAM,
    ),
    supported(
        "maxFilesPerTrigger",
        "",
        "at most this many files in a micro-batch; needs PySpark 4.2",
        Use.TABLE_STREAM,
        whole(1),
    ),
    supported(
        "skipChangeCommits",
        "false",
        "pass over commits that remove or rewrite rows; without it they stop the stream",
        Use.TABLE_STREAM,
        flag,
    ),
    supported(
        "readChangeFeed",
        "false",
        "read changes instead of rows, where the table has delta.enableChangeDataFeed: adds "
        "`_change_type`, `_commit_version`, `_commit_timestamp`",
        Use.TABLE_STREAM,
        flag,
    ),
    supported(
        "partitionBy",
        "",
        "columns that a new table is partitioned by, separated by commas",
        Use.TABLE_WRITE,
        words,
    ),
    supported(
        "mergeSchema",
        "false",
        "`true`: columns, and fields of structs, that the table does not have are added",
        Use.TABLE_WRITE,
        flag,
    ),
    supported(
        "targetFileSize",
        "128mb",
        "a file of this size is closed and the next begun",
        Use.TABLE_WRITE,
        file_size,
    ),
    supported(
        "compression",
        "snappy",
        "of the Parquet files: snappy, zstd, gzip, lz4 or none",
        Use.TABLE_WRITE,
        one_of("snappy", "zstd", "gzip", "lz4", "none"),
    ),
    supported(
        "keys",
        "",
        "columns that say which row is meant: rows of the table are replaced, not added to",
        Use.TABLE_WRITE,
        words,
    ),
    supported(
        "orderBy",
        "",
        "with keys: of two rows the one with the greater value stays",
        Use.TABLE_WRITE,
    ),
    supported(
        "deleteWhen",
        "",
        "with keys: a condition on `source` under which the row is deleted",
        Use.TABLE_WRITE,
    ),
    supported(
        "txnAppId",
        "",
        "batch: who writes; with txnVersion, a write that is repeated is made once",
        Use.TABLE_WRITE,
    ),
    supported(
        "txnVersion", "", "batch: the number of the write, rising", Use.TABLE_WRITE, whole(0)
    ),
    supported(
        "txnFromQuery",
        "false",
        "batch, inside of foreachBatch: both of these from the streaming query",
        Use.TABLE_WRITE,
        flag,
    ),
)


TABLE: Final = (
    *_SOURCE,
    *_SINK,
    *(option._replace(name=KAFKA + option.name) for option in KAFKA_OPTIONS),
    *_DELTA,
)
_BY_NAME: Final = {(option.name.lower(), use): option for option in TABLE for use in option.use}


def find(name: str, use: Use) -> Option | None:
    return _BY_NAME.get((name.lower(), use))


def uses(name: str) -> Use:
    """All that an option of this name is for."""
    found = Use(0)
    for option in TABLE:
        if option.name.lower() == name.lower():
            found |= option.use
    return found


def suggest(name: str, use: Use) -> str | None:
    """The option that may be meant by a name that is none."""
    names = {known: option.name for (known, for_), option in _BY_NAME.items() if for_ is use}
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return names[close[0]] if close else None
