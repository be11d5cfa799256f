"""Refused, appended and retried batches of idempotent producers, and what the next one is told
(hazard 23).

`CASES` is the table: each script says what happens, and the error code of each batch that is sent.
Steps (batches are sent with acks=all, and have one record unless they are written as 1..3):

    1 2 3             send these sequences; 0/1 is sequence 0 of producer epoch 1
    1 waits           send it; the follower does not fetch it
    1 ends            the response to what waits
    shrink, expand    the follower leaves and joins the in-sync replicas; the minimum is 2
    fill, free        the disk has no space, has space again
    away, back        another broker leads, this one leads again; `back to 1`: as the next leader
                      had only offset 0, the rest is truncated
    copy 1            the other leader has stored this, and this broker has fetched it
    restart           the broker forgets what is in memory only
    delete, expire    all records are deleted; the log forgets the producer
    removed, created  the topic is not known to this broker, is known again
    limit, unlimit    max.message.bytes is too small for any batch, is large enough
    closed, open      the coordinator cannot be asked, confirms (transactional batches only)
    log 0 1           these are in the log, in this order
"""

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from suwi.handlers.produce import Produce
from suwi.handlers.refused_batches import KEPT_S, PRODUCERS_MAX, FollowsRefused, RefusedBatches
from suwi.log.producer_state import REMEMBERED_BATCHES, ProducerStates
from suwi.model.errors import (
    NotEnoughReplicas,
    OutOfOrderSequence,
    TransactionalIdAuthorizationFailed,
)
from suwi.model.ids import LeaderEpoch, Offset, TopicPartition
from suwi.net.answers import Answer
from suwi.records.batch import SEQUENCE_MAX, BatchHeader, batches, read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record, iter_records
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.replica.partition import Partition
from suwi.replica.replica_log import LogNotReady, ReplicaLog
from suwi.sim import SimRandom
from suwi.sim.simulation import Simulation
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey
from tests.handlers.requests import reply_of, request_of
from tests.handlers.world import HERE, OTHER, World, followed, led, sent

NONE = "NONE"
TOO_FEW = "NOT_ENOUGH_REPLICAS"
TOO_FEW_AFTER = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
HELD_BACK = FULL = "KAFKA_STORAGE_ERROR"
OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE_NUMBER"
NOT_LEADER = "NOT_LEADER_OR_FOLLOWER"
OLD_EPOCH = "INVALID_PRODUCER_EPOCH"
UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"
TOO_LARGE = "MESSAGE_TOO_LARGE"
ALL = "*"
"""Of as many batches as were sent."""

LAST = SEQUENCE_MAX
IN_FLIGHT_MAX = 5

