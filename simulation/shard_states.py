"""What must be equal in two states of a coordinator's shard, and what its timers belong to.

`difference` compares what is persisted, of groups or of transactions, and `broken_timer` looks at
the shard that serves: no member has longer than its session. Both say what is wrong, or None.
"""

from typing import Any

from suwi.coordinator.event import TimerKey
from suwi.coordinator.timers import Timers
from suwi.group.classic_group import ClassicGroup, ClassicState
from suwi.group.group_coordinator_shard import GroupCoordinatorShard
from suwi.transaction.transaction_coordinator_shard import TransactionCoordinatorShard

_SETTLED = (ClassicState.EMPTY, ClassicState.STABLE)
_TIMER_STATES = {
    "join": (ClassicState.PREPARING_REBALANCE,),
    # A member that has not synced is removed even after the leader has assigned.
    "sync": (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE),
}
_ROUNDED_S = 0.01
_MEMBER_TIMERS = ("consumer-session", "consumer-rebalance")


def difference(live: Any, fresh: Any) -> str | None:
    if isinstance(live, TransactionCoordinatorShard):
        return _transactions_differ(live, fresh)
    return _all_groups_differ(live, fresh)


def broken_timer(machine: Any, timers: Timers) -> str | None:
    keys = list(timers.keys())
    if isinstance(machine, TransactionCoordinatorShard):
        return _broken_transaction_timer(machine, keys)
    for key in keys:
        assert isinstance(key, tuple)
        if len(key) > 1:
            broken = _broken_group_timer(machine, key)
            broken = broken or _broken_session(machine, key, timers.left_s(key))
            if broken is not None:
                return broken
    return None


# -- transactions --------------------------------------------------------------------------------


def _transactions_differ(
    live: TransactionCoordinatorShard, fresh: TransactionCoordinatorShard
) -> str | None:
    there, replayed = _indexed(live), _indexed(fresh)
    for transactional_id in {**there, **replayed}:
        if there.get(transactional_id) != replayed.get(transactional_id):
            return (
                f"{transactional_id} is {there.get(transactional_id)}, "
                f"replayed {replayed.get(transactional_id)}"
            )
    return None


def _indexed(shard: TransactionCoordinatorShard) -> dict[str, Any]:
    """All that is known of each id, and whether it is found among the open or the decided ones."""
    known = {**shard.transactions, **shard._prepared, **shard._open_since_ms}
    return {
        each: (shard.transactions.get(each), each in shard._prepared, each in shard._open_since_ms)
        for each in known
    }


def _broken_transaction_timer(
    shard: TransactionCoordinatorShard, timers: list[TimerKey]
) -> str | None:
    for transactional_id in shard._prepared:
        if transactional_id not in shard._sending:
            return f"sends no markers of {transactional_id}, which was decided"
    for transactional_id in shard._sending:
        if transactional_id not in shard._prepared:
            return f"sends markers of {transactional_id}, which has ended"
    for transactional_id in shard._held._by_id:
        if ("held", transactional_id) not in timers:
            return f"holds requests of {transactional_id} without a timer"
    return None


# -- groups --------------------------------------------------------------------------------------


def _broken_group_timer(machine: GroupCoordinatorShard, key: tuple[Any, ...]) -> str | None:
    groups = machine.groups
    consumer = groups.consumer.get(key[1])
    if consumer is not None:
        if key[0] in _MEMBER_TIMERS and key[2] not in consumer.members:
            return f"has a timer {key} of nobody"
        return None
    group = groups.classic.get(key[1])
    if group is None:
        return f"has a timer {key} without a group"
    if key[0] == "session":
        if key[2] not in group.members and key[2] not in group.pending_members:
            return f"has a timer {key} of nobody"
    elif group.state not in _TIMER_STATES[key[0]]:
        return f"has a timer {key} of a group that is {group.state}"
    return None


def _broken_session(
    machine: GroupCoordinatorShard, key: tuple[Any, ...], left_s: float
) -> str | None:
    """A silent member has at most its session left, however long heartbeats were refused (G27)."""
    session_ms = _session_ms(machine, key)
    if session_ms is None or left_s <= session_ms / 1000 + _ROUNDED_S:
        return None
    return f"keeps a member for {left_s:.1f} s by its timer {key}, its session is {session_ms} ms"


def _session_ms(machine: GroupCoordinatorShard, key: tuple[Any, ...]) -> int | None:
    """None where other times count: an id that has not joined, a rebalance."""
    kind, group_id, *rest = key
    consumer, group = machine.groups.consumer.get(group_id), machine.groups.classic.get(group_id)
    if kind == "consumer-session" and consumer is not None:
        subscription = consumer.members[rest[0]].subscription
        classic = subscription.classic if subscription is not None else None
        configured_ms = machine.config.consumer_of(group_id).session_timeout_ms
        return max(configured_ms, classic.session_timeout_ms if classic is not None else 0)
    if kind == "session" and group is not None and group.state is ClassicState.STABLE:
        member = group.members.get(rest[0])
        return member.session_timeout_ms if member is not None else None
    return None


def _all_groups_differ(live: GroupCoordinatorShard, fresh: GroupCoordinatorShard) -> str | None:
    there, replayed = _offsets(live), _offsets(fresh)
    for place in {**there, **replayed}:
        if there.get(place) != replayed.get(place):
            return f"{place} is at {there.get(place)}, replayed {replayed.get(place)}"
    there_groups, replayed_groups = live.groups.classic, fresh.groups.classic
    for group_id in {**there_groups, **replayed_groups}:
        difference = _groups_differ(there_groups.get(group_id), replayed_groups.get(group_id))
        if difference is not None:
            return f"{group_id}: {difference}"
    consumers = {group.group_id: group for group in live.groups.consumer}
    replayed_consumers = {group.group_id: group for group in fresh.groups.consumer}
    if consumers != replayed_consumers:
        return f"the groups are {consumers}, replayed {replayed_consumers}"
    return None


def _offsets(machine: GroupCoordinatorShard) -> dict[tuple[Any, ...], Any]:
    """Each value, and where its record lies: committed, or staged by a producer."""
    found: dict[tuple[Any, ...], Any] = {}
    for group_id, offsets in machine.offsets.persisted():
        for partition, known in offsets._committed.items():
            found[group_id, partition] = known
        for producer_id, staged in offsets._staged.items():
            for partition, known in staged.items():
                found[group_id, partition, producer_id] = known
    return found


def _groups_differ(live: ClassicGroup | None, fresh: ClassicGroup | None) -> str | None:
    persisted = live.persisted if live is not None else None
    replayed = fresh.persisted if fresh is not None else None
    if persisted != replayed:
        return f"persisted is {persisted}, replayed {replayed}"
    if live is None or fresh is None or live.state not in _SETTLED:
        return None
    if _shape(live) != _shape(fresh):
        return f"the group is {_shape(live)}, replayed {_shape(fresh)}"
    return None


def _shape(group: ClassicGroup) -> dict[str, Any]:
    return {
        "state": group.state,
        "generation": group.generation,
        "type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader_id,
        "static": group.static,
        "members": {
            member.member_id: (
                member.instance_id,
                member.metadata_for(group.protocol or ""),
                member.assignment,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
            )
            for member in group.members.values()
        },
    }
