"""The APIs of the transaction coordinator over the wire, and the errors of each version (T22)."""

import asyncio
from unittest.mock import patch

import pytest

from suwi.metadata.store import Unavailable
from suwi.model.errors import NotEnoughReplicas
from suwi.transaction.producer_ids import ProducerIds
from suwi.transaction.transaction_records import TransactionState
from tests.transaction.wire import ID, TOPIC, Wire, on_broker

OFFSETS = "__consumer_offsets"
LOADING, INVALID_TIMEOUT, INVALID_REQUEST = 14, 50, 42
INVALID_EPOCH, FENCED, MAPPING, INVALID_STATE = 47, 90, 49, 48
UNKNOWN_PARTITION, NOT_ATTEMPTED, NOT_AUTHORIZED, ABORTABLE = 3, 55, 29, 120
ID_NOT_FOUND, NOT_AVAILABLE, INVALID_REGEX = 105, 15, 128


def test_find_coordinator_creates_the_topic_as_kafka_does() -> None:
    async def scenario(wire: Wire) -> None:
        found = await wire.find("a", "b")
        assert [each.error_code for each in found.coordinators] == [0, 0]
        assert wire.broker.broker is not None
        topic = wire.broker.broker.replicas.image.topics["__transaction_state"]
        assert topic.configs == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "104857600",
            "unclean.leader.election.enable": "false",
        }

    on_broker(scenario)


def test_find_coordinator_of_an_unknown_type_is_an_invalid_request() -> None:
    async def scenario(wire: Wire) -> None:
        found = await wire.find("a", key_type=7)
        assert found.coordinators[0].error_code == INVALID_REQUEST

    on_broker(scenario)


# -- InitProducerId --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id_bumps_the_epoch_of_a_transactional_id(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        first, second = await wire.init(version=version), await wire.init(version=version)
        assert (first.error_code, first.producer_epoch) == (0, 0)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, 1)
        plain = await wire.init(None, version=version)
        assert (plain.error_code, plain.producer_epoch) == (0, 0)
        assert plain.producer_id != first.producer_id

    on_broker(scenario)


def test_init_producer_id_is_checked() -> None:
    async def scenario(wire: Wire) -> None:
        assert (await wire.init("")).error_code == INVALID_REQUEST
        assert (await wire.init(expected=(7, -1))).error_code == INVALID_REQUEST
        assert (await wire.init(expected=(-1, 7))).error_code == INVALID_REQUEST
        for timeout_ms in (0, -1, 900_001):
            assert (await wire.init(timeout_ms=timeout_ms)).error_code == INVALID_TIMEOUT
        assert (await wire.init(timeout_ms=900_000)).error_code == 0

    on_broker(scenario)


@pytest.mark.parametrize(("version", "error"), [(3, INVALID_EPOCH), (4, FENCED), (5, FENCED)])
def test_t22_init_producer_id_names_the_fence_as_its_version_knows_it(
    version: int, error: int
) -> None:
    async def scenario(wire: Wire) -> None:
        old = await wire.producer()
        await wire.producer()
        assert (await wire.init(version=version, expected=old)).error_code == error

    on_broker(scenario)


def test_t22_init_producer_id_without_ids_left_is_retried_by_clients() -> None:
    async def scenario(wire: Wire) -> None:
        with patch.object(ProducerIds, "next", side_effect=Unavailable("the store is away")):
            assert (await wire.init()).error_code == LOADING
            assert (await wire.init(None)).error_code == LOADING
        assert (await wire.init()).error_code == 0

    on_broker(scenario)


def test_a_new_producer_id_is_fetched_when_the_epochs_are_used_up() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        with patch("suwi.transaction.transaction_coordinator_shard.EPOCH_OF_CLIENTS_MAX", 1):
            assert (await wire.producer()) == (producer.id, 1)
            rotated = await wire.producer()
            assert rotated.id != producer.id
            assert rotated.epoch == 0

    on_broker(scenario)


# -- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_add_partitions_to_txn_begins_a_transaction(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        added = await wire.add(producer, {TOPIC: [1, 0]}, version=version)
        assert added == {(TOPIC, 0): 0, (TOPIC, 1): 0}
        described = await wire.describe()
        assert described.transaction_state == "Ongoing"
        assert [(each.topic, each.partitions) for each in described.topics] == [(TOPIC, (0, 1))]
        metadata = wire.machine.transactions[ID]
        assert metadata.client_transaction_version == (2 if version >= 4 else 0)

    on_broker(scenario)


