"""Full disks: of an elected leader, of a follower, and under a pipelining producer."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from suwi.client.connection import PeerConnection
from suwi.model.ids import NO_NODE
from suwi.records.builder import build_batch
from suwi.records.record import Record
from suwi.sim.cluster import PORT, SimCluster, SimNode
from suwi.sim.random import SimRandom
from suwi.wire.produce import (
    PartitionProduced,
    decode_produce_response,
    encode_produce_request,
)
from suwi.wire.versions import ApiKey
from tests.broker.simulated import read_all
from tests.broker.test_simulated_cluster import image, run, state, until
from tests.broker.test_simulated_losses import create_orders, make_controller, read, write

IN_FLIGHT_MAX = 5
BATCHES = 400


def fill(node: SimNode) -> None:
    disk = node.machine.disk
    disk.fill()


def free(node: SimNode) -> None:
    node.machine.disk.free()


def test_a_broker_that_could_not_become_leader_can_stop() -> None:
    """Found by the simulation."""

    async def scenario(cluster: SimCluster) -> None:
        await make_controller(cluster, 3)
        await create_orders(cluster, [1, 2])
        assert await write(cluster, 1, [b"a"]) == 0
        fill(cluster[2])
        cluster[1].kill()
        await until(lambda: state(cluster, seen_by=3).leader == 2)
        assert await write(cluster, 2, [b"b"]) != 0
        await cluster[2].stop()
        await until(lambda: 2 not in image(cluster, 3).registered_brokers)
        free(cluster[2])
        await cluster[2].start()
        await until(lambda: state(cluster, seen_by=3).leader == 2)
        assert await read(cluster, 2) == [b"a"]

    run(scenario)


def test_a_follower_on_a_full_disk_leaves_the_isr_at_once_and_returns_when_there_is_space() -> None:
    """Otherwise writers would wait for it until `replica.lag.time.max.ms`."""

    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, [1, 2, 3])
        assert await write(cluster, 1, [b"a"]) == 0
        fill(cluster[3])
        before_s = asyncio.get_running_loop().time()
        assert await write(cluster, 1, [b"b"]) == 0
        assert asyncio.get_running_loop().time() - before_s < 1  # of simulated time
        assert set(state(cluster).isr) == {1, 2}
        for value in (b"c", b"d"):
            assert await write(cluster, 1, [value]) == 0
        free(cluster[3])
        await until(lambda: set(state(cluster).isr) == {1, 2, 3})
        assert await read(cluster, 1) == [b"a", b"b", b"c", b"d"]

    run(scenario)


class PipeliningProducer:
    """Like the idempotent producers of clients: up to five batches in flight; if one is refused, it
    and all later ones that are not acknowledged are sent again."""

    def __init__(self, cluster: SimCluster, batches: int) -> None:
        self._cluster = cluster
        self._batches = batches
        self._acked = 0
        self.errors: list[ErrorCode] = []

    @property
    def is_done(self) -> bool:
        return self._acked == self._batches

    async def run(self) -> None:
        while not self.is_done:
            await until(lambda: state(self._cluster).leader != NO_NODE)
            leader = state(self._cluster).leader
            connection = await PeerConnection.open(f"b{leader}", PORT)
            while await self._send_some(connection):
                pass
            await connection.close()
            await asyncio.sleep(0.002)

    async def _send_some(self, connection: PeerConnection) -> bool:
        sequences = range(self._acked, min(self._acked + IN_FLIGHT_MAX, self._batches))
        # Sent from one task, because the simulation starts tasks in random order.
        sent = [connection.send(ApiKey.PRODUCE, 9, self._request(n)) for n in sequences]
        answers = [_produced(await reply) for reply in sent]
        codes = [ErrorCode(answer.error_code) for answer in answers]
        refused = [code for code in codes if code is not ErrorCode.none]
        self.errors += refused
        self._acked += codes.index(refused[0]) if refused else len(codes)
        return not refused and not self.is_done

    def _request(self, sequence: int) -> list[bytes | memoryview]:
        record = Record(value=b"%d" % sequence, timestamp=1_000)
        batch = build_batch([record], producer_id=77, producer_epoch=0, base_sequence=sequence)
        topics = [("orders", None, [(0, memoryview(batch))])]
        return encode_produce_request(9, None, -1, 30_000, topics)


def _produced(answer: memoryview) -> PartitionProduced:
    return decode_produce_response(9, answer).topics[0].partitions[0]


async def fill_and_free(cluster: SimCluster, random: SimRandom) -> None:
    """Fill one disk after another, for a moment each."""
    while True:
        leader = state(cluster).leader
        node = cluster[leader if leader != NO_NODE else 1 + random.below(3)]
        fill(node)
        await asyncio.sleep(random.below(20) / 1000)
        free(node)
        await asyncio.sleep(random.below(10) / 1000)


@pytest.mark.parametrize("replicas", [[1], [1, 2, 3]])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]
)
def test_pipelined_batches_are_stored_once_and_in_order_while_disks_fill_and_empty(
    seed: int, replicas: list[int]
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await create_orders(cluster, replicas, segment_bytes="1024")
        producer = PipeliningProducer(cluster, BATCHES)
        trouble = asyncio.create_task(fill_and_free(cluster, SimRandom(seed)))
        await producer.run()
        trouble.cancel()
        for node in cluster.nodes.values():
            free(node)
        assert ErrorCode.kafka_storage_error in producer.errors
        assert ErrorCode.out_of_order_sequence_number not in producer.errors
        await asyncio.sleep(1)
        connection = await PeerConnection.open(f"b{state(cluster).leader}", PORT)
        values = [record.value for record in await read_all(connection, "orders")]
        assert values == [b"%d" % number for number in range(BATCHES)]
        await connection.close()

    run(scenario, seed)
