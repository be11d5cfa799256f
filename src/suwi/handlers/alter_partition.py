"""AlterPartition v2-v3, between brokers. A leader asks the controller to change the ISR.

v3: ISR members with their broker epochs (KIP-903). A leader that leaves itself out of the ISR
resigns; the response is NEW_LEADER_ELECTED. A follower may leave itself out, nothing else; with
leader recovery state 1 it will discard its log, and there is a new leader epoch.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from suwi.controller.controller_election import ControllerElection
from suwi.controller.proposed_isr import ANY_EPOCH, ProposedIsr
from suwi.controller.replication_control import TopicProposal
from suwi.handlers.errors import reply
from suwi.handlers.slices import SlicedResponse, by_topic, sliced
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError, error_of
from suwi.model.ids import NO_NODE, NO_TOPIC_ID, NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_BROKER_EPOCHS_FROM = 3


class AlterPartition:
    def __init__(self, controller: ControllerElection) -> None:
        self._controller = controller

    async def __call__(self, request: Request) -> Reply:
        asked = request.message
        sender = NodeId(asked.broker_id)
        named = ((topic, each) for topic in asked.topics for each in topic.partitions)
        proposals = [
            TopicProposal(
                topic.topic_id or NO_TOPIC_ID, p.partition_index, _proposal(p, request.version)
            )
            async for topic, p in sliced(request, named)
        ]
        try:
            results = await self._controller.active.partitions.propose(
                sender, asked.broker_epoch, proposals
            )
        except BrokerError as error:
            code, _ = error_of(error)
            return reply(request, {"throttle_time": 0, "error_code": code, "topics": ()})
        answers = {
            (proposal.topic_id, proposal.partition): _answer(proposal, result)
            async for proposal, result in sliced(request, zip(proposals, results, strict=True))
        }
        response = SlicedResponse(request)
        for topic_id, partitions in (await by_topic(request, answers.items())).items():
            if response.begin_topic(topic_id=topic_id):
                await request.next_slice()
            for _, answer in partitions:
                if response.add(answer):
                    await request.next_slice()
        return response.reply(error_code=ErrorCode.none)


def _proposal(asked: Any, version: int) -> ProposedIsr:
    if version < _BROKER_EPOCHS_FROM:
        members = tuple((NodeId(node), ANY_EPOCH) for node in asked.new_isr)
    else:
        members = tuple((NodeId(m.broker_id), m.broker_epoch) for m in asked.new_isr_with_epochs)
    return ProposedIsr(
        asked.leader_epoch, asked.partition_epoch, members, asked.leader_recovery_state == 1
    )


def _answer(asked: TopicProposal, result: PartitionState | BrokerError) -> dict[str, Any]:
    if isinstance(result, BrokerError):
        return {
            "partition_index": asked.partition,
            "error_code": error_of(result)[0],
            "leader_id": NO_NODE,
            "leader_epoch": -1,
            "isr": (),
            "leader_recovery_state": 0,
            "partition_epoch": -1,
        }
    is_deposed = result.leader_epoch != asked.proposal.leader_epoch
    return {
        "partition_index": asked.partition,
        "error_code": ErrorCode.new_leader_elected if is_deposed else ErrorCode.none,
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": int(result.is_recovering),
        "partition_epoch": result.partition_epoch,
    }
