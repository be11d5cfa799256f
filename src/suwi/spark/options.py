"""The options of a query, checked against the table and understood.

`read_source_options`, `read_sink_options`, `read_table_options` and `read_iceberg_options` are for
those who read topics, write to them, use a Delta table, or an Iceberg table; `read_connection` for
whoever only talks to brokers. `examine` names every mistake instead of the first. Errors name the
option and what is allowed; values of secrets are in no error, no log and no `repr`.
"""

import logging
import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias

from suwi.client.addresses import Address
from suwi.client.fetching import ReadSettings
from suwi.client.partition_sender import ProducerSettings
from suwi.client.settings import ClientSettings
from suwi.model.ids import TopicPartition
from suwi.spark.delta.storage import local_path
from suwi.spark.offsets import (
    EARLIEST,
    LATEST,
    BadOffsets,
    Bound,
    ByPartition,
    Everywhere,
    read_bound,
    read_partitions,
)
from suwi.spark.option_table import (
    CATALOG,
    DEAD,
    KAFKA,
    STORAGE,
    TABLE,
    TABLE_ANY,
    TABLE_WRITES,
    Status,
    Use,
    find,
    suggest,
    uses,
)
from suwi.spark.rules import RowRules
from suwi.spark.where import BadWhere, Condition, parse_where, typed

# Spark's processes do not print `extra` fields, so values are part of the message.
log = logging.getLogger(__name__)

# What Spark itself gives besides: to a sink, and of a table of its catalog.
_OF_SPARK: Final = frozenset(
    """
    checkpointlocation queryname
    collation comment external is_managed_location location owner provider table_type
    """.split()
)
_OF_CATALOG: Final = "option."
"""The catalog gives every option a second time with this prefix."""
_TABLE_NAME: Final = re.compile(r"[^.\s]+(?:\.[^.\s]+)+")
_CATALOG_FILE: Final = "catalog.db"
_SECURITY: Final = (f"{KAFKA}security.", f"{KAFKA}sasl.", f"{KAFKA}ssl.")


class BadOption(ValueError):
    """An option that cannot be used; the text says which, and what is allowed."""

    def __init__(self, text: str, option: str | None = None) -> None:
        super().__init__(text)
        self.option = option
        """Which one, as it is documented; None: several, or one that is missing."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matching:
    pattern: str


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]


Selection: TypeAlias = Subscribed | Matching | Assigned


@dataclass(frozen=True)
class Connection:
    """How to reach the brokers. It may hold secrets: its text shows none."""

    bootstrap: tuple[Address, ...]
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Kafka's keys of TLS and SASL."""
    client: ClientSettings = field(default_factory=ClientSettings)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for connections that may be shared."""
        return self.bootstrap, tuple(sorted(self.security.items())), self.client


@dataclass(frozen=True, slots=True)
class Choice:
    """The columns and rows that are wanted."""

    columns: tuple[str, ...] = ()
    """Empty: all."""
    where: tuple[Condition, ...] = ()
    """All of them hold."""


def _of(option: str, **default: Any) -> Any:
    """A field that has the value of an option."""
    return field(metadata={"option": option}, **default)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    connection: Connection
    selection: Selection
    starting: Bound
    ending: Bound
    read: ReadSettings
    choice: Choice
    check_crcs: bool = _of("kafka.check.crcs")
    fail_on_data_loss: bool = _of("failOnDataLoss")
    include_headers: bool = _of("includeHeaders")
    max_offsets_per_trigger: int | None = _of("maxOffsetsPerTrigger")
    min_offsets_per_trigger: int | None = _of("minOffsetsPerTrigger")
    max_trigger_delay_ms: int = _of("maxTriggerDelay")
    min_partitions: int | None = _of("minPartitions")
    max_records_per_partition: int | None = _of("maxRecordsPerPartition")
    poll_timeout_ms: int = _of("kafkaConsumer.pollTimeoutMs")
    offset_attempts: int = _of("fetchOffset.numRetries")
    offset_retry_ms: int = _of("fetchOffset.retryIntervalMs")
    partitions_age_ms_max: int = _of("partition.metadata.cache.ttl.ms")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    connection: Connection
    producer: ProducerSettings
    topic: str | None
    transactional_id_prefix: str | None = None
    transaction_timeout_ms: int = 0
    rules: RowRules | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    uri: str
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For the object store; there may be secrets among them."""
    table: str = _of("table", default="")
    """Of a catalog, instead of a path."""
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    choice: Choice = Choice()
    version_as_of: int | None = _of("versionAsOf", default=None)
    version_of_batch: bool = _of("versionOfBatch", default=False)
    timestamp_as_of: str | None = _of("timestampAsOf", default=None)
    starting_version: str | None = _of("startingVersion", default=None)
    max_files_per_trigger: int | None = _of("maxFilesPerTrigger", default=None)
    skip_change_commits: bool = _of("skipChangeCommits", default=False)
    read_change_feed: bool = _of("readChangeFeed", default=False)
    partition_by: tuple[str, ...] = _of("partitionBy", default=())
    merge_schema: bool = _of("mergeSchema", default=False)
    target_bytes: int = _of("targetFileSize", default=0)
    codec: str = _of("compression", default="")
    keys: tuple[str, ...] = _of("keys", default=())
    order_by: str | None = _of("orderBy", default=None)
    delete_when: str | None = _of("deleteWhen", default=None)
    replace_where: str | None = _of("replaceWhere", default=None)
    txn_from_query: bool = _of("txnFromQuery", default=False)
    txn: tuple[str, int] | None = None
    rules: RowRules | None = field(default=None, repr=False)

    @property
    def is_staged(self) -> bool:
        """Whether tasks write beside the table, and the driver puts the rows into it."""
        return bool(self.keys or self.replace_where)