CASES: dict[str, str] = {
    # -- the fault: what is in the log hid what is not -------------------------------------------
    "appended and refused, then refused again with the next one": f"""
        0: {NONE}
        1 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        3: {HELD_BACK}
        1 2 3: {NONE} {NONE} {NONE}
        log 0 1 2 3""",
    # -- refused before the append ---------------------------------------------------------------
    "refused before the append": f"""
        0: {NONE}
        shrink
        1: {TOO_FEW}
        expand
        2 3 4: {HELD_BACK} {HELD_BACK} {HELD_BACK}
        1 2 3 4: {ALL} {NONE}
        log 0 1 2 3 4""",
    "the first batch of a producer is refused": f"""
        shrink
        0: {TOO_FEW}
        expand
        1: {HELD_BACK}
        0 1: {NONE} {NONE}
        log 0 1""",
    # -- appended, then refused ------------------------------------------------------------------
    "appended and refused: the next one follows it": f"""
        0: {NONE}
        1 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        expand
        2 1: {NONE} {NONE}
        log 0 1 2""",
    "appended and refused: a later one is out of order, as nothing else was refused": f"""
        0: {NONE}
        1 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        expand
        3: {OUT_OF_ORDER}
        log 0 1""",
    # -- retried while refused -------------------------------------------------------------------
    "retried again and again while refused": f"""
        0: {NONE}
        shrink
        1 2 3 4 5: {ALL} {TOO_FEW}
        1 2 3 4 5: {ALL} {TOO_FEW}
        expand
        3 4 5: {ALL} {HELD_BACK}
        1 2 3 4 5: {ALL} {NONE}
        log 0 1 2 3 4 5""",
    "a retry of what is in the log is a duplicate while a later one is missing": f"""
        0: {NONE}
        fill
        1: {FULL}
        0: {NONE}
        free
        0 2 1: {NONE} {HELD_BACK} {NONE}
        log 0 1""",
    # -- a later sequence first, a gap that is filled --------------------------------------------
    "a later sequence first, without any refusal": f"""
        0: {NONE}
        2: {OUT_OF_ORDER}
        1 2: {NONE} {NONE}
        log 0 1 2""",
    "the gap is filled in part": f"""
        0: {NONE}
        shrink
        1 2 3: {ALL} {TOO_FEW}
        expand
        1: {NONE}
        3: {HELD_BACK}
        2 3: {NONE} {NONE}
        5: {OUT_OF_ORDER}
        log 0 1 2 3""",
    "a really missing sequence finally gets its error": f"""
        0: {NONE}
        fill
        1: {FULL}
        free
        9 9 9 9 9 9: {HELD_BACK} {HELD_BACK} {HELD_BACK} {HELD_BACK} {HELD_BACK} {OUT_OF_ORDER}
        1 9: {NONE} {OUT_OF_ORDER}
        log 0 1""",
    # -- several in flight -----------------------------------------------------------------------
    "five in flight, the one in the middle is refused": f"""
        0 1 2: {ALL} {NONE}
        fill
        3: {FULL}
        free
        4 5: {HELD_BACK} {HELD_BACK}
        3 4 5: {ALL} {NONE}
        log 0 1 2 3 4 5""",
    "five in flight: appended and refused, refused, held back": f"""
        0: {NONE}
        1 waits
        2 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        2 ends: {TOO_FEW_AFTER}
        3: {TOO_FEW}
        expand
        4 5: {HELD_BACK} {HELD_BACK}
        1 2 3 4 5: {ALL} {NONE}
        log 0 1 2 3 4 5""",
    "a batch in the middle is refused, and those before it are sent again": f"""
        0: {NONE}
        1 waits
        shrink
        2 3: {TOO_FEW} {TOO_FEW}
        1 ends: {TOO_FEW_AFTER}
        1: {TOO_FEW}
        expand
        1: {NONE}
        4 3: {HELD_BACK} {HELD_BACK}
        2 3 4: {ALL} {NONE}
        log 0 1 2 3 4""",
    "batches of several records": f"""
        0..3: {NONE}
        shrink
        4..6 7: {TOO_FEW} {TOO_FEW}
        expand
        7 8..9: {HELD_BACK} {HELD_BACK}
        4..6 7 8..9: {ALL} {NONE}
        log 0 1 2 3 4 5 6 7 8 9""",
    # -- epochs ----------------------------------------------------------------------------------
    "a new epoch ends the refusals of the one before": f"""
        0: {NONE}
        shrink
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        0/1 1/1: {NONE} {NONE}
        2 1: {OLD_EPOCH} {OLD_EPOCH}
        3/1: {OUT_OF_ORDER}
        log 0 0 1""",
    "a new epoch whose first batch is refused": f"""
        0: {NONE}
        fill
        1 2: {FULL} {FULL}
        0/1: {FULL}
        free
        1/1 0/1 1/1: {HELD_BACK} {NONE} {NONE}
        log 0 0 1""",
    "a new epoch must start at 0, whatever was refused before": f"""
        0: {NONE}
        fill
        1: {FULL}
        free
        1/1: {OUT_OF_ORDER}
        log 0""",
    "a late retry of the old epoch does not hide what the new one lacks": f"""
        0: {NONE}
        shrink
        0/1 1: {TOO_FEW} {TOO_FEW}
        expand
        1/1: {HELD_BACK}
        0/1 1/1: {NONE} {NONE}
        log 0 0 1""",
    # -- leader changes and restarts -------------------------------------------------------------
    # Seed 494 of the simulation.
    "refused once and stored by another leader, then others are refused here": f"""
        0: {NONE}
        shrink
        1 2 3 4 5: {TOO_FEW} {TOO_FEW} {TOO_FEW} {TOO_FEW} {TOO_FEW}
        away
        copy 1
        copy 2
        copy 3
        copy 4
        copy 5
        back
        shrink
        6: {TOO_FEW}
        expand
        7: {HELD_BACK}
        6 7: {NONE} {NONE}
        log 0 1 2 3 4 5 6 7""",
    "another leader stored it": f"""
        0: {NONE}
        fill
        1: {FULL}
        free
        away
        copy 1
        copy 2
        back
        3 9: {NONE} {OUT_OF_ORDER}
        log 0 1 2 3""",
    "the leadership returns, and nothing was stored meanwhile": f"""
        0: {NONE}
        fill
        1: {FULL}
        free
        away
        back
        2: {HELD_BACK}
        1 2: {NONE} {NONE}
        log 0 1 2""",
    "refused because another broker leads, which ends before the next one": f"""
        0: {NONE}
        1 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        expand
        away
        2: {NOT_LEADER}
        back
        3: {HELD_BACK}
        1 2 3: {ALL} {NONE}
        log 0 1 2 3""",
    "appended, and truncated after the next leader's election": f"""
        0: {NONE}
        1 waits
        away
        1 ends: {NOT_LEADER}
        back to 1
        2: {HELD_BACK}
        1 2: {NONE} {NONE}
        log 0 1 2""",
    "the broker restarts, and the client starts with what is unanswered": f"""
        0: {NONE}
        1 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        2 3: {TOO_FEW} {TOO_FEW}
        restart
        1 2 3: {ALL} {TOO_FEW}
        expand
        3: {HELD_BACK}
        1 2 3: {ALL} {NONE}
        log 0 1 2 3""",
    "the topic is not known to the leader yet": f"""
        removed
        0: {UNKNOWN}
        created
        1: {HELD_BACK}
        0 1: {NONE} {NONE}
        log 0 1""",
    # -- reasons ---------------------------------------------------------------------------------
    "a full disk": f"""
        0 1 2: {ALL} {NONE}
        fill
        3 4 5 6 7: {ALL} {FULL}
        3 4 5 6 7: {ALL} {FULL}
        free
        3 4 5 6 7: {ALL} {NONE}
        log 0 1 2 3 4 5 6 7""",
    "a full disk, then too few replicas, then neither": f"""
        0: {NONE}
        fill
        1: {FULL}
        free
        shrink
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        2 3: {HELD_BACK} {HELD_BACK}
        1 2 3: {ALL} {NONE}
        log 0 1 2 3""",
    "too large, and then split into smaller ones": f"""
        0: {NONE}
        limit
        1..4: {TOO_LARGE}
        unlimit
        5: {HELD_BACK}
        1..2 3..4 5: {ALL} {NONE}
        log 0 1 2 3 4 5""",
    "too large, given up, and its sequences are used for the next ones": f"""
        0: {NONE}
        limit
        1..4: {TOO_LARGE}
        unlimit
        5: {HELD_BACK}
        1 2 3: {ALL} {NONE}
        log 0 1 2 3""",
    # -- time and deletions ----------------------------------------------------------------------
    "all records are deleted meanwhile": f"""
        0: {NONE}
        shrink
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        delete
        2: {HELD_BACK}
        1 2: {NONE} {NONE}
        log 1 2""",
    "the log forgets the producer meanwhile": f"""
        0: {NONE}
        shrink
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        expire
        2: {HELD_BACK}
        1 2: {NONE} {NONE}
        log 0 1 2""",
    "sequences wrap around": f"""
        {LAST - 1}: {NONE}
        shrink
        {LAST} 0: {TOO_FEW} {TOO_FEW}
        expand
        0 1: {HELD_BACK} {HELD_BACK}
        {LAST} 0 1: {ALL} {NONE}
        log {LAST - 1} {LAST} 0 1""",
    "sequences wrap around within a batch": f"""
        {LAST - 1}: {NONE}
        shrink
        {LAST}..1: {TOO_FEW}
        expand
        2: {HELD_BACK}
        {LAST}..1 2: {NONE} {NONE}
        log {LAST - 1} {LAST} 0 1 2""",
}

