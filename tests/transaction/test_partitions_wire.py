"""Transactions end to end over the wire: produce, offsets, markers, what readers see.

A broker of production code, under simulated time. Clients of transaction version 1 add partitions
before they write (Produce up to v11); those of version 2 do not (v12).
"""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from suwi.client.connection import PeerConnection
from suwi.model.errors import NotLeaderOrFollower
from suwi.records.batch import batches
from suwi.records.builder import build_batch
from suwi.records.record import Record, iter_records
from suwi.replica.partition_transactions import PartitionTransactions
from suwi.transaction.transaction_metadata import Producer
from suwi.wire.versions import ApiKey
from tests.broker.simulated import PORT
from tests.raw_client import fetch_fields, produce_fields, produced
from tests.transaction.wire import GROUP, ID, TOPIC, Wire, on_broker

OFFSETS = "__consumer_offsets"
TV1, TV2 = 11, 12
"""The versions of Produce that tell clients apart."""
VERSIONS = pytest.mark.parametrize("version", [TV1, TV2])
READ_COMMITTED = 1


class Client:
    """A transactional producer as the test wants it, and a reader."""

    def __init__(self, wire: Wire, producer: Producer, version: int) -> None:
        self.wire = wire
        self.producer = producer
        self.version = version
        self.sequence = 0

    async def begin(self, *partitions: int) -> None:
        """Clients of version 1 add the partitions that they write to."""
        if self.version < TV2:
            added = await self.wire.add(self.producer, {TOPIC: list(partitions or (0,))})
            assert set(added.values()) == {0}

    async def send(
        self,
        *values: str,
        partition: int = 0,
        sequence: int | None = None,
        connection: PeerConnection | None = None,
        transactional: bool = True,
        name: str | None = ID,
    ) -> int:
        """The error."""
        # An old timestamp would make the next marker begin a new segment.
        now_ms = self.wire.broker.machine.clock.now_ms()
        batch = build_batch(
            [Record(value=value.encode(), timestamp=now_ms) for value in values],
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=self.sequence if sequence is None else sequence,
            transactional=transactional,
        )
        fields = produce_fields(self.version, TOPIC, {partition: batch}, transactional_id=name)
        answer = await (connection or self.wire.client).call(ApiKey.PRODUCE, self.version, fields)
        error = int(produced(answer)[partition].error)
        if error == 0 and sequence is None:
            self.sequence += len(values)
        return error

    async def end(self, *, commit: bool = True) -> None:
        version = 5 if self.version >= TV2 else 4
        answer = await self.wire.end(self.producer, commit=commit, version=version)
        assert answer.error_code == 0, answer
        if version >= 5:
            self.producer = Producer(answer.producer_id, answer.producer_epoch)
            self.sequence = 0
        await self.wire.until("CompleteCommit" if commit else "CompleteAbort")

    async def commit_offset(
        self,
        offset: int,
        *,
        group: str = GROUP,
        version: int | None = None,
        member_id: str = "",
        generation: int = -1,
        topic: str = TOPIC,
    ) -> int:
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "transactional_id": ID,
            "group_id": group,
            "producer_id": self.producer.id,
            "producer_epoch": self.producer.epoch,
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [partition]}],
        }
        if version is None:
            version = 5 if self.version >= TV2 else 3
        answer = await self.wire.client.call(ApiKey.TXN_OFFSET_COMMIT, version, fields)
        return int(answer.topics[0].partitions[0].error_code)


async def new_client(wire: Wire, version: int) -> Client:
    return Client(wire, await wire.producer(), version)


async def read(wire: Wire, *, committed: bool = True, partition: int = 0) -> list[str]:
    """What a consumer is given from the start."""
    values: list[str] = []
    offset = 0
    while True:
        fields = fetch_fields(12, TOPIC, offset, partition=partition)
        fields["isolation_level"] = READ_COMMITTED if committed else 0
        answer = await wire.client.call(ApiKey.FETCH, 12, fields)
        found = answer.responses[0].partitions[0]
        assert found.error_code == 0
        if not found.records:
            return values
        listed = found.aborted_transactions or ()
        aborted = sorted((each.first_offset, each.producer_id) for each in listed)
        skipped: set[int] = set()
        for position, header in batches(found.records):
            while aborted and aborted[0][0] <= header.last_offset:
                skipped.add(aborted.pop(0)[1])
            if header.is_control:
                skipped.discard(header.producer_id)
            elif not committed or header.producer_id not in skipped:
                data = memoryview(found.records)[position:]
                values += [str(record.value, "ascii") for record in iter_records(data, header)]
            offset = header.next_offset


