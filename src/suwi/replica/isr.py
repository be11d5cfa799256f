"""The set of in-sync replicas as its leader knows it: confirmed, or on its way to be changed.

A leader proposes, the controller confirms (KIP-497). Until then the watermark waits for everyone
who may be a member: those confirmed, and those proposed.
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
    """Whom a commit waits for: every broker that the controller might count as in sync."""
    match isr:
        case Stable(members):
            return members
        case Expanding(members, joining):
            return members | {joining}
        case Shrinking(members, _):
            return members  # Hazard 8: not confirmed yet, so still wait for them.


def proposed_members(isr: Isr) -> frozenset[NodeId]:
    """What the controller is asked to make of it."""
    match isr:
        case Stable(members):
            return members
        case Expanding(members, joining):
            return members | {joining}
        case Shrinking(members, leaving):
            return members - leaving
