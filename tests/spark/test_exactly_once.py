"""Exactly once into a topic: what stands there for read_committed, whoever died when.

The writer's steps are called as Spark calls them, each on a writer of its own, without Spark.
"""

import asyncio
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")

import pyarrow as pa
from kio.schema.errors import ErrorCode
from pyspark.sql.types import StringType, StructField, StructType

from suwi.client.addresses import parse_addresses
from suwi.client.cluster import Cluster
from suwi.client.errors import error_from
from suwi.client.identity import Identity
from suwi.client.transaction_admin import ListedTransaction, list_transactions
from suwi.client.transactions import TransactionalProducer
from suwi.env import local_env
from suwi.model.errors import BrokerError
from suwi.model.ids import ProducerEpoch, ProducerId
from suwi.spark import exactly_once, session, topic_writer
from suwi.spark.exactly_once import (
    AnotherDriver,
    BatchTooLong,
    BatchTransactions,
    CommitList,
    DriverFenced,
    OpenTransaction,
    Token,
    TooManyTasks,
    TransactionsLost,
    decode_list,
    encode_list,
)
from suwi.spark.origin import Origin
from suwi.spark.session import close_sessions
from suwi.spark.topic_writer import TaskSent, TopicStreamWriter, stream_writer
from tests.broker_process import BrokerProcess
from tests.spark.topics import committed_values, make_topic

SCHEMA = StructType([StructField("value", StringType())])
PARTITIONS = 3


class Crash(Exception):
    """The process ends here."""