TRANSACTIONAL_CASES: dict[str, str] = {
    "a full disk at the first batch of a transaction": f"""
        fill
        0: {FULL}
        free
        1: {HELD_BACK}
        0 1: {NONE} {NONE}
        log 0 1""",
    "a full disk in an open transaction": f"""
        0: {NONE}
        fill
        1 2: {FULL} {FULL}
        free
        2: {HELD_BACK}
        1 2: {NONE} {NONE}
        log 0 1 2""",
    "the coordinator could not be asked about the first batch": f"""
        closed
        0: {TOO_FEW}
        open
        1: {HELD_BACK}
        0 1: {NONE} {NONE}
        log 0 1""",
    "too few replicas in an open transaction": f"""
        0: {NONE}
        shrink
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        3: {HELD_BACK}
        1 2 3: {ALL} {NONE}
        log 0 1 2 3""",
    "appended and refused in a transaction, then refused again": f"""
        0: {NONE}
        1 waits
        shrink
        1 ends: {TOO_FEW_AFTER}
        1 2: {TOO_FEW} {TOO_FEW}
        expand
        3: {HELD_BACK}
        1 2 3: {ALL} {NONE}
        log 0 1 2 3""",
}


class FakeVerifier:
    """A coordinator that confirms everything, or cannot be asked."""

    is_enabled = True
    is_closed = False

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        answer = ErrorCode.not_coordinator if self.is_closed else ErrorCode.none
        return dict.fromkeys(partitions, answer)


