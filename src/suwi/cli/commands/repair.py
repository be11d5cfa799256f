"""`suwi repair`."""

from typing import Annotated

import typer

app = typer.Typer(
    rich_markup_mode=None,
    help="Repair the files of a stopped broker.",
    no_args_is_help=True,
)


@app.callback()
def _repair() -> None:
    """Makes Typer treat this as a group although it has only one command."""


@app.command("partition-metadata")
def partition_metadata(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A partition's directory, such as data/orders-0.")
    ],
    topic_id: Annotated[
        str,
        typer.Option(
            metavar="ID", help="The topic's id, as the broker and `suwi topics describe` print it."
        ),
    ],
) -> None:
    """Set the topic of a partition whose partition.metadata is unreadable.

    A broker keeps such a partition offline, because the records may belong to a deleted topic of
    the same name. Inspect them with `suwi dump` first.
    """
    from suwi.cli.repair import repair_partition_metadata

    repair_partition_metadata(directory, topic_id)
