"""A transactional producer: what it writes and the offsets it commits become visible together.

`init_transactions` once, then `begin`, `send` and `send_offsets`, `commit` or `abort`, again and
again. `end_transaction` ends the transaction of another process, by its producer id and epoch.
Two protocols (KIP-890): where the cluster's transaction.version is 2, writing to a partition
registers it and each transaction has its own epoch (TV2); else partitions are registered first
(TV1). Which of them is used is decided before a transaction begins.
Invariant: after an error nothing is sent before the transaction has been aborted; a producer that
was fenced, or whose error leaves the coordinator's state unknown, sends nothing any more.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator, KeyType, asking
from suwi.client.delivery import Delivery
from suwi.client.errors import is_transient
from suwi.client.group_offsets import NO_MEMBER, NO_METADATA, Membership, offset_topics
from suwi.client.identity import NO_IDENTITY, Identities, Identity, init_producer_id
from suwi.client.partition_sender import ProducerSettings
from suwi.client.producer import Producer
from suwi.client.routing import each_partition
from suwi.client.versioned_connection import VersionedConnection
from suwi.env import Clock
from suwi.model.errors import BrokerError, InvalidTxnState, TransactionAbortable, UnsupportedVersion
from suwi.model.features import TRANSACTION_VERSION
from suwi.model.ids import Offset, ProducerEpoch, ProducerId, TopicPartition, by_topic
from suwi.wire.versions import ApiKey

_T = TypeVar("_T")

_TV2: Final = 2
# The first versions of TV2; a request of an older version belongs to TV1.
_TV2_FROM: Final = {ApiKey.PRODUCE: 12, ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}
_ADD_PARTITIONS_AT_MOST: Final = 3  # From version 4 on it is for brokers.
# After these errors an abort does not help: another producer has the id, or the coordinator's state
# does not match this producer's.
_FATAL: Final = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unsupported_version,
    }
)


class State(Enum):
    UNINITIALIZED = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING = auto()
    ABORTING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


class TransactionalProducer(Identities):
    """It is the `Identities` of its `Producer`: it registers partitions and is told of failures."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        transactional_id: str,
        settings: ProducerSettings | None = None,
        *,
        timeout_ms: int = 60_000,
    ) -> None:
        """`timeout_ms`: how long a transaction may be open before the coordinator aborts it."""
        super().__init__(cluster)
        settings = settings or ProducerSettings()
        if not settings.is_idempotent:
            raise ValueError("a transactional producer needs acks=all")
        self.transactional_id: str = transactional_id
        self.state = State.UNINITIALIZED
        self.was_committed: bool | None = None
        """Whether the last transaction that ended was committed; None if none has ended."""
        self._producer = Producer(cluster, clock, settings, self)
        self._timeout_ms = timeout_ms
        self._coordinator = Coordinator(cluster, transactional_id, KeyType.TRANSACTION)
        self._error: Exception | None = None
        self._is_tv2 = False
        self._partitions: dict[TopicPartition, None] = {}
        """Those of the transaction, in the order in which they were first written to."""
        self._unregistered: dict[TopicPartition, None] = {}
        self._groups: dict[str, None] = {}
        self._needs_new_epoch = False
        """The next sequence of a partition, or the coordinator's state, may be unknown."""

    @property
    def identity(self) -> Identity:
        """The producer id and epoch of this transaction, for `end_transaction`."""
        return self.current or NO_IDENTITY

    async def init_transactions(self) -> None:
        """Fence other producers with this id, wait until their transaction has ended, and get an
        epoch."""
        self._expect(State.UNINITIALIZED, State.READY)
        await self._init(NO_IDENTITY)
        self.state = State.READY

    async def resume(self, identity: Identity) -> None:
        """Instead of `init_transactions`, if another process has done that with this result and
        has sent nothing yet. A later `init_transactions` fences both. Nobody else may use the
        identity."""
        self._expect(State.UNINITIALIZED)
        await self._ask(lambda: self._coordinator.link(ApiKey.END_TXN))
        self.current, self.state = identity, State.READY
        self._choose_version()

    def begin(self) -> None:
        self._expect(State.READY)
        self.state = State.IN_TRANSACTION

    async def send(self, topic: str, value: bytes | None, **fields: Any) -> Delivery:
        """As `Producer.send`. If it cannot be delivered the transaction can only be aborted."""
        self._check_no_error()
        if self.state is not State.IN_TRANSACTION:
            raise InvalidTxnState("no transaction was begun")
        return await self._producer.send(topic, value, **fields)

    async def flush(self) -> None:
        """Return when all records are delivered. Raises if one could not be."""
        await self._producer.flush()
        self._check_no_error()

    async def send_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, Offset],
        member: Membership = NO_MEMBER,
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commit the offsets of a group with the transaction."""
        self._expect(State.IN_TRANSACTION)
        if group not in self._groups and not self._is_tv2:
            await self._ask(lambda: self._add_offsets(group))
        self._groups[group] = None
        fields = {
            **self._ids(),
            "group_id": group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "topics": offset_topics(offsets, metadata),
        }
        at_most = self._at_most(ApiKey.TXN_OFFSET_COMMIT)

        async def commit(coordinator: Coordinator) -> None:
            answer = await coordinator.call(ApiKey.TXN_OFFSET_COMMIT, fields, at_most=at_most)
            for _, committed in each_partition(answer.topics):
                coordinator.check(committed)

        await self._noting(asking(self._cluster, group, commit))

    async def commit(self) -> None:
        """Raises the error of what could not be sent: then the transaction must be aborted."""
        if self.state is not State.COMMITTING:  # else it is repeated
            await self.flush()
            self._expect(State.IN_TRANSACTION)
        await self._end(commit=True)

    async def abort(self) -> None:
        """What is not sent yet is dropped."""
        if self.state is State.ABORTABLE_ERROR:
            self._error = None
        self._expect(State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)
        self.state = State.ABORTING
        await self.flush()
        await self._end(commit=False)

    async def close(self) -> None:
        """An open transaction stays open: commit or abort it before, or from another process."""
        await self._producer.close()
        await self._coordinator.close()

    def _expect(self, *states: State) -> None:
        self._check_no_error()
        if self.state not in states:
            raise InvalidTxnState(f"the producer is {self.state.name.lower()}")

    def _check_no_error(self) -> None:
        """Raises the error that allows only to abort the transaction, or to close the producer."""
        if self._error is not None:
            raise self._error

    # -- for the senders -------------------------------------------------------------------------

    @property
    def produce_version_max(self) -> int | None:  # type: ignore[override]
        return self._at_most(ApiKey.PRODUCE)

    async def admit(self, partition: TopicPartition) -> None:
        """Register the partition; those that are new at the same time share a request."""
        self._check_sending()
        if partition in self._partitions:
            return
        self._unregistered[partition] = None
        async with self._lock:
            if partition not in self._partitions:
                new, self._unregistered = self._unregistered, {}
                if not self._is_tv2:
                    await self._ask(lambda: self._add_partitions(new))
                self._partitions |= new
        self._check_sending()

    async def other_than(self, used_up: Identity | None) -> Identity:
        self._check_sending()
        assert self.current is not None
        if self.current == used_up:
            raise TransactionAbortable("the sequence of a partition is unknown; abort")
        return self.current

    def failed(self, error: Exception, *, is_sequence_known: bool) -> None:
        self._needs_new_epoch = self._needs_new_epoch or not is_sequence_known
        self._note(error)

    def _check_sending(self) -> None:
        if self.state is not State.IN_TRANSACTION:
            why = "was aborted" if self._error is None else f"failed: {self._error}"
            raise TransactionAbortable(f"the transaction {why}")

    # -- requests --------------------------------------------------------------------------------

    def _ids(self) -> dict[str, Any]:
        assert self.current is not None
        return _ids(self.transactional_id, self.current)

    def _at_most(self, api: ApiKey) -> int | None:
        return None if self._is_tv2 else _TV2_FROM[api] - 1

    async def _init(self, current: Identity) -> None:
        self.current = await self._ask(
            lambda: init_producer_id(
                self._coordinator.call,
                self.transactional_id,
                self._timeout_ms,
                current,
                self._coordinator.check,
            )
        )
        self._needs_new_epoch = False
        self._choose_version()

    def _choose_version(self) -> None:
        """For the next transaction."""
        link = self._coordinator.current_link
        if link is not None:
            self._is_tv2 = _supports_tv2(link)

    async def _add_offsets(self, group: str) -> None:
        fields = {**self._ids(), "group_id": group}
        answer = await self._coordinator.call(ApiKey.ADD_OFFSETS_TO_TXN, fields)
        self._coordinator.check(answer)

    async def _add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        ids = {f"v3_and_below_{name}": value for name, value in self._ids().items()}
        topics = by_topic(partitions).items()
        named = [{"name": name, "partitions": found} for name, found in topics]
        answer = await self._coordinator.call(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            {**ids, "v3_and_below_topics": named},
            at_most=_ADD_PARTITIONS_AT_MOST,
        )
        for topic in answer.results_by_topic_v3_and_below:
            for result in topic.results_by_partition:
                if result.partition_error_code:
                    raise self._coordinator.refused(result.partition_error_code)

    async def _end(self, *, commit: bool) -> None:
        """May be called again if it is unknown whether the transaction has ended."""
        self.state = State.COMMITTING if commit else State.ABORTING
        if self._partitions or self._groups:
            end = _end_once(self._coordinator, self._ids(), commit, self._is_tv2)
            after = await self._ask(end)
            self._needs_new_epoch = self._needs_new_epoch and after == self.current
            self.current = after
        if self._needs_new_epoch:
            await self._init(self.identity)
        self._partitions, self._unregistered, self._groups = {}, {}, {}
        self.state, self._error, self.was_committed = State.READY, None, commit
        self._choose_version()

    async def _ask(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        return await self._noting(self._coordinator.ask(attempt))

    async def _noting(self, asked: Awaitable[_T]) -> _T:
        try:
            return await asked
        except (BrokerError, OSError) as error:
            self._note(error)
            raise

    def _note(self, error: Exception) -> None:
        if isinstance(error, BrokerError) and error.code in _FATAL:
            self.state, self._error = State.FATAL_ERROR, error
        elif self.state is State.IN_TRANSACTION or (
            self.state is State.COMMITTING and not is_transient(error)
        ):
            self.state, self._error = State.ABORTABLE_ERROR, error
            self._needs_new_epoch = True


async def end_transaction(
    cluster: Cluster, transactional_id: str, identity: Identity, *, commit: bool
) -> None:
    """End the transaction of a producer that no longer runs. May be repeated: an end in the same
    direction succeeds again, until the id is used by another producer. Raises the coordinator's
    error, as that of a transaction which has timed out."""

    async def end(coordinator: Coordinator) -> None:
        is_tv2 = _supports_tv2(await coordinator.link(ApiKey.END_TXN))
        await _end_once(coordinator, _ids(transactional_id, identity), commit, is_tv2)()

    await asking(cluster, transactional_id, end, KeyType.TRANSACTION)


def _ids(transactional_id: str, identity: Identity) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


def _supports_tv2(link: VersionedConnection) -> bool:
    try:
        has_versions = all(link.version(api) >= first for api, first in _TV2_FROM.items())
    except UnsupportedVersion:
        return False
    return has_versions and link.features.get(TRANSACTION_VERSION, 0) >= _TV2


def _end_once(
    coordinator: Coordinator, ids: Mapping[str, Any], commit: bool, is_tv2: bool
) -> Callable[[], Awaitable[Identity]]:
    at_most = None if is_tv2 else _TV2_FROM[ApiKey.END_TXN] - 1

    async def end() -> Identity:
        fields = {**ids, "committed": commit}
        answer = await coordinator.call(ApiKey.END_TXN, fields, at_most=at_most)
        coordinator.check(answer)
        if not is_tv2:
            return Identity(ids["producer_id"], ids["producer_epoch"])
        return Identity(ProducerId(answer.producer_id), ProducerEpoch(answer.producer_epoch))

    return end