class Bench:
    """A broker that leads a partition with one follower, called as the network does."""

    def __init__(self, version: int = 12, *, transactional: bool = False) -> None:
        self.version = version
        self.transactional_id = "copier" if transactional else None
        self.world = World()
        self.epoch = 0
        self.verifier = FakeVerifier()
        self.waiting: dict[str, asyncio.Future[str]] = {}
        self.created()
        self.restart()

    @property
    def partition(self) -> Partition:
        return self.world.replicas.replica_of("orders", 0)

    # -- steps ---------------------------------------------------------------------------------

    def created(self) -> None:
        self.world.add("orders", [led(OTHER)], min_insync_replicas="2")

    def removed(self) -> None:
        self.world.delete("orders")

    def restart(self) -> None:
        self.handler = Produce(self.world.replicas, self.world.clock, self.verifier)

    def shrink(self) -> None:
        self._lead(is_alone=True)

    def expand(self) -> None:
        self._lead(is_alone=False)

    def _lead(self, *, is_alone: bool) -> None:
        self.epoch += 1
        state = self.world.replicas.image.partition(self.partition.partition)
        assert state is not None
        isr = (HERE,) if is_alone else (HERE, OTHER)
        self.world.elect("orders", 0, state._replace(partition_epoch=self.epoch, isr=isr))

    def away(self) -> None:
        self.epoch += 1
        self.world.elect("orders", 0, followed(self.epoch))

    def back(self, end: int | None = None) -> None:
        if end is not None:
            self.partition.follower.truncate(Offset(end))
        self.epoch += 1
        self.world.elect("orders", 0, led(OTHER, epoch=self.epoch))

    def copy(self, sequence: int) -> None:
        log = self.partition.log
        batch = _batch([sequence], base_offset=log.end_offset, leader_epoch=self.epoch)
        self.partition.follower.append_fetched(
            memoryview(batch), LeaderEpoch(self.epoch), log.end_offset, Offset(0)
        )

    def fill(self) -> None:
        self.world.disk.fill()

    def free(self) -> None:
        self.world.disk.free()

    def limit(self) -> None:
        self.partition.configure(replace(self.partition.config, max_message_bytes=10))

    def unlimit(self) -> None:
        self.partition.configure(replace(self.partition.config, max_message_bytes=10_000))

    def closed(self) -> None:
        self.verifier.is_closed = True

    def open(self) -> None:
        self.verifier.is_closed = False

    def delete(self) -> None:
        self.partition.delete_before(self.partition.high_watermark)

    def expire(self) -> None:
        self.partition.log.producers.expire(now_ms=10, expiration_ms=1)
        assert not len(self.partition.log.producers)

    # -- requests ------------------------------------------------------------------------------

    def begin(self, sequences: Sequence[int], epoch: int = 0) -> asyncio.Future[str]:
        batch = _batch(
            sequences, producer_epoch=epoch, transactional=self.transactional_id is not None
        )
        topics = [("orders", None, [(0, batch)])]
        body = bytearray().join(
            encode_produce_request(self.version, self.transactional_id, -1, 30_000, topics)
        )
        answer = self.handler(request_of(ApiKey.PRODUCE, self.version, body))
        return asyncio.ensure_future(self._code(answer))

    async def _code(self, answer: Answer | Awaitable[Any]) -> str:
        body = memoryview(sent(await reply_of(answer)))  # type: ignore[arg-type]
        (topic,) = decode_produce_response(self.version, body).topics
        return ErrorCode(topic.partitions[0].error_code).name.upper()

    async def send(self, sequences: Sequence[int], epoch: int = 0) -> str:
        """Send a batch, and let the follower fetch it."""
        code = self.begin(sequences, epoch)
        while not code.done():
            await asyncio.sleep(0.01)
            leader = self.partition.leader_replica if not code.done() else None
            if leader is not None and OTHER in leader.state.isr.members:
                log = self.partition.log
                leader.record_progress(OTHER, log.end_offset, log.start_offset, UNKNOWN_EPOCH)
        return code.result()

    def stored(self) -> list[int]:
        log = self.partition.log
        found = log.read(log.start_offset, 1 << 20, log.end_offset, whole_batch=True)
        data = found.read() if found is not None else b""
        return [
            int(record.value or b"")
            for position, header in batches(data)
            for record in iter_records(data[position : position + header.size_bytes], header)
        ]

    # -- scripts -------------------------------------------------------------------------------

    async def play(self, script: str) -> None:
        for line in map(str.strip, script.strip().splitlines()):
            step, _, expected = line.partition(":")
            words = step.split()
            if words[0] == "log":
                assert self.stored() == [int(word) for word in words[1:]], line
            elif words[0].isalpha():
                arguments = [int(word) for word in words[1:] if word.isdigit()]
                getattr(self, words[0])(*arguments)
            elif words[-1] == "waits":
                self.waiting[words[0]] = self.begin(*_sequences(words[0]))
                await asyncio.sleep(0.01)
            elif words[-1] == "ends":
                assert await self.waiting.pop(words[0]) == expected.strip(), line
            else:
                codes = expected.split()
                codes = codes[1:] * len(words) if codes[0] == ALL else codes
                found = [await self.send(*_sequences(word)) for word in words]
                assert found == codes, line


