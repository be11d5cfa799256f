"""WriteTxnMarkers over the wire to a broker of production code, under simulated time."""

from typing import Any

import pytest

from suwi.coordinator.shard_replica import Status
from suwi.model.ids import NodeId, ProducerId
from suwi.wire.versions import ApiKey
from tests.group.wire import TOPIC, Wire, on_broker

OFFSETS = "__consumer_offsets"
PRODUCER = 7
ONE_SHARD = {
    "transaction_state_log_num_partitions": "1",
    "transaction_state_log_replication_factor": "1",
}


async def write_markers(
    wire: Wire,
    *partitions: tuple[str, int],
    epoch: int = 0,
    coordinator_epoch: int = 0,
    version: int = 2,
    transaction_version: int = 0,
    commits: bool = True,
) -> dict[tuple[str, int], int]:
    """The error of each partition, as a broker is told it."""
    assert wire.broker.broker is not None
    broker = await wire.broker.broker.peers.connect(NodeId(0))
    marker = {
        "producer_id": PRODUCER,
        "producer_epoch": epoch,
        "transaction_result": commits,
        "topics": [{"name": name, "partition_indexes": [index]} for name, index in partitions],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": transaction_version,
    }
    answer = await broker.call(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker]})
    await broker.close()
    (result,) = answer.markers
    assert result.producer_id == PRODUCER
    return {
        (topic.name, each.partition_index): int(each.error_code)
        for topic in result.topics
        for each in topic.partitions
    }


def log_of(wire: Wire, topic: str) -> Any:
    broker = wire.broker.broker
    assert broker is not None
    return broker.replicas.leader_of(topic, 0).log


@pytest.mark.parametrize("version", [1, 2])
def test_a_marker_is_written_to_every_partition_and_an_error_is_that_of_one(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        errors = await write_markers(
            wire,
            (TOPIC, 0),
            (TOPIC, 9),
            ("nowhere", 0),
            (OFFSETS, 0),
            ("__transaction_state", 0),
            version=version,
        )
        assert errors == {
            (TOPIC, 0): 0,
            (TOPIC, 9): 3,
            ("nowhere", 0): 3,
            (OFFSETS, 0): 0,
            ("__transaction_state", 0): 17,
        }
        for topic in (TOPIC, OFFSETS):
            producer = log_of(wire, topic).producers.get(ProducerId(PRODUCER))
            assert (producer.epoch, producer.coordinator_epoch) == (0, 0)

    on_broker(scenario)


def test_t6_the_rules_of_epochs_are_those_of_the_transaction_version() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.find("bank", key_type=1)
        for topic in (TOPIC, OFFSETS):
            place = (topic, 0)
            assert await write_markers(wire, place, epoch=3, coordinator_epoch=0) == {place: 0}
            end = log_of(wire, topic).end_offset
            for how, error in (
                ({"epoch": 2, "coordinator_epoch": 0}, 47),
                ({"epoch": 3, "coordinator_epoch": -1}, 52),
                ({"epoch": 3, "coordinator_epoch": 0, "transaction_version": 2}, 0),
            ):
                assert await write_markers(wire, place, **how) == {place: error}
                assert log_of(wire, topic).end_offset == end
            assert await write_markers(wire, place, epoch=3, coordinator_epoch=0) == {place: 0}
            assert log_of(wire, topic).end_offset == end + 1

    on_broker(scenario, **ONE_SHARD)


def test_t25_a_coordinator_epoch_that_no_coordinator_has_had_fences_none() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.find("bank", key_type=1)
        for topic in (TOPIC, OFFSETS):
            place = (topic, 0)
            impossible = 2**31 - 1
            written = await write_markers(wire, place, coordinator_epoch=impossible)
            assert written == {place: 0}
            assert await write_markers(wire, place, coordinator_epoch=0) == {place: 0}
            producer = log_of(wire, topic).producers.get(ProducerId(PRODUCER))
            assert producer.coordinator_epoch == 0
            assert await write_markers(wire, place, coordinator_epoch=-1) == {place: 52}

    on_broker(scenario, **ONE_SHARD)


@pytest.mark.parametrize("status", [Status.LOADING, Status.FAILED, Status.FOLLOWING])
def test_t23_a_shard_that_does_not_serve_answers_as_a_partition_that_moved(status: Status) -> None:
    async def scenario(wire: Wire) -> None:
        assert wire.broker.broker is not None
        (shard,) = wire.broker.broker.groups.runtime
        shard.status = status
        assert await write_markers(wire, (OFFSETS, 0)) == {(OFFSETS, 0): 6}
        shard.status = Status.ACTIVE

    on_broker(scenario)


def test_a_marker_without_a_producer_is_refused() -> None:
    async def scenario(wire: Wire) -> None:
        assert await write_markers(wire, (TOPIC, 0), epoch=-1) == {(TOPIC, 0): 42}

    on_broker(scenario)