@pytest.mark.parametrize(
    ("version", "error"), [(0, INVALID_EPOCH), (1, INVALID_EPOCH), (2, FENCED), (4, FENCED)]
)
def test_t22_add_partitions_to_txn_names_the_fence_as_its_version_knows_it(
    version: int, error: int
) -> None:
    async def scenario(wire: Wire) -> None:
        old = await wire.producer()
        new = await wire.producer()
        assert await wire.add(old, version=version) == {(TOPIC, 0): error}
        assert await wire.add((new.id + 1, 0), version=version) == {(TOPIC, 0): MAPPING}
        assert await wire.add(new, name="other", version=version) == {(TOPIC, 0): MAPPING}
        assert await wire.add(new, name="", version=version) == {(TOPIC, 0): INVALID_REQUEST}

    on_broker(scenario)


def test_add_partitions_to_txn_adds_all_or_nothing() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        added = await wire.add(producer, {TOPIC: [0, 9], "nope": [0], OFFSETS: [0]})
        assert added == {
            (TOPIC, 0): NOT_ATTEMPTED,
            (TOPIC, 9): UNKNOWN_PARTITION,
            ("nope", 0): UNKNOWN_PARTITION,
            (OFFSETS, 0): NOT_AUTHORIZED,
        }
        assert wire.machine.transactions[ID].state is TransactionState.EMPTY
        # A group coordinator adds the partition of its offsets (TxnOffsetCommit v5).
        assert await wire.add(producer, {OFFSETS: [0]}, version=5) == {(OFFSETS, 0): 0}

    on_broker(scenario)


@pytest.mark.parametrize(("version", "error"), [(4, INVALID_STATE), (5, ABORTABLE)])
def test_verify_only_says_which_partitions_are_in_the_transaction(version: int, error: int) -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        await wire.add(producer, {TOPIC: [0]})
        found = await wire.add(producer, {TOPIC: [0, 1]}, version=version, verify_only=True)
        assert found == {(TOPIC, 0): 0, (TOPIC, 1): error}
        assert len(wire.machine.transactions[ID].partitions) == 1

    on_broker(scenario)


def test_partitions_are_added_and_verified_without_a_socket() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        assert wire.broker.broker is not None
        verifier = wire.broker.broker._verifier
        await wire.add(producer)
        (partition,) = wire.machine.transactions[ID].partitions
        for adds in (False, True):
            found = await verifier.verify(ID, *producer, [partition], adds=adds)
            assert found == {partition: 0}

    on_broker(scenario)


@pytest.mark.parametrize("version", range(5))
def test_add_offsets_to_txn_adds_the_partition_of_the_group(version: int) -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        assert await wire.add_offsets(producer, version=version) == 0
        assert list(wire.machine.transactions[ID].partitions) == [(OFFSETS, 0)]
        old, _ = producer, await wire.producer()
        error = FENCED if version >= 2 else INVALID_EPOCH
        assert await wire.add_offsets(old, version=version) == error
        assert await wire.add_offsets((old.id + 1, 0), version=version) == MAPPING
        assert await wire.add_offsets(old, version=version, name="") == INVALID_REQUEST

    on_broker(scenario)


def test_add_offsets_to_txn_may_be_the_first_to_need_the_topic_of_groups() -> None:
    """aiokafka looks for the coordinator of the group only afterwards."""

    async def scenario(wire: Wire) -> None:
        assert await wire.add_offsets(await wire.producer()) == 0

    on_broker(scenario, has_groups=False)


# -- EndTxn ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
@pytest.mark.parametrize("commit", [True, False])
def test_end_txn_ends_the_transaction_and_keeps_the_epoch(version: int, commit: bool) -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        await wire.add(producer)
        assert (await wire.end(producer, commit=commit, version=version)).error_code == 0
        described = await wire.until("CompleteCommit" if commit else "CompleteAbort")
        assert described.producer_epoch == producer.epoch
        assert (await wire.end(producer, commit=commit, version=version)).error_code == 0
        wrong = await wire.end(producer, commit=not commit, version=version)
        assert wrong.error_code == INVALID_STATE
        await wire.producer()
        error = FENCED if version >= 2 else INVALID_EPOCH
        assert (await wire.end(producer, version=version)).error_code == error
        assert (await wire.end((99, 0), version=version)).error_code == MAPPING
        assert (await wire.end(producer, version=version, name="")).error_code == INVALID_REQUEST

    on_broker(scenario)


def test_end_txn_of_version_5_gives_the_epoch_to_go_on_with() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        for number in range(5):
            # The next one waits until the markers of the last are written.
            added = await wire.add((producer.id, number), version=5)
            assert added == {(TOPIC, 0): 0}
            for _ in range(2):  # The second is a retry.
                ended = await wire.end((producer.id, number), version=5, commit=number % 2 == 0)
                assert ended.error_code == 0
                assert (ended.producer_id, ended.producer_epoch) == (producer.id, number + 1)

    on_broker(scenario)


