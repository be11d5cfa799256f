"""What a deleted topic held stays gone: no record of it shows up in another topic of its name."""

from uuid import UUID

from suwi.model.ids import TopicPartition
from suwi.sim.checkers.facts import Batch, Broken, Checker, Replica, World


class Topics(Checker):
    def __init__(self) -> None:
        self._owners: dict[tuple[TopicPartition, int, int], UUID] = {}
        """Which topic a batch, by its place and checksum, was first seen in."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        log = replica.log
        for batch in appended:
            place = (log.name, batch.base, batch.crc)
            if replica.leads:
                # A client sends what was not acknowledged again, and finds the new topic.
                self._owners[place] = log.topic_id
            owner = self._owners.setdefault(place, log.topic_id)
            if owner != log.topic_id:
                raise Broken(f"{replica} has {batch} of an earlier topic of that name")
