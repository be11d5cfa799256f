"""`suwi transactions`."""

from typing import Annotated, Any

import typer

from suwi.admin.failure import Failure
from suwi.admin.hanging_transactions import (
    HangingTransaction,
    abort_hanging_transaction,
    find_hanging_transactions,
    find_open_transaction,
)
from suwi.admin.partition_producers import describe_producers as read_producers
from suwi.admin.text import duration_text, printable, time_text
from suwi.cli.output import complain, complain_of_silent, document, or_dash, say, show_each, table
from suwi.cli.session import Json, Partition, States, Topic, on_cluster
from suwi.client.cluster import Cluster
from suwi.client.transaction_admin import (
    TransactionDescription,
    describe_transaction,
    list_transactions,
)
from suwi.env import SystemClock
from suwi.model.config_kinds import did_you_mean

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)


@app.command("list")
@on_cluster
async def list_(
    cluster: Cluster,
    state: States = None,
    running_longer_than: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", min=0, help="Only transactions that are open for longer."),
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only ids that match as a whole.")
    ] = None,
    json: Json = False,
) -> int:
    """List transactional ids, with their state and the broker that coordinates each.

    \b
    suwi transactions list
    suwi transactions list --state Ongoing --running-longer-than 60
    """
    listed, silent = await list_transactions(
        cluster,
        states=state or [],
        longer_than_ms=-1 if running_longer_than is None else running_longer_than * 1000,
        pattern=pattern,
    )
    if json:
        document(listed)
    elif listed:
        rows = [(t.transactional_id, t.state, t.producer_id, t.coordinator) for t in listed]
        table(("TransactionalId", "State", "ProducerId", "Coordinator"), rows)
    elif not silent:
        say("there are no such transactional ids")
    return complain_of_silent(silent, "transactions")


@app.command()
@on_cluster
async def describe(
    cluster: Cluster,
    names: Annotated[
        list[str], typer.Argument(metavar="TRANSACTIONAL_ID", help="One or more transactional ids.")
    ],
    json: Json = False,
) -> None:
    """Show the producer, state, age and partitions of transactional ids.

    \b
    suwi transactions describe copier
    """
    described = []
    for name in dict.fromkeys(names):
        found = await describe_transaction(cluster, name)
        if found is None:
            known = [t.transactional_id for t in (await list_transactions(cluster)).transactions]
            raise Failure(f"transactional id {name!r} does not exist{did_you_mean(name, known)}")
        described.append(_described(found))
    if json:
        document(described)
        return
    show_each(described, _show)


def _described(found: TransactionDescription) -> dict[str, Any]:
    started_ms = found.started_ms
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.epoch,
        "timeout_ms": found.timeout_ms,
        "started_ms": started_ms,
        "open_ms": None if started_ms is None else max(0, SystemClock().now_ms() - started_ms),
        "partitions": found.partitions,
    }


def _show(fields: dict[str, Any]) -> None:
    began = "-"
    if fields["started_ms"] is not None:
        began = f"{time_text(fields['started_ms'])}, {duration_text(fields['open_ms'])} ago"
    for label, value in (
        ("TransactionalId", printable(fields["transactional_id"])),
        ("State", fields["state"]),
        ("Coordinator", fields["coordinator"]),
        ("Producer", f"{fields['producer_id']}, epoch {fields['producer_epoch']}"),
        ("Timeout", duration_text(fields["timeout_ms"])),
        ("Begun", began),
        ("Partitions", ", ".join(map(str, fields["partitions"])) or "-"),
    ):
        say(f"{label + ':':<17}{value}")


# -- producers ------------------------------------------------------------------------------------


@app.command()
@on_cluster
async def describe_producers(
    cluster: Cluster, topic: Topic, partition: Partition, json: Json = False
) -> None:
    """Show the producers that a partition's leader remembers, those with an open transaction first.

    \b
    suwi transactions describe-producers orders 0
    """
    found = await read_producers(cluster, topic, partition)
    if json:
        document(found)
        return
    if not found:
        say(f"{topic}-{partition} has no producers that are idempotent or transactional")
        return
    columns = "ProducerId ProducerEpoch LastSequence LastWrite StartOffset TransactionalId"
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            time_text(each.last_timestamp),
            or_dash(each.start_offset),
            or_dash(each.transactional_id),
        )
        for each in found
    ]
    table(columns.split(), rows, numbers="LastSequence StartOffset")


# -- hanging transactions --------------------------------------------------------------------------


@app.command()
@on_cluster
async def find_hanging(
    cluster: Cluster,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Default: all topics.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Default: all; needs --topic."),
    ] = None,
    max_transaction_timeout: Annotated[
        int, typer.Option(metavar="MINUTES", min=0, help="Only without a write for this long.")
    ] = 15,
    json: Json = False,
) -> int:
    """Find transactions that hang.

    They are open in a partition and no coordinator will end them, or they are decided (Prepare…)
    and do not get their markers. They hold up readers of committed records, and compaction.
    `suwi transactions abort` ends one that no coordinator knows; docs/transactions.md says what to
    do about the others.
    """
    if partition is not None and topic is None:
        raise typer.BadParameter("give the --topic as well", param_hint="--partition")
    report = await find_hanging_transactions(
        cluster,
        topic,
        partition,
        silent_ms=max_transaction_timeout * 60_000,
        now_ms=SystemClock().now_ms(),
    )
    if json:
        document(report.found)
    elif report.found:
        columns = (
            "Partition StartOffset ProducerId ProducerEpoch LastWrite TransactionalId State Reason"
        )
        table(columns.split(), map(_hanging_row, report.found))
    elif not report.unread and not report.silent:
        say("no transaction hangs")
    for place, why in sorted(report.unread.items()):
        complain(f"{place} could not be read: {why}")
    return complain_of_silent(report.silent, "transactions") or int(bool(report.unread))


def _hanging_row(found: HangingTransaction) -> tuple[object, ...]:
    return (
        "-" if found.topic is None else f"{found.topic}-{found.partition}",
        or_dash(found.start_offset),
        found.producer_id,
        found.producer_epoch,
        "-" if found.last_timestamp is None else time_text(found.last_timestamp),
        or_dash(found.transactional_id),
        or_dash(found.state),
        found.reason,
    )


@app.command()
@on_cluster
async def abort(
    cluster: Cluster,
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="The first offset of the transaction in the partition."
        ),
    ],
    json: Json = False,
) -> None:
    """End a hanging transaction in one partition.

    Only one that no coordinator knows can be ended: `suwi transactions find-hanging` shows them.
    Brokers refuse to end others.

    \b
    suwi transactions abort orders 0 --start-offset 42
    """
    found = await find_open_transaction(cluster, topic, partition, start_offset)
    await abort_hanging_transaction(cluster, found)
    place, producer = found
    if not json:
        say(f"aborted the transaction of {place} that begins at offset {start_offset}")
        return
    document(
        {
            **place._asdict(),
            "start_offset": producer.open_from,
            "producer_id": producer.producer.producer_id,
            "producer_epoch": producer.producer.epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "last_timestamp": producer.last_timestamp,
        }
    )