def _sequences(word: str) -> tuple[list[int], int]:
    text, _, epoch = word.partition("/")
    first, _, last = text.partition("..")
    count = ((int(last or first) - int(first)) & SEQUENCE_MAX) + 1
    return [(int(first) + n) & SEQUENCE_MAX for n in range(count)], int(epoch or 0)


def _batch(sequences: Sequence[int], producer_epoch: int = 0, **facts: Any) -> bytearray:
    records = [Record(value=str(sequence).encode(), timestamp=1) for sequence in sequences]
    return build_batch(
        records,
        producer_id=7,
        producer_epoch=producer_epoch,
        base_sequence=sequences[0],
        **facts,
    )


@pytest.mark.parametrize("version", [7, 12], ids=["general decoder", "fast decoder"])
@pytest.mark.parametrize("case", CASES)
def test_the_next_batch_after_a_refusal(case: str, version: int) -> None:
    async def run() -> None:
        await Bench(version).play(CASES[case])

    Simulation(0).run(run())


@pytest.mark.parametrize("case", TRANSACTIONAL_CASES)
def test_the_next_transactional_batch_after_a_refusal(case: str) -> None:
    async def run() -> None:
        await Bench(transactional=True).play(TRANSACTIONAL_CASES[case])

    Simulation(0).run(run())