class Query:
    """A query that writes with the prefix `topic`."""

    def __init__(self, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.topic = make_topic(broker.address, partitions=PARTITIONS)
        self.id = "query 1"
        self.run = "run 1"
        self.options = {
            "kafka.bootstrap.servers": broker.address,
            "topic": self.topic,
            "transactionalIdPrefix": self.topic,
        }
        self._patch = monkeypatch

    def writer(self) -> TopicStreamWriter:
        return stream_writer(self.options, SCHEMA, overwrite=False)

    def prepare(self) -> bytes:
        """What Spark sends to the tasks of the next batch."""
        return pickle.dumps(self.writer())

    def attempt(self, prepared: bytes, batch: int, task: int, values: Iterable[str]) -> TaskSent:
        origin = Origin(self.id, batch, self.run)
        self._patch.setattr(topic_writer, "origin_of_task", lambda: origin)
        self._patch.setattr(topic_writer, "task_index", lambda: task)
        rows = pa.RecordBatch.from_pydict({"value": list(values)})
        return pickle.loads(prepared).write(iter([rows]))  # type: ignore[no-any-return]

    def write(self, batch: int, *tasks: Sequence[str]) -> list[TaskSent]:
        prepared = self.prepare()
        return [self.attempt(prepared, batch, task, rows) for task, rows in enumerate(tasks)]

    def commit(self, messages: list[Any], batch: int) -> None:
        self.writer().commit(messages, batch)

    def do(self, batch: int, *tasks: Sequence[str]) -> None:
        self.commit(self.write(batch, *tasks), batch)

    # -- what is seen ----------------------------------------------------------------------------

    def committed(self) -> list[str]:
        return committed_values(self.broker.address, self.topic)

    def ids(self) -> list[ListedTransaction]:
        async def work(cluster: Cluster) -> list[ListedTransaction]:
            found = await list_transactions(cluster)
            prefix = f"{self.topic}-"
            return [one for one in found.transactions if one.transactional_id.startswith(prefix)]

        return self._ask(work)

    def open(self) -> int:
        return sum(one.state == "Ongoing" for one in self.ids())

    def fence(self, transactional_id: str) -> None:
        async def work(cluster: Cluster) -> None:
            producer = TransactionalProducer(cluster, local_env().clock, transactional_id)
            await producer.init_transactions()
            await producer.close()

        self._ask(work)

    def _ask(self, work: Any) -> Any:
        async def run() -> Any:
            addresses = parse_addresses(self.broker.address)
            async with Cluster(addresses, random=local_env().random) as cluster:
                return await work(cluster)

        return asyncio.run(run())


@pytest.fixture
def query(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Any:
    yield Query(broker, monkeypatch)
    close_sessions()


def crash_at(monkeypatch: pytest.MonkeyPatch, name: str, after: int = 0) -> None:
    """Let the driver end where it would do this, after it was done so often."""
    done = 0
    real = getattr(BatchTransactions, name)

    async def call(self: BatchTransactions, *args: Any, **named: Any) -> Any:
        nonlocal done
        done += 1
        if done > after:
            raise Crash
        return await real(self, *args, **named)

    monkeypatch.setattr(BatchTransactions, name, call)


def test_rows_are_seen_when_the_driver_has_committed_and_not_before(query: Query) -> None:
    sent = query.write(0, ["a", "b"], [], ["c"])
    assert [message.rows for message in sent] == [2, 0, 1]
    assert query.committed() == []
    query.commit(sent, 0)
    assert query.committed() == ["a", "b", "c"]
    query.do(1, ["d"], ["e"])
    query.do(2, [], [])
    assert query.committed() == ["a", "b", "c", "d", "e"]
    assert query.open() == 0


def test_a_batch_without_a_list_is_written_anew_and_what_it_left_is_aborted(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.do(0, ["a"])
    sent = query.write(1, ["b"], ["c"])
    with monkeypatch.context() as patch:
        crash_at(patch, "_store")
        with pytest.raises(Crash):
            query.commit(sent, 1)
    assert query.open() == 2
    query.run = "run 2"
    query.do(1, ["b", "c"])
    assert query.committed() == ["a", "b", "c"]
    assert query.open() == 0


@pytest.mark.parametrize("ended", [0, 1])
def test_a_batch_with_a_list_is_committed_by_the_next_driver_and_not_written_again(
    query: Query, monkeypatch: pytest.MonkeyPatch, ended: int
) -> None:
    sent = query.write(0, ["a"], ["b"], ["c"])
    with monkeypatch.context() as patch:
        crash_at(patch, "_end", after=ended)
        with pytest.raises(Crash):
            query.commit(sent, 0)
    query.run = "run 2"
    replayed = query.write(0, ["a", "b"], ["c"])
    assert [message.rows for message in replayed] == [0, 0]
    query.commit(replayed, 0)
    assert query.committed() == ["a", "b", "c"]
    query.do(1, ["d"])
    assert query.committed() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("step", ["_commit_listed", "_store", "_take_over", "_abort_leftovers"])
def test_a_driver_may_die_at_any_step_before_a_batch(
    query: Query, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    query.do(0, ["a"], ["b"])
    query.write(1, ["c"], ["d"])
    for _ in range(2):
        with monkeypatch.context() as patch:
            crash_at(patch, step)
            with pytest.raises(Crash):
                query.prepare()
            if step == "_take_over":
                break  # Nothing is used again after this: it is not called a second time.
    query.run = "run 2"
    query.do(1, ["c", "d"])
    query.do(2, ["e"])
    assert query.committed() == ["a", "b", "c", "d", "e"]
    assert query.open() == 0


def test_of_several_attempts_only_the_one_that_spark_took_is_committed(query: Query) -> None:
    """Retries, speculation, and stages that are run again under the same task and attempt."""
    for batch in range(3):
        prepared = query.prepare()
        attempts = [query.attempt(prepared, batch, 0, [f"{batch}"]) for _ in range(4)]
        other = query.attempt(prepared, batch, 1, [f"{batch}, other"])
        used = {message.transaction for message in [*attempts, other]}
        assert len(used) == 5
        query.commit([attempts[batch], other], batch)
    query.do(3, ["3"], ["3, other"])
    assert query.committed() == [f"{batch}{word}" for batch in range(4) for word in ("", ", other")]
    assert query.open() == 0


def test_attempts_that_spark_did_not_take_do_not_hold_up_readers(query: Query) -> None:
    query.do(0, ["a"], ["b"], ["c"], ["d"])
    prepared = query.prepare()
    (other, taken) = [query.attempt(prepared, 1, 0, ["e"]) for _ in range(2)]
    query.commit([taken], 1)
    assert query.open() == 0
    assert query.committed() == ["a", "b", "c", "d", "e"]
    assert other.transaction != taken.transaction


def test_an_attempt_of_an_earlier_batch_writes_nothing_that_counts(query: Query) -> None:
    query.do(0, ["a"], ["b"])
    prepared = query.prepare()
    writer = pickle.loads(prepared)
    _, late = writer._run(lambda all_: all_.begin(writer._handout, 1))  # It has an id, and hangs.
    query.commit([query.attempt(prepared, 1, 0, ["c"])], 1)
    after = query.prepare()
    sent = [query.attempt(after, 2, task, [f"d{task}"]) for task in range(2)]

    async def go_on() -> None:
        try:
            await late.send(query.topic, b"zombie")
            await late.flush()
        finally:
            await late.close()

    with pytest.raises(BrokerError):
        writer._run(lambda _: go_on())
    query.attempt(prepared, 1, 1, ["zombie"])  # This one has no id yet, and gets another.
    query.commit(sent, 2)
    query.do(3, ["e"])
    assert query.committed() == ["a", "b", "c", "d0", "d1", "e"]
    assert query.open() == 0


def test_a_driver_that_was_replaced_can_store_no_list(query: Query) -> None:
    old = query.write(0, ["a"])
    query.run = "run 2"
    new = query.write(0, ["a"])
    with pytest.raises(DriverFenced, match=f"transactionalIdPrefix={query.topic}"):
        query.commit(old, 0)
    query.commit(new, 0)
    assert query.committed() == ["a"]


def test_a_driver_that_was_replaced_while_it_commits_is_told_so(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = query.write(0, ["a"], ["b"])
    real = BatchTransactions._commit_listed

    async def replaced(self: BatchTransactions, driver: Any, listed: CommitList) -> None:
        monkeypatch.setattr(BatchTransactions, "_commit_listed", real)
        await self.prepare()
        await real(self, driver, listed)

    monkeypatch.setattr(BatchTransactions, "_commit_listed", replaced)
    with pytest.raises(DriverFenced):
        query.commit(sent, 0)
    assert query.committed() == ["a", "b"]


def test_a_late_driver_touches_nothing_of_those_after_it(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has prepared, hangs before the pool is taken over and leftovers are aborted, and goes on
    when another driver's transactions are open."""
    query.do(0, ["a"], ["b"])
    sent: list[TaskSent] = []
    real = BatchTransactions._take_over

    hanging: list[asyncio.Future[None]] = []

    async def late(self: BatchTransactions, token: Token) -> OpenTransaction:
        monkeypatch.setattr(BatchTransactions, "_take_over", real)
        if not hanging:
            hanging.append(asyncio.ensure_future(asyncio.to_thread(in_between)))
        await hanging[0]
        return await real(self, token)

    def in_between() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "_sessions", {})  # Those there are belong to the other thread.
            query.run = "run 2"
            query.do(1, ["c"], ["d"])
            sent.extend(query.write(2, ["e"], ["f"]))
            close_sessions()

    monkeypatch.setattr(BatchTransactions, "_take_over", late)
    query.prepare()
    query.commit(sent, 2)
    assert query.committed() == ["a", "b", "c", "d", "e", "f"]


def test_two_drivers_on_one_checkpoint_are_noticed(query: Query) -> None:
    query.do(0, ["a"])
    query.run = "run 2"
    query.do(1, ["b"])
    query.run = "run 1"
    with pytest.raises(AnotherDriver, match="two drivers use one checkpoint"):
        query.write(1, ["other"])


def test_a_new_checkpoint_begins_with_its_own_batches(query: Query) -> None:
    query.do(0, ["a"])
    query.id = "query 2"
    query.do(0, ["b"])
    assert query.committed() == ["a", "b"]


def test_a_listed_transaction_that_is_lost_stops_the_query_by_name(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = query.write(0, ["a"], ["b"])
    with monkeypatch.context() as patch:
        crash_at(patch, "_end")
        with pytest.raises(Crash):
            query.commit(sent, 0)
    transaction = sent[0].transaction
    assert transaction is not None
    query.fence(f"{query.topic}-{transaction.token.version}-{transaction.token.random.hex()}")
    for _ in range(2):  # A restart does not hide it.
        with pytest.raises(TransactionsLost, match="of batch 0, 1 of 2 transactions"):
            query.prepare()


def test_a_listed_batch_whose_ids_have_expired_is_not_taken_for_committed(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They expire after a commit, and also after the time-out has aborted what was open."""

    async def expired(*args: Any, **named: Any) -> None:
        raise error_from(ErrorCode.invalid_producer_id_mapping)

    query.do(0, ["a"])
    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "end_transaction", expired)
        sent = query.write(1, ["b"])
    query.commit(sent, 1)
    assert query.committed() == ["a", "b"], "the batch before is known to be committed"
    sent = query.write(2, ["c"])
    with monkeypatch.context() as patch:
        crash_at(patch, "_end")
        with pytest.raises(Crash):
            query.commit(sent, 2)
    query.run = "run 2"
    with monkeypatch.context() as patch:
        patch.setattr(exactly_once, "end_transaction", expired)
        with pytest.raises(TransactionsLost, match="transactional ids of batch 2 have expired"):
            query.write(2, ["c"])
    with pytest.raises(TransactionsLost, match="transactional ids of batch 2 have expired"):
        query.write(2, ["c"])  # A restart does not hide it.


def test_a_batch_that_takes_too_long_is_not_committed(query: Query) -> None:
    sent = query.write(0, ["a"])
    query.options["kafka.transaction.timeout.ms"] = "1"
    with pytest.raises(BatchTooLong, match="it may take 80% of that"):
        query.commit(sent, 0)
    del query.options["kafka.transaction.timeout.ms"]
    query.do(0, ["a"])
    assert query.committed() == ["a"]


def test_tasks_that_fail_leave_nothing_open(query: Query) -> None:
    prepared = query.prepare()
    done = query.attempt(prepared, 0, 0, ["a"])
    query.writer().abort([done, None], 0)
    assert query.open() == 0
    with pytest.raises(TooManyTasks, match="a batch may have 457 tasks"):
        query.attempt(prepared, 0, 457, ["a"])


def test_ids_are_used_again_whatever_the_number_of_tasks(query: Query) -> None:
    tasks_max = 4
    for batch in range(24):
        query.do(batch, *([f"{batch}"] for _ in range(batch % tasks_max + 1)))
    assert len(query.ids()) <= 3 * tasks_max
    assert len(query.committed()) == sum(batch % tasks_max + 1 for batch in range(24))


def test_a_batch_without_rows_keeps_the_ids(query: Query) -> None:
    query.do(0, ["0"], ["0"])
    for batch in range(1, 12):
        query.do(batch, *([[f"{batch}"]] * 2 if batch % 3 == 0 else [[], []]))
    assert len(query.ids()) <= 3 + 2, "three ids for two tasks, the driver's, the counter"
    assert query.committed() == sorted(["0", "3", "6", "9"] * 2)
    assert query.open() == 0


def test_a_batch_without_rows_that_is_run_again_stays_empty(query: Query) -> None:
    query.do(0, ["a"])
    query.do(1, [])
    query.run = "run 2"
    query.do(1, [])
    query.do(2, ["b"])
    assert query.committed() == ["a", "b"]


def test_a_batch_without_rows_may_take_long(query: Query) -> None:
    sent = query.write(0, [], [])
    query.options["kafka.transaction.timeout.ms"] = "1"
    query.commit(sent, 0)


def test_a_list_is_split_over_partitions_and_read_as_it_was() -> None:
    opened = tuple(
        OpenTransaction(
            Token(2**32 - 1 - number, bytes([number % 256] * 6)),
            Identity(ProducerId(2**63 - 1 - number), ProducerEpoch(32767)),
        )
        for number in range(300)
    )
    spare = tuple(one.token for one in opened[:7])
    listed = CommitList(5, b"q" * 16, b"r" * 16, b"s" * 16, 2**40, opened, spare)
    unsure = listed._replace(is_unsure=True)
    assert decode_list(5, encode_list(unsure)) == unsure
    chunks = encode_list(listed)
    assert [len(chunk) <= 4096 for chunk in chunks] == [True, True]
    assert decode_list(5, chunks) == listed
    with pytest.raises(AssertionError, match="not whole"):
        decode_list(5, chunks[:1])
