"""The in-sync replicas (ISR) of a partition as its leader sees them: confirmed, or being changed.

The leader proposes a change, the controller confirms it (KIP-497). Until then the high watermark
waits for every replica that may be a member: the confirmed and the proposed ones.
ISR shrink: `replica_manager.py` checks periodically, `leader_state.py` (`out_of_sync_replicas`)
decides, `alter_partition_manager.py` sends the proposal. ISR expansion: `leader_replica.py`
(`record_progress`).
"""

from dataclasses import dataclass
from typing import TypeAlias

from suwi.model.ids import NodeId


@dataclass(frozen=True, slots=True)
class Stable:
    members: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class Expanding:
    members: frozenset[NodeId]
    joining: NodeId


@dataclass(frozen=True, slots=True)
class Shrinking:
    members: frozenset[NodeId]
    leaving: frozenset[NodeId]


Isr: TypeAlias = Stable | Expanding | Shrinking


def possible_members(isr: Isr) -> frozenset[NodeId]:
    """Every replica that the controller may count as in sync; the high watermark waits for them."""
    match isr:
        case Stable(members):
            return members
        case Expanding(members, joining):
            return members | {joining}
        case Shrinking(members, _):
            return members  # Hazard 8: not confirmed yet, so still wait for them.


def proposed_members(isr: Isr) -> frozenset[NodeId]:
    """The ISR that the leader proposes to the controller."""
    match isr:
        case Stable(members):
            return members
        case Expanding(members, joining):
            return members | {joining}
        case Shrinking(members, leaving):
            return members - leaving