def test_a_refusal_before_the_log_could_be_opened_counts_as_well() -> None:
    async def run() -> None:
        bench = Bench()
        bench.world.add("payments", [led()])
        bench.world.disk.faults.fail("make_dirs", errno.ENOSPC, path="*payments-0*")

        async def send(sequence: int) -> str:
            topics = [("payments", None, [(0, _batch([sequence]))])]
            body = bytearray().join(encode_produce_request(12, None, -1, 30_000, topics))
            return await bench._code(bench.handler(request_of(ApiKey.PRODUCE, 12, body)))

        codes = [await send(sequence) for sequence in (0, 1, 0, 1)]
        assert codes == [FULL, HELD_BACK, NONE, NONE]

    Simulation(0).run(run())


@pytest.mark.parametrize("transactional", [False, True])
def test_a_batch_whose_log_did_not_become_ready_in_time_is_not_overtaken(
    monkeypatch: pytest.MonkeyPatch, *, transactional: bool
) -> None:
    async def run() -> None:
        bench = Bench(transactional=transactional)
        await bench.play(f"0: {NONE}")
        replica_log = bench.partition.replica_log
        with monkeypatch.context() as patch:
            patch.setattr(ReplicaLog, "get_ready", _not_ready)
            ready_log, replica_log.ready_log = replica_log.ready_log, None
            await bench.play(f"1: {NOT_LEADER}")
        replica_log.ready_log = ready_log
        await bench.play(f"""
            2: {HELD_BACK}
            1 2: {NONE} {NONE}
            log 0 1 2""")

    Simulation(0).run(run())


def _not_ready(replica_log: ReplicaLog) -> None:
    raise LogNotReady(replica_log)


