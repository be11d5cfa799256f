"""TxnOffsetCommit v0-v5. v2: leader epoch. v3: members. v4: TRANSACTION_ABORTABLE. v5: the commit
adds the offsets' partition to the transaction (KIP-890).

The first commit of a transaction is verified with the transaction coordinator. Whether the member
may commit is decided in the same step as the append (hazard T14).
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from suwi.coordinator.decision import Decision, Token, TransactionalProducer
from suwi.coordinator.runtime import CoordinatorRuntime
from suwi.group.coordinator_shard import GroupCoordinatorShard
from suwi.group.offset_requests import Committer
from suwi.handlers.coordinator_requests import ask, coordinator_error
from suwi.handlers.offset_commit import Asked, check_partition, encode_errors, offsets_to_commit
from suwi.handlers.verification import (
    TXN_OFFSET_COMMIT_ADDS_FROM,
    Verifier,
    txn_offset_commit_refusal,
)
from suwi.model.ids import NO_SEQUENCE
from suwi.net.answers import Exclusive, Reply
from suwi.net.dispatch import Request
from suwi.replica.partition_transactions import NOT_VERIFIED, VerificationGuard
from suwi.replica.replica_manager import ReplicaManager

_LEADER_EPOCH_FROM: Final = 2
_MEMBERS_FROM: Final = 3


class TxnOffsetCommit:
    def __init__(
        self,
        groups: CoordinatorRuntime,
        replicas: ReplicaManager,
        verifier: Verifier,
        metadata_bytes_max: int,
    ) -> None:
        self._groups = groups
        self._replicas = replicas
        self._verifier = verifier
        self._metadata_bytes_max = metadata_bytes_max

    def __call__(self, request: Request) -> Exclusive:
        return Exclusive(self._answer(request))

    async def _answer(self, request: Request) -> Reply:
        image = self._replicas.image
        topics = [
            (
                topic,
                [
                    check_partition(image.topics.get(topic.name), each, self._metadata_bytes_max)
                    for each in topic.partitions
                ],
            )
            for topic in request.message.topics
        ]
        checked = [each for _, partitions in topics for each in partitions if each.error is None]
        errors = await self._commit(request, checked) if checked else []
        return encode_errors(request, topics, errors)

    async def _commit(self, request: Request, checked: list[Asked]) -> list[ErrorCode]:
        """The error of each offset."""
        asked = request.message
        if not asked.group_id:
            return [ErrorCode.invalid_group_id] * len(checked)
        try:
            refusal, guard = await self._verify(asked, request.version)
            if refusal is not ErrorCode.none:
                return [refusal] * len(checked)
            producer = TransactionalProducer(asked.producer_id, asked.producer_epoch, guard)
            who = _committer(asked, request.version, producer)

            def decide(
                shard: GroupCoordinatorShard, token: Token, now_ms: int, decision: Decision
            ) -> None:
                has_epochs = request.version >= _LEADER_EPOCH_FROM
                offsets = offsets_to_commit(checked, now_ms, has_leader_epochs=has_epochs)
                shard.offset_requests.commit(who, offsets, token, now_ms, decision)

            errors: list[ErrorCode] = await ask(self._groups, asked.group_id, decide)
            return errors
        except Exception as error:
            code = coordinator_error(error)
            if code is ErrorCode.invalid_txn_state:  # It has ended since it was verified.
                code = txn_offset_commit_refusal(code, request.version)
            return [code] * len(checked)

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