def test_t22_end_txn_is_never_told_what_librdkafka_does_not_retry() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        await wire.add(producer)
        target = "suwi.replica.partition.Partition.check_enough_replicas"
        with patch(target, side_effect=NotEnoughReplicas("one is missing")):
            assert (await wire.end(producer)).error_code == NOT_AVAILABLE
        with patch.object(type(wire.machine), "end_transaction", side_effect=ZeroDivisionError):
            assert (await wire.end(producer)).error_code == NOT_AVAILABLE
        await asyncio.sleep(5)  # The shard is loaded again.
        assert (await wire.end(producer)).error_code == 0

    on_broker(scenario)


def test_init_producer_id_ends_an_open_transaction_before_it_answers() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        await wire.add(producer)
        assert await wire.producer() == (producer.id, producer.epoch + 2)
        assert wire.machine.transactions[ID].state is TransactionState.EMPTY

    on_broker(scenario)


def test_t8_a_transaction_is_aborted_after_its_time_out() -> None:
    async def scenario(wire: Wire) -> None:
        answer = await wire.init(timeout_ms=5_000)
        producer = answer.producer_id, answer.producer_epoch
        await wire.add(producer)
        await asyncio.sleep(16)
        described = await wire.describe()
        assert described.transaction_state == "CompleteAbort"
        assert described.producer_epoch == 1
        assert await wire.add(producer) == {(TOPIC, 0): FENCED}

    on_broker(scenario)


def test_a_transaction_of_a_deleted_topic_ends() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        await wire.add(producer)
        await wire.delete_topic(TOPIC)
        assert (await wire.end(producer)).error_code == 0
        await wire.until("CompleteCommit")

    on_broker(scenario)


def test_t9_a_transaction_that_was_decided_is_completed_after_a_restart() -> None:
    async def scenario(wire: Wire) -> None:
        producer = await wire.producer()
        await wire.add(producer)
        assert (await wire.end(producer)).error_code == 0
        wire.broker.kill()
        await wire.broker.start()
        await wire.connect()
        await wire.until_served()
        assert (await wire.until("CompleteCommit")).producer_id == producer.id
        assert await wire.add(producer) == {(TOPIC, 0): 0}

    on_broker(scenario)


# -- DescribeTransactions, ListTransactions --------------------------------------------------------


def test_describe_transactions() -> None:
    async def scenario(wire: Wire) -> None:
        assert (await wire.describe("unknown")).error_code == ID_NOT_FOUND
        assert (await wire.describe("")).error_code == INVALID_REQUEST
        producer = await wire.producer()
        await wire.add(producer, {TOPIC: [1]})
        described = await wire.describe()
        assert described.error_code == 0
        assert described.transaction_timeout.total_seconds() == 60
        assert (described.producer_id, described.producer_epoch) == producer
        assert described.transaction_start_time is not None

    on_broker(scenario)


def test_an_id_without_an_open_transaction_has_no_start_time() -> None:
    async def scenario(wire: Wire) -> None:
        await wire.producer()
        described = await wire.describe()
        assert (described.error_code, described.transaction_state) == (0, "Empty")
        assert described.transaction_start_time is None

    on_broker(scenario)


def test_list_transactions_filters() -> None:
    async def scenario(wire: Wire) -> None:
        first = await wire.producer()
        await wire.add(first)
        other = await wire.init("other-1")
        await asyncio.sleep(5)

        async def names(version: int = 2, **filters: object) -> list[str]:
            listed = await wire.list(version, **filters)
            assert listed.error_code == 0
            return [each.transactional_id for each in listed.transaction_states]

        assert await names() == [ID, "other-1"]
        assert await names(0) == [ID, "other-1"]
        assert await names(state_filters=["Ongoing"]) == [ID]
        assert await names(state_filters=["Empty", "Ongoing"]) == [ID, "other-1"]
        assert await names(state_filters=["Nonsense"]) == []
        assert (await wire.list(state_filters=["Nonsense"])).unknown_state_filters == ("Nonsense",)
        assert await names(producer_id_filters=[other.producer_id]) == ["other-1"]
        assert ID in await names(1, duration_filter=4_000)
        assert ID not in await names(1, duration_filter=6_000)

    on_broker(scenario)


def test_list_transactions_by_pattern() -> None:
    pytest.importorskip("re2")

    async def scenario(wire: Wire) -> None:
        await wire.init("other-1")
        listed = await wire.list(transactional_id_pattern="other-[0-9]")
        assert [each.transactional_id for each in listed.transaction_states] == ["other-1"]
        assert not (await wire.list(transactional_id_pattern="other")).transaction_states
        assert (await wire.list(transactional_id_pattern="(")).error_code == INVALID_REGEX

    on_broker(scenario)


def test_every_state_has_kafkas_name() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]
