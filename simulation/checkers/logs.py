"""Invariants of one log: offsets without gaps, epochs that never decrease, correct sequences.

Only compaction leaves gaps, and no inspected topic is compacted.
"""

from itertools import pairwise

from simulation.checkers.facts import Batch, Broken, Checker, Replica, World
from suwi.records.batch import SEQUENCE_MAX


class Logs(Checker):
    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        at = len(replica.batches) - len(appended)
        before = replica.batches[at - 1] if at else None
        for batch in appended:
            if before is not None:
                self._check_follows(replica, before, batch)
            before = batch
        if before is not None and before.last + 1 != replica.end:
            raise Broken(f"{replica} ends at {replica.end}, but its last batch is {before}")

    def at_end(self, world: World) -> None:
        for replica in world.replicas.values():
            self._check_epoch_file(replica)
            self._check_sequences(replica)

    @staticmethod
    def _check_follows(replica: Replica, before: Batch, batch: Batch) -> None:
        if batch.base != before.last + 1:
            raise Broken(f"{replica}: {batch} does not follow {before}")
        if batch.epoch < before.epoch:
            raise Broken(f"{replica}: the epoch decreases from {before} to {batch}")

    @staticmethod
    def _check_epoch_file(replica: Replica) -> None:
        entries = replica.epochs
        for (epoch, start), (next_epoch, next_start) in pairwise(entries):
            if not (epoch < next_epoch and start < next_start):
                raise Broken(f"{replica}: epochs that do not increase: {entries}")
        for batch in replica.batches:
            if batch.base < replica.start:
                continue
            starts = [epoch for epoch, start in entries if start <= batch.base]
            if not starts or starts[-1] != batch.epoch:
                raise Broken(f"{replica}: {batch} is not in the epochs {entries}")

    @staticmethod
    def _check_sequences(replica: Replica) -> None:
        """Per producer epoch, sequences without gaps, each batch once. What coordinators write in a
        producer's name has none: markers, and offsets of a group."""
        following: dict[tuple[int, int], int] = {}
        for batch in replica.batches:
            if batch.sequence < 0 or batch.base < replica.start:
                continue
            producer = (batch.producer_id, batch.producer_epoch)
            expected = following.get(producer)
            if expected is not None and batch.sequence != expected:
                raise Broken(
                    f"{replica}: {batch} of producer {producer} has sequence {batch.sequence}, "
                    f"not {expected}"
                )
            following[producer] = (batch.sequence + batch.last - batch.base + 1) & SEQUENCE_MAX
