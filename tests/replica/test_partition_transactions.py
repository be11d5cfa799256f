"""Transactions of a partition on its leader: guards, markers, the last stable offset."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from suwi.metadata.image import PartitionState
from suwi.model.errors import (
    BrokerError,
    InvalidProducerEpoch,
    InvalidTxnState,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequence,
)
from suwi.model.ids import NO_SEQUENCE, LeaderEpoch, NodeId, Offset, ProducerId
from suwi.model.topic_config import TopicConfig
from suwi.records.batch import read_header
from suwi.records.builder import build_batch, build_marker
from suwi.records.record import MarkerType, Record
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.partition_transactions import NOT_VERIFIED, TxnMarker, VerificationGuard
from suwi.replica.replica_log import wait_until_ready
from suwi.sim import SimDisk, Simulation
from tests.replica.alone import ONE, TWO, make_partition, partition_and_directory

TV1, TV2 = 1, 2
PRODUCER = 7


def state(epoch: int = 0, *, leader: NodeId = ONE) -> PartitionState:
    return PartitionState(leader, LeaderEpoch(epoch), epoch, (ONE, TWO), (ONE, TWO))


class Bench:
    """Broker 1 leads, broker 2 follows."""

    def __init__(self) -> None:
        self.partition, directory = partition_and_directory()
        self.partition.make_leader(state(), 11)
        self.transactions = self.partition.transactions
        assert isinstance(directory.disk, SimDisk)
        self._disk = directory.disk

    def verify(
        self, sequence: int = 0, *, epoch: int = 0, implicit: bool = False
    ) -> VerificationGuard | None:
        return self.transactions.begin_verification(PRODUCER, epoch, sequence, is_implicit=implicit)

    def send(
        self,
        guard: VerificationGuard | None,
        sequence: int = 0,
        *,
        epoch: int = 0,
        transactional: bool = True,
    ) -> int:
        batch = memoryview(
            build_batch(
                [Record(value=b"v", timestamp=1)],
                producer_id=PRODUCER,
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=transactional,
            )
        )
        return int(self.transactions.append(batch, read_header(batch), 1, guard).base_offset)

    def mark(self, *, epoch: int = 0, version: int = TV1, commits: bool = True) -> int | None:
        marker = TxnMarker(ProducerId(PRODUCER), epoch, 0, commits, version)
        return self.transactions.append_marker(marker, 1)

    def replicate(self) -> None:
        leader = self.partition.leader_replica
        assert leader is not None
        leader.record_progress(TWO, self.partition.log.end_offset, Offset(0), UNKNOWN_EPOCH)

    @property
    def stable(self) -> int:
        return int(self.partition.last_stable_offset)


def with_bench(scenario: Callable[[Bench], None]) -> None:
    async def run() -> None:
        bench = Bench()
        await wait_until_ready([bench.partition.replica_log], 10)
        scenario(bench)

    Simulation(0).run(run())


def refused(error: type[BrokerError]) -> Any:
    return pytest.raises(error)


# -- verification (T1, T2, T3, hazard 15) ----------------------------------------------------------


def test_t1_the_first_batch_of_a_transaction_is_not_appended_without_verification() -> None:
    def scenario(bench: Bench) -> None:
        with refused(InvalidTxnState):
            bench.send(None)
        assert bench.partition.log.end_offset == 0

    with_bench(scenario)


def test_t1_after_the_first_batch_nothing_more_is_verified() -> None:
    def scenario(bench: Bench) -> None:
        guard = bench.verify()
        assert guard is not None
        assert bench.send(guard, 0) == 0
        assert bench.verify(1) is None
        assert bench.send(None, 1) == 1

    with_bench(scenario)


def test_t2_a_batch_of_the_next_transaction_may_come_before_the_marker_of_the_last() -> None:
    """With TV2 the client has had the reply to EndTxn, and the marker is still under way."""

    def scenario(bench: Bench) -> None:
        bench.send(bench.verify(implicit=True), 0)
        guard = bench.verify(epoch=1, implicit=True)
        bench.mark(epoch=1, version=TV2)
        assert bench.send(guard, epoch=1) == 2
        bench.mark(epoch=2, version=TV2)
        late = bench.verify(epoch=2, implicit=True)
        bench.mark(epoch=3, version=TV2)
        for epoch in (2, 3):
            with refused(BrokerError):
                bench.send(late, epoch=epoch)

    with_bench(scenario)


def test_t1_each_transaction_is_verified_anew() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(bench.verify(), 0)
        bench.mark()
        guard = bench.verify(1)
        assert guard is not None
        with refused(InvalidTxnState):
            bench.send(None, 1)

    with_bench(scenario)


def test_t1_an_open_transaction_of_an_older_epoch_does_not_count() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(bench.verify(), 0)
        assert bench.verify(0, epoch=1) is not None
        with refused(InvalidTxnState):
            bench.send(None, 0, epoch=1)

    with_bench(scenario)


@pytest.mark.parametrize("version", [TV1, TV2])
def test_t2_a_marker_between_verification_and_append_voids_the_guard(version: int) -> None:
    """Hazard 15: verified, ended, then appended would open what nobody ends."""

    def scenario(bench: Bench) -> None:
        guard = bench.verify(epoch=1)
        assert guard is not None
        bench.mark(epoch=1, version=version, commits=False)
        with refused(InvalidTxnState):
            bench.send(guard, epoch=1)
        assert bench.partition.log.producers.first_open_txn_offset is None

    with_bench(scenario)


def test_t2_a_repeated_marker_voids_the_guard_too() -> None:
    def scenario(bench: Bench) -> None:
        bench.mark(epoch=1, version=TV2)
        guard = bench.verify(epoch=1)
        assert bench.mark(epoch=1, version=TV2) is None
        with refused(InvalidTxnState):
            bench.send(guard, epoch=1)

    with_bench(scenario)


def test_t2_a_guard_that_was_used_opens_no_second_transaction() -> None:
    def scenario(bench: Bench) -> None:
        guard = bench.verify()
        bench.send(guard, 0)
        bench.mark()
        with refused(InvalidTxnState):
            bench.send(guard, 1)

    with_bench(scenario)


def test_t2_two_verifications_of_one_batch_share_their_guard() -> None:
    """A client that lost its connection sends again; whichever comes first is appended."""

    def scenario(bench: Bench) -> None:
        first, second = bench.verify(), bench.verify()
        assert first is second
        assert (bench.send(first), bench.send(second)) == (0, 0)
        assert bench.partition.log.end_offset == 1

    with_bench(scenario)


def test_a_guard_of_an_earlier_leader_epoch_is_void_and_the_client_tries_again() -> None:
    def scenario(bench: Bench) -> None:
        guard = bench.verify()
        bench.partition.make_follower(state(1, leader=TWO))
        bench.partition.make_leader(state(2), 11)
        with refused(NotLeaderOrFollower):
            bench.send(guard)
        assert bench.send(bench.verify()) == 0

    with_bench(scenario)


def test_t3_the_second_batch_is_not_accepted_after_the_first_was_bounced() -> None:
    def scenario(bench: Bench) -> None:
        bench.verify(0)  # The coordinator cannot be asked: the batch is refused.
        with refused(OutOfOrderSequence):
            bench.send(bench.verify(1), 1)
        assert bench.send(bench.verify(0), 0) == 0
        assert bench.send(bench.verify(1), 1) == 1

    with_bench(scenario)


def test_t3_a_new_epoch_forgets_what_was_bounced_in_the_one_before() -> None:
    def scenario(bench: Bench) -> None:
        bench.verify(5)
        assert bench.send(bench.verify(0, epoch=1), 0, epoch=1) == 0

    with_bench(scenario)


def test_t3_the_first_write_of_an_epoch_has_sequence_0_in_version_2() -> None:
    def scenario(bench: Bench) -> None:
        with refused(OutOfOrderSequence):
            bench.send(bench.verify(3, implicit=True), 3)
        assert bench.send(bench.verify(0, implicit=True), 0) == 0

    with_bench(scenario)


def test_a_producer_of_version_1_without_state_may_start_at_any_sequence() -> None:
    """KIP-360: retention may have removed its earlier records."""

    def scenario(bench: Bench) -> None:
        assert bench.send(bench.verify(3), 3) == 0

    with_bench(scenario)


def test_a_retry_of_an_ended_transaction_gets_its_first_offset() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(bench.verify(), 0)
        bench.mark()
        assert bench.send(None, 0) == 0

    with_bench(scenario)


def test_without_verification_any_transactional_batch_is_appended() -> None:
    def scenario(bench: Bench) -> None:
        assert bench.send(NOT_VERIFIED, 0) == 0

    with_bench(scenario)


def test_a_batch_of_the_coordinator_has_no_sequence() -> None:
    def scenario(bench: Bench) -> None:
        for offset in range(3):
            guard = bench.verify(NO_SEQUENCE, implicit=True)
            assert bench.send(guard, NO_SEQUENCE) == offset
        with refused(InvalidTxnState):
            bench.send(None, NO_SEQUENCE, epoch=1)
        bench.mark(epoch=2, version=TV2)
        with refused(InvalidProducerEpoch):
            bench.send(bench.verify(NO_SEQUENCE, epoch=1), NO_SEQUENCE, epoch=1)

    with_bench(scenario)


# -- refusals for storage --------------------------------------------------------------------------


# -- markers ---------------------------------------------------------------------------------------


def test_hazard_14_the_last_stable_offset_waits_for_the_commit_of_the_marker() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(bench.verify(), 0)
        bench.replicate()
        bench.mark()
        assert (bench.partition.high_watermark, bench.stable) == (1, 0)
        bench.replicate()
        assert (bench.partition.high_watermark, bench.stable) == (2, 2)

    with_bench(scenario)


def test_without_transactions_the_last_stable_offset_takes_no_calls_and_no_memory() -> None:
    def scenario() -> None:
        partition = make_partition()
        partition.make_leader(state(), 11)
        assert partition.log.end_offset == 0
        calls: list[str] = []
        sys.setprofile(lambda frame, event, _: calls.append(f"{event} {frame.f_code.co_name}"))
        try:
            assert partition.last_stable_offset == 0
        finally:
            sys.setprofile(None)
        assert [each for each in calls if each.startswith("call ")] == ["call last_stable_offset"]
        assert partition._transactions is None

    async def run() -> None:
        scenario()

    Simulation(0).run(run())


def test_t18_the_last_stable_offset_is_not_below_the_log_start_offset() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(bench.verify(), 0)
        bench.send(None, 1)
        bench.replicate()
        bench.partition.delete_before(Offset(1))
        assert bench.stable == 1

    with_bench(scenario)


def test_t18_a_follower_shows_an_end_of_a_transaction_when_it_knows_it_is_committed() -> None:
    """KIP-392: a consumer may read from it with read_committed."""

    def scenario(bench: Bench) -> None:
        partition = bench.partition
        partition.make_follower(state(1, leader=TWO))
        data = build_batch(
            [Record(value=b"v", timestamp=1)],
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            leader_epoch=1,
        )
        marker = build_marker(
            MarkerType.COMMIT,
            producer_id=PRODUCER,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=1,
            leader_epoch=1,
        )
        follower = partition.follower
        fetched = memoryview(bytes(data + marker))
        follower.append_fetched(fetched, LeaderEpoch(1), Offset(1), Offset(0))
        assert (partition.high_watermark, bench.stable) == (1, 0)
        follower.append_fetched(memoryview(b""), LeaderEpoch(1), Offset(2), Offset(0))
        assert (partition.high_watermark, bench.stable) == (2, 2)

    with_bench(scenario)


def test_a_marker_is_refused_where_it_could_not_be_committed() -> None:
    def scenario(bench: Bench) -> None:
        bench.partition.configure(TopicConfig(min_insync_replicas=2))
        shrunk = PartitionState(ONE, LeaderEpoch(0), 1, (ONE, TWO), (ONE,))
        bench.partition.leader_replica.confirm(shrunk)
        with refused(NotEnoughReplicas):
            bench.mark()

    with_bench(scenario)


def test_a_marker_is_refused_by_a_follower() -> None:
    def scenario(bench: Bench) -> None:
        bench.partition.make_follower(state(1, leader=TWO))
        with refused(NotLeaderOrFollower):
            bench.mark()

    with_bench(scenario)
