"""`suwi transactions`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, States, Target

app = typer.Typer(
    rich_markup_mode=None,
    help="List and describe transactions, and end those that hang.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    state: States = None,
    running_longer_than: Annotated[
        int | None,
        typer.Option(
            "--running-longer-than", metavar="SECONDS", min=0, help="Only open for longer."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="REGEX", help="Only ids that match as a whole."),
    ] = None,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """List transactional ids, with their state and the broker that coordinates each.

    \b
    suwi transactions list
    suwi transactions list --state Ongoing --running-longer-than 60
    """
    from suwi.cli import transactions

    longer_than_ms = -1 if running_longer_than is None else running_longer_than * 1000
    target = Target(broker, command_config)
    transactions.list_all(target, state or [], longer_than_ms, pattern, json=json)


@app.command()
def describe(
    names: Annotated[
        list[str], typer.Argument(metavar="TRANSACTIONAL_ID", help="One or more transactional ids.")
    ],
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Show the producer, state, age and partitions of transactional ids.

    \b
    suwi transactions describe copier
    """
    from suwi.cli import transactions

    transactions.describe(Target(broker, command_config), names, json=json)


@app.command()
def find_hanging(
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Default: all topics.")
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Default: all; needs --topic."),
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout",
            metavar="MINUTES",
            min=0,
            help="Only without a write for so long.",
        ),
    ] = 15,
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end, and those
    that are decided (Prepare…) and do not get their markers.

    They hold up readers of committed records and compaction. `suwi transactions abort` ends one
    that no coordinator knows; docs/transactions.md says what to do about the others.
    """
    if partition is not None and topic is None:
        raise typer.BadParameter("give the --topic as well", param_hint="--partition")
    from suwi.cli import transactions

    target = Target(broker, command_config)
    transactions.find(target, topic, partition, max_transaction_timeout * 60_000, json=json)


@app.command()
def abort(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its partition.")],
    start_offset: Annotated[
        int,
        typer.Option(
            "--start-offset", metavar="N", min=0, help="Where the transaction begins there."
        ),
    ],
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """End a hanging transaction in one partition.

    Only what no coordinator knows, as `suwi transactions find-hanging` shows it; brokers refuse to
    end others.

    \b
    suwi transactions abort orders 0 --start-offset 42
    """
    from suwi.cli import transactions

    target = Target(broker, command_config)
    transactions.abort(target, topic, partition, start_offset, json=json)
