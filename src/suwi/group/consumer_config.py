"""What is configured for consumer groups, and the timers of one."""

from dataclasses import dataclass

from suwi.coordinator.event import PausableTimerKey, TimerKey


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """`group.consumer.*`, as it is in force for one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    """The first is for groups whose members name none."""
    regex_refresh_interval_ms: int = 600_000
    upgrades: bool = True
    """`group.consumer.migration.policy` is `upgrade` or `bidirectional`."""
    downgrades: bool = True
    classic_size_max: int = 2**31 - 1
    classic_session_timeout_ms_range: tuple[int, int] = (6_000, 1_800_000)
    """`group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""


def consumer_session_timer(group_id: str, member_id: str) -> TimerKey:
    return PausableTimerKey(("consumer-session", group_id, member_id))


def consumer_rebalance_timer(group_id: str, member_id: str) -> TimerKey:
    """A member that has to revoke partitions, or one of the classic protocol that has to join."""
    return PausableTimerKey(("consumer-rebalance", group_id, member_id))


def assignment_timer(group_id: str) -> TimerKey:
    return ("consumer-assignment", group_id)


def regex_timer(group_id: str) -> TimerKey:
    return ("consumer-regex", group_id)
