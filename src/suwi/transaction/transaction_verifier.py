"""Asks transaction coordinators whether partitions are part of an open transaction (KIP-890).

`verify` serves Produce and TxnOffsetCommit. The coordinator of this broker is asked directly, one
on another with AddPartitionsToTxn: questions that come while a request is in flight share the next.
Invariant: a question is answered once, and one connection has at most one request in flight (T23).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.env.tasks import Tasks, cancel_and_wait
from suwi.metadata.image import ClusterImage
from suwi.model.errors import BrokerError
from suwi.model.ids import NO_NODE, NodeId, ProducerEpoch, ProducerId, TopicPartition
from suwi.replica.peers import Peers
from suwi.transaction.transaction_coordinator_shard import TransactionRuntime
from suwi.transaction.transaction_metadata import (
    TRANSACTION_VERSION_2,
    AddPartitionsRequest,
    Producer,
)
from suwi.transaction.transaction_requests import add_partitions
from suwi.wire.errors import MalformedResponse
from suwi.wire.versions import APIS, ApiKey

log = logging.getLogger(__name__)

Errors = dict[TopicPartition, ErrorCode]

_VERSION: Final = APIS[ApiKey.ADD_PARTITIONS_TO_TXN].max_version
_TIMEOUT_S: Final = 10.0
_TRANSACTIONS_MAX: Final = 500
"""The most transactions in one request."""


class _Question(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    adds: bool
    errors: "asyncio.Future[Errors]"

    def answer(self, errors: Errors) -> None:
        if not self.errors.done():
            unanswered = dict.fromkeys(self.partitions, ErrorCode.network_exception)
            self.errors.set_result({**unanswered, **errors})


@dataclass(eq=False)
class TransactionVerifier:
    _node_id: NodeId
    _image: Callable[[], ClusterImage]
    _local: TransactionRuntime
    _peers: Peers
    _is_enabled: Callable[[], bool]
    _tasks: Tasks
    _remote: "dict[NodeId, _RemoteCoordinator]" = field(default_factory=dict)

    @property
    def is_enabled(self) -> bool:
        """Whether writes are verified that do not add their partition to the transaction."""
        return self._is_enabled()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> Errors:
        """Ask whether the partitions are part of the open transaction, or add them to it. The
        error of each; never raises."""
        coordinator = self._coordinator_of(transactional_id)
        if coordinator == NO_NODE:
            return dict.fromkeys(partitions, ErrorCode.coordinator_not_available)
        if coordinator == self._node_id:
            producer = Producer(ProducerId(producer_id), ProducerEpoch(producer_epoch))
            version = TRANSACTION_VERSION_2 if adds else 1
            request = AddPartitionsRequest(
                transactional_id, producer, tuple(partitions), version, verify_only=not adds
            )
            return await add_partitions(self._local, request)
        remote = self._remote.get(coordinator)
        if remote is None:
            remote = _RemoteCoordinator(coordinator, self._peers, self._tasks)
            self._remote[coordinator] = remote
        errors: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()
        remote.ask(
            _Question(
                transactional_id, producer_id, producer_epoch, tuple(partitions), adds, errors
            )
        )
        return await errors

    def _coordinator_of(self, transactional_id: str) -> NodeId:
        try:
            tp = self._local.partition_of(transactional_id)
        except BrokerError:
            return NO_NODE
        state = self._image().partition(tp)
        return state.leader if state is not None else NO_NODE

    async def stop(self) -> None:
        remote, self._remote = self._remote, {}
        for each in remote.values():
            await each.stop()


class _RemoteCoordinator:
    """Another broker that coordinates transactions."""

    def __init__(self, node: NodeId, peers: Peers, tasks: Tasks) -> None:
        self._node = node
        self._peers = peers
        self._tasks = tasks
        self._queued: list[_Question] = []
        self._in_flight: list[_Question] = []
        self._connection: PeerConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def ask(self, question: _Question) -> None:
        self._queued.append(question)
        if self._task is None:
            self._task = self._tasks.start(
                self._empty_queue, name="transaction verification", on_failure=self._failed
            )

    async def stop(self) -> None:
        await cancel_and_wait(self._task)
        self._give_up()

    async def _empty_queue(self) -> None:
        while self._queued:
            self._take()
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    answer = await self._call()
            except (OSError, MalformedResponse, BrokerError) as error:
                self._drop_connection()
                log.warning(
                    "transaction verification failed",
                    extra={"broker": self._node, "reason": str(error) or type(error).__name__},
                )
                self._answer_all({})
            else:
                self._answer_all(_by_transaction(answer))
        self._task = None

    def _failed(self, _error: Exception) -> None:
        self._task = None
        self._give_up()

    def _give_up(self) -> None:
        self._drop_connection()
        self._in_flight += self._queued
        self._queued = []
        self._answer_all({})

    def _take(self) -> None:
        """Take the questions of the next request. A response names transactions by their ids, so a
        request contains each id once."""
        taken: dict[str, _Question] = {}
        left: list[_Question] = []
        for question in self._queued:
            if question.transactional_id in taken or len(taken) == _TRANSACTIONS_MAX:
                left.append(question)
            else:
                taken[question.transactional_id] = question
        self._in_flight, self._queued = list(taken.values()), left

    async def _call(self) -> Any:
        if self._connection is None or not self._connection.is_open:
            self._connection = await self._peers.connect(self._node)
        transactions = [
            {
                "transactional_id": question.transactional_id,
                "producer_id": question.producer_id,
                "producer_epoch": question.producer_epoch,
                "verify_only": not question.adds,
                "topics": [
                    {"name": tp.topic, "partitions": [tp.partition]} for tp in question.partitions
                ],
            }
            for question in self._in_flight
        ]
        return await self._connection.call(
            ApiKey.ADD_PARTITIONS_TO_TXN, _VERSION, {"transactions": transactions}
        )

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _answer_all(self, errors: dict[str, Errors]) -> None:
        in_flight, self._in_flight = self._in_flight, []
        for question in in_flight:
            question.answer(errors.get(question.transactional_id, {}))


def _by_transaction(answer: Any) -> dict[str, Errors]:
    return {
        transaction.transactional_id: {
            TopicPartition(topic.name, each.partition_index): each.partition_error_code
            for topic in transaction.topic_results
            for each in topic.results_by_partition
        }
        for transaction in answer.results_by_transaction
    }
