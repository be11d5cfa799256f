"""Exactly once into a topic: the transactions of a micro-batch, from the pool to their commit.

The driver calls `prepare` before a batch and `commit` after it. A task attempt calls `begin`,
writes, and leaves its transaction open. What they know of each other comes with the batch
(`Handout`) or is kept by the brokers: the `CommitList`, as the metadata of a group's offsets,
which the driver writes in transactions of its own.

Invariants; they hold by what coordinators do, not by time:
- A transaction is committed only if it is in a stored list. The next `prepare` commits what is in
  the list, and aborts what is not.
- Only the driver that has prepared last can store a list: the transactions of others are fenced.
- A producer id and epoch is used by one attempt. A counter says which one of the pool:
  InitProducerId of one id, which gives another epoch to every caller.
- InitProducerId may arrive late, from a driver that is dead. So an id is used again only if the
  last batch was committed and nobody has prepared since; otherwise ids get new names, with
  the version of the list, and a driver touches no id that is named after a later version.

Of a batch with several outputs the list is in a manifest (`manifest.py`), which decides: there the
driver calls `hand_out` before the batch, and `commit_all` when the manifest is stored.
"""

import asyncio
import logging
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from suwi.client.cluster import Cluster
from suwi.client.coordinator import Coordinator, KeyType, asking
from suwi.client.errors import is_transient
from suwi.client.groups import committed_with_metadata
from suwi.client.identity import Identity, init_producer_id
from suwi.client.retry import Retry
from suwi.client.transaction_admin import list_transactions
from suwi.client.transactions import TransactionalProducer, end_transaction
from suwi.env import SystemClock
from suwi.model.errors import BrokerError
from suwi.model.ids import Offset, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from suwi.spark.options import SinkOptions
from suwi.spark.origin import Origin

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_RANDOM_BYTES: Final = 6
_HEADER: Final = Struct(">16s16s16sqII")
_UNSURE: Final = 1 << 31
"""A flag in the field with the number of transactions."""
_OPEN: Final = Struct(">I6sqh")
_SPARE: Final = Struct(">I6s")
_METADATA_MAX: Final = 4096
"""`offset.metadata.max.bytes`, of one partition."""
_BYTES_OF_PARTITION: Final = _METADATA_MAX // 4 * 3
_FENCED: Final = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.invalid_txn_state,
    }
)
# An id expires some days after its transaction was committed, or was aborted by its time-out.
_EXPIRED: Final = ErrorCode.invalid_producer_id_mapping
# A batch that takes longer than this part of the transactions' time-out is not committed.
_TIMEOUT_SHARE: Final = 0.8


class TransactionsLost(Exception):
    """Transactions that are in the list were aborted by their time-out, or may have been: rows are
    missing, or may be."""


class TooManyTasks(Exception):
    """The list of transactions would not fit into the metadata of the topic's offsets."""


class BatchTooLong(Exception):
    """The batch took so long that its transactions are about to time out, or have."""


class DriverFenced(Exception):
    """Another driver has begun to write under the same prefix."""


class AnotherDriver(Exception):
    """Two drivers write under one checkpoint."""


class Token(NamedTuple):
    """What a transactional id ends with."""

    version: int
    random: bytes


class OpenTransaction(NamedTuple):
    token: Token
    producer: Identity


class CommitList(NamedTuple):
    """What is stored: the last batch that is committed or being committed."""

    version: int = 0
    """Increases with each stored list."""
    query: bytes = bytes(16)
    run: bytes = bytes(16)
    run_before: bytes = bytes(16)
    """Of the batch before."""
    batch: int = -1
    open: tuple[OpenTransaction, ...] = ()
    """Those of the batch; empty: it had no rows, or another batch is prepared."""
    spare: tuple[Token, ...] = ()
    """Ids of the pool that the batch did not use."""
    is_unsure: bool = False
    """Whether ids of the batch have expired, so that nobody knows how its transactions ended."""

    def has(self, origin: Origin) -> bool:
        """Whether the batch is committed. Raises `AnotherDriver` if it cannot be a replay: a driver
        replays only the batch that it begins with. Raises `TransactionsLost` if it is not known."""
        if self.query != _digest(origin.app_id) or self.batch < origin.version:
            return False
        run = _digest(origin.run_id or "")
        if self.run_before == run != self.run:
            raise AnotherDriver(
                f"batch {origin.version} of query {origin.app_id} was written by another run while "
                f"run {origin.run_id} was at it: two drivers use one checkpoint, and this one stops"
            )
        if self.is_unsure:
            # Of an earlier batch it would not matter: Spark goes on only when one is committed.
            raise TransactionsLost(
                f"the query stood still for so long that transactional ids of batch {self.batch} "
                "have expired: nobody knows whether it was committed. With the offsets of the "
                "group PREFIX-transactions deleted the batch is written again, whole, and what is "
                "there of it is there twice"
            )
        return True


