"""Counts of ISR changes and losses in the partitions led here, for metrics."""

from dataclasses import dataclass

from suwi.model.ids import NodeId


@dataclass(slots=True)
class ReplicationStats:
    isr_shrinks: int = 0
    isr_expands: int = 0
    losses: int = 0

    def isr_changed(self, before: frozenset[NodeId], after: frozenset[NodeId]) -> None:
        self.isr_shrinks += bool(before - after)
        self.isr_expands += bool(after - before)
