"""The order of a replica's offsets, and that a high watermark never decreases within an epoch."""

from simulation.checkers.facts import Batch, Broken, Checker, LogId, Replica, World


class Watermarks(Checker):
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