def test_a_batch_that_is_held_back_is_no_reason_to_give_up_the_leadership(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        await Bench().play(f"""
            0: {NONE}
            shrink
            1: {TOO_FEW}
            expand
            2: {HELD_BACK}
            1 2: {NONE} {NONE}""")

    Simulation(0).run(run())
    assert "resigning" not in caplog.text


def test_an_offline_directory_returns_a_storage_error_for_any_sequence() -> None:
    async def run() -> None:
        bench = Bench()
        await bench.play(f"0: {NONE}")
        bench.partition.log.state.take_offline(OSError(errno.EIO, "broken"))
        await bench.play(f"1 2 3 0 9 9 9 9 9 9 9 9: {ALL} {FULL}")

    Simulation(0).run(run())


# -- the bounds ------------------------------------------------------------------------------------

PLACE = ("orders", 0)


def _header(sequence: int, count: int = 1, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    batch = build_batch(
        [Record() for _ in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return read_header(batch)


def test_the_number_of_remembered_producers_is_limited() -> None:
    refused = RefusedBatches()
    for producer_id in range(PRODUCERS_MAX + 10):
        refused.note(PLACE, _header(0)._replace(producer_id=producer_id), 0)
    assert len(refused) == PRODUCERS_MAX
    assert not refused.may_hold_back(PLACE, _header(1, producer_id=9))
    assert refused.may_hold_back(PLACE, _header(1, producer_id=10))


def test_who_may_not_use_a_transactional_id_holds_back_no_batch_of_its_producer() -> None:
    refused = RefusedBatches()
    batch = memoryview(_batch([0]))
    refused.note_error(("a", 0), batch, TransactionalIdAuthorizationFailed("not yours"), 0)
    assert not refused.by_producer
    refused.note_error(("a", 0), batch, OutOfOrderSequence("a gap"), 0)
    assert not refused.by_producer
    refused.note_error(("a", 0), batch, NotEnoughReplicas("too few"), 0)
    assert len(refused) == 1


def test_the_highest_batches_of_a_producer_are_remembered() -> None:
    refused = RefusedBatches()
    for sequence in reversed(range(20)):
        refused.note(PLACE, _header(sequence), 0)
    (refusals,) = refused.by_producer.values()
    assert [batch.first for batch in refusals.batches] == list(range(20))[-REMEMBERED_BATCHES:]


def test_a_refusal_whose_batch_is_not_sent_again_for_long_is_forgotten() -> None:
    refused = RefusedBatches()
    refused.note(PLACE, _header(1), now_s=0)
    with pytest.raises(FollowsRefused):
        refused.check(PLACE, _header(2), KEPT_S, ProducerStates())
    refused.check(PLACE, _header(2), KEPT_S + 1, ProducerStates())
    assert not len(refused)


# -- a model ---------------------------------------------------------------------------------------


class Model:
    """One producer in one partition, one record in each batch, sequences as plain sets."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.refused: set[int] = set()
        self.held_back = 0

    def send(self, sequence: int, *, fails: bool, fails_after: bool) -> str:
        code = self._code(sequence, fails=fails)
        if code == "stored":
            self.stored.append(sequence)
        if code == "refused" or (fails_after and code in ("stored", "duplicate")):
            self.refused.add(sequence)
            self.held_back = 0
        return code

    def _code(self, sequence: int, *, fails: bool) -> str:
        if fails:
            return "refused"
        if sequence in self.stored[-REMEMBERED_BATCHES:]:
            return "duplicate"
        is_next = bool(self.stored) and sequence == self.stored[-1] + 1
        newest = self.stored[-1] if self.stored else -1
        missing = {each for each in self.refused if each > newest}
        if not is_next and any(each < sequence for each in missing):
            if self.held_back < REMEMBERED_BATCHES:
                self.held_back += 1
                self.refused.add(sequence)
                return "held back"
            self.refused.clear()
        if is_next or not self.stored:
            return "stored"
        return "out of order"


class Broker:
    """The production code, without a network and a disk."""

    def __init__(self, first: int) -> None:
        self.producers = ProducerStates()
        self.refused = RefusedBatches()
        self._first = first

    def send(self, sequence: int, *, fails: bool, fails_after: bool) -> str:
        header = _header((self._first + sequence) & SEQUENCE_MAX)
        code = self._code(header, fails=fails)
        if code == "refused" or (fails_after and code in ("stored", "duplicate")):
            self.refused.note(PLACE, header, 0)
        return code

    def _code(self, header: BatchHeader, *, fails: bool) -> str:
        if fails:
            return "refused"
        try:
            if self.refused.may_hold_back(PLACE, header):
                self.refused.check(PLACE, header, 0, self.producers)
            if self.producers.check(header) is not None:
                return "duplicate"
        except FollowsRefused:
            return "held back"
        except OutOfOrderSequence:
            return "out of order"
        self.producers.replay(header._replace(base_offset=self.producers.end_offset))
        return "stored"


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([0, SEQUENCE_MAX - 3]),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "", "fails", "fails after"]))),
)
def test_the_production_code_answers_as_a_simple_model_does(
    first: int, steps: list[tuple[int, str]]
) -> None:
    """Five sequences, so that no more are refused than are remembered."""
    model, broker = Model(), Broker(first)
    for sequence, fault in steps:
        faults = {"fails": fault == "fails", "fails_after": fault == "fails after"}
        assert broker.send(sequence, **faults) == model.send(sequence, **faults)


# -- a client --------------------------------------------------------------------------------------


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

    async def let_one_arrive(self, bench: Bench, *, fails_after: bool) -> None:
        if not self._under_way:
            return
        sequence = self._under_way.popleft()
        code = await self._answer(bench, sequence, fails_after=fails_after)
        assert code != OUT_OF_ORDER, f"sequence {sequence} after {self._acked}"
        if code != NONE or self._failed:
            self._failed = True
        else:
            assert sequence == self._acked
            self._acked += 1

    async def _answer(self, bench: Bench, sequence: int, *, fails_after: bool) -> str:
        if not fails_after:
            return await bench.send([sequence])
        code = bench.begin([sequence])
        await asyncio.sleep(0.01)
        if not code.done():
            bench.shrink()
        return await code


TROUBLES: list[Callable[[Bench], None]] = [
    *(Bench.fill, Bench.shrink, Bench.away, Bench.free, Bench.expand, Bench.back)
]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_duplicated_or_reordered_whatever_is_refused(seed: int) -> None:
    async def scenario() -> None:
        bench = Bench(version=7 if seed % 2 else 12)
        random = SimRandom(seed)
        client = PipeliningClient(60)
        while not client.is_done:
            if random.chance(0.2):
                random.choice(TROUBLES)(bench)
            if random.chance(0.6):
                client.send()
            else:
                await client.let_one_arrive(bench, fails_after=random.chance(0.1))
        if bench.partition.leader_state is None:
            bench.back()
        assert bench.stored() == list(range(60))

    Simulation(seed).run(scenario())
