"""The options of a query, checked against the table and understood.

`read_source_options` is for reading, `read_connection` for whoever only talks to brokers. Errors
name the option and what is allowed; values of secrets are in no error, no log and no `repr`.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from suwi.client.addresses import Address, parse_addresses
from suwi.client.fetching import ReadSettings
from suwi.client.settings import ClientSettings
from suwi.model.ids import TopicPartition
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
from suwi.spark.option_table import KAFKA, Scope, Status, find, suggest

# In Spark's processes nobody formats fields: what is said there stands in the message.
log = logging.getLogger(__name__)

_DURATION: Final = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class BadOption(ValueError):
    """An option that cannot be used; the text says which, and what is allowed."""


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


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    connection: Connection
    selection: Selection
    starting: Bound
    ending: Bound
    read: ReadSettings
    check_crcs: bool = True
    fail_on_data_loss: bool = True
    include_headers: bool = False
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    poll_timeout_ms: int = 120_000
    offset_attempts: int = 3
    offset_retry_ms: int = 1000
    partitions_age_ms_max: int = 1000
    push_down_filters: bool = False


def read_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Raises `BadOption`."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given, Scope.STREAM if streaming else Scope.BATCH)
    values = _Values(given)
    try:
        return _source_options(values, given, streaming)
    except BadOffsets as error:
        raise BadOption(str(error)) from None


def _source_options(values: "_Values", given: Mapping[str, str], streaming: bool) -> SourceOptions:
    strategy = values.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    starting = read_bound(
        given, "starting", LATEST if streaming else EARLIEST, or_latest=strategy == "latest"
    )
    ending = read_bound(given, "ending", LATEST, or_latest=True)
    if not streaming:
        _check_batch_bounds(starting, ending)
    least = values.count("minOffsetsPerTrigger")
    most = values.count("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise BadOption(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
    fetch_bytes = min(
        values.whole("kafka.max.partition.fetch.bytes", 8 * 1024 * 1024),
        values.whole("kafka.fetch.max.bytes", 50 * 1024 * 1024),
    )
    isolation = values.one_of(
        "kafka.isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted"
    )
    return SourceOptions(
        connection=_connection(values),
        selection=_selection(given),
        starting=starting,
        ending=ending,
        read=ReadSettings(
            max_wait_ms=values.whole("kafka.fetch.max.wait.ms", 500, least=0),
            min_bytes=values.whole("kafka.fetch.min.bytes", 1, least=0),
            max_bytes=fetch_bytes,
            rack=given.get("kafka.client.rack", ""),
            partition_bytes_max=fetch_bytes,
            committed_only=isolation == "read_committed",
        ),
        check_crcs=values.flag("kafka.check.crcs", True),
        fail_on_data_loss=values.flag("failOnDataLoss", True),
        include_headers=values.flag("includeHeaders", False),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=values.duration_ms("maxTriggerDelay", 15 * 60_000),
        min_partitions=values.count("minPartitions"),
        max_records_per_partition=values.count("maxRecordsPerPartition"),
        poll_timeout_ms=values.whole("kafkaConsumer.pollTimeoutMs", 120_000),
        offset_attempts=values.whole("fetchOffset.numRetries", 3),
        offset_retry_ms=values.whole("fetchOffset.retryIntervalMs", 1000, least=0),
        partitions_age_ms_max=values.whole("partition.metadata.cache.ttl.ms", 1000, least=-1),
        push_down_filters=values.flag("pushDownFilters", False),
    )


def check_names(given: Mapping[str, str], scope: Scope) -> None:
    """Every option is one of the table, and not a refused one. Raises `BadOption`."""
    for name in given:
        option = find(name)
        if option is None:
            close = suggest(name)
            hint = f"did you mean {close!r}?" if close else "see docs/spark-source.md for all"
            raise BadOption(f"there is no option {name!r}: {hint}")
        if option.status is Status.REFUSED:
            raise BadOption(f"option {option.name!r} is not supported: {option.word}")
        if scope is Scope.STREAM and option.scope is Scope.BATCH:
            raise BadOption(f"option {option.name!r} is for batch queries: a stream has no end")
        if option.status is Status.NOTED:
            log.warning("option %s has no effect: %s", option.name, option.word)
        elif scope is Scope.BATCH and option.scope is Scope.STREAM:
            log.warning("option %s has no effect in batch queries", option.name)


def read_connection(options: Mapping[str, str]) -> Connection:
    """How to reach the brokers, from the `kafka.` options alone. Raises `BadOption`."""
    return _connection(_Values({name.lower(): value for name, value in options.items()}))


def _connection(values: "_Values") -> Connection:
    servers = values.given.get("kafka.bootstrap.servers")
    if servers is None:
        raise BadOption("option 'kafka.bootstrap.servers' is missing: host:port of a broker")
    try:
        bootstrap = tuple(parse_addresses(servers))
    except ValueError as error:
        raise BadOption(f"kafka.bootstrap.servers: {error}") from None
    connection = Connection(
        bootstrap,
        {
            name.removeprefix(KAFKA): value
            for name, value in values.given.items()
            if name.startswith((f"{KAFKA}security.", f"{KAFKA}sasl.", f"{KAFKA}ssl."))
        },
        ClientSettings(
            client_id=values.given.get("kafka.client.id", "suwi-spark"),
            connect_timeout_s=values.whole("kafka.socket.connection.setup.timeout.ms", 10_000)
            / 1000,
            request_timeout_s=values.whole("kafka.request.timeout.ms", 30_000) / 1000,
            patience_s=values.whole("kafka.default.api.timeout.ms", 60_000) / 1000,
            retry_pause_s_min=values.whole("kafka.retry.backoff.ms", 100) / 1000,
            retry_pause_s_max=values.whole("kafka.retry.backoff.max.ms", 1000) / 1000,
        ),
    )
    _check_security(connection.security)
    return connection


def _check_security(security: Mapping[str, str]) -> None:
    """What can be said without the files, which may lie on the executors only."""
    from suwi.client.security import check_client_security
    from suwi.model.config_kinds import BadConfig

    try:
        check_client_security(security)
    except BadConfig as error:
        raise BadOption(f"{KAFKA}{error}") from None


def _selection(given: Mapping[str, str]) -> Selection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in given]
    if len(names) != 1:
        what = " and ".join(names) + " exclude each other" if names else "no topics are named"
        raise BadOption(f"{what}: use one of subscribe, subscribePattern, assign")
    text = given[names[0].lower()].strip()
    match names[0]:
        case "subscribe":
            topics = tuple(dict.fromkeys(t.strip() for t in text.split(",") if t.strip()))
            if not topics:
                raise BadOption("subscribe: no topic is named")
            return Subscribed(topics)
        case "assign":
            partitions = tuple(dict.fromkeys(read_partitions(text)))
            if not partitions:
                raise BadOption("assign: no partition is named")
            return Assigned(partitions)
    try:
        re.compile(text)
    except re.error as error:
        raise BadOption(f"subscribePattern: {error}") from None
    if not text:
        raise BadOption("subscribePattern is empty")
    return Matching(text)


def _check_batch_bounds(starting: Bound, ending: Bound) -> None:
    for which, bound, wrong, word in (
        ("starting", starting, LATEST, "latest"),
        ("ending", ending, EARLIEST, "earliest"),
    ):
        if bound == Everywhere(wrong):
            raise BadOption(f"{which}Offsets cannot be {word} in a batch query")
        if isinstance(bound, ByPartition):
            for partition, offset in bound.offsets.items():
                if offset == wrong:
                    raise BadOption(
                        f"{which}Offsets of {partition} cannot be {word} in a batch query"
                    )


class _Values:
    """Options by name; an error names the option as it is documented."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = given

    def whole(self, name: str, default: int, *, least: int = 1) -> int:
        text = self.given.get(name.lower())
        if text is None:
            return default
        try:
            number = int(text.strip())
        except ValueError:
            number = least - 1
        if number < least:
            raise BadOption(f"{name}={text}: allowed: whole numbers from {least} on")
        return number

    def count(self, name: str) -> int | None:
        return self.whole(name, 0) if name.lower() in self.given else None

    def flag(self, name: str, default: bool) -> bool:
        text = self.given.get(name.lower(), str(default)).strip().lower()
        if text not in ("true", "false"):
            raise BadOption(f"{name}={text}: allowed: true, false")
        return text == "true"

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        text = self.given.get(name.lower(), default).strip().lower()
        if text not in allowed:
            raise BadOption(f"{name}={text}: allowed: {', '.join(allowed)}")
        return text

    def duration_ms(self, name: str, default: int) -> int:
        text = self.given.get(name.lower())
        if text is None:
            return default
        found = _DURATION.fullmatch(text.strip().lower())
        if found is None or found[2] not in _UNITS_MS:
            raise BadOption(f"{name}={text}: allowed: like 500ms, 90s, 15m, 1h, 1d")
        return int(found[1]) * _UNITS_MS[found[2]]
