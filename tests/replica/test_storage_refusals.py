"""An idempotent producer with several batches in flight, and a disk that fills and has space again.

Batches after one that was refused for storage reasons are refused too: see
`suwi.replica.storage_refusals`.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from suwi.log.producer_state import ProducerStates
from suwi.metadata.image import PartitionState
from suwi.model.errors import (
    BrokerError,
    InvalidProducerEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    OutOfOrderSequence,
)
from suwi.model.ids import LeaderEpoch, Offset
from suwi.records.batch import SEQUENCE_MAX, batches, read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record, iter_records
from suwi.replica.replica_log import LogNotReady
from suwi.replica.storage_refusals import PRODUCERS_MAX, StorageRefusals
from suwi.sim import SimDisk, SimRandom
from tests.replica.alone import ONE, TWO, partition_and_directory

ALONE = PartitionState(ONE, LeaderEpoch(0), 0, (ONE,), (ONE,))
IN_FLIGHT_MAX = 5


class Bench:
    """A partition led here, and its disk."""

    def __init__(self) -> None:
        self.partition, self._directory = partition_and_directory()
        self.partition.make_leader(ALONE, broker_epoch=5)
        disk = self._directory.disk
        assert isinstance(disk, SimDisk)
        self.disk = disk

    def fill(self) -> None:
        self.disk.capacity_bytes = self.disk.drive.volume.used_bytes

    def free(self) -> None:
        self.disk.capacity_bytes = None

    def send(self, sequence: int, *, epoch: int = 0, producer_id: int = 7) -> str:
        """Send one record; "stored", "retry" or the name of the error."""
        batch = build_batch(
            [Record(value=str(sequence).encode(), timestamp=1)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        try:
            done = self.partition.append(memoryview(batch), read_header(batch), 1)
        except LogNotReady:
            return FULL  # Like a storage error: all following batches are refused too.
        except BrokerError as error:
            return next(
                kind.__name__
                for kind in (KafkaStorageError, OutOfOrderSequence, InvalidProducerEpoch)
                if isinstance(error, kind)
            )
        return "retry" if done.is_duplicate else "stored"

    def send_to_all(self, sequence: int) -> str:
        """Send one record with acks=all, as the handler does."""
        batch = build_batch(
            [Record(value=str(sequence).encode(), timestamp=1)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
        )
        try:
            self.partition.check_enough_replicas(memoryview(batch))
        except NotEnoughReplicas as error:
            return type(error).__name__
        return self.send(sequence)

    def stored(self) -> list[str]:
        log = self.partition.log
        found = log.read(Offset(0), 1 << 20, log.end_offset, whole_batch=True)
        data = found.read() if found is not None else b""
        return [
            (record.value or b"").decode()
            for position, header in batches(data)
            for record in iter_records(data[position : position + header.size_bytes], header)
        ]


FULL, OUT_OF_ORDER = "KafkaStorageError", "OutOfOrderSequence"


def run(scenario: Callable[[Bench], None]) -> None:
    async def main() -> None:
        scenario(Bench())

    asyncio.run(main())


def test_batches_in_flight_behind_one_refused_by_a_full_disk_get_a_storage_error() -> None:
    def scenario(bench: Bench) -> None:
        assert [bench.send(n) for n in range(3)] == ["stored"] * 3
        bench.fill()
        for _ in range(3):
            assert [bench.send(n) for n in range(3, 8)] == [FULL] * 5
        bench.free()
        assert [bench.send(n) for n in range(3, 8)] == ["stored"] * 5

    run(scenario)


def test_a_disk_that_has_space_again_between_two_batches_does_not_reorder_them() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert bench.send(1) == FULL
        bench.free()
        assert [bench.send(n) for n in range(2, 6)] == [FULL] * 4
        assert [bench.send(n) for n in range(1, 6)] == ["stored"] * 5

    run(scenario)


def test_a_new_producer_whose_first_batch_was_refused_does_not_start_with_its_second() -> None:
    """The log has no state of it yet, and would accept any sequence (KIP-360)."""

    def scenario(bench: Bench) -> None:
        bench.send(0, producer_id=8)
        bench.fill()
        assert bench.send(0) == FULL
        bench.free()
        assert bench.send(1) == FULL
        assert [bench.send(0), bench.send(1)] == ["stored", "stored"]

    run(scenario)


def test_a_refusal_before_the_log_could_be_opened_counts_as_well() -> None:
    def scenario(bench: Bench) -> None:
        bench.disk.faults.fail("make_dirs", errno.ENOSPC, path="*orders-0*")
        assert bench.send(0) == FULL
        assert bench.send(1) == FULL
        assert [bench.send(0), bench.send(1)] == ["stored", "stored"]

    run(scenario)


def test_a_retry_of_what_is_stored_is_answered_while_a_batch_is_missing() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert bench.send(1) == FULL
        assert bench.send(0) == "retry"
        bench.free()
        assert [bench.send(0), bench.send(2), bench.send(1)] == ["retry", FULL, "stored"]

    run(scenario)


def test_a_producer_that_gives_up_its_batch_uses_its_sequence_or_begins_a_new_epoch() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert [bench.send(1), bench.send(2)] == [FULL, FULL]
        assert [bench.send(0, epoch=1), bench.send(1, epoch=1)] == [FULL, FULL]
        bench.free()
        assert bench.send(1, epoch=1) == FULL
        assert bench.send(0, epoch=1) == "stored"
        assert bench.send(1) == "InvalidProducerEpoch"
        assert bench.send(1, epoch=1) == "stored"
        assert bench.send(3, epoch=1) == OUT_OF_ORDER

    run(scenario)


def test_a_new_epoch_that_does_not_start_at_zero_is_out_of_order() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert bench.send(1) == FULL
        bench.free()
        assert bench.send(1, epoch=1) == OUT_OF_ORDER

    run(scenario)


def test_a_producer_that_is_really_out_of_order_finally_gets_the_error() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert bench.send(1) == FULL
        bench.free()
        assert [bench.send(9) for _ in range(6)] == [FULL] * 5 + [OUT_OF_ORDER]
        assert bench.send(1) == "stored"
        assert bench.send(9) == OUT_OF_ORDER

    run(scenario)


def test_a_refusal_ends_when_another_leader_stored_the_missing_batch() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert bench.send(1) == FULL
        bench.free()
        both = (ONE, TWO)
        bench.partition.make_follower(PartitionState(TWO, LeaderEpoch(1), 1, both, both))
        copied = build_batch(
            [Record(value=b"1", timestamp=1), Record(value=b"2", timestamp=1)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=1,
            base_offset=1,
            leader_epoch=1,
        )
        bench.partition.follower.append_fetched(
            memoryview(copied), LeaderEpoch(1), Offset(3), Offset(0)
        )
        bench.partition.make_leader(
            PartitionState(ONE, LeaderEpoch(2), 2, both, both), broker_epoch=5
        )
        assert [bench.send(3), bench.send(9)] == ["stored", OUT_OF_ORDER]

    run(scenario)


def test_a_refusal_outlasts_a_leader_change_without_new_batches() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.fill()
        assert bench.send(1) == FULL
        bench.free()
        bench.partition.make_leader(ALONE._replace(leader_epoch=LeaderEpoch(1)), broker_epoch=5)
        assert [bench.send(2), bench.send(1), bench.send(2)] == [FULL, "stored", "stored"]

    run(scenario)


def test_batches_in_flight_behind_one_refused_with_too_few_replicas_are_not_out_of_order() -> None:
    both = (ONE, TWO)

    def scenario(bench: Bench) -> None:
        partition = bench.partition
        partition.configure(replace(partition.config, min_insync_replicas=2))
        partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 1, both, both), broker_epoch=5)
        assert bench.send_to_all(0) == "stored"
        partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 2, both, (ONE,)), broker_epoch=5)
        assert bench.send_to_all(1) == "NotEnoughReplicas"
        partition.make_leader(PartitionState(ONE, LeaderEpoch(1), 3, both, both), broker_epoch=5)
        assert [bench.send_to_all(n) for n in range(2, 5)] == [FULL] * 3
        assert [bench.send_to_all(n) for n in range(1, 5)] == ["stored"] * 4

    run(scenario)


def test_an_offline_directory_returns_a_storage_error_for_any_sequence() -> None:
    def scenario(bench: Bench) -> None:
        bench.send(0)
        bench.partition.log.state.take_offline(OSError(errno.EIO, "broken"))
        assert [bench.send(n) for n in (1, 2, 3, 0, 9, 9, 9, 9, 9, 9, 9, 9)] == [FULL] * 12

    run(scenario)


def test_sequences_wrap_around() -> None:
    refusals = StorageRefusals()
    last = read_header(build_batch([Record()], producer_id=7, producer_epoch=0, base_sequence=0))
    refusals.note(last._replace(base_sequence=SEQUENCE_MAX))
    assert refusals.holds_back(last._replace(base_sequence=0), ProducerStates())
    assert not refusals.holds_back(last._replace(base_sequence=SEQUENCE_MAX - 1), ProducerStates())


def test_the_number_of_remembered_producers_is_limited() -> None:
    refusals = StorageRefusals()
    header = read_header(build_batch([Record()], producer_id=7, producer_epoch=0, base_sequence=0))
    for producer_id in range(PRODUCERS_MAX + 10):
        refusals.note(header._replace(producer_id=producer_id))
    assert len(refusals) == PRODUCERS_MAX


class PipeliningClient:
    """Sends up to five batches at once; after a failure it resends from that batch on."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._acked = 0
        self._next = 0
        self._under_way: deque[int] = deque()
        self._failed = False

    @property
    def is_done(self) -> bool:
        return self._acked == self._count

    def send(self) -> None:
        if self._failed and not self._under_way:
            self._failed, self._next = False, self._acked
        if not self._failed and self._next < self._count and len(self._under_way) < IN_FLIGHT_MAX:
            self._under_way.append(self._next)
            self._next += 1

    def let_one_arrive(self, bench: Bench, *, loses_answer: bool) -> None:
        if not self._under_way:
            return
        sequence = self._under_way.popleft()
        answer = bench.send(sequence)
        assert answer != OUT_OF_ORDER, f"sequence {sequence} after {self._acked}"
        if answer == FULL or loses_answer or self._failed:
            self._failed = True
        else:
            assert sequence == self._acked
            self._acked += 1


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_duplicated_or_reordered_while_a_disk_fills_and_empties(seed: int) -> None:
    async def scenario() -> None:
        bench = Bench()
        random = SimRandom(seed)
        client = PipeliningClient(100)
        while not client.is_done:
            if random.chance(0.1):
                bench.fill()
            if random.chance(0.1):
                bench.free()
            if random.chance(0.6):
                client.send()
            else:
                client.let_one_arrive(bench, loses_answer=random.chance(0.02))
            if random.chance(0.3):
                with suppress(BrokerError):
                    await bench.partition.replica_log.wait_for_preparation()
        assert bench.stored() == [str(n) for n in range(100)]

    asyncio.run(scenario())
