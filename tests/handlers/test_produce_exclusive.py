"""A produce request that waits before its append holds up the next one of its connection only until
then (hazard T23), not until it is committed."""

import asyncio
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from suwi.handlers.produce import Produce
from suwi.model.ids import TopicPartition
from suwi.net.answers import Exclusive, Later
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.leader_state import UNKNOWN_EPOCH
from suwi.sim.simulation import Simulation
from suwi.wire.produce import decode_produce_response, encode_produce_request
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of
from tests.handlers.world import OTHER, World, led, sent, turns

VERSION = 12


class SlowVerifier:
    is_enabled = True

    def __init__(self) -> None:
        self.answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(partitions, await self.answer)


def _request(sequence: int) -> bytearray:
    batch = build_batch(
        [Record(value=b"v", timestamp=1)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )
    return bytearray().join(
        encode_produce_request(VERSION, "copier", -1, 30_000, [("t", None, [(0, batch)])])
    )


def test_t23_a_verified_batch_holds_up_the_next_request_until_it_is_appended_not_committed() -> (
    None
):
    async def run() -> None:
        world = World()
        world.add("t", [led(OTHER)])
        partition = world.replicas.leader_of("t", 0)
        verifier = SlowVerifier()
        handler = Produce(world.replicas, world.clock, verifier)
        first = handler(request_of(ApiKey.PRODUCE, VERSION, _request(0)))
        assert isinstance(first, Exclusive)
        assert first.until is not None
        reply = asyncio.ensure_future(first.reply)
        await turns(5)
        assert not first.until.done(), "it waits for its verification"
        verifier.answer.set_result(ErrorCode.none)
        await turns(5)
        assert first.until.done()
        assert not reply.done()
        assert (partition.log.end_offset, partition.high_watermark) == (1, 0)
        second = handler(request_of(ApiKey.PRODUCE, VERSION, _request(1)))
        assert isinstance(second, Later)
        assert partition.leader_replica is not None
        partition.leader_replica.record_progress(
            OTHER, partition.log.end_offset, partition.log.start_offset, UNKNOWN_EPOCH
        )
        for offset, answer in enumerate((await reply, await second.reply)):
            (topic,) = decode_produce_response(VERSION, memoryview(sent(answer))).topics  # type: ignore[arg-type]
            assert (topic.partitions[0].error_code, topic.partitions[0].base_offset) == (0, offset)

    Simulation(0).run(run())