async def end_offset(wire: Wire, *, committed: bool) -> int:
    fields = {
        "replica_id": -1,
        "isolation_level": READ_COMMITTED if committed else 0,
        "topics": [
            {
                "name": TOPIC,
                "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
            }
        ],
        "timeout": 1_000,
    }
    answer = await wire.client.call(ApiKey.LIST_OFFSETS, 7, fields)
    return int(answer.topics[0].partitions[0].offset)


async def group_offset(wire: Wire, group: str = GROUP, *, stable: bool = False) -> tuple[int, int]:
    """Offset and error."""
    topics = [{"name": TOPIC, "partition_indexes": [0]}]
    fields = {
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
        "require_stable": stable,
    }
    answer = await wire.client.call(ApiKey.OFFSET_FETCH, 9, fields)
    if answer.groups[0].error_code:
        return -1, int(answer.groups[0].error_code)
    found = answer.groups[0].topics[0].partitions[0]
    return int(found.committed_offset), int(found.error_code)


# -- records ---------------------------------------------------------------------------------------


@VERSIONS
def test_readers_of_committed_records_see_all_of_a_transaction_or_nothing(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, version)
        await client.begin(0, 1)
        assert await client.send("a", "b") == 0
        assert await client.send("c") == 0
        assert await client.send("d", partition=1, sequence=0) == 0
        assert (await read(wire), await read(wire, committed=False)) == ([], ["a", "b", "c"])
        assert await end_offset(wire, committed=True) == 0
        assert await end_offset(wire, committed=False) == 3
        await client.end()
        assert (await read(wire), await read(wire, partition=1)) == (["a", "b", "c"], ["d"])
        assert await end_offset(wire, committed=True) == 4
        await client.begin(0)
        assert await client.send("e") == 0
        await client.end(commit=False)
        assert await read(wire) == ["a", "b", "c"]
        assert await read(wire, committed=False) == ["a", "b", "c", "e"]

    on_broker(scenario)


def test_t1_a_partition_that_was_not_added_is_refused_and_nothing_is_appended() -> None:
    async def scenario(wire: Wire) -> None:
        for version, error in ((9, 48), (10, 48), (11, 120)):
            client = await new_client(wire, version)
            assert await client.send("a") == error
            await client.begin(1)
            assert await client.send("a") == error
        assert await end_offset(wire, committed=False) == 0

    on_broker(scenario)


def test_t1_a_late_produce_does_not_open_a_transaction_that_nobody_ends() -> None:
    """KAFKA-14561, hazard 15."""

    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        await client.begin()
        assert await client.send("a") == 0
        await client.end(commit=False)
        assert await client.send("late") == 120
        assert await end_offset(wire, committed=True) == 2

    on_broker(scenario)


def test_version_2_adds_the_partition_with_the_first_write() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        assert await client.send("a") == 0
        assert (await wire.describe()).topics[0].partitions == (0,)
        old = Client(wire, client.producer, TV2)
        await client.end()
        assert await old.send("late", sequence=1) == 47
        assert await end_offset(wire, committed=True) == 2

    on_broker(scenario)


def test_t3_the_first_write_of_version_2_has_sequence_0() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        assert await client.send("b", sequence=1) == 45
        assert await client.send("a", sequence=0) == 0

    on_broker(scenario)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_a_transactional_batch_without_a_transactional_id_is_refused(version: int) -> None:
    """Without an authorizer, too, as in Apache Kafka."""

    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, min(version, 12))
        assert await client.send("a", name=None) == 53

    on_broker(scenario)


def test_a_fenced_producer_hears_47_from_produce() -> None:
    async def scenario(wire: Wire) -> None:
        zombie = await new_client(wire, TV1)
        await zombie.begin()
        await new_client(wire, TV1)
        assert await zombie.send("a") == 47

    on_broker(scenario)


def test_without_verification_version_1_writes_where_it_wants() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        assert await client.send("a") == 0

    on_broker(scenario, transaction_partition_verification_enable="false")


@VERSIONS
def test_t22_a_coordinator_that_cannot_be_asked_is_not_enough_replicas(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, version)
        await client.begin()
        assert wire.broker.broker is not None
        (shard,) = wire.broker.broker.transactions.runtime
        for status in ("LOADING", "FAILED", "FOLLOWING"):
            with_status = type(shard.status)[status]
            before, shard.status = shard.status, with_status
            assert await client.send("a") == 19
            assert await client.commit_offset(1) == 14
            shard.status = before
        assert await client.send("a") == 0

    on_broker(scenario)


def test_t23_the_next_produce_does_not_overtake_one_that_waits_for_verification() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        sends = []
        for sequence in range(4):
            send = client.send(str(sequence), sequence=sequence)
            sends.append(asyncio.ensure_future(send))
            await asyncio.sleep(0.000_001)  # They leave in this order.
        assert await asyncio.gather(*sends) == [0, 0, 0, 0]
        assert await read(wire, committed=False) == ["0", "1", "2", "3"]

    on_broker(scenario)