def read_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Raises `BadOption`."""
    use = Use.STREAM if streaming else Use.BATCH
    given = _understood(options, use)
    starting, ending = _bounds(given, use)
    fetch_bytes = min(given["kafka.max.partition.fetch.bytes"], given["kafka.fetch.max.bytes"])
    return SourceOptions(
        connection=_connection(given),
        selection=_selection(given),
        starting=starting,
        ending=ending,
        read=ReadSettings(
            max_wait_ms=given["kafka.fetch.max.wait.ms"],
            min_bytes=given["kafka.fetch.min.bytes"],
            max_bytes=fetch_bytes,
            rack=given["kafka.client.rack"] or "",
            partition_bytes_max=fetch_bytes,
            committed_only=given["kafka.isolation.level"] == "read_committed",
        ),
        choice=_topic_choice(given),
        **{name: given[option] for name, option in _options_of(SourceOptions)},
    )


def _options_of(declared: type) -> Iterator[tuple[str, str]]:
    """Fields, and the options whose values they have."""
    for one in fields(declared):
        if "option" in one.metadata:
            yield one.name, one.metadata["option"]


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises `BadOption`."""
    given = _understood(options, Use.WRITE)
    return SinkOptions(
        _connection(given),
        ProducerSettings(
            acks=given["kafka.acks"],
            codec=given["kafka.compression.type"],
            batch_bytes=given["kafka.batch.size"],
            linger_s=given["kafka.linger.ms"] / 1000,
            buffer_bytes=given["kafka.buffer.memory"],
            delivery_timeout_s=given["kafka.delivery.timeout.ms"] / 1000,
            request_timeout_s=given["kafka.request.timeout.ms"] / 1000,
        ),
        (given["topic"] or "").strip() or None,
        (given["transactionalIdPrefix"] or "").strip() or None,
        given["kafka.transaction.timeout.ms"],
        _rules(given, options),
    )


def read_table_options(options: Mapping[str, str], use: Use = Use.TABLE_WRITE) -> TableOptions:
    """Raises `BadOption`, which never says what stands after `storage.`."""
    given = _understood(options, use)
    return _table_options(
        given,
        options,
        uri=_uri(given["path"]),
        # Spark gives all names in small letters in some places; the store's are in large ones.
        storage={name.upper(): value for name, value in _after(STORAGE, options).items()},
        choice=_choice(given),
    )


def read_iceberg_options(options: Mapping[str, str]) -> TableOptions:
    """Raises `BadOption`, which never says what stands after `catalog.`."""
    given = _understood(options, Use.ICEBERG_WRITE)
    uri = f"iceberg table {given['table']}"
    return _table_options(given, options, uri=uri, catalog=_catalog(given, options))


def _table_options(given: "_Given", options: Mapping[str, str], **more: Any) -> TableOptions:
    app, version = given["txnAppId"], given["txnVersion"]
    return TableOptions(
        txn=None if app is None else (app, version),
        rules=_rules(given, options),
        **more,
        **{
            name: given[option]
            for name, option in _options_of(TableOptions)
            if given[option] not in (None, "")
        },
    )


