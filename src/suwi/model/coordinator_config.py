"""The configuration of the transaction and group coordinators: Kafka's key names.

`check_consumer_groups` holds the keys of KIP-848 against each other, as Kafka does at its start.
"""

from dataclasses import dataclass

from suwi.model.config_kinds import INT32_MAX, BadConfig, boolean, int32, key, list_of, one_of
from suwi.model.security_config import SecurityConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(SecurityConfig):
    """A base of `BrokerConfig`."""

    transaction_state_log_num_partitions: int = key(int32(1), 50).doc(
        "The partitions of __transaction_state; it is made when the first transactional producer "
        "asks for its coordinator."
    )
    transaction_state_log_replication_factor: int = key(int32(1), 3).doc(
        "The replicas of __transaction_state. Brokers in one process: at most as many as there are."
    )
    transaction_state_log_min_isr: int = key(int32(1), 2).doc(
        "min.insync.replicas of __transaction_state. If it has fewer replicas than asked for: at "
        "most one less than these."
    )
    transaction_state_log_segment_bytes: int = key(int32(1), 100 * 1024 * 1024).doc(
        "The segment size of __transaction_state: small, so that it loads and compacts fast."
    )
    transaction_max_timeout_ms: int = key(int32(1), 900_000).doc(
        "The longest transaction time-out that a producer may ask for."
    )
    transactional_id_expiration_ms: int = key(int32(1), 604_800_000).doc(
        "How long a transactional id without an open transaction is kept since it was last used."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = key(int32(1), 10_000).doc(
        "How often transactions to abort because of their time-out are looked for."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(int32(1), 3_600_000).doc(
        "How often transactional ids to forget are looked for."
    )
    transaction_partition_verification_enable: bool = key(boolean(), True).doc(
        "Whether the first write of a transaction to a partition is verified with the transaction "
        "coordinator, so that a late one cannot open a transaction that nobody ends. Clients of "
        "transaction version 2 are always verified."
    )
    offsets_topic_num_partitions: int = key(int32(1), 50).doc(
        "The partitions of __consumer_offsets; it is made when the first group asks for it."
    )
    offsets_topic_replication_factor: int = key(int32(1), 3).doc(
        "The replicas of __consumer_offsets. Brokers in one process: at most as many as there are."
    )
    offsets_topic_segment_bytes: int = key(int32(1), 100 * 1024 * 1024).doc(
        "The segment size of __consumer_offsets: small, so that it loads and compacts fast."
    )
    offsets_retention_minutes: int = key(int32(1), 10_080).doc(
        "How long the offsets of a group are kept that has no members, or of a topic that it no "
        "longer reads."
    )
    offsets_retention_check_interval_ms: int = key(int32(1), 600_000).doc(
        "How often offsets to forget are looked for."
    )
    offsets_commit_timeout_ms: int = key(int32(1), 5_000).doc(
        "How long a request of a group waits until its records are committed."
    )
    offset_metadata_max_bytes: int = key(int32(0), 4096).doc(
        "How long the text may be that is stored with an offset."
    )
    group_initial_rebalance_delay_ms: int = key(int32(0), 3_000).doc(
        "How long the first rebalance of an empty group waits for more members."
    )
    group_min_session_timeout_ms: int = key(int32(1), 6_000).doc(
        "The shortest session time-out that a member may ask for."
    )
    group_max_session_timeout_ms: int = key(int32(1), 1_800_000).doc(
        "The longest session time-out that a member may ask for."
    )
    group_max_size: int = key(int32(1), INT32_MAX).doc("How many members a group may have.")
    group_consumer_session_timeout_ms: int = key(int32(1), 45_000).doc(
        "group.protocol=consumer: how long a member may be silent before it is removed. A group "
        "may have its own: consumer.session.timeout.ms."
    )
    group_consumer_min_session_timeout_ms: int = key(int32(1), 45_000).doc(
        "The least that a group may set as its session time-out."
    )
    group_consumer_max_session_timeout_ms: int = key(int32(1), 60_000).doc(
        "The most that a group may set as its session time-out."
    )
    group_consumer_heartbeat_interval_ms: int = key(int32(1), 5_000).doc(
        "group.protocol=consumer: how often members are told to send a heartbeat. A group may have "
        "its own: consumer.heartbeat.interval.ms."
    )
    group_consumer_min_heartbeat_interval_ms: int = key(int32(1), 5_000).doc(
        "The least that a group may set as its heartbeat interval."
    )
    group_consumer_max_heartbeat_interval_ms: int = key(int32(1), 15_000).doc(
        "The most that a group may set as its heartbeat interval."
    )
    group_consumer_assignment_interval_ms: int = key(int32(0), 1_000).doc(
        "group.protocol=consumer: the least time between two assignments of a group. A group may "
        "have its own: consumer.assignment.interval.ms."
    )
    group_consumer_min_assignment_interval_ms: int = key(int32(0), 0).doc(
        "The least that a group may set as its assignment interval."
    )
    group_consumer_max_assignment_interval_ms: int = key(int32(0), 15_000).doc(
        "The most that a group may set as its assignment interval."
    )
    group_consumer_max_size: int = key(int32(1), INT32_MAX).doc(
        "group.protocol=consumer: how many members a group may have."
    )
    group_consumer_assignors: tuple[str, ...] = key(
        list_of("uniform", "range"), ("uniform", "range")
    ).doc(
        "group.protocol=consumer: how partitions may be assigned; the first is for members that "
        "name none."
    )
    group_consumer_migration_policy: str = key(
        one_of("bidirectional", "upgrade", "downgrade", "disabled", any_case=True), "bidirectional"
    ).doc(
        "Whether a group with members may change from the classic protocol to the consumer "
        "protocol (upgrade) and back (downgrade)."
    )
    group_consumer_regex_refresh_interval_ms: int = key(int32(10_000), 600_000).doc(
        "group.protocol=consumer: how often topics are matched anew with the regular expressions "
        "of members."
    )


def consumer_group_limits(broker: CoordinatorConfig) -> dict[str, tuple[int, int]]:
    """The least and the most that a group may set, by the attribute of `DynamicGroupConfig`."""
    return {
        "consumer_session_timeout_ms": (
            broker.group_consumer_min_session_timeout_ms,
            broker.group_consumer_max_session_timeout_ms,
        ),
        "consumer_heartbeat_interval_ms": (
            broker.group_consumer_min_heartbeat_interval_ms,
            broker.group_consumer_max_heartbeat_interval_ms,
        ),
        "consumer_assignment_interval_ms": (
            broker.group_consumer_min_assignment_interval_ms,
            broker.group_consumer_max_assignment_interval_ms,
        ),
    }


def check_consumer_groups(config: CoordinatorConfig) -> None:
    """Raises `BadConfig`."""
    for attribute, (least, most) in consumer_group_limits(config).items():
        value = getattr(config, f"group_{attribute}")
        if not least <= value <= most:
            name = attribute.removeprefix("consumer_").replace("_", ".")
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