def test_a_client_that_sends_again_on_another_connection_is_appended_once() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        other = await PeerConnection.open(wire.broker.machine.name, PORT)
        errors = await asyncio.gather(
            client.send("a", sequence=0), client.send("a", sequence=0, connection=other)
        )
        assert errors == [0, 0]
        assert await read(wire, committed=False) == ["a"]

    on_broker(scenario)


# -- offsets ---------------------------------------------------------------------------------------


@VERSIONS
def test_offsets_are_committed_with_the_transaction(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, version)
        for commit, before, after in ((True, -1, 7), (False, 7, 7)):
            if version < TV2:
                assert await wire.add_offsets(client.producer) == 0
            assert await client.commit_offset(7 if commit else 9) == 0
            assert await group_offset(wire) == (before, 0)
            assert await group_offset(wire, stable=True) == (-1, 88)
            await client.end(commit=commit)
            assert await group_offset(wire, stable=True) == (after, 0)

    on_broker(scenario)


def test_t1_offsets_that_were_not_added_are_refused() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        for version, error in ((0, 48), (3, 48), (4, 120)):
            assert await client.commit_offset(1, version=version) == error
        assert await group_offset(wire, stable=True) == (-1, 0)

    on_broker(scenario)


def test_t14_whether_a_member_may_commit_is_decided_with_the_append() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        assert await client.commit_offset(1, member_id="m", generation=3) == 22
        assert await client.commit_offset(1, topic="nowhere") == 3
        assert await client.commit_offset(1, group="") == 24
        assert await client.commit_offset(1, group="simple") == 0
        # An empty group: a member of it is not known.
        assert await client.commit_offset(1, group="simple", member_id="m", generation=3) == 25
        await client.end()
        assert await group_offset(wire, "simple", stable=True) == (1, 0)
        assert await group_offset(wire, stable=True) == (-1, 0)

    on_broker(scenario)


def test_offsets_of_a_fenced_producer_are_refused() -> None:
    async def scenario(wire: Wire) -> None:
        zombie = await new_client(wire, TV1)
        assert await wire.add_offsets(zombie.producer) == 0
        await new_client(wire, TV1)
        assert await zombie.commit_offset(1) == 47
        assert await group_offset(wire, stable=True) == (-1, 0)

    on_broker(scenario)


def test_t14_staged_offsets_and_open_transactions_survive_a_restart() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        assert await client.send("a") == 0
        assert await client.commit_offset(7) == 0
        await wire.broker.stop()
        await wire.broker.start()
        await wire.connect()
        await wire.until_served()
        while (found := await group_offset(wire, stable=True))[1] in (14, 16):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert found == (-1, 88)
        assert await read(wire) == []
        assert await client.send("b") == 0
        await client.end()
        assert await group_offset(wire, stable=True) == (7, 0)
        assert await read(wire) == ["a", "b"]

    on_broker(scenario)


def test_t13_when_the_transaction_is_complete_its_offsets_are_visible() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        for offset in range(5):
            assert await client.commit_offset(offset) == 0
            await client.end()
            assert await group_offset(wire, stable=True) == (offset, 0)

    on_broker(scenario)


# -- what administrators see -----------------------------------------------------------------------


async def described(wire: Wire) -> list[Any]:
    fields = {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    answer = await wire.client.call(ApiKey.DESCRIBE_PRODUCERS, 0, fields)
    return list(answer.topics[0].partitions[0].active_producers)


def test_a_hanging_transaction_is_found_and_ended_by_an_administrator() -> None:
    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV1)
        assert await client.send("hanging") == 0  # Without verification nobody will end it.
        (found,) = await described(wire)
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (0, -1)
        marker = {
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "transaction_result": False,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "coordinator_epoch": found.coordinator_epoch,
        }
        fields = {"markers": [marker]}
        answer = await wire.client.call(ApiKey.WRITE_TXN_MARKERS, 1, fields)
        assert answer.markers[0].topics[0].partitions[0].error_code == 0
        (found,) = await described(wire)
        assert found.current_txn_start_offset == -1
        assert await end_offset(wire, committed=True) == 2
        assert await read(wire) == []

    on_broker(scenario, transaction_partition_verification_enable="false")


def test_a_log_that_is_not_ready_does_not_cost_the_transaction() -> None:
    """The client has to send the batch again; 120 would make it abort."""

    async def scenario(wire: Wire) -> None:
        client = await new_client(wire, TV2)
        error = NotLeaderOrFollower("as the test wants it")
        with patch.object(PartitionTransactions, "begin_verification", side_effect=error):
            assert await client.send("a") == 6
        assert await client.send("a") == 0

    on_broker(scenario)
