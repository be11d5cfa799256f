"""`suwi explain`."""

from typing import Annotated

import typer

from suwi.cli.options import DEFAULT_BROKER, Broker, CommandConfig, Json, Target


def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its partition.")],
    offsets: Annotated[
        list[int], typer.Argument(metavar="OFFSET", min=0, help="One or more offsets.")
    ],
    json: Json = False,
    broker: Broker = DEFAULT_BROKER,
    command_config: CommandConfig = None,
) -> None:
    """Say what an offset is or was.

    A record, committed, aborted or in an open transaction; a transaction's marker; compacted away;
    deleted at the log start; lost in an election; not committed yet; or never written.

    \b
    suwi explain orders 0 41 42 43
    """
    from suwi.cli import explain as work

    work.explain(Target(broker, command_config), topic, partition, offsets, json=json)
