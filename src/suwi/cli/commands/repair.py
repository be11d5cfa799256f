"""`suwi repair`."""

from typing import Annotated

import typer

app = typer.Typer(
    rich_markup_mode=None,
    help="Repair the files of a stopped broker.",
    no_args_is_help=True,
)


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


@app.command("segments")
def segments(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A partition's directory, such as data/orders-0.")
    ],
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Give up the damaged records. They cannot come back.")
    ] = False,
) -> None:
    """Find the damaged and missing records of a partition, and give them up on request.

    Not needed while another broker has an in-sync replica: a started broker then replaces its
    damaged one. Otherwise fetches of the damaged offsets fail until they are given up; from then on
    consumers skip them. All other records stay, with their offsets.
    """
    from suwi.cli.repair import repair_segments

    repair_segments(directory, give_up=give_up)