def _after(prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options of a prefix, without it."""
    return {
        name[len(prefix) :]: value
        for name, value in options.items()
        if name.lower().startswith(prefix)
    }


def read_connection(options: Mapping[str, str]) -> Connection:
    """How to reach the brokers, from the `kafka.` options alone. Raises `BadOption`."""
    known = {name: value for name, value in options.items() if find(name, Use.STREAM)}
    given, faults = _parse(known, Use.STREAM)
    for fault in (*faults, *_connection_faults(given)):
        raise fault
    return _connection(given)


def check_read_options(options: Mapping[str, str]) -> None:
    """For `load()`, which does not say whether a stream or a batch is read. Raises `BadOption`."""
    of_batch = {str(fault) for fault in examine(options, Use.BATCH)}
    for fault in examine(options, Use.STREAM):
        if str(fault) in of_batch:
            raise fault


def examine(options: Mapping[str, str], use: Use) -> list[BadOption]:
    """Everything that is wrong with the options, not only the first."""
    given, faults = _parse(options, use)
    wrong = {fault.option for fault in faults}
    together = _together(given, options, use)
    return [*faults, *(fault for fault in together if fault.option not in wrong)]


def _understood(options: Mapping[str, str], use: Use) -> "_Given":
    """Raises `BadOption` for the first that is wrong."""
    given, faults = _parse(options, use, is_logged=True)
    for fault in faults or _together(given, options, use):
        raise fault
    return given


# -- each option by itself -------------------------------------------------------------------------


class _Given(dict[str, Any]):
    """Parsed values by documented name; None where there is neither a value nor a default."""

    def __missing__(self, name: str) -> None:
        return None


def _parse(
    options: Mapping[str, str], use: Use, *, is_logged: bool = False
) -> tuple[_Given, list[BadOption]]:
    """Every option is one of the table, not a refused one, and its value is understood."""
    given, faults = _Given(), []
    for each in TABLE:
        is_known = each.status is Status.SUPPORTED and use in each.use
        if is_known and each.default and not each.name.startswith(_SECURITY):
            given[each.name] = each.parse(each.default)
    for name, value in options.items():
        if name.lower() in _OF_SPARK or name.lower().startswith(_OF_CATALOG):
            continue
        prefix = CATALOG if use is Use.ICEBERG_WRITE else STORAGE
        if name.lower().startswith(prefix) and use in TABLE_ANY:
            continue
        if name.lower().startswith(DEAD) and use & (Use.WRITE | TABLE_WRITES):
            continue
        option = find(name, use)
        if option is None:
            fault = _unknown(name, use, is_logged)
            faults += [] if fault is None else [fault]
        elif option.status is Status.REFUSED:
            text = f"option {option.name!r} is not supported: {option.word}"
            faults.append(BadOption(text, option.name))
        elif option.status is Status.NOTED:
            if is_logged:
                log.warning("option %s has no effect: %s", option.name, option.word)
        else:
            try:
                given[option.name] = option.parse(value)
            except ValueError as error:
                # The error of servers names the wrong part itself.
                shown = ": " if option.name.endswith("servers") else f"={value}: "
                faults.append(BadOption(f"{option.name}{shown}{error}", option.name))
    return given, faults


def _unknown(name: str, use: Use, is_logged: bool) -> BadOption | None:
    family = TABLE_ANY if use in TABLE_ANY else ~TABLE_ANY
    others = uses(name) & family
    if use is Use.BATCH and Use.STREAM in others:
        if is_logged:
            log.warning("option %s has no effect in batch queries", _spelled(name))
        return None
    if others:
        is_for = "writing" if others in Use.WRITE | TABLE_WRITES else "reading"
        if use is Use.ICEBERG_WRITE:
            is_for = "Delta tables"
        elif others == Use.ICEBERG_WRITE:
            is_for = "Iceberg tables"
        elif not use & (Use.WRITE | TABLE_WRITES) and is_for == "reading":
            of_streams = Use.STREAM in others or Use.TABLE_STREAM in others
            is_for = "streaming queries" if of_streams else "batch queries: a stream has no end"
        return BadOption(f"option {_spelled(name)!r} is for {is_for}", _spelled(name))
    close = suggest(name, use)
    page = "sinks" if use & (Use.WRITE | TABLE_WRITES) else "source"
    hint = f"did you mean {close!r}?" if close else f"see docs/spark-{page}.md for all"
    return BadOption(f"there is no option {name!r}: {hint}", name)


def _spelled(name: str) -> str:
    return next(option.name for option in TABLE if option.name.lower() == name.lower())


# -- options that have to fit together -------------------------------------------------------------


def _together(given: _Given, options: Mapping[str, str], use: Use) -> Iterator[BadOption]:
    match use:
        case Use.STREAM | Use.BATCH:
            return _source_faults(given, use)
        case Use.WRITE:
            return _connection_faults(given)
        case Use.ICEBERG_WRITE:
            return _iceberg_faults(given, options)
        case _:
            return _table_faults(given)


def _source_faults(given: _Given, use: Use) -> Iterator[BadOption]:
    yield from _connection_faults(given)
    for read in (_selection, lambda given: _bounds(given, use), _topic_choice):
        try:
            read(given)
        except BadOption as fault:
            yield fault
        except BadOffsets as error:
            yield BadOption(str(error), str(error).partition(":")[0])
    least, most = given["minOffsetsPerTrigger"], given["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        text = f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}"
        yield BadOption(text, "minOffsetsPerTrigger")


def _connection_faults(given: _Given) -> Iterator[BadOption]:
    from suwi.client.security import check_client_security
    from suwi.model.config_kinds import BadConfig

    name = "kafka.bootstrap.servers"
    if given[name] is None:
        yield BadOption(f"option {name!r} is missing: host:port of a broker", name)
    try:
        # What can be said without the files, which may lie on the executors only.
        check_client_security(_security(given))
    except BadConfig as error:
        text = f"{KAFKA}{error}"
        named = [option.name for option in TABLE if option.name.lower() in text.lower()]
        yield BadOption(text, max(named, key=len, default=None))


def _table_faults(given: _Given) -> Iterator[BadOption]:
    try:
        _uri(given["path"])
    except BadOption as fault:
        yield fault
    try:
        _choice(given)
    except BadOption as fault:
        yield fault
    for name in ("orderBy", "deleteWhen"):
        if given[name] and not given["keys"]:
            yield BadOption(f"option {name} needs keys", name)
    if given["keys"] and given["replaceWhere"]:
        yield BadOption("keys and replaceWhere exclude each other", "replaceWhere")
    yield from _txn_faults(given)
    if given["versionAsOf"] is not None and given["timestampAsOf"] is not None:
        yield BadOption("versionAsOf and timestampAsOf exclude each other", "timestampAsOf")


def _txn_faults(given: _Given) -> Iterator[BadOption]:
    if (given["txnAppId"] is None) != (given["txnVersion"] is None):
        yield BadOption("txnAppId and txnVersion belong together", "txnAppId")


def _iceberg_faults(given: _Given, options: Mapping[str, str]) -> Iterator[BadOption]:
    if not _TABLE_NAME.fullmatch(given["table"] or ""):
        named = f"table={given['table']}" if given["table"] else "option 'table' is missing"
        yield BadOption(f"{named}: give NAMESPACE.NAME, like shop.orders", "table")
    try:
        _catalog(given, options)
    except BadOption as fault:
        yield fault
    yield from _txn_faults(given)


def _catalog(given: _Given, options: Mapping[str, str]) -> dict[str, str]:
    """The properties of the catalog as pyiceberg names them. Raises `BadOption`."""
    warehouse, found = given["warehouse"], _after(CATALOG, options)
    if found:
        return {"warehouse": warehouse, **found} if warehouse else found
    local = local_path(warehouse) if warehouse else None
    if local is None:
        wrong = f"={warehouse} is not on this machine" if warehouse else " is missing"
        text = f"warehouse{wrong}: give a directory, or a catalog by catalog.uri"
        raise BadOption(text, "warehouse")
    path = os.path.abspath(local)  # Tasks have another working directory than the driver.
    return {"type": "sql", "uri": f"sqlite:///{path}/{_CATALOG_FILE}", "warehouse": path}


def _connection(given: _Given) -> Connection:
    return Connection(
        given["kafka.bootstrap.servers"],
        _security(given),
        ClientSettings(
            client_id=given["kafka.client.id"],
            connect_timeout_s=given["kafka.socket.connection.setup.timeout.ms"] / 1000,
            request_timeout_s=given["kafka.request.timeout.ms"] / 1000,
            retry_timeout_s=given["kafka.default.api.timeout.ms"] / 1000,
            retry_pause_s_min=given["kafka.retry.backoff.ms"] / 1000,
            retry_pause_s_max=given["kafka.retry.backoff.max.ms"] / 1000,
        ),
    )


def _security(given: _Given) -> dict[str, str]:
    """Kafka's keys of TLS and SASL that were given: it has defaults of its own."""
    return {
        name.removeprefix(KAFKA): value
        for name, value in given.items()
        if name.startswith(_SECURITY)
    }


def _selection(given: _Given) -> Selection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(names) != 1:
        what = " and ".join(names) + " exclude each other" if names else "no topics are named"
        raise BadOption(f"{what}: use one of subscribe, subscribePattern, assign")
    name, text = names[0], given[names[0]].strip()
    match name:
        case "subscribe":
            topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
            if not topics:
                raise BadOption("subscribe: no topic is named", name)
            return Subscribed(topics)
        case "assign":
            partitions = tuple(dict.fromkeys(read_partitions(text)))
            if not partitions:
                raise BadOption("assign: no partition is named", name)
            return Assigned(partitions)
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(f"subscribePattern: {error}", name) from None
    if not text:
        raise BadOption("subscribePattern is empty", name)
    return Matching(text)


def _bounds(given: _Given, use: Use) -> tuple[Bound, Bound]:
    texts = {name.lower(): value for name, value in given.items()}
    or_latest = given["startingOffsetsByTimestampStrategy"] == "latest"
    default = LATEST if use is Use.STREAM else EARLIEST
    starting = read_bound(texts, "starting", default, or_latest=or_latest)
    ending = read_bound(texts, "ending", LATEST, or_latest=True)
    if use is Use.BATCH:
        _check_batch_bounds(starting, ending)
    return starting, ending


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    for which, bound, wrong, word in (
        ("startingOffsets", starting, LATEST, "latest"),
        ("endingOffsets", ending, EARLIEST, "earliest"),
    ):
        if bound == Everywhere(wrong):
            raise BadOption(f"{which} cannot be {word} in a batch query", which)
        if isinstance(bound, ByPartition):
            for partition, offset in bound.offsets.items():
                if offset == wrong:
                    raise BadOption(
                        f"{which} of {partition} cannot be {word} in a batch query", which
                    )


def _rules(given: _Given, options: Mapping[str, str]) -> RowRules | None:
    if given["rules"] is None:
        return None
    dead = _after(DEAD, options)
    if "dead_letters" in given["rules"].values():
        if not dead:
            raise BadOption("rules: the action dead_letters needs options after `dead.`", "rules")
        if "topic" not in map(str.lower, dead):
            raise BadOption(f"option '{DEAD}topic' is missing", f"{DEAD}topic")
        for fault in examine(dead, Use.WRITE):
            raise BadOption(f"after `{DEAD}`: {fault}", f"{DEAD}{fault.option or ''}")
    return RowRules(given["rules"], dead)


def _choice(given: _Given) -> Choice:
    try:
        return Choice(given["columns"] or (), parse_where(given["where"] or ""))
    except BadWhere as error:
        raise BadOption(f"where: {error}", "where") from None


def _topic_choice(given: _Given) -> Choice:
    """The rows of a topic are known: so is whether columns and conditions fit them."""
    choice = _choice(given)
    if not choice.columns and not choice.where:
        return choice
    from suwi.spark.row_schema import arrow_schema

    schema = arrow_schema(include_headers=bool(given["includeHeaders"]))
    for name in choice.columns:
        if name not in schema.names:
            listed = ", ".join(schema.names)
            raise BadOption(f"columns: there is no column {name!r}: {listed}", "columns")
    try:
        return Choice(choice.columns, typed(choice.where, schema))
    except BadWhere as error:
        raise BadOption(f"where: {error}", "where") from None


def _uri(path: str | None) -> str:
    if not path:
        raise BadOption(
            "the table's path is missing (Spark does not pass on the path of a table that was "
            "created with a column list or with saveAsTable: see docs/spark-tables.md)",
            "path",
        )
    local = local_path(path)
    if local is None:
        return path
    if "%" in local:
        # delta-rs 1.6 decodes the path in some places and not in others.
        raise BadOption(f"path={path}: the path of a table cannot have a % in it", "path")
    return os.path.abspath(local)  # Tasks have another working directory than the driver.
