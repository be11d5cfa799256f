"""Sends ISR proposals to the controller (AlterPartition, KIP-497): of a leader, or of a follower
that leaves.

`propose` queues a proposal. All queued proposals go out in one request, one request at a time, on a
connection of its own. A proposal that could not be delivered is sent again: the controller applies
it at most once, because it carries a partition epoch.
"""

import asyncio
import logging
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.model.ids import NO_NODE, NodeId
from suwi.replica.leader_state import Proposal
from suwi.replica.partition import Partition
from suwi.replica.peers import HasBrokerEpoch, Peers
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

_VERSION = APIS[ApiKey.ALTER_PARTITION].max_version
_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 1.0
_TIMEOUT_S = 10.0

# The controller wrote nothing. The leader may make the same proposal again later.
_REJECTED = frozenset({ErrorCode.ineligible_replica, ErrorCode.invalid_request})
# The partition changed in a way that this leader has not seen yet: the next image shows it.
_OUTDATED = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.invalid_update_version,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.new_leader_elected,
        ErrorCode.stale_broker_epoch,
    }
)


class AlterPartitionManager:
    def __init__(self, node_id: NodeId, peers: Peers, owner: HasBrokerEpoch, tasks: Tasks) -> None:
        self._node_id = node_id
        self._peers = peers
        self._owner = owner
        self._tasks = tasks
        self._queued: dict[Partition, Proposal] = {}
        self._wakeup = asyncio.Event()
        self._connection: PeerConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        self._queued[partition] = proposal
        self._wakeup.set()
        if self._task is None:
            self._task = self._tasks.start(
                self._run, name="in-sync set proposals", on_failure=RESTART
            )

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        try:
            while True:
                await self._wakeup.wait()
                self._wakeup.clear()
                if await self._send_queued():
                    pause_s = _PAUSE_S_MIN
                    continue
                self._wakeup.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        finally:
            self._disconnect()
            if self._queued:
                self._wakeup.set()

    async def _send_queued(self) -> bool:
        """Send the queued proposals. Returns False if some must be sent again."""
        sent, self._queued = self._queued, {}
        sent = {p: proposal for p, proposal in sent.items() if _is_current(p, proposal)}
        if not sent:
            return True
        retried = sent
        try:
            retried = await self._send(sent)
        except (OSError, MalformedResponse, TimeoutError) as error:
            log.info("alter partition request failed", extra={"reason": str(error)})
            self._disconnect()
        finally:
            # A newer proposal for the same partition replaces the one to be retried.
            self._queued = {**retried, **self._queued}
        return not retried

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _send(self, proposals: dict[Partition, Proposal]) -> dict[Partition, Proposal]:
        """Send the proposals. Returns those that must be sent again."""
        async with asyncio.timeout(_TIMEOUT_S):
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._peers.connect_to_controller()
            answer = await self._connection.call(
                ApiKey.ALTER_PARTITION, _VERSION, self._request(proposals)
            )
        if answer.error_code != ErrorCode.none:
            log.info(
                "alter partition request rejected",
                extra={"reason": ErrorCode(answer.error_code).name},
            )
            self._disconnect()  # Another broker may be the controller now.
            return proposals
        by_key = {(p.topic_id, int(p.partition.partition)): p for p in proposals}
        retried = {}
        for topic in answer.topics:
            for outcome in topic.partitions:
                partition = by_key.get((topic.topic_id, outcome.partition_index))
                if partition is None:
                    continue
                try:
                    is_done = _process_result(partition, proposals[partition], outcome)
                except Exception as error:
                    self._tasks.count("in-sync set proposals", error)
                    is_done = True  # Still process the other results.
                if not is_done:
                    retried[partition] = proposals[partition]
        return retried

    def _request(self, proposals: dict[Partition, Proposal]) -> dict[str, Any]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for partition, proposal in proposals.items():
            topics.setdefault(partition.topic_id, []).append(
                {
                    "partition_index": int(partition.partition.partition),
                    "leader_epoch": proposal.leader_epoch,
                    "new_isr": [node for node, _ in proposal.members],
                    "new_isr_with_epochs": [
                        {"broker_id": node, "broker_epoch": epoch}
                        for node, epoch in proposal.members
                    ],
                    "leader_recovery_state": int(proposal.will_discard),
                    "partition_epoch": proposal.partition_epoch,
                }
            )
        return {
            "broker_id": self._node_id,
            "broker_epoch": self._owner.broker_epoch,
            "topics": [
                {"topic_id": topic_id, "partitions": partitions}
                for topic_id, partitions in topics.items()
            ],
        }


def _is_current(partition: Partition, proposal: Proposal) -> bool:
    leader_state = partition.leader_state
    if leader_state is None:
        return partition.leader != NO_NODE and partition.leader_epoch == proposal.leader_epoch
    return (
        leader_state.leader_epoch == proposal.leader_epoch
        and leader_state.partition_epoch == proposal.partition_epoch
    )


def _process_result(partition: Partition, proposal: Proposal, outcome: Any) -> bool:
    """Process the controller's result. Returns False if the proposal must be sent again."""
    error = ErrorCode(outcome.error_code)
    if error == ErrorCode.none:
        # The image delivers the new ISR, in order with all other changes: an increase of
        # min.insync.replicas that was written before the ISR must take effect before it.
        return True
    log.info(
        "isr change rejected",
        extra={"partition": str(partition.partition), "reason": error.name},
    )
    if error not in _REJECTED | _OUTDATED:
        return False
    if partition.leader_replica is not None:
        partition.leader_replica.refused(proposal, is_final=error in _REJECTED)
    return True
