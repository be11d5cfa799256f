"""`suwi repair`."""

from typing import Annotated

import typer

app = typer.Typer(
    rich_markup_mode=None,
    help="Mend the files of a broker that is stopped.",
    no_args_is_help=True,
)


@app.callback()
def _repair() -> None:
    """Typer takes a group of one command for that command."""


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
    """Say which topic a partition's records belong to, where its partition.metadata is unreadable.

    A broker keeps such a partition offline, since the records may be those of a deleted topic of
    the same name. Look at them with `suwi dump` first.
    """
    from suwi.cli.repair import repair_partition_metadata

    repair_partition_metadata(directory, topic_id)
