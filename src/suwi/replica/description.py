"""The state of a replica as plain values, for `--json` output and admin APIs."""

from dataclasses import asdict, dataclass
from typing import Any

from suwi.model.errors import BrokerError
from suwi.replica.leader_state import Stable, proposed_members
from suwi.replica.partition import Partition


@dataclass(frozen=True, slots=True)
class FollowerState:
    """A follower as its leader sees it."""

    node: int
    end_offset: int
    """-1: the follower has not fetched since this leader took over."""
    lag_ms: int | None
    """Time since the follower was caught up, 0 if it is; None: never under this leader."""
    in_sync: bool


@dataclass(frozen=True, slots=True)
class ReplicaState:
    topic: str
    topic_id: str
    partition: int
    node: int
    role: str
    """`leader`, `follower`, or `waiting` if the partition has no leader."""
    leader: int
    leader_epoch: int
    epochs: tuple[tuple[int, int], ...] = ()
    """Each leader epoch in the log with its first offset, as `leader-epoch-checkpoint` has it. This
    and the offsets are unknown if there is a `problem`."""
    log_start: int = -1
    last_stable: int = -1
    high_watermark: int = -1
    log_end: int = -1
    recovery_point: int = -1
    """Below it everything is synced to the disk."""
    isr: tuple[int, ...] | None = None
    """The ISR as confirmed by the controller; only set on the leader."""
    isr_proposed: tuple[int, ...] | None = None
    """The ISR that the leader has proposed and the controller has not confirmed yet."""
    followers: tuple[FollowerState, ...] = ()
    problem: str | None = None
    """Why the log cannot be read."""

    def as_json(self) -> dict[str, Any]:
        # Not `asdict`, which copies everything: this is asked for ten times a second.
        return {name: getattr(self, name) for name in self.__slots__} | {
            "followers": [asdict(follower) for follower in self.followers]
        }


def describe(partition: Partition, node: int, now_s: float) -> ReplicaState:
    leader_state = partition.leader_state
    facts: dict[str, Any] = {}
    if leader_state is not None:
        in_order = [n for n in leader_state.replicas if n in leader_state.members]
        facts["isr"] = tuple(in_order)
        if not isinstance(leader_state.isr, Stable):
            wanted = proposed_members(leader_state.isr)
            facts["isr_proposed"] = tuple(n for n in leader_state.replicas if n in wanted)
        facts["followers"] = tuple(
            FollowerState(
                follower,
                leader_state.followers[follower].end_offset,
                _lag_ms(partition, leader_state.followers[follower].end_offset, lag_s),
                follower in leader_state.members,
            )
            for follower, lag_s in leader_state.lags(now_s)
        )
    role = (
        "leader" if leader_state is not None else "follower" if partition.leader >= 0 else "waiting"
    )
    try:
        log = partition.log
        facts |= {
            "epochs": tuple(log.epochs.entries()),
            "log_start": log.start_offset,
            "last_stable": partition.last_stable_offset,
            "high_watermark": partition.high_watermark,
            "log_end": log.end_offset,
            "recovery_point": log.recovery_point,
        }
    except BrokerError as error:
        facts["problem"] = str(error)
    tp, leader, epoch = partition.partition, partition.leader, partition.leader_epoch
    topic_id, index = str(partition.topic_id), int(tp.partition)
    return ReplicaState(tp.topic, topic_id, index, node, role, leader, epoch, **facts)


def _lag_ms(partition: Partition, end_offset: int, lag_s: float) -> int | None:
    if partition.is_open and end_offset >= partition.log_as_it_is.end_offset:
        return 0
    return None if lag_s == float("inf") else round(lag_s * 1000)
