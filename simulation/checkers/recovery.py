"""After a crash a log has everything that was written; after a power loss at least all that was
synced, at its offsets, and beyond that what the drive had, even from before a truncation
or a deletion."""

from simulation.checkers.facts import Batch, Broken, Checker, Replica, World


class Recovery(Checker):
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
