"""Bringing proposed in-sync sets to the controller (AlterPartition, KIP-497).

`propose` queues one; all that wait go out in one request, one request at a time, on a connection of
their own. A proposal that could not be delivered is sent again: the controller takes it once, by
its partition epoch.
"""

import asyncio
import logging
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.env.tasks import RESTART, Tasks, cancel_and_wait
from suwi.model.ids import NodeId
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

# Nothing was written, and the same proposal may be made again later by whoever still wants it.
_SETTLED = frozenset({ErrorCode.ineligible_replica, ErrorCode.invalid_request})
# Something has changed that this leader does not know yet: the image will tell.
_OVERTAKEN = frozenset(
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
        self._waiting: dict[Partition, Proposal] = {}
        self._wanted = asyncio.Event()
        self._connection: PeerConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition, proposal: Proposal) -> None:
        self._waiting[partition] = proposal
        self._wanted.set()
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
                await self._wanted.wait()
                self._wanted.clear()
                if await self._send_waiting():
                    pause_s = _PAUSE_S_MIN
                    continue
                self._wanted.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        finally:
            self._hang_up()
            if self._waiting:
                self._wanted.set()

    async def _send_waiting(self) -> bool:
        """Send what waits; False where some of it must be sent again."""
        sent, self._waiting = self._waiting, {}
        sent = {p: proposal for p, proposal in sent.items() if _still_stands(p, proposal)}
        if not sent:
            return True
        retried = sent
        try:
            retried = await self._send(sent)
        except (OSError, MalformedResponse, TimeoutError) as error:
            log.info("controller not reached", extra={"reason": str(error)})
            self._hang_up()
        finally:
            # What was proposed since then is the later word.
            self._waiting = {**retried, **self._waiting}
        return not retried

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _send(self, proposals: dict[Partition, Proposal]) -> dict[Partition, Proposal]:
        """Send them; those that must be sent again."""
        async with asyncio.timeout(_TIMEOUT_S):
            if self._connection is None or not self._connection.is_open:
                self._connection = await self._peers.connect_to_controller()
            answer = await self._connection.call(
                ApiKey.ALTER_PARTITION, _VERSION, self._request(proposals)
            )
        if answer.error_code != ErrorCode.none:
            log.info("proposals refused", extra={"reason": ErrorCode(answer.error_code).name})
            self._hang_up()  # There may be another controller by now.
            return proposals
        by_key = {(p.topic_id, int(p.partition.partition)): p for p in proposals}
        retried = {}
        for topic in answer.topics:
            for outcome in topic.partitions:
                partition = by_key.get((topic.topic_id, outcome.partition_index))
                if partition is None:
                    continue
                try:
                    heard = _heard(partition, proposals[partition], outcome)
                except Exception as error:
                    self._tasks.count("in-sync set proposals", error)
                    heard = True  # The others' answers count all the same.
                if not heard:
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
                    "leader_recovery_state": 0,
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


def _still_stands(partition: Partition, proposal: Proposal) -> bool:
    leader_state = partition.leader_state
    return (
        leader_state is not None
        and leader_state.leader_epoch == proposal.leader_epoch
        and leader_state.partition_epoch == proposal.partition_epoch
    )


def _heard(partition: Partition, proposal: Proposal, outcome: Any) -> bool:
    """Take in the controller's word; whether it was one."""
    error = ErrorCode(outcome.error_code)
    if error == ErrorCode.none:
        # The image brings the new set, in its place among all other changes: a minimum that was
        # raised before must be in force before the set is.
        return True
    log.info(
        "in-sync set refused",
        extra={"partition": str(partition.partition), "reason": error.name},
    )
    if error in _SETTLED:
        partition.refused(proposal, settled=True)
        return True
    if error in _OVERTAKEN:
        partition.refused(proposal, settled=False)
        return True
    return False
