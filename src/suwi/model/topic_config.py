"""The configuration of a topic: Kafka's key names, parsed once.

The fields of `TopicConfig` are the only table of topic keys. The broker-wide default of each is a
broker key (`log.retention.ms` for `retention.ms`).
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from suwi.model.config_kinds import (
    INT64_MAX,
    BadConfig,
    Kind,
    boolean,
    did_you_mean,
    double,
    int32,
    int64,
    key,
    keys_of,
    list_of,
    one_of,
    parse_value,
)

_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000
_SEGMENT_BYTES_MIN = 1024  # 1 MiB in Apache Kafka; tests need smaller segments.


ALL_THROTTLED = "*"


@lru_cache(maxsize=256)  # The same object for the same text: partitions compare it often.
def _read_throttled(value: str) -> frozenset[str]:
    words = [word.strip() for word in value.split(",") if word.strip()]
    if words != [ALL_THROTTLED] and not all(_THROTTLED_REPLICA.fullmatch(word) for word in words):
        raise ValueError
    return frozenset(words)


_THROTTLED_REPLICA = re.compile("[0-9]+:[0-9]+")
THROTTLED_REPLICAS = Kind("list", "a list of PARTITION:BROKER, or *", _read_throttled)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    cleanup_policy: tuple[str, ...] = key(
        list_of("delete", "compact"), ("delete",), broker="log.cleanup.policy"
    ).doc("What happens to old segments: delete, compact, or both.")
    compression_type: str = key(
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        broker="compression.type",
    ).doc("The compression of stored batches; `producer` keeps the producer's.")
    delete_retention_ms: int = key(
        int64(0), 86_400_000, broker="log.cleaner.delete.retention.ms"
    ).doc("How long a tombstone is kept after its key was compacted.")
    file_delete_delay_ms: int = key(int64(0), 60_000, broker="log.segment.delete.delay.ms").doc(
        "How long the files of a deleted segment stay on disk."
    )
    flush_messages: int = key(int64(1), INT64_MAX, broker="log.flush.interval.messages").doc(
        "Sync the log to disk after this many records; 1 syncs before each acknowledgement."
    )
    flush_ms: int = key(int64(0), INT64_MAX, broker="log.flush.interval.ms").doc(
        "Sync the log to disk when a record has waited this long."
    )
    index_interval_bytes: int = key(int32(0), 4096, broker="log.index.interval.bytes").doc(
        "The log has one index entry for about this many bytes."
    )
    max_compaction_lag_ms: int = key(
        int64(1), INT64_MAX, broker="log.cleaner.max.compaction.lag.ms"
    ).doc("A record is compacted at the latest after this time.")
    max_message_bytes: int = key(int32(0), 1_048_588, broker="message.max.bytes").doc(
        "The largest record batch that is accepted."
    )
    message_timestamp_after_max_ms: int = key(
        int64(0), 3_600_000, broker="log.message.timestamp.after.max.ms"
    ).doc("How far a record's timestamp may be in the future.")
    message_timestamp_before_max_ms: int = key(
        int64(0), INT64_MAX, broker="log.message.timestamp.before.max.ms"
    ).doc("How far a record's timestamp may be in the past.")
    message_timestamp_type: str = key(
        one_of("CreateTime", "LogAppendTime"), "CreateTime", broker="log.message.timestamp.type"
    ).doc("Whether a record carries the producer's time or the time it was appended.")
    min_cleanable_dirty_ratio: float = key(
        double(0, 1), 0.5, broker="log.cleaner.min.cleanable.ratio"
    ).doc("A log is compacted when at least this share of it is not compacted yet.")
    min_compaction_lag_ms: int = key(int64(0), 0, broker="log.cleaner.min.compaction.lag.ms").doc(
        "A record stays uncompacted at least this long."
    )
    min_insync_replicas: int = key(int32(1), 1, broker="min.insync.replicas").doc(
        "With acks=all, how many replicas must be in sync for a write to be accepted."
    )
    preallocate: bool = key(boolean(), False, broker="log.preallocate").doc(
        "Whether a new segment's file is created at its full size."
    )
    retention_bytes: int = key(int64(-1), -1, broker="log.retention.bytes").doc(
        "A partition's log is kept below this size by deleting old segments; -1: no limit."
    )
    retention_ms: int = key(
        int64(-1),
        604_800_000,
        broker=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", _MINUTE_MS),
            ("log.retention.hours", _HOUR_MS),
        ),
    ).doc("Segments whose newest record is older than this are deleted; -1: no limit.")
    segment_bytes: int = key(
        int32(_SEGMENT_BYTES_MIN), 1_073_741_824, broker="log.segment.bytes"
    ).doc("A segment's log file is rolled before it grows past this size.")
    segment_index_bytes: int = key(int32(16), 10_485_760, broker="log.index.size.max.bytes").doc(
        "A segment is rolled when one of its indexes would grow past this size."
    )
    segment_jitter_ms: int = key(
        int64(0), 0, broker=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS))
    ).doc(
        "`segment.ms` is reduced by a random time up to this, so that not all segments roll at "
        "once."
    )
    segment_ms: int = key(
        int64(1), 604_800_000, broker=(("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS))
    ).doc("A segment is rolled when its first record is this old.")
    unclean_leader_election_enable: bool = key(
        boolean(), False, broker="unclean.leader.election.enable"
    ).doc(
        "Whether a replica that is not in sync may become leader if no other is available, which "
        "loses records."
    )

    leader_throttled_replicas: frozenset[str] = key(
        THROTTLED_REPLICAS, frozenset(), name="leader.replication.throttled.replicas"
    ).doc(
        "The replicas (PARTITION:BROKER, or * for all) whose brokers, as leaders, limit what "
        "followers outside the ISR copy to leader.replication.throttled.rate."
    )
    follower_throttled_replicas: frozenset[str] = key(
        THROTTLED_REPLICAS, frozenset(), name="follower.replication.throttled.replicas"
    ).doc(
        "The replicas (PARTITION:BROKER, or * for all) that copy no more than "
        "follower.replication.throttled.rate until they have caught up."
    )

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """The age of a segment's first record at which the next append rolls the segment. For
        compacted topics also limited by the compaction lag: the active segment cannot be
        compacted."""
        if "compact" in self.cleanup_policy:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms


TOPIC_KEYS = keys_of(TopicConfig)

# Kafka's topic keys that are accepted without effect: Suwi does not have what they configure.
IGNORED_TOPIC_KEYS = frozenset(
    {
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.zstd.level",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
        "remote.storage.enable",
    }
)


def supported_settings(
    overrides: Mapping[str, str], defaults: TopicConfig
) -> tuple[dict[str, str], list[str]]:
    """The settings that this version knows, and why it refuses each of the others."""
    supported: dict[str, str] = {}
    reasons: list[str] = []
    for name, value in overrides.items():
        try:
            parse_topic_config({name: value}, defaults)
            supported[name] = value
        except BadConfig as error:
            reasons.append(str(error))
    return supported, reasons


def parse_topic_config(overrides: Mapping[str, str], defaults: TopicConfig) -> TopicConfig:
    """The defaults overridden by a topic's own settings. Raises `BadConfig`."""
    changes: dict[str, object] = {}
    for name, value in overrides.items():
        if name in IGNORED_TOPIC_KEYS:
            continue
        if name not in TOPIC_KEYS:
            hint = did_you_mean(name, TOPIC_KEYS)
            raise BadConfig(f"unknown topic configuration {name!r}{hint}")
        attribute, declared = TOPIC_KEYS[name]
        changes[attribute] = parse_value(name, declared.kind, value)
    return dataclasses.replace(defaults, **changes)  # type: ignore[arg-type]
