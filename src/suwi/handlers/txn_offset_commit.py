"""TxnOffsetCommit v0-v5. v2: leader epoch. v3: members. v4: TRANSACTION_ABORTABLE. v5: the commit
adds the offsets' partition to the transaction (KIP-890).

The first commit of a transaction is verified with the transaction coordinator. Whether the member
may commit is decided in the same step as the append (hazard T14).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import TransactionalProducer
from suwi.coordinator.runtime import coordinator_error
from suwi.group.classic_group import Committer
from suwi.group.group_coordinator_shard import GroupRuntime
from suwi.group.offset_requests import CheckedTopic, CommitRequest
from suwi.handlers.authorization import on_group, on_transactional_id
from suwi.handlers.offset_commit import FoundTopic, checking, commit, encoding
from suwi.handlers.verification import TXN_OFFSET_COMMIT_ADDS_FROM, txn_offset_commit_refusal
from suwi.model.ids import NO_EPOCH, NO_SEQUENCE
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.partition_transactions import NOT_VERIFIED, VerificationGuard
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import Operation, ResourceType
from suwi.transaction.transaction_verifier import TransactionVerifier
from suwi.wire.offset_commit import CommittedPartition

_LEADER_EPOCH_FROM: Final = 2
_MEMBERS_FROM: Final = 3
_UNKNOWN: Final = ErrorCode.unknown_topic_or_partition


@dataclass(eq=False)
class TxnOffsetCommit:
    _groups: GroupRuntime
    _replicas: ReplicaManager
    _verifier: TransactionVerifier
    _metadata_bytes_max: int

    async def __call__(self, request: Request) -> Reply:
        slices = request.connection.slices
        found = self._find(request)
        topics, to_commit = await slices.run(checking(found, self._metadata_bytes_max))
        errors = await self._commit(request, to_commit) if to_commit else ()
        return await slices.run(encoding(request, topics, errors))

    def _find(self, request: Request) -> Iterator[FoundTopic]:
        known, asked = self._replicas.image.topics, request.message
        has_epochs = request.version >= _LEADER_EPOCH_FROM
        refusal = on_transactional_id(request, Operation.WRITE, asked.transactional_id)
        refusal = refusal or on_group(request, Operation.READ, asked.group_id)
        for topic in asked.topics:
            found, error = known.get(topic.name), _UNKNOWN
            if refusal is not None:
                found, error = None, refusal.code
            elif request.refuses(Operation.READ, ResourceType.TOPIC, topic.name):
                found, error = None, ErrorCode.topic_authorization_failed
            partitions = (_committed(each, has_epochs) for each in topic.partitions)
            yield topic.name, found, error, partitions

    async def _commit(self, request: Request, topics: list[CheckedTopic]) -> Iterable[ErrorCode]:
        """The error of each offset."""
        asked = request.message
        if not asked.group_id:
            return repeat(ErrorCode.invalid_group_id)
        try:
            refusal, guard = await self._verify(asked, request.version)
            if refusal is not ErrorCode.none:
                return repeat(refusal)
            producer = TransactionalProducer(asked.producer_id, asked.producer_epoch, guard)
            who = _committer(asked, request.version, producer)
            errors: list[ErrorCode] = await self._groups.submit(commit(CommitRequest(who, topics)))
            return errors
        except Exception as error:
            code = coordinator_error(error)
            if code is ErrorCode.invalid_txn_state:  # It has ended since it was verified.
                code = txn_offset_commit_refusal(code, request.version)
            return repeat(code)

    async def _verify(self, asked: Any, version: int) -> tuple[ErrorCode, VerificationGuard | None]:
        """Raises a `BrokerError` if this broker is not the coordinator of the group."""
        shard = self._groups.shard_of(asked.group_id)
        adds = version >= TXN_OFFSET_COMMIT_ADDS_FROM
        if not adds and not self._verifier.is_enabled:
            return ErrorCode.none, NOT_VERIFIED
        guard = shard.partition.transactions.begin_verification(
            asked.producer_id, asked.producer_epoch, NO_SEQUENCE, is_implicit=adds
        )
        if guard is None:
            return ErrorCode.none, None
        tp = shard.partition.partition
        errors = await self._verifier.verify(
            asked.transactional_id, asked.producer_id, asked.producer_epoch, [tp], adds=adds
        )
        error = errors[tp]
        if error is not ErrorCode.none:
            return txn_offset_commit_refusal(error, version), None
        return ErrorCode.none, guard


def _committed(partition: Any, has_epochs: bool) -> CommittedPartition:
    leader_epoch = partition.committed_leader_epoch if has_epochs else NO_EPOCH
    return (
        partition.partition_index,
        partition.committed_offset,
        leader_epoch,
        partition.committed_metadata,
    )


def _committer(asked: Any, version: int, producer: TransactionalProducer) -> Committer:
    if version < _MEMBERS_FROM:
        return Committer(asked.group_id, producer=producer)
    return Committer(
        asked.group_id,
        asked.member_id,
        asked.group_instance_id,
        asked.generation_id,
        producer=producer,
    )
