"""The logs of replicas: who leads and appends, which batches follow, what recovery keeps."""

from itertools import pairwise
from uuid import UUID

from suwi.model.ids import NodeId, TopicPartition
from suwi.records.batch import SEQUENCE_MAX
from suwi.sim.checkers.facts import Batch, Broken, Checker, LogId, Replica, World


class Leaders(Checker):
    """At most one leader in each epoch, and only it appends in that epoch.

    Each incarnation of a broker counts separately: after a restart it may not know what it did.
    """

    def __init__(self) -> None:
        self._leaders: dict[tuple[LogId, int], tuple[NodeId, str]] = {}
        self._written: dict[LogId, dict[tuple[int, int], Batch]] = {}
        """What leaders wrote, by epoch and offset."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        if replica.leads:
            self._check_alone(replica)
        for batch in appended:
            if replica.leads:
                self._wrote(replica, batch)
            else:
                self._copied(replica, batch)

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        # A process may be killed after a batch was written and before anybody could see it.
        written = self._written.setdefault(replica.log, {})
        for batch in replica.batches[len(before) :]:
            written.setdefault((batch.epoch, batch.base), batch)

    def _check_alone(self, replica: Replica) -> None:
        epoch = (replica.log, replica.leader_epoch)
        me = (replica.node, replica.incarnation)
        first = self._leaders.setdefault(epoch, me)
        if first != me:
            raise Broken(
                f"{replica.log} has two leaders in epoch {replica.leader_epoch}: "
                f"{first[1]} and {me[1]}"
            )

    def _wrote(self, replica: Replica, batch: Batch) -> None:
        written = self._written.setdefault(replica.log, {})
        if batch.epoch != replica.leader_epoch:
            # What it fetched before its election may only become visible now.
            self._copied(replica, batch)
            return
        known = written.setdefault((batch.epoch, batch.base), batch)
        if known != batch:
            raise Broken(f"{replica} writes {batch} where {known} was written in that epoch")

    def _copied(self, replica: Replica, batch: Batch) -> None:
        if batch.epoch > replica.leader_epoch >= 0:
            raise Broken(f"{replica}, in epoch {replica.leader_epoch}, appends {batch}")
        written = self._written.get(replica.log, {}).get((batch.epoch, batch.base))
        if written != batch:
            raise Broken(f"{replica} appends {batch}, but the leader of that epoch wrote {written}")


class Logs(Checker):
    """Invariants of one log: offsets without gaps, epochs that never decrease, correct sequences.

    Only compaction leaves gaps, and no inspected topic is compacted.
    """

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


class Watermarks(Checker):
    """The order of a replica's offsets; a high watermark never decreases within an epoch."""

    def __init__(self) -> None:
        self._highest: dict[tuple[LogId, int, str], int] = {}
        self._empty: set[tuple[LogId, int, str]] = set()

    def on_truncated(self, world: World, replica: Replica, removed: list[Batch]) -> None:
        state = world.states.get(replica.log)
        # A damaged log is discarded as a whole, but only by a replica that is not needed any more.
        is_out = state is not None and replica.node not in (*state.isr, *state.elr)
        has_kept = bool(replica.batches) and replica.batches[0].base < removed[0].base
        # What an unclean election has lost is truncated, even if it was committed.
        is_lost = world.rules_of(replica.log).unclean_election
        if (is_lost or (is_out and not has_kept)) and not replica.leads:
            self._highest.pop((replica.log, replica.leader_epoch, replica.incarnation), None)

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        marks = (replica.start, replica.stable, replica.watermark, replica.end)
        if sorted(marks) != list(marks):
            raise Broken(
                f"{replica}: start {replica.start} <= stable {replica.stable} <= "
                f"watermark {replica.watermark} <= end {replica.end} does not hold"
            )
        seen = (replica.log, replica.leader_epoch, replica.incarnation)
        is_empty = replica.start == replica.end and not replica.leads
        # A follower without records may restart its log at the base offset of the leader's batch.
        restarts = is_empty and seen in self._empty
        highest = 0 if restarts else self._highest.get(seen, 0)
        if replica.watermark < highest:
            raise Broken(
                f"{replica}: the high watermark decreases from {highest} to {replica.watermark} "
                f"within epoch {replica.leader_epoch}"
            )
        self._highest[seen] = replica.watermark
        if is_empty:
            self._empty.add(seen)
        else:
            self._empty.discard(seen)


class Recovery(Checker):
    """After a crash a log has everything that was written; after a power loss at least all that was
    synced, at its offsets, and beyond that what the drive had, even from before a truncation
    or a deletion.
    """

    def on_reopened(
        self, world: World, replica: Replica, before: list[Batch], safe_end: int | None
    ) -> None:
        after = replica.batches
        if safe_end is not None and before:
            # Segments that retention removed may be back: their removal was not synced.
            after = [batch for batch in after if batch.base >= before[0].base]
        must_have = before if safe_end is None else [b for b in before if b.last < safe_end]
        for old, new in zip(must_have, after, strict=False):
            if old != new:
                raise Broken(f"{replica}: recovery turned {old} into {new}")
        if len(after) < len(must_have):
            raise Broken(f"{replica}: recovery lost {must_have[len(after)]}")
        found = after[len(before) :]
        if replica.leads:
            # The only replica may open its log for the first append, in one step.
            found = [batch for batch in found if batch.epoch != replica.leader_epoch]
        if found and safe_end is None:
            raise Broken(f"{replica}: recovery found {found[0]} that nobody wrote")


class Topics(Checker):
    """No record of a deleted topic appears in another topic of its name.

    So no client may send a batch again that it has sent to a topic which has been deleted since.
    """

    def __init__(self) -> None:
        self._owners: dict[tuple[TopicPartition, int, int], UUID] = {}
        """The topic in which a batch, by offset and checksum, was first seen."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        log = replica.log
        for batch in appended:
            owner = self._owners.setdefault((log.name, batch.base, batch.crc), log.topic_id)
            if owner != log.topic_id:
                raise Broken(f"{replica} has {batch} of an earlier topic of that name")
