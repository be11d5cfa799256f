"""The configuration of the transaction coordinator: Kafka's key names."""

from dataclasses import dataclass

from suwi.model.config_kinds import boolean, int32, key
from suwi.model.security_config import SecurityConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig(SecurityConfig):
    """A base of `BrokerConfig`."""

    transaction_state_log_num_partitions: int = key(
        "transaction.state.log.num.partitions",
        int32(1),
        50,
        "The partitions of __transaction_state; it is made when the first transactional producer "
        "asks for its coordinator.",
    )
    transaction_state_log_replication_factor: int = key(
        "transaction.state.log.replication.factor",
        int32(1),
        3,
        "The replicas of __transaction_state. Brokers in one process: at most as many as there "
        "are.",
    )
    transaction_state_log_min_isr: int = key(
        "transaction.state.log.min.isr",
        int32(1),
        2,
        "min.insync.replicas of __transaction_state. If it has fewer replicas than asked for: at "
        "most one less than these.",
    )
    transaction_state_log_segment_bytes: int = key(
        "transaction.state.log.segment.bytes",
        int32(1),
        100 * 1024 * 1024,
        "The segment size of __transaction_state: small, so that it loads and compacts fast.",
    )
    transaction_max_timeout_ms: int = key(
        "transaction.max.timeout.ms",
        int32(1),
        900_000,
        "The longest transaction time-out that a producer may ask for.",
    )
    transactional_id_expiration_ms: int = key(
        "transactional.id.expiration.ms",
        int32(1),
        604_800_000,
        "How long a transactional id without an open transaction is kept since it was last used.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        int32(1),
        10_000,
        "How often transactions to abort because of their time-out are looked for.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        int32(1),
        3_600_000,
        "How often transactional ids to forget are looked for.",
    )
    transaction_partition_verification_enable: bool = key(
        "transaction.partition.verification.enable",
        boolean(),
        True,
        "Whether the first write of a transaction to a partition is verified with the transaction "
        "coordinator, so that a late one cannot open a transaction that nobody ends. Clients of "
        "transaction version 2 are always verified.",
    )
