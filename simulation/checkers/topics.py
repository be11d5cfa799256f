"""No record of a deleted topic appears in another topic of its name.

So no client may send a batch again that it has sent to a topic which has been deleted since.
"""

from uuid import UUID

from simulation.checkers.facts import Batch, Broken, Checker, Replica, World
from suwi.model.ids import TopicPartition


class Topics(Checker):
    def __init__(self) -> None:
        self._owners: dict[tuple[TopicPartition, int, int], UUID] = {}
        """The topic in which a batch, by offset and checksum, was first seen."""

    def on_replica(self, world: World, replica: Replica, appended: list[Batch]) -> None:
        log = replica.log
        for batch in appended:
            owner = self._owners.setdefault((log.name, batch.base, batch.crc), log.topic_id)
            if owner != log.topic_id:
                raise Broken(f"{replica} has {batch} of an earlier topic of that name")
