"""Every option of `format("suwi")` and `format("suwi-delta")`, with the kind of its value.

Each is supported, accepted with a word, or refused by name, for each use that it has: reading
topics as a stream or a batch, writing to topics, reading a table, writing to a table. The names are
those of Spark's Kafka connector and of Delta's own source and sink and, after `kafka.`, of Apache
Kafka's consumer and producer. `find` looks an option up, `suggest` names the one that may be meant;
the documents show the table, and a test compares the two.
Invariant: an option that is not here is an error, so nothing is ignored in silence.
"""

import difflib
import re
from enum import Enum, Flag, auto
from typing import Any, Final, NamedTuple

from suwi.client.addresses import Address, parse_addresses
from suwi.model.config_kinds import BadValue, Kind, boolean, int64, one_of, text
from suwi.records.compression import Compression
from suwi.spark.rules import ACTIONS, read_actions

DEAD: Final = "dead."
KAFKA: Final = "kafka."
STORAGE: Final = "storage."
CATALOG: Final = "catalog."

# -- kinds of values -------------------------------------------------------------------------------

_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_MINUTE_MS: Final = 60_000
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": _MINUTE_MS, "min": _MINUTE_MS}
_UNITS_MS |= {"h": 60 * _MINUTE_MS, "d": 24 * 60 * _MINUTE_MS}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_PORT: Final = re.compile(r"\[[^\]]*\]:\d+|[^:\[\]]+:\d+")


