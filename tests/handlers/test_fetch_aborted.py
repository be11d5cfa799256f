"""The aborted transactions of a read_committed fetch are those of the records it returns."""

from suwi.handlers.fetch import Fetch
from suwi.handlers.fetch_session_cache import FetchSessionCache
from suwi.model.ids import ProducerId
from suwi.net.answers import Reply
from suwi.records.batch import read_header
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.replica.partition_transactions import NOT_VERIFIED, TxnMarker
from suwi.sim.random import SimRandom
from suwi.sim.simulation import Simulation
from suwi.wire.fetch_request import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request
from suwi.wire.fetch_response import decode_fetch_response
from suwi.wire.versions import ApiKey
from tests.handlers.requests import request_of
from tests.handlers.world import World, led, sent

VERSION = 12


def test_a_fetch_lists_the_aborted_transactions_of_the_records_it_returns() -> None:
    async def run() -> None:
        world = World()
        world.add("t", [led()], index_interval_bytes="0")
        partition = world.replicas.leader_of("t", 0)
        for producer_id in range(10):
            batch = build_batch(
                [Record(value=b"v", timestamp=1)],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            view = memoryview(batch)
            partition.transactions.append(view, read_header(view), 1, NOT_VERIFIED)
            partition.transactions.append_marker(
                TxnMarker(ProducerId(producer_id), 0, 0, commits=False, transaction_version=1), 1
            )
        assert _aborted(world, offset=0, bytes_max=1) == [(0, 0)]
        assert _aborted(world, offset=4, bytes_max=1) == [(2, 4)]
        assert len(_aborted(world, offset=0, bytes_max=1 << 20)) == 10

    Simulation(0).run(run())


def _aborted(world: World, *, offset: int, bytes_max: int) -> list[tuple[int, int]]:
    async def synced(_: float) -> None:
        pass

    handler = Fetch(world.replicas, FetchSessionCache(10, SimRandom(1)), 1 << 20, synced)
    asked = FetchPartition(0, -1, offset, -1, -1, bytes_max)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=[FetchTopic("t", None, [asked])],
    )
    body = encode_fetch_request(VERSION, request)
    answer = handler(request_of(ApiKey.FETCH, VERSION, body))
    assert isinstance(answer, Reply)
    (topic,) = decode_fetch_response(VERSION, memoryview(sent(answer))).topics
    (partition,) = topic.partitions
    return [(each.producer_id, each.first_offset) for each in partition.aborted or ()]
