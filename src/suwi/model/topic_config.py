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
        list_of("delete", "compact"),
        ("delete",),
        "What happens to old segments: delete, compact, or both.",
        broker="log.cleanup.policy",
    )
    compression_type: str = key(
        one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "The compression of stored batches; `producer` keeps the producer's.",
        broker="compression.type",
    )
    delete_retention_ms: int = key(
        int64(0),
        86_400_000,
        "How long a tombstone is kept after its key was compacted.",
        broker="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = key(
        int64(0),
        60_000,
        "How long the files of a deleted segment stay on disk.",
        broker="log.segment.delete.delay.ms",
    )
    flush_messages: int = key(
        int64(1),
        INT64_MAX,
        "Sync the log to disk after this many records; 1 syncs before each acknowledgement.",
        broker="log.flush.interval.messages",
    )
    flush_ms: int = key(
        int64(0),
        INT64_MAX,
        "Sync the log to disk when a record has waited this long.",
        broker="log.flush.interval.ms",
    )
    index_interval_bytes: int = key(
        int32(0),
        4096,
        "The log has one index entry for about this many bytes.",
        broker="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = key(
        int64(1),
        INT64_MAX,
        "A record is compacted at the latest after this time.",
        broker="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = key(
        int32(0),
        1_048_588,
        "The largest record batch that is accepted.",
        broker="message.max.bytes",
    )
    message_timestamp_after_max_ms: int = key(
        int64(0),
        3_600_000,
        "How far a record's timestamp may be in the future.",
        broker="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = key(
        int64(0),
        INT64_MAX,
        "How far a record's timestamp may be in the past.",
        broker="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = key(
        one_of("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whether a record carries the producer's time or the time it was appended.",
        broker="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = key(
        double(0, 1),
        0.5,
        "A log is compacted when at least this share of it is not compacted yet.",
        broker="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = key(
        int64(0),
        0,
        "A record stays uncompacted at least this long.",
        broker="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = key(
        int32(1),
        1,
        "With acks=all, how many replicas must be in sync for a write to be accepted.",
        broker="min.insync.replicas",
    )
    preallocate: bool = key(
        boolean(),
        False,
        "Whether a new segment's file is created at its full size.",
        broker="log.preallocate",
    )
    retention_bytes: int = key(
        int64(-1),
        -1,
        "A partition's log is kept below this size by deleting old segments; -1: no limit.",
        broker="log.retention.bytes",
    )
    retention_ms: int = key(
        int64(-1),
        604_800_000,
        "Segments whose newest record is older than this are deleted; -1: no limit.",
        broker=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", _MINUTE_MS),
            ("log.retention.hours", _HOUR_MS),
        ),
    )
    segment_bytes: int = key(
        int32(_SEGMENT_BYTES_MIN),
        1_073_741_824,
        "A segment's log file is rolled before it grows past this size.",
        broker="log.segment.bytes",
    )
    segment_index_bytes: int = key(
        int32(16),
        10_485_760,
        "A segment is rolled when one of its indexes would grow past this size.",
        broker="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = key(
        int64(0),
        0,
        "`segment.ms` is reduced by a random time up to this, so that not all segments roll at "
        "once.",
        broker=(("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)),
    )
    segment_ms: int = key(
        int64(1),
        604_800_000,
        "A segment is rolled when its first record is this old.",
        broker=(("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)),
    )
    unclean_leader_election_enable: bool = key(
        boolean(),
        False,
        "Whether a replica that is not in sync may become leader if no other is available, which "
        "loses records.",
        broker="unclean.leader.election.enable",
    )

    leader_throttled_replicas: frozenset[str] = key(
        THROTTLED_REPLICAS,
        frozenset(),
        "The replicas (PARTITION:BROKER, or * for all) whose brokers, as leaders, limit what "
        "followers outside the ISR copy to leader.replication.throttled.rate.",
        name="leader.replication.throttled.replicas",
    )
    follower_throttled_replicas: frozenset[str] = key(
        THROTTLED_REPLICAS,
        frozenset(),
        "The replicas (PARTITION:BROKER, or * for all) that copy no more than "
        "follower.replication.throttled.rate until they have caught up.",
        name="follower.replication.throttled.replicas",
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
