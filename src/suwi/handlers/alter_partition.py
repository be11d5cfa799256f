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
from suwi.handlers.slices import SlicedResponse, sliced
from suwi.metadata.image import PartitionState
from suwi.model.errors import BrokerError, error_of
from suwi.model.ids import NO_NODE, NO_TOPIC_ID, LeaderEpoch, NodeId
from suwi.net.answers import Reply
from suwi.net.dispatch import Request

_BROKER_EPOCHS_FROM = 3
_NOBODY = PartitionState(NO_NODE, LeaderEpoch(-1), -1, (), ())


async def alter_partition(controller: ControllerElection, request: Request) -> Reply:
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
        results = await controller.active.partitions.propose(sender, asked.broker_epoch, proposals)
    except BrokerError as error:
        code, _ = error_of(error)
        return reply(request, {"error_code": code, "topics": ()})
    answers = {
        (proposal.topic_id, proposal.partition): _answer(proposal, result)
        async for proposal, result in sliced(request, zip(proposals, results, strict=True))
    }
    response = SlicedResponse(request)
    await response.put_by_topic("topic_id", answers.items(), lambda _, answer: answer)
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
    code = ErrorCode.none
    if isinstance(result, BrokerError):
        code, result = error_of(result)[0], _NOBODY
    elif result.leader_epoch != asked.proposal.leader_epoch:
        code = ErrorCode.new_leader_elected
    return {
        "partition_index": asked.partition,
        "error_code": code,
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": int(result.is_recovering),
        "partition_epoch": result.partition_epoch,
    }