class Handout(NamedTuple):
    """What the driver gives to the tasks of a batch, and they give back."""

    driver: Identity
    counter: Identity
    pool: tuple[OpenTransaction, ...]
    last: CommitList
    """The last batch, without its transactions; `version` is this handout's."""
    tasks_max: int
    prepared_ms: int


class BatchTransactions:
    def __init__(self, cluster: Cluster, options: SinkOptions) -> None:
        assert options.transactional_id_prefix is not None
        self._cluster = cluster
        self._clock = SystemClock()
        self._prefix = options.transactional_id_prefix
        self._group = f"{self._prefix}-transactions"
        self._topic = options.topic
        self._producer = options.producer
        self._timeout_ms = options.transaction_timeout_ms

    # -- on the driver ---------------------------------------------------------------------------

    async def prepare(self) -> Handout:
        """End what earlier batches have left, and give the next one ids. Raises `TransactionsLost`,
        `DriverFenced`, a `BrokerError`, OSError."""
        prepared_ms = self._clock.now_ms()
        async with self._driver() as driver:
            await driver.init_transactions()
            places = await self._places()
            last = await self._read()
            is_unsure = await self._commit_listed(driver, last) or last.is_unsure
            # Versions rise even if the brokers have forgotten the last one.
            version = max(last.version + 1, prepared_ms // 1000)
            prepared = last._replace(version=version, open=(), spare=(), is_unsure=is_unsure)
            await self._store(driver, prepared, places)
            tokens = [one.token for one in last.open] + list(last.spare)
            pool = await _all(self._take_over(token) for token in tokens)
            wanted = len(last.open) * 5 // 4 + 1 if last.open else 0
            pool += await _all(self._new(version) for _ in range(wanted - len(pool)))
            await self._abort_leftovers(version, set(tokens))
            return Handout(
                driver.identity,
                await self._init(f"{self._prefix}-counter"),
                tuple(pool),
                prepared,
                _entries_max(len(places)),
                prepared_ms,
            )

    async def commit(
        self, handout: Handout, origin: Origin, transactions: Sequence[OpenTransaction]
    ) -> None:
        """Raises what `prepare` does, `BatchTooLong`, `TooManyTasks`."""
        if transactions:
            self.check_time(handout)
        used = {one.token for one in transactions}
        room = handout.tasks_max - len(transactions)
        spare = [one.token for one in handout.pool if one.token not in used][: max(0, room)]
        listed = CommitList(
            handout.last.version + 1,
            _digest(origin.app_id),
            _digest(origin.run_id or ""),
            handout.last.run,
            origin.version,
            tuple(transactions),
            tuple(spare),
        )
        async with self._driver() as driver:
            await driver.resume(handout.driver)
            await self._store(driver, listed, await self._places())
            await self._commit_listed(driver, listed)
        # Of attempts that were not the first to be done: until it is aborted, readers wait.
        await self.abort(one for one in handout.pool if one.token not in used)

    async def knows(self, query: str) -> bool:
        """Whether the last list is this query's. Raises a `BrokerError`, OSError."""
        return (await self._read()).query == _digest(query)

    async def hand_out(self, version: int, tokens: Collection[Token]) -> Handout:
        """Ids for a batch whose manifest will decide: those of this run's last batch, which are
        free. What others have left open is aborted. Raises a `BrokerError`, OSError."""
        prepared_ms = self._clock.now_ms()
        pool = await _all(self._take_over(token) for token in tokens)
        await self._abort_leftovers(version, set(tokens))
        counter = await self._init(f"{self._prefix}-counter")
        last = CommitList(version)
        return Handout(counter, counter, tuple(pool), last, sys.maxsize, prepared_ms)

    def check_time(self, handout: Handout) -> None:
        """Raises `BatchTooLong`."""
        took_ms = self._clock.now_ms() - handout.prepared_ms
        if took_ms > _TIMEOUT_SHARE * self._timeout_ms:
            raise BatchTooLong(
                f"the batch took {took_ms / 1000:.0f} s: with kafka.transaction.timeout.ms="
                f"{self._timeout_ms} it may take {_TIMEOUT_SHARE:.0%} of that"
            )

    async def commit_all(self, transactions: Iterable[OpenTransaction], manifest: str) -> None:
        """May be repeated. Raises `TransactionsLost`, a `BrokerError`, OSError."""
        ended = await _all(self._end(one, commit=True) for one in transactions)
        lost = sum(code is not None for code in ended)
        if lost:
            raise TransactionsLost(
                f"{lost} of {len(ended)} transactions were aborted before they could be committed, "
                f"or their ids have expired: rows of the batch are missing in the topics of prefix "
                f"{self._prefix!r}. Without the file {manifest} the batch is written again, whole, "
                "and what is there of it is there twice, except in Delta tables that have it"
            )

    async def abort(self, transactions: Iterable[OpenTransaction]) -> None:
        """What cannot be aborted now is aborted by the next `prepare` or by its time-out."""
        ends = (self._end(one, commit=False) for one in transactions)
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(error, Exception):
                log.warning("a transaction was not aborted: %s", error)

    # -- in a task -------------------------------------------------------------------------------

    async def begin(self, handout: Handout, task: int) -> tuple[Token, TransactionalProducer]:
        """A producer whose transaction has begun, for one attempt of a task. Raises `TooManyTasks`,
        a `BrokerError`, OSError."""
        if task >= handout.tasks_max:
            raise _too_many(handout.tasks_max)
        number = await self._init(f"{self._prefix}-counter")
        # Another producer id: its epochs were used up, so the coordinator gave a new one.
        is_counted = number.producer_id == handout.counter.producer_id
        place = number.epoch - handout.counter.epoch - 1
        if is_counted and place < len(handout.pool):
            mine = handout.pool[place]
        else:
            mine = await self._new(handout.last.version)
        producer = TransactionalProducer(
            self._cluster, self._clock, self._id(mine.token), self._producer
        )
        await producer.resume(mine.producer)
        producer.begin()
        return mine.token, producer

    # -- transactional ids -----------------------------------------------------------------------

    def _id(self, token: Token) -> str:
        return f"{self._prefix}-{token.version}-{token.random.hex()}"

    async def _init(self, transactional_id: str) -> Identity:
        """Fence whoever has the id, and abort its transaction."""

        async def ask(coordinator: Coordinator) -> Identity:
            return await self._init_once(coordinator)

        return await asking(self._cluster, transactional_id, ask, KeyType.TRANSACTION)

    async def _init_once(self, coordinator: Coordinator) -> Identity:
        return await init_producer_id(
            coordinator.call, coordinator.key, self._timeout_ms, check=coordinator.check
        )

    async def _take_over(self, token: Token) -> OpenTransaction:
        return OpenTransaction(token, await self._init(self._id(token)))

    async def _new(self, version: int) -> OpenTransaction:
        """An id that nobody has used. After an error it is another one: the first request may
        arrive later, when the id is somebody else's."""
        retry = Retry(self._cluster.settings, self._cluster.random)
        while True:
            token = Token(version, self._cluster.random.token(_RANDOM_BYTES))
            coordinator = Coordinator(
                self._cluster, self._id(token), KeyType.TRANSACTION, shares_connection=True
            )
            try:
                return OpenTransaction(token, await self._init_once(coordinator))
            except (BrokerError, OSError) as error:
                if not is_transient(error):
                    raise
                await retry.pause_or_raise(error)

    async def _abort_leftovers(self, version: int, pool: set[Token]) -> None:
        """Of attempts and batches that failed. A broker that does not answer keeps its own, which
        are aborted later, by their time-out at the latest."""
        prefix = re.escape(self._prefix)
        found = await list_transactions(
            self._cluster, states=["Ongoing"], pattern=f"{prefix}-[0-9]+-[0-9a-f]+"
        )
        ours = re.compile(rf"{prefix}-(\d+)-([0-9a-f]{{{2 * _RANDOM_BYTES}}})")
        matches = (ours.fullmatch(each.transactional_id) for each in found.transactions)
        tokens = {Token(int(match[1]), bytes.fromhex(match[2])) for match in matches if match}
        old = (token for token in sorted(tokens - pool) if token.version < version)
        await _all(self._take_over(token) for token in old)

    async def _end(self, one: OpenTransaction, *, commit: bool) -> ErrorCode | None:
        """None, or the reason why the transaction can no longer end in this way."""
        try:
            await end_transaction(self._cluster, self._id(one.token), one.producer, commit=commit)
        except BrokerError as error:
            if error.code not in _FENCED:
                raise
            return error.code
        return None

    # -- the list --------------------------------------------------------------------------------

    @asynccontextmanager
    async def _driver(self) -> AsyncIterator[TransactionalProducer]:
        producer = TransactionalProducer(self._cluster, self._clock, f"{self._prefix}-driver")
        try:
            yield producer
        finally:
            await producer.close()

    async def _places(self) -> list[TopicPartition]:
        assert self._topic is not None
        topic = await self._cluster.topic(self._topic)
        return [
            TopicPartition(topic.name, PartitionIndex(index))
            for index in range(len(topic.partitions))
        ]

    async def _read(self) -> CommitList:
        found = await committed_with_metadata(self._cluster, self._group, stable_only=True)
        newest = max((each.offset for each in found.values()), default=None)
        if newest is None:
            return CommitList()
        chunks = [found[place].metadata for place in sorted(found) if found[place].offset == newest]
        return decode_list(newest, chunks)

    async def _store(
        self, driver: TransactionalProducer, listed: CommitList, places: Sequence[TopicPartition]
    ) -> None:
        chunks = encode_list(listed)
        if len(chunks) > len(places):
            raise _too_many(_entries_max(len(places)))
        metadata = dict(zip(places, chunks, strict=False))
        offsets = dict.fromkeys(metadata, Offset(listed.version))
        driver.begin()
        try:
            await driver.send_offsets(self._group, offsets, metadata=metadata)
            await driver.commit()
        except BrokerError as error:
            if error.code not in _FENCED:
                raise
            raise DriverFenced(
                f"another driver has begun to write with transactionalIdPrefix={self._prefix}"
            ) from None

    async def _commit_listed(self, driver: TransactionalProducer, listed: CommitList) -> bool:
        """Whether ids have expired. Raises `TransactionsLost`."""
        ended = await _all(self._end(one, commit=True) for one in listed.open)
        lost = sum(code not in (None, _EXPIRED) for code in ended)
        if lost:
            # Unless another driver has committed them since, and gone on. Then this one is fenced.
            again = listed._replace(version=listed.version + 1)
            await self._store(driver, again, await self._places())
            raise TransactionsLost(
                f"of batch {listed.batch}, {lost} of {len(ended)} transactions were aborted before "
                f"they could be committed: their rows are missing in topic "
                f"{self._topic!r}. With the offsets of group {self._group!r} deleted the "
                "batch is written again, whole, and what is there of it is there twice"
            )
        return _EXPIRED in ended


def encode_list(listed: CommitList) -> list[str]:
    """The metadata of offsets, in their order."""
    parts = [
        _HEADER.pack(
            listed.query,
            listed.run,
            listed.run_before,
            listed.batch,
            len(listed.open) | (_UNSURE if listed.is_unsure else 0),
            len(listed.spare),
        )
    ]
    parts += [_OPEN.pack(*one.token, *one.producer) for one in listed.open]
    parts += [_SPARE.pack(*token) for token in listed.spare]
    text = b64encode(b"".join(parts)).decode()
    return [text[start : start + _METADATA_MAX] for start in range(0, len(text), _METADATA_MAX)]


def decode_list(version: int, chunks: Iterable[str]) -> CommitList:
    data = b64decode("".join(chunks))
    query, run, run_before, batch, flagged_count, spare_count = _HEADER.unpack_from(data)
    open_count = flagged_count & ~_UNSURE
    spare_at = _HEADER.size + open_count * _OPEN.size
    end = spare_at + spare_count * _SPARE.size
    assert len(data) == end, "the list of transactions is not whole"
    opened = tuple(
        OpenTransaction(
            Token(token_version, random), Identity(ProducerId(producer), ProducerEpoch(epoch))
        )
        for token_version, random, producer, epoch in _OPEN.iter_unpack(
            data[_HEADER.size : spare_at]
        )
    )
    spare = tuple(Token(*fields) for fields in _SPARE.iter_unpack(data[spare_at:end]))
    is_unsure = flagged_count != open_count
    return CommitList(version, query, run, run_before, batch, opened, spare, is_unsure)


def _entries_max(partitions: int) -> int:
    return (partitions * _BYTES_OF_PARTITION - _HEADER.size) // _OPEN.size


def _too_many(tasks_max: int) -> TooManyTasks:
    return TooManyTasks(
        f"with the partitions that the topic has, a batch may have {tasks_max} tasks that write: "
        "use coalesce(), or fewer spark.sql.shuffle.partitions"
    )


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()


async def _all(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """Run all of them to their end, then raise the first error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]
