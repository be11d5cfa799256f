"""Implementation of `suwi transactions`."""

from collections.abc import Sequence
from typing import Any

from suwi.cli.options import Target
from suwi.cli.output import (
    Failure,
    complain,
    document,
    duration_text,
    printable,
    say,
    show_each,
    table,
    time_text,
)
from suwi.cli.session import existing_topic, run
from suwi.client.cluster import Cluster
from suwi.client.transaction_admin import (
    OpenTransaction,
    TransactionDescription,
    describe_transaction,
    find_hanging,
    list_transactions,
    producers_of,
    write_abort_marker,
)
from suwi.env import SystemClock
from suwi.model.config_kinds import did_you_mean
from suwi.model.errors import BrokerError
from suwi.model.ids import PartitionIndex, TopicPartition


def list_all(
    target: Target,
    states: Sequence[str],
    longer_than_ms: int,
    pattern: str | None,
    *,
    json: bool,
) -> None:
    async def work(cluster: Cluster) -> int:
        listed, silent = await list_transactions(
            cluster, states=states, longer_than_ms=longer_than_ms, pattern=pattern
        )
        if json:
            document([each._asdict() for each in listed])
        elif listed:
            rows = [(t.transactional_id, t.state, t.producer_id, t.coordinator) for t in listed]
            table(("TransactionalId", "State", "ProducerId", "Coordinator"), rows)
        elif not silent:
            say("there are no such transactional ids")
        for node, why in silent.items():
            complain(f"broker {node} has not told of its transactions: {why}")
        return int(bool(silent))

    run(target, work)


def describe(target: Target, names: Sequence[str], *, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        described = []
        for name in dict.fromkeys(names):
            found = await describe_transaction(cluster, name)
            if found is None:
                raise await _unknown_id(cluster, name)
            described.append(_described(found))
        if json:
            document(described)
            return
        show_each(described, _show)

    run(target, work)


async def _unknown_id(cluster: Cluster, name: str) -> Failure:
    known = [each.transactional_id for each in (await list_transactions(cluster)).transactions]
    return Failure(f"transactional id {name!r} does not exist{did_you_mean(name, known)}")


def _described(found: TransactionDescription) -> dict[str, Any]:
    open_ms = None
    if found.started_ms is not None:
        open_ms = max(0, SystemClock().now_ms() - found.started_ms)
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.epoch,
        "timeout_ms": found.timeout_ms,
        "started_ms": found.started_ms,
        "open_ms": open_ms,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition}
            for partition in found.partitions
        ],
    }


def _show(fields: dict[str, Any]) -> None:
    began = "-"
    if fields["started_ms"] is not None:
        began = f"{time_text(fields['started_ms'])}, {duration_text(fields['open_ms'])} ago"
    names = (f"{each['topic']}-{each['partition']}" for each in fields["partitions"])
    for label, value in (
        ("TransactionalId", printable(fields["transactional_id"])),
        ("State", fields["state"]),
        ("Coordinator", fields["coordinator"]),
        ("Producer", f"{fields['producer_id']}, epoch {fields['producer_epoch']}"),
        ("Timeout", duration_text(fields["timeout_ms"])),
        ("Begun", began),
        ("Partitions", ", ".join(names) or "-"),
    ):
        say(f"{label + ':':<17}{value}")


# -- hanging transactions --------------------------------------------------------------------------


def find(
    target: Target, topic: str | None, partition: int | None, silent_ms: int, *, json: bool
) -> None:
    async def work(cluster: Cluster) -> None:
        topics = await cluster.topics() if topic is None else [await existing_topic(cluster, topic)]
        if partition is not None:
            topics[0].partition(partition)
        partitions = [
            TopicPartition(info.name, each.index)
            for info in topics
            for each in info.partitions
            if partition in (None, each.index)
        ]
        hanging = await find_hanging(cluster, partitions, SystemClock().now_ms() - silent_ms)
        if json:
            document([_open(each) for each in hanging])
        elif hanging:
            rows = [
                (each.partition, p.open_from, *p.producer, time_text(p.last_timestamp))
                for each in hanging
                for p in [each.producer]
            ]
            columns = ("Partition", "StartOffset", "ProducerId", "ProducerEpoch", "LastWrite")
            table(columns, rows)
        else:
            say("no transaction hangs")

    run(target, work)


def _open(found: OpenTransaction) -> dict[str, Any]:
    producer = found.producer
    return {
        "topic": found.partition.topic,
        "partition": found.partition.partition,
        "start_offset": producer.open_from,
        "producer_id": producer.producer.producer_id,
        "producer_epoch": producer.producer.epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_timestamp": producer.last_timestamp,
    }


def abort(target: Target, topic: str, index: int, start_offset: int, *, json: bool) -> None:
    async def work(cluster: Cluster) -> None:
        (await existing_topic(cluster, topic)).partition(index)
        partition = TopicPartition(topic, PartitionIndex(index))
        producers = (await producers_of(cluster, [partition]))[partition]
        if isinstance(producers, BrokerError):
            raise producers
        found = [producer for producer in producers if producer.open_from == start_offset]
        if not found:
            raise Failure(f"no open transaction of {partition} begins at offset {start_offset}")
        transaction = OpenTransaction(partition, found[0])
        await write_abort_marker(cluster, transaction)
        if json:
            document(_open(transaction))
        else:
            say(f"aborted the transaction of {partition} that begins at offset {start_offset}")

    run(target, work)
