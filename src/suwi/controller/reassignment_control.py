"""The controller's decisions on reassignments and on brokers that leave: computed by pure functions
(`controller/reassignments.py`), written here.

`reassign` is AlterPartitionReassignments, `in_progress` ListPartitionReassignments, `unregister`
UnregisterBroker. A reassignment is completed by whatever change of its partition makes its target
in sync: `PartitionChanges.complete_reassignments`.
Invariant: what is known of a reassignment is in the store, so the next controller continues it.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from suwi.controller.elections import Election
from suwi.controller.metadata_writer import MetadataWriter
from suwi.controller.partition_changes import SLICE_PARTITIONS, PartitionChanges
from suwi.controller.reassignments import cancel, check_target, reassign, reassignments, replicas_on
from suwi.controller.replication_control import ReplicationControl, Results
from suwi.env.slices import in_slices
from suwi.metadata.image import BROKER_CONFIGS, ClusterImage, PartitionState, delete_deletions
from suwi.metadata.metadata_follower import MetadataFollower
from suwi.metadata.store import Delete
from suwi.model.errors import (
    BrokerError,
    BrokerIdNotRegistered,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from suwi.model.ids import NodeId, TopicPartition

log = logging.getLogger(__name__)

_SEEN_AT_ONCE = 1000

Targets = Mapping[TopicPartition, Sequence[int] | None]
"""The new replicas of each partition, or None to cancel its reassignment."""


class ReassignmentControl:
    def __init__(
        self, writer: MetadataWriter, follower: MetadataFollower, partitions: ReplicationControl
    ) -> None:
        self._writer = writer
        self._follower = follower
        self._partitions = partitions

    async def reassign(
        self, targets: Targets, *, allow_replication_factor_change: bool = True
    ) -> Results:
        """Start, override or cancel reassignments. Returns the result of each."""
        decide = partial(
            self._reassign, targets=targets, allow_factor_change=allow_replication_factor_change
        )
        return await self._partitions.decide_in_pieces(targets, decide)

    async def _reassign(
        self, partitions: Sequence[TopicPartition], targets: Targets, allow_factor_change: bool
    ) -> Results:
        image = self._follower.image
        decided = PartitionChanges()
        results: Results = dict.fromkeys(partitions)
        async for tp in in_slices(partitions, SLICE_PARTITIONS):
            target = targets[tp]
            try:
                state = image.partition(tp)
                if state is None:
                    raise UnknownTopicOrPartition(f"{tp} does not exist")
                after = _reassigned(
                    image, state, target, self._partitions.insync_min(tp.topic), allow_factor_change
                )
            except BrokerError as error:
                results[tp] = error
                continue
            if after is not state:
                decided.states[tp] = after
            if after.leader != state.leader:
                decided.elections[tp] = Election.CLEAN
        await self._partitions.write(decided)
        for tp, after in decided.states.items():
            facts = {"partition": str(tp), "replicas": list(after.replicas)}
            if targets[tp] is None:
                log.info("reassignment cancelled", extra=facts)
            elif after.is_reassigning:
                log.info("reassignment started", extra={**facts, "target": targets[tp]})
        return results

    async def in_progress(
        self, asked: Mapping[str, Collection[int]] | None = None
    ) -> dict[TopicPartition, PartitionState]:
        """The partitions that are being reassigned: of all topics, or those `asked` for."""
        found = in_slices(reassignments(self._follower.image, asked), _SEEN_AT_ONCE)
        return {each[0]: each[1] async for each in found if each is not None}

    async def unregister(self, node: NodeId) -> None:
        """A broker that has stopped, and has no replicas, will not return.

        Its registration has ended with its session; what is left of it is deleted here. Raises
        BrokerIdNotRegistered, InvalidRequest.
        """
        await self._writer.run_exclusively(lambda: self._unregister(node))

    async def _unregister(self, node: NodeId) -> None:
        image = self._follower.image
        if node in image.registered_brokers:
            raise InvalidRequest(f"broker {node} is running: stop it first")
        replicas = replicas_on(image, node)
        if replicas:
            raise InvalidRequest(
                f"broker {node} has {len(replicas)} replicas: reassign their partitions first"
            )
        left = delete_deletions(node, image.deletions.get(node, {}))
        if str(node) in image.broker_configs:
            left.append(Delete(f"{BROKER_CONFIGS}{node}"))
        if not left:
            raise BrokerIdNotRegistered(f"broker {node} is not registered")
        await self._writer.write(left)
        log.info("broker removed from the metadata", extra={"broker": node})


def _reassigned(
    image: ClusterImage,
    state: PartitionState,
    target: Sequence[int] | None,
    insync_min: int,
    allow_factor_change: bool,
) -> PartitionState:
    if target is None:
        return cancel(state, image.unfenced_brokers, insync_min=insync_min)
    checked = check_target(
        state,
        target,
        image.registered_brokers,
        insync_min=insync_min,
        allow_replication_factor_change=allow_factor_change,
    )
    return reassign(state, checked)
