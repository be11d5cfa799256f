"""The timers of classic groups: a member's silence, the time to join, the time to sync."""

from suwi.coordinator.event import Event, PausableTimerKey, TimerKey
from suwi.group.classic_group import ClassicGroup, ClassicMember


def session_timer(group_id: str, member_id: str) -> TimerKey:
    return PausableTimerKey(("session", group_id, member_id))


def join_timer(group_id: str) -> TimerKey:
    return PausableTimerKey(("join", group_id))


def sync_timer(group_id: str) -> TimerKey:
    return PausableTimerKey(("sync", group_id))


def reset_session(group: ClassicGroup, member: ClassicMember, event: Event) -> None:
    key = session_timer(group.group_id, member.member_id)
    event.arm(key, event.now_ms + member.session_timeout_ms)
