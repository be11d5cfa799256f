"""The options of `format("suwi")` for writing: as Spark's Kafka connector and the producer have.

`read_sink_options` reads them once. How to reach the brokers is shared with the source.
Invariant: an option that is not known is an error, so nothing is ignored in silence.
"""

import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from suwi.client.outbox import ProducerSettings
from suwi.records.compression import Compression
from suwi.spark.option_table import KAFKA, Scope, Status, find
from suwi.spark.options import BadOption, Connection, read_connection

# In Spark's processes nobody formats fields: what is said there stands in the message.
log = logging.getLogger(__name__)

SUPPORTED: Final = {
    "topic": "the topic of every row; without it there must be a column `topic`",
    "kafka.acks": "all (the default), 1 or 0; only with all a retry is stored once",
    "kafka.compression.type": "none, gzip, snappy, lz4 or zstd",
    "kafka.batch.size": "bytes after which a batch is complete",
    "kafka.linger.ms": "how long a batch waits for more",
    "kafka.buffer.memory": "bytes that may wait before the task waits",
    "kafka.delivery.timeout.ms": "a record that is not stored by then fails the task",
}
NOTED: Final = {
    "kafka.enable.idempotence": "it is, with acks=all",
    "kafka.retries": "kafka.delivery.timeout.ms says for how long",
    "kafka.max.in.flight.requests.per.connection": "one batch of a partition at a time",
    "kafka.max.block.ms": "kafka.default.api.timeout.ms says for how long",
    "kafka.max.request.size": "kafka.batch.size, or a single larger record",
    "kafka.metadata.max.idle.ms": "leaders are looked up when they are needed",
    "kafka.partitioner.adaptive.partitioning.enable": "rows without key and partition are spread",
    "kafka.partitioner.availability.timeout.ms": "rows without key and partition are spread",
    "kafka.compression.gzip.level": "each codec has Kafka's default level",
    "kafka.compression.lz4.level": "each codec has Kafka's default level",
    "kafka.compression.zstd.level": "each codec has Kafka's default level",
    "kafka.transaction.timeout.ms": "there are no transactions",
    "includeheaders": "headers are written where there is a column `headers`",
}
REFUSED: Final = {
    "kafka.key.serializer": "keys and values are text or bytes: encode the columns",
    "kafka.value.serializer": "keys and values are text or bytes: encode the columns",
    "kafka.partitioner.class": "Java classes cannot be loaded: fill the column `partition`",
    "kafka.partitioner.ignore.keys": "fill the column `partition` instead",
    "kafka.transactional.id": "exactly once into topics waits for transactions in the broker",
    "kafka.transaction.two.phase.commit.enable": "there are no transactions",
    "kafka.interceptor.classes": "Java classes cannot be loaded: change the columns instead",
}
_DEFAULTS: Final = ProducerSettings()
# What Spark itself hands to a sink besides.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
# These are for both directions.
_SHARED: Final = (
    "bootstrap.servers client.id security. sasl. ssl. request.timeout.ms default.api.timeout.ms "
    "socket.connection.setup.timeout. retry.backoff. reconnect.backoff. metadata. metric "
    "send.buffer.bytes receive.buffer.bytes connections.max.idle.ms client.dns.lookup "
    "enable.metrics.push auto.include.jmx.reporter security.providers config.providers"
).split()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    connection: Connection
    producer: ProducerSettings
    topic: str | None


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises `BadOption`."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        _check(name)
    return SinkOptions(
        read_connection(given),
        ProducerSettings(
            acks=_acks(given),
            codec=_codec(given),
            batch_bytes=_whole(given, "kafka.batch.size", _DEFAULTS.batch_bytes),
            linger_s=_whole(given, "kafka.linger.ms", 0, least=0) / 1000,
            buffer_bytes=_whole(given, "kafka.buffer.memory", _DEFAULTS.buffer_bytes),
            delivery_timeout_s=_whole(given, "kafka.delivery.timeout.ms", 120_000) / 1000,
            request_timeout_s=_whole(given, "kafka.request.timeout.ms", 30_000) / 1000,
        ),
        given.get("topic", "").strip() or None,
    )


def _check(name: str) -> None:
    if name in SUPPORTED or name in _OF_SPARK:
        return
    if name in NOTED:
        log.warning("option %s has no effect: %s", name, NOTED[name])
        return
    if name in REFUSED:
        raise BadOption(f"option {name!r} is not supported: {REFUSED[name]}")
    shared = find(name) if name.removeprefix(KAFKA).startswith(tuple(_SHARED)) else None
    if shared is None:
        other = find(name)
        if other is not None and other.scope is not Scope.SINK:
            raise BadOption(f"option {other.name!r} is for reading")
        close = difflib.get_close_matches(name, [*SUPPORTED, *NOTED], n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see docs/spark-sinks.md for all"
        raise BadOption(f"there is no option {name!r}: {hint}")
    if shared.status is Status.REFUSED:
        raise BadOption(f"option {shared.name!r} is not supported: {shared.word}")
    if shared.status is Status.NOTED:
        log.warning("option %s has no effect: %s", shared.name, shared.word)


def _acks(given: Mapping[str, str]) -> int:
    text = given.get("kafka.acks", "all").strip().lower()
    if text not in ("all", "-1", "1", "0"):
        raise BadOption(f"kafka.acks={text}: allowed: all, 1, 0")
    return -1 if text == "all" else int(text)


def _codec(given: Mapping[str, str]) -> Compression:
    text = given.get("kafka.compression.type", "none").strip().lower()
    try:
        return Compression[text.upper()]
    except KeyError:
        allowed = ", ".join(codec.name.lower() for codec in Compression)
        raise BadOption(f"kafka.compression.type={text}: allowed: {allowed}") from None


def _whole(given: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    text = given.get(name, str(default)).strip()
    if not text.isdecimal() or int(text) < least:
        raise BadOption(f"{name}={text}: allowed: whole numbers from {least} on")
    return int(text)
