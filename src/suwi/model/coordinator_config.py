"""The configuration of the group coordinator: Kafka's key names."""

from dataclasses import dataclass

from suwi.model.config_kinds import INT32_MAX, int32, key
from suwi.model.security_config import SecurityConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(SecurityConfig):
    """A base of `BrokerConfig`."""

    offsets_topic_num_partitions: int = key(
        "offsets.topic.num.partitions",
        int32(1),
        50,
        "The partitions of __consumer_offsets; it is made when the first group asks for it.",
    )
    offsets_topic_replication_factor: int = key(
        "offsets.topic.replication.factor",
        int32(1),
        3,
        "The replicas of __consumer_offsets. Brokers in one process: at most as many as there are.",
    )
    offsets_topic_segment_bytes: int = key(
        "offsets.topic.segment.bytes",
        int32(1),
        100 * 1024 * 1024,
        "The segment size of __consumer_offsets: small, so that it loads and compacts fast.",
    )
    offsets_retention_minutes: int = key(
        "offsets.retention.minutes",
        int32(1),
        10_080,
        "How long the offsets of a group are kept that has no members, or of a topic that it no "
        "longer reads.",
    )
    offsets_retention_check_interval_ms: int = key(
        "offsets.retention.check.interval.ms",
        int32(1),
        600_000,
        "How often offsets to forget are looked for.",
    )
    offsets_commit_timeout_ms: int = key(
        "offsets.commit.timeout.ms",
        int32(1),
        5_000,
        "How long a request of a group waits until its records are committed.",
    )
    offset_metadata_max_bytes: int = key(
        "offset.metadata.max.bytes",
        int32(0),
        4096,
        "How long the text may be that is stored with an offset.",
    )
    group_initial_rebalance_delay_ms: int = key(
        "group.initial.rebalance.delay.ms",
        int32(0),
        3_000,
        "How long the first rebalance of an empty group waits for more members.",
    )
    group_min_session_timeout_ms: int = key(
        "group.min.session.timeout.ms",
        int32(1),
        6_000,
        "The shortest session time-out that a member may ask for.",
    )
    group_max_session_timeout_ms: int = key(
        "group.max.session.timeout.ms",
        int32(1),
        1_800_000,
        "The longest session time-out that a member may ask for.",
    )
    group_max_size: int = key(
        "group.max.size", int32(1), INT32_MAX, "How many members a group may have."
    )
