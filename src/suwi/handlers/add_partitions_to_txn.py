"""AddPartitionsToTxn v0-v5. v2: PRODUCER_FENCED. v4: from brokers, of several transactions, adding
or verifying. v5: TRANSACTION_ABORTABLE.

Up to v3 from clients: either all partitions are added, or none.
"""

from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from suwi.coordinator.event import Call
from suwi.env.slices import free_in_slices
from suwi.handlers.coordinator_requests import HASHED_CHARACTERS
from suwi.handlers.errors import reply
from suwi.handlers.slices import SlicedItems, SlicedResponse
from suwi.model.ids import PartitionIndex, TopicPartition
from suwi.model.topic_names import INTERNAL_TOPICS
from suwi.net.answers import Reply
from suwi.net.dispatch import Request
from suwi.replica.replica_manager import ReplicaManager
from suwi.security.acls import CLUSTER_NAME, Operation, ResourceType
from suwi.transaction.transaction_coordinator_shard import (
    TransactionCoordinatorShard,
    TransactionRuntime,
)
from suwi.transaction.transaction_metadata import (
    HELD_MS_MAX_OF_BROKERS,
    TRANSACTION_VERSION_2,
    AddPartitionsRequest,
    Producer,
)
from suwi.transaction.transaction_requests import begin_adding_partitions, errors_of, fenced_as

_PRODUCER_FENCED_FROM: Final = 2
_SEVERAL_FROM: Final = 4
_ABORTABLE_FROM: Final = 5
_ENCODED_AT_ONCE: Final = 16
_TOPICS_OF_ONE: Final = "results_by_topic_v3_and_below"
_TRANSACTIONS: Final = "results_by_transaction"
_TOPICS: Final = "topic_results"
_PARTITIONS: Final = "results_by_partition"


class AddPartitionsToTxn:
    def __init__(self, transactions: TransactionRuntime, replicas: ReplicaManager) -> None:
        self._transactions = transactions
        self._replicas = replicas

    async def __call__(self, request: Request) -> Reply:
        asked, version = request.message, request.version
        if version < _SEVERAL_FROM:
            response = SlicedResponse(request, arrays=(_TOPICS_OF_ONE, _PARTITIONS))
            work = _Work(request, response)
            wanted = AddPartitionsRequest(
                asked.v3_and_below_transactional_id,
                Producer(asked.v3_and_below_producer_id, asked.v3_and_below_producer_epoch),
                await work.partitions(asked.v3_and_below_topics),
            )
            await work.add_results(await self._begin(wanted, work))
            return response.reply()
        if request.refuses(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            refused = {"error_code": ErrorCode.cluster_authorization_failed, _TRANSACTIONS: ()}
            return reply(request, {**refused})
        response = SlicedResponse(request, (_TRANSACTIONS,), arrays=(_TOPICS, _PARTITIONS))
        work = _Work(request, response)
        begun: list[tuple[str, _Begun]] = []
        for each in asked.transactions:
            wanted = AddPartitionsRequest(
                each.transactional_id,
                Producer(each.producer_id, each.producer_epoch),
                await work.partitions(each.topics),
                TRANSACTION_VERSION_2,
                each.verify_only,
                HELD_MS_MAX_OF_BROKERS,
            )
            begun.append((each.transactional_id, await self._begin(wanted, work)))
        transactions = SlicedItems(request, (_TRANSACTIONS,))
        for number, (transactional_id, each) in enumerate(begun, 1):
            await work.add_results(each)
            transactions.add({"transactional_id": transactional_id, _TOPICS: response.topics()})
            if number % _ENCODED_AT_ONCE == 0:
                transactions.encode()
        fields = {"error_code": ErrorCode.none, _TRANSACTIONS: transactions.take()}
        return reply(request, {**fields})

    async def _begin(self, wanted: AddPartitionsRequest, work: "_Work") -> "_Begun":
        image, request, is_refused = self._replicas.image, work.request, False
        is_of_client = request.version < _SEVERAL_FROM
        if is_of_client and request.refuses(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, wanted.transactional_id
        ):
            error = ErrorCode.transactional_id_authorization_failed
            return dict.fromkeys(wanted.partitions, error)
        errors: dict[TopicPartition, ErrorCode] = {}
        for tp in wanted.partitions:
            errors[tp] = ErrorCode.operation_not_attempted
            if is_of_client and (
                tp.topic in INTERNAL_TOPICS
                or request.refuses(Operation.WRITE, ResourceType.TOPIC, tp.topic)
            ):
                errors[tp], is_refused = ErrorCode.topic_authorization_failed, True
            elif image.partition(tp) is None:
                errors[tp], is_refused = ErrorCode.unknown_topic_or_partition, True
            await work.spend()
        await work.spend(len(wanted.transactional_id) // HASHED_CHARACTERS)
        if is_refused:
            return errors
        free_in_slices(errors)
        return begin_adding_partitions(self._transactions, wanted)


_Begun: TypeAlias = Call[TransactionCoordinatorShard] | dict[TopicPartition, ErrorCode]


class _Work(NamedTuple):
    """One request, in slices."""

    request: Request
    response: SlicedResponse

    async def spend(self, cost: int = 1) -> None:
        if self.response.count(cost):
            await self.request.next_slice()

    async def partitions(self, topics: Any) -> tuple[TopicPartition, ...]:
        wanted: dict[TopicPartition, None] = {}
        for topic in topics:
            for index in topic.partitions:
                wanted[TopicPartition(topic.name, PartitionIndex(index))] = None
                await self.spend()
        return tuple(wanted)

    async def add_results(self, begun: _Begun) -> None:
        """By topic, in the order of the request."""
        errors = begun if isinstance(begun, dict) else await errors_of(begun)
        name: str | None = None
        for tp, error in errors.items():
            if tp.topic != name:
                name = tp.topic
                self.response.begin_topic(name=name)
            code = error if isinstance(begun, dict) else _told(error, self.request.version)
            await self.response.put({"partition_index": tp.partition, "partition_error_code": code})


def _told(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    return fenced_as(error, version, _PRODUCER_FENCED_FROM)
