"""`suwi dump`."""

from typing import Annotated

import typer


def dump(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Files of a data directory, or directories."),
    ],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Also the records of each batch.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object for each entry.")] = False,
) -> None:
    """Show the files of a broker, and their damage.

    Reads .log, .index, .timeindex, .txnindex and .snapshot files, checkpoints, partition.metadata
    and meta.properties, of Suwi and of Apache Kafka. No broker needs to run.

    \b
    suwi dump suwi-data/orders-0/00000000000000000000.log --records
    """
    from suwi.cli.dump import command

    command.dump(files, records=records, json=json)
