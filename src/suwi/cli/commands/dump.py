"""`suwi dump`."""

from typing import Annotated

import typer


def dump(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files of a data directory, or directories."),
    ],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Show the records of each batch too.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per entry.")] = False,
) -> None:
    """Show the files of a broker, and any damage in them.

    Reads .log, .index, .timeindex, .txnindex and .snapshot files, checkpoints, partition.metadata
    and meta.properties, of Suwi and of Apache Kafka. No running broker is required.

    \b
    suwi dump suwi-data/orders-0/00000000000000000000.log --records
    """
    from suwi.cli.dump import command

    command.dump(files, records=records, json=json)
