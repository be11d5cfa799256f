"""Implementation of `suwi transactions`."""

from collections.abc import Callable, Mapping, Sequence
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
    StuckTransaction,
    TransactionDescription,
    describe_transaction,
    find_hanging,
    find_stuck,
    list_transactions,
    producers_of,
    write_abort_marker,
)
from suwi.env import SystemClock
from suwi.model.config_kinds import did_you_mean
from suwi.model.errors import BrokerError, InvalidTxnState
from suwi.model.ids import NO_NODE, PartitionIndex, TopicPartition


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
    async def work(cluster: Cluster) -> int:
        topics = await cluster.topics() if topic is None else [await existing_topic(cluster, topic)]
        if partition is not None:
            topics[0].partition(partition)
        led = {
            TopicPartition(info.name, each.index): each.leader != NO_NODE
            for info in topics
            for each in info.partitions
            if partition in (None, each.index)
        }
        readable = [tp for tp, has_leader in led.items() if has_leader]
        hanging, unread = await find_hanging(cluster, readable, SystemClock().now_ms() - silent_ms)
        unread |= {tp: "it has no leader" for tp, has_leader in led.items() if not has_leader}
        stuck, silent = await find_stuck(cluster, readable, silent_ms)
        found = [_hanging(each) for each in hanging] + [
            _stuck(each, unread)
            for each in stuck
            if each.partition in led or (each.partition is None and topic is None)
        ]
        if json:
            document(found)
        elif found:
            table(tuple(_COLUMNS), [[show(each) for show in _COLUMNS.values()] for each in found])
        elif not unread and not silent:
            say("no transaction hangs")
        for tp, why in sorted(unread.items()):
            complain(f"{tp} could not be looked at: {why}")
        for node, why in silent.items():
            complain(f"broker {node} has not told of its transactions: {why}")
        return int(bool(unread or silent))

    run(target, work)


def _partition_text(found: dict[str, Any]) -> str:
    return "-" if found["topic"] is None else f"{found['topic']}-{found['partition']}"


def _last_write_text(found: dict[str, Any]) -> str:
    return "-" if found["last_timestamp"] is None else time_text(found["last_timestamp"])


def _or_dash(key: str) -> Callable[[dict[str, Any]], str]:
    return lambda found: "-" if found[key] is None else printable(str(found[key]))


_COLUMNS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "Partition": _partition_text,
    "StartOffset": _or_dash("start_offset"),
    "ProducerId": _or_dash("producer_id"),
    "ProducerEpoch": _or_dash("producer_epoch"),
    "LastWrite": _last_write_text,
    "TransactionalId": _or_dash("transactional_id"),
    "State": _or_dash("state"),
    "Reason": _or_dash("reason"),
}


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


def _hanging(found: OpenTransaction) -> dict[str, Any]:
    reason = "no coordinator knows it: suwi transactions abort ends it"
    return {**_open(found), "transactional_id": None, "state": None, "reason": reason}


def _stuck(found: StuckTransaction, unread: Mapping[TopicPartition, str]) -> dict[str, Any]:
    """It is decided, and ends when each of its partitions has a marker."""
    decided, partition, producer = found
    if partition is None:
        reason = "its coordinator has not completed it"
    elif producer is None:
        reason = unread.get(partition, "the partition could not be looked at")
    else:
        reason = "its marker is not written"
    return {
        "topic": partition.topic if partition is not None else None,
        "partition": partition.partition if partition is not None else None,
        "start_offset": producer.open_from if producer is not None else None,
        "producer_id": decided.producer.producer_id,
        "producer_epoch": decided.producer.epoch,
        "coordinator_epoch": producer.coordinator_epoch if producer is not None else None,
        "last_timestamp": producer.last_timestamp if producer is not None else None,
        "transactional_id": decided.transactional_id,
        "state": decided.state,
        "reason": reason,
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
        try:
            await write_abort_marker(cluster, transaction)
        except InvalidTxnState:
            raise Failure(
                f"the transaction of {partition} that begins at offset {start_offset} does not "
                "hang: a coordinator knows it, and ends it; see suwi transactions list"
            ) from None
        if json:
            document(_open(transaction))
        else:
            say(f"aborted the transaction of {partition} that begins at offset {start_offset}")

    run(target, work)
