"""The configuration of the group coordinator: Kafka's key names.

`check_consumer_groups` holds the keys of KIP-848 against each other, as Kafka does at its start.
"""

from dataclasses import dataclass

from suwi.model.config_kinds import INT32_MAX, BadConfig, int32, key, list_of, one_of
from suwi.model.transaction_config import TransactionConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(TransactionConfig):
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
    group_consumer_session_timeout_ms: int = key(
        "group.consumer.session.timeout.ms",
        int32(1),
        45_000,
        "group.protocol=consumer: how long a member may be silent before it is removed. A group "
        "may have its own: consumer.session.timeout.ms.",
    )
    group_consumer_min_session_timeout_ms: int = key(
        "group.consumer.min.session.timeout.ms",
        int32(1),
        45_000,
        "The least that a group may set as its session time-out.",
    )
    group_consumer_max_session_timeout_ms: int = key(
        "group.consumer.max.session.timeout.ms",
        int32(1),
        60_000,
        "The most that a group may set as its session time-out.",
    )
    group_consumer_heartbeat_interval_ms: int = key(
        "group.consumer.heartbeat.interval.ms",
        int32(1),
        5_000,
        "group.protocol=consumer: how often members are told to send a heartbeat. A group may have "
        "its own: consumer.heartbeat.interval.ms.",
    )
    group_consumer_min_heartbeat_interval_ms: int = key(
        "group.consumer.min.heartbeat.interval.ms",
        int32(1),
        5_000,
        "The least that a group may set as its heartbeat interval.",
    )
    group_consumer_max_heartbeat_interval_ms: int = key(
        "group.consumer.max.heartbeat.interval.ms",
        int32(1),
        15_000,
        "The most that a group may set as its heartbeat interval.",
    )
    group_consumer_assignment_interval_ms: int = key(
        "group.consumer.assignment.interval.ms",
        int32(0),
        1_000,
        "group.protocol=consumer: the least time between two assignments of a group. A group may "
        "have its own: consumer.assignment.interval.ms.",
    )
    group_consumer_min_assignment_interval_ms: int = key(
        "group.consumer.min.assignment.interval.ms",
        int32(0),
        0,
        "The least that a group may set as its assignment interval.",
    )
    group_consumer_max_assignment_interval_ms: int = key(
        "group.consumer.max.assignment.interval.ms",
        int32(0),
        15_000,
        "The most that a group may set as its assignment interval.",
    )
    group_consumer_max_size: int = key(
        "group.consumer.max.size",
        int32(1),
        INT32_MAX,
        "group.protocol=consumer: how many members a group may have.",
    )
    group_consumer_assignors: tuple[str, ...] = key(
        "group.consumer.assignors",
        list_of("uniform", "range"),
        ("uniform", "range"),
        "group.protocol=consumer: how partitions may be assigned; the first is for members that "
        "name none.",
    )
    group_consumer_migration_policy: str = key(
        "group.consumer.migration.policy",
        one_of("bidirectional", "upgrade", "downgrade", "disabled", any_case=True),
        "bidirectional",
        "Whether a group with members may change from the classic protocol to the consumer "
        "protocol (upgrade) and back (downgrade).",
    )
    group_consumer_regex_refresh_interval_ms: int = key(
        "group.consumer.regex.refresh.interval.ms",
        int32(10_000),
        600_000,
        "group.protocol=consumer: how often topics are matched anew with the regular expressions "
        "of members.",
    )


def check_consumer_groups(config: CoordinatorConfig) -> None:
    """Raises `BadConfig`."""
    for name, least, value, most in (
        (
            "session.timeout.ms",
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        ),
        (
            "heartbeat.interval.ms",
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        ),
        (
            "assignment.interval.ms",
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        ),
    ):
        if not least <= value <= most:
            raise BadConfig(
                f"group.consumer.{name}={value} is not between group.consumer.min.{name}={least} "
                f"and group.consumer.max.{name}={most}"
            )
    session_ms = config.group_consumer_session_timeout_ms
    if config.group_consumer_heartbeat_interval_ms >= session_ms:
        raise BadConfig(
            "group.consumer.heartbeat.interval.ms must be less than "
            f"group.consumer.session.timeout.ms={session_ms}"
        )
    if not config.group_consumer_assignors:
        raise BadConfig("group.consumer.assignors must name at least one")