def _duration_ms(given: str) -> int:
    found = _DURATION.fullmatch(given.lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError
    return int(found[1]) * _UNITS_MS[found[2]]


def _size_bytes(given: str) -> int:
    found = _SIZE.fullmatch(given)
    if found is None or int(found[1]) == 0:
        raise ValueError
    return int(found[1]) * _SIZES[found[2].lower()]


def _addresses(given: str) -> tuple[Address, ...]:
    """Each with its port: a host alone is more often a mistake than port 9092."""
    try:
        found = tuple(parse_addresses(given))
    except ValueError as error:
        raise BadValue(str(error)) from None
    for part in given.split(","):
        if part.strip() and not _PORT.fullmatch(part.strip()):
            raise BadValue(f"{part.strip()!r} has no port: give HOST:PORT, like localhost:9092")
    return found


def _named(given: str, values: dict[str, int]) -> int:
    if given.lower() not in values:
        raise ValueError
    return values[given.lower()]


def whole(least: int) -> Kind:
    return int64(least)._replace(allowed=f"a whole number from {least} on")


WORDS: Final = Kind(
    "list", "a list", lambda given: tuple(w.strip() for w in given.split(",") if w.strip())
)
# `bucket(16, id)` is one.
_PARTITIONS: Final = Kind(
    "list",
    "a list",
    lambda given: tuple(w.strip() for w in re.split(r",(?![^()]*\))", given) if w.strip()),
)
_DURATIONS: Final = Kind("duration", "like 500ms, 90s, 15m, 1h, 1d", _duration_ms)
_FILE_SIZE: Final = Kind("size", "a number of bytes, or as 64mb", _size_bytes)
_RULES: Final = Kind("rules", f"JSON with {', '.join(ACTIONS)} by the name of a rule", read_actions)
_ADDRESSES: Final = Kind("addresses", "", _addresses)
_ACKS: Final = Kind(
    "acks", "all, 1, 0", lambda given: _named(given, {"all": -1, "-1": -1, "1": 1, "0": 0})
)
_CODEC: Final = Kind(
    "codec",
    ", ".join(one.name.lower() for one in Compression),
    lambda given: Compression(_named(given, {one.name.lower(): one for one in Compression})),
)


# -- options ---------------------------------------------------------------------------------------


_TEXT: Final = text()


class Status(Enum):
    SUPPORTED = "supported"
    NOTED = "accepted"
    """It changes nothing here, and the word says why that is right."""
    REFUSED = "refused"


class Use(Flag):
    """What an option is for."""

    STREAM = auto()
    BATCH = auto()
    WRITE = auto()
    TABLE_STREAM = auto()
    TABLE_BATCH = auto()
    TABLE_WRITE = auto()
    ICEBERG_WRITE = auto()


READ: Final = Use.STREAM | Use.BATCH
TABLE_READ: Final = Use.TABLE_STREAM | Use.TABLE_BATCH
TABLE_WRITES: Final = Use.TABLE_WRITE | Use.ICEBERG_WRITE
TABLE_ANY: Final = TABLE_READ | TABLE_WRITES


class Option(NamedTuple):
    name: str
    """As it is written in documents; options are looked up without regard to case."""
    status: Status
    word: str
    """What it does, why it changes nothing, or what to do instead."""
    default: str
    """As a user would write it; empty: there is none."""
    use: Use
    kind: Kind

    def parse(self, given: str) -> Any:
        """Raises `BadValue`."""
        return given if self.kind is _TEXT else self.kind.parse(given)


_KINDS: Final = {
    "": _TEXT,
    "flag": boolean(),
    "list": WORDS,
    "partitions": _PARTITIONS,
    "addresses": _ADDRESSES,
    "acks": _ACKS,
    "codec": _CODEC,
    "duration": _DURATIONS,
    "size": _FILE_SIZE,
    "rules": _RULES,
}
_MARKS: Final = {"": Status.SUPPORTED, "-": Status.NOTED, "!": Status.REFUSED}
_ROW: Final = re.compile(
    r"([-!]?) ?([\w. ]+?)(?: \[([a-z]+)\])?(?: \(([^)]*)\))?(?: = (\S+))?: (.+)"
)


def _kind(text: str) -> Kind:
    """By its name, or as `1..`: a whole number from 1 on, or `a|b`: one of these words."""
    if text.endswith(".."):
        return whole(int(text[:-2]))
    return one_of(*text.split("|"), any_case=True) if "|" in text else _KINDS[text]


def _rows(text: str, use: Use, **uses: Use) -> tuple[Option, ...]:
    """Options as `name [use] (kind) = default: what it does`; what is indented goes on.

    After `-` stand names of options that change nothing, after `!` of refused ones. Without [use]
    they are for `use`.
    """
    found = []
    for line in re.sub(r"\n {8,}", " ", text.strip()).splitlines():
        row = _ROW.fullmatch(line.strip())
        assert row is not None, line
        mark, names, use_name, kind, default, word = row.groups()
        of = uses[use_name] if use_name else use
        found += [
            Option(name, _MARKS[mark], word, default or "", of, _kind(kind or ""))
            for name in names.split()
        ]
    return tuple(found)


# -- rows: keys of Kafka's consumer and producer, without `kafka.` --------------------------------

_CONSUMER: Final = _rows(
    """
    bootstrap.servers (addresses): `host:port`, several separated by commas
    client.id = suwi-spark: the name in the brokers' logs
    isolation.level (read_uncommitted|read_committed) = read_uncommitted: or `read_committed`
    max.partition.fetch.bytes (1..) = 8388608: the most that one fetch asks for
    fetch.max.bytes (1..) = 52428800: the same: a task reads one partition
    fetch.max.wait.ms (0..) = 500: how long a broker waits for fetch.min.bytes
    fetch.min.bytes (0..) = 1: less than this is kept back for fetch.max.wait.ms
    client.rack: where a task is: brokers may name a replica that is nearer
    check.crcs (flag) = true: check the checksum of every batch
    request.timeout.ms (1..) = 30000: a broker that says nothing for so long is left
    default.api.timeout.ms (1..) = 60000: how long a moved or dead leader is looked for
    socket.connection.setup.timeout.ms (1..) = 10000: the limit of one connection
    retry.backoff.ms (1..) = 100: the first pause after a failure; each next is double
    retry.backoff.max.ms (1..) = 1000: the longest pause
    security.protocol = PLAINTEXT: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    sasl.mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER; GSSAPI is not
    sasl.jaas.config: PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule
    sasl.oauthbearer.token.endpoint.url: where tokens come from: `https://…`, which gets client id
        and secret, or `file:///…`
    sasl.oauthbearer.client.credentials.client.id: who asks for a token; or clientId in
        sasl.jaas.config
    sasl.oauthbearer.client.credentials.client.secret: its secret; or clientSecret in
        sasl.jaas.config
    sasl.oauthbearer.scope: what the token is for; or scope in sasl.jaas.config
    ssl.truststore.location: a PEM file; without one the machine's are trusted
    ssl.truststore.certificates: the same as PEM text
    ssl.truststore.type = PEM: PEM; JKS and PKCS12 are refused with the way out
    ssl.keystore.location: a PEM file with key and certificate, for mTLS
    ssl.keystore.certificate.chain: the same as PEM text, together with the key
    ssl.keystore.key: the key as PEM text
    ssl.key.password: of an encrypted key
    ssl.keystore.type = PEM: as ssl.truststore.type
    ssl.endpoint.identification.algorithm = https: empty: names are not checked
    ssl.enabled.protocols = TLSv1.2,TLSv1.3: of these two
    ssl.cipher.suites: by their standard names
    group.id: the group of a pipeline that names none, and of `commit_progress`: they commit how far
        a query is; the source joins no group and commits nothing
    - group.instance.id group.protocol group.remote.assignor partition.assignment.strategy
        session.timeout.ms heartbeat.interval.ms rebalance.timeout.ms max.poll.interval.ms
        auto.commit.interval.ms internal.leave.group.on.close share.acknowledgement.mode
        share.acquire.mode: Spark says who reads what: no consumer group is joined
    - max.poll.records: records come in columns of about 10,000
    - allow.auto.create.topics: reading never makes a topic; one that is missing is an error
    - exclude.internal.topics: a pattern never matches internal topics
    - metadata.max.age.ms: partition.metadata.cache.ttl.ms says how old a list may be
    - metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms: brokers that are all gone
        are looked for at kafka.bootstrap.servers again
    - internal.throw.on.fetch.stable.offset.unsupported: no offsets of a group are fetched
    - retries: default.api.timeout.ms says for how long
    - receive.buffer.bytes send.buffer.bytes connections.max.idle.ms reconnect.backoff.ms
        reconnect.backoff.max.ms socket.connection.setup.timeout.max.ms client.dns.lookup: sockets
        have the system's sizes, and a lost connection is made anew when it is needed
    - metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
        enable.metrics.push auto.include.jmx.reporter: Java's metrics have no counterpart; see the
        query's progress
    - ssl.protocol ssl.keymanager.algorithm ssl.trustmanager.algorithm
        ssl.secure.random.implementation: OpenSSL chooses
    - ssl.keystore.password ssl.truststore.password: PEM files have none of their own
    - sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
        sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
        sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.ms
        sasl.login.retry.backoff.max.ms sasl.oauthbearer.header.urlencode
        sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name: a token is asked for with
        each log-in, within request.timeout.ms
    - sasl.login.callback.handler.class: which one is known from sasl.oauthbearer.token.endpoint.url
    ! auto.offset.reset: Spark keeps the offsets: use startingOffsets, and failOnDataLoss
    ! key.deserializer value.deserializer: keys and values are bytes: decode the columns
    ! enable.auto.commit: Spark keeps the offsets, in the query's checkpoint
    ! interceptor.classes: Java classes cannot be loaded: change the columns instead
    ! sasl.client.callback.handler.class sasl.login.class ssl.engine.factory.class ssl.provider
        security.providers config.providers sasl.oauthbearer.jwt.retriever.class
        sasl.oauthbearer.jwt.validator.class: Java classes cannot be loaded
    ! sasl.kerberos.service.name sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.jitter
        sasl.kerberos.ticket.renew.window.factor sasl.kerberos.min.time.before.relogin: Kerberos is
        not supported: use SCRAM, OAUTHBEARER or mTLS
    ! sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file
        sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file:
        assertions are not signed here: use client id and secret, or a file that is renewed
    ! sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
        sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url
        sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: a setting of brokers, not of clients
    """,
    READ,
)

# What of the consumer's keys the producer has as well: the connection.
_SHARED: Final = tuple(
    """
    bootstrap.servers client.id security. sasl. ssl. request.timeout.ms default.api.timeout.ms
    socket.connection.setup.timeout. retry.backoff. reconnect.backoff. metadata. metric
    send.buffer.bytes receive.buffer.bytes connections.max.idle.ms client.dns.lookup
    enable.metrics.push auto.include.jmx.reporter config.providers
    """.split()
)

_PRODUCER: Final = _rows(
    """
    acks (acks) = all: `all`, `1`, `0`; only with all a retry is stored once
    compression.type (codec) = none: none, gzip, snappy, lz4 or zstd
    batch.size (1..) = 131072: bytes after which a batch is complete
    linger.ms (0..) = 0: how long a batch waits for more
    buffer.memory (1..) = 33554432: bytes that may wait before the task waits
    delivery.timeout.ms (1..) = 120000: a record that is not stored by then fails the task
    - enable.idempotence: it is, with acks=all
    - retries: kafka.delivery.timeout.ms says for how long
    - max.in.flight.requests.per.connection: one batch of a partition at a time
    - max.block.ms: kafka.default.api.timeout.ms says for how long
    - max.request.size: kafka.batch.size, or a single larger record
    - metadata.max.idle.ms: leaders are looked up when they are needed
    - partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms: rows without key
        and partition are spread
    - compression.gzip.level compression.lz4.level compression.zstd.level: each codec has Kafka's
        default level
    transaction.timeout.ms (1..) = 900000: with transactionalIdPrefix: after which time brokers
        abort what is not committed
    ! key.serializer value.serializer: keys and values are text or bytes: encode the columns
    ! partitioner.class: Java classes cannot be loaded: fill the column `partition`
    ! partitioner.ignore.keys: fill the column `partition` instead
    ! transactional.id: tasks have one each: for exactly once set transactionalIdPrefix
    ! transaction.two.phase.commit.enable: use transactionalIdPrefix
    ! interceptor.classes: Java classes cannot be loaded: change the columns instead
    """,
    Use.WRITE,
)


def _shared(option: Option) -> Option:
    is_shared = option.name.startswith(_SHARED)
    return option._replace(use=option.use | Use.WRITE) if is_shared else option


_KAFKA_OPTIONS: Final = (*map(_shared, _CONSUMER), *_PRODUCER)


# -- rows: sources and sinks -----------------------------------------------------------------------

_SOURCE: Final = _rows(
    """
    subscribe: topics, separated by commas
    subscribePattern: a regular expression of Python's; it may match any part of a name
    assign: partitions by topic: `{"a":[0,1],"b":[2]}`
    startingOffsets: where a new query begins: `earliest`, `latest` (streaming only, and the default
        there) or `{"a":{"0":23,"1":-2}}`, where -2 is earliest and -1 latest. Partitions found
        later start at earliest
    startingOffsetsByTimestamp: milliseconds since 1970 by partition: `{"a":{"0":1000}}`; goes
        before startingOffsets
    startingTimestamp: milliseconds since 1970, for all partitions; goes before
        startingOffsetsByTimestamp
    startingOffsetsByTimestampStrategy (error|latest) = error: where no record is that new: `error`,
        or `latest` to start at the end
    endingOffsets [batch] = latest: `latest` or JSON as above
    endingOffsetsByTimestamp [batch]: as above; latest where no record is that new; goes before
        endingOffsets
    endingTimestamp [batch]: as above; goes before endingOffsetsByTimestamp
    failOnDataLoss (flag) = true: whether records that are gone before they were read stop the
        query, naming topic, partition and offsets, or are skipped with a warning
    includeHeaders (flag) = false: adds the column `headers`
    maxOffsetsPerTrigger [stream] (1..): at most this many offsets in a micro-batch, shared out by
        what each partition has; needs PySpark 4.2
    minOffsetsPerTrigger [stream] (1..): wait until this many offsets have come, at most for
        maxTriggerDelay; needs PySpark 4.2
    maxTriggerDelay [stream] (duration) = 15m: how long minOffsetsPerTrigger may wait: `90s`, `15m`,
        `1h`, plain numbers are milliseconds; needs PySpark 4.2
    minPartitions (1..): split large partitions until there are about so many tasks
    maxRecordsPerPartition (1..): split partitions into tasks of at most so many
    kafkaConsumer.pollTimeoutMs (1..) = 120000: how long a task waits for records that must be there
    fetchOffset.numRetries (1..) = 3: attempts of a question about offsets
    fetchOffset.retryIntervalMs (0..) = 1000: the pause between them
    partition.metadata.cache.ttl.ms (-1..) = 1000: how long the list of partitions is believed; -1:
        it is asked for before every batch
    columns [both] (list): the columns to read, separated by commas
    where [both]: the rows to read: comparisons of a column with a value, joined by AND (see
        Columns and rows); what cannot have such rows is not read
    - groupIdPrefix: no consumer group is joined, so none needs a name; see kafka.group.id for
        progress
    ! path: topics are not files: use load() without a path, and `subscribe`
    """,
    READ,
    stream=Use.STREAM,
    batch=Use.BATCH,
    both=READ | TABLE_READ,
)

_SINK: Final = _rows(
    """
    topic: the topic of every row; without it the column `topic`
    rules [both] (rules): what becomes of rows that break a rule of `expect`, as JSON; those
        of `dead_letters` are written with the options of this page after `dead.`
    transactionalIdPrefix: exactly once: what the transactional ids of the query begin with; no
        other query may have the same
    - includeHeaders: headers are written where there is a column `headers`
    ! path: a topic is not a path: use save() without one, and `topic`
    """,
    Use.WRITE,
    both=Use.WRITE | TABLE_WRITES,
)

_DELTA: Final = _rows(
    """
    path: where the table is: a directory, `s3://…`, `gs://…`, `abfss://…`
    versionAsOf [batch] (0..): the table as it was at this version
    versionOfBatch [batch] (flag) = false: joined with a stream: the table as it is when each batch
        of `to_outputs` starts
    timestampAsOf [batch]: the table as it was at this time: `2026-01-31T12:00:00Z`
    startingVersion [stream]: a number: no snapshot first, only what was added from this version on;
        `latest`: from the next one on
    maxFilesPerTrigger [stream] (1..): at most this many files in a micro-batch; needs PySpark 4.2
    skipChangeCommits [stream] (flag) = false: pass over commits that remove or rewrite rows;
        without it they stop the stream
    readChangeFeed [stream] (flag) = false: read changes instead of rows, where the table has
        delta.enableChangeDataFeed: adds `_change_type`, `_commit_version`, `_commit_timestamp`
    partitionBy [writes] (partitions): columns that a new table is partitioned by, separated by
        commas; of an Iceberg table also `year(c)`, `month(c)`, `day(c)`, `hour(c)`,
        `bucket(16, c)`, `truncate(4, c)`
    mergeSchema [writes] (flag) = false: `true`: columns, and fields of structs, that the table does
        not have are added
    targetFileSize [writes] (size) = 128mb: a file of this size is closed and the next begun
    compression [writes] (snappy|zstd|gzip|lz4|none) = snappy: of the Parquet files: snappy, zstd,
        gzip, lz4 or none
    keys [write] (list): columns that say which row is meant: rows of the table are replaced, not
        added to
    orderBy [write]: with keys: of two rows the one with the greater value stays
    deleteWhen [write]: with keys: a condition on `source` under which the row is deleted
    replaceWhere [write]: batch, mode overwrite: the condition of rows that are replaced; others
        stay, and rows that are written must meet it
    txnAppId [writes]: batch: who writes; with txnVersion, a write that is repeated is made once
    txnVersion [writes] (0..): batch: the number of the write, rising
    txnFromQuery [writes] (flag) = false: batch, inside of foreachBatch: both of these from the
        streaming query
    """,
    TABLE_READ | Use.TABLE_WRITE,
    stream=Use.TABLE_STREAM,
    batch=Use.TABLE_BATCH,
    write=Use.TABLE_WRITE,
    writes=TABLE_WRITES,
)

_ICEBERG: Final = _rows(
    """
    table: the table: `namespace.name`
    warehouse: the directory of tables; without options after `catalog.` an SQLite catalog is in it,
        `catalog.db`
    ! path: a table of a catalog is not a path: use save() without one, `table` and `warehouse`
    """,
    Use.ICEBERG_WRITE,
)


TABLE: Final = (
    *_SOURCE,
    *_SINK,
    *(option._replace(name=KAFKA + option.name) for option in _KAFKA_OPTIONS),
    *_DELTA,
    *_ICEBERG,
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
