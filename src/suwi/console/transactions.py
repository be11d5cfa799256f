"""Transactions: which are open and since when, one of them, those that hang, and the producers of a
partition."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from suwi.admin.failure import Failure
from suwi.admin.hanging_transactions import HangingTransaction, find_hanging_transactions
from suwi.admin.partition_producers import ProducerDescription, describe_producers
from suwi.client.transaction_admin import (
    ListedTransaction,
    TransactionDescription,
    describe_transaction,
    list_transactions,
    producers_of,
)
from suwi.console.clusters import ShownCluster
from suwi.console.page import Part, Query, cut
from suwi.model.errors import BrokerError
from suwi.model.ids import TopicPartition

_ENDED = ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
_SILENT_MINUTES = 15
_SHOWN_MAX = 200


class TransactionRow(NamedTuple):
    transactional_id: str
    state: str
    is_open: bool
    producer_id: int
    coordinator: int
    started_ms: int | None
    """None if none is open, or if its coordinator does not respond."""
    timeout_ms: int | None
    partitions: int | None


class Transactions(NamedTuple):
    part: Part
    rows: Sequence[TransactionRow]
    """Those that are open first."""
    open_count: int
    ids_count: int
    silent: Sequence[str]
    """Brokers whose transactions are not known, and why."""
    at_ms: int
    command: str


class TransactionPartition(NamedTuple):
    topic: str
    partition: int
    start_offset: int | None
    """The first offset of the transaction in it; None if nothing is written yet, or not known."""


class Transaction(NamedTuple):
    transactional_id: str
    state: str
    is_open: bool
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: Sequence[TransactionPartition]
    at_ms: int
    command: str


class Hanging(NamedTuple):
    found: Sequence[HangingTransaction]
    unread: Sequence[str]
    """What could not be read, and why."""
    minutes: int
    command: str


class Producers(NamedTuple):
    topic: str
    partition: int
    part: Part
    rows: Sequence[ProducerDescription]
    at_ms: int
    command: str


# -- transactional ids -----------------------------------------------------------------------------


async def read_transactions(shown: ShownCluster, query: Query) -> Transactions:
    """With `state=open` only those that are open."""
    listed, silent = await list_transactions(shown.client)
    opened = [each for each in listed if each.state not in _ENDED]
    wanted = opened
    if query.choice("state", "all", "open") == "all":
        wanted = [*opened, *(each for each in listed if each.state in _ENDED)]
    part, found = cut(wanted, query, lambda each: each.transactional_id)
    return Transactions(
        part,
        await asyncio.gather(*(_row(shown, each) for each in found)),
        len(opened),
        len(listed),
        [f"broker {node}: {why}" for node, why in silent.items()],
        shown.clock.now_ms(),
        shown.command("transactions list"),
    )


async def _row(shown: ShownCluster, listed: ListedTransaction) -> TransactionRow:
    described: TransactionDescription | None = None
    if listed.state not in _ENDED:
        try:
            described = await describe_transaction(shown.client, listed.transactional_id)
        except (BrokerError, OSError):
            pass  # what is listed is shown without it
    return TransactionRow(
        listed.transactional_id,
        listed.state,
        listed.state not in _ENDED,
        listed.producer_id,
        listed.coordinator,
        *(
            (None, None, None)
            if described is None
            else (described.started_ms, described.timeout_ms, len(described.partitions))
        ),
    )


async def read_transaction(shown: ShownCluster, query: Query) -> Transaction:
    name = query.text("transaction")
    found = await describe_transaction(shown.client, name)
    if found is None:
        raise Failure(f"transactional id {name!r} does not exist")
    partitions = found.partitions[:_SHOWN_MAX]
    producers = await producers_of(shown.client, partitions)

    def start(tp: TopicPartition) -> int | None:
        told = producers.get(tp, [])
        own = [] if isinstance(told, BrokerError) else told
        return next((p.open_from for p in own if p.producer == found.producer), None)

    return Transaction(
        name,
        found.state,
        found.state not in _ENDED,
        found.coordinator,
        found.producer.producer_id,
        found.producer.epoch,
        found.timeout_ms,
        found.started_ms,
        [TransactionPartition(*tp, start(tp)) for tp in partitions],
        shown.clock.now_ms(),
        shown.command("transactions describe", name),
    )


async def read_hanging(shown: ShownCluster, query: Query) -> Hanging:
    """It asks for the producers of all partitions, so it is read only when somebody asks for it."""
    minutes = query.number("minutes", _SILENT_MINUTES, most=1_000_000)
    now_ms = shown.clock.now_ms()
    report = await find_hanging_transactions(
        shown.client, None, None, silent_ms=minutes * 60_000, now_ms=now_ms
    )
    unread = [
        *(f"{tp}: {why}" for tp, why in sorted(report.unread.items())),
        *(f"broker {node}: {why}" for node, why in report.silent.items()),
    ]
    return Hanging(
        report.found[:_SHOWN_MAX],
        unread[:_SHOWN_MAX],
        minutes,
        shown.command("transactions find-hanging", options=["--max-transaction-timeout", minutes]),
    )


# -- producers -------------------------------------------------------------------------------------


async def read_producers(shown: ShownCluster, query: Query) -> Producers:
    topic, index = query.text("topic"), query.number("partition", 0)
    found = await describe_producers(shown.client, topic, index)
    part, rows = cut(found, query, lambda p: f"{p.producer_id} {p.transactional_id or ''}")
    command = shown.command("transactions describe-producers", topic, index)
    return Producers(topic, index, part, rows, shown.clock.now_ms(), command)
