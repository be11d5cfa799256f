"""`suwi dump`."""

import os
from typing import Annotated

import typer

from suwi.admin.failure import Failure
from suwi.admin.log_dump.file_types import files_in, reader_of
from suwi.admin.log_dump.findings import Damage, Entry, Findings, Note
from suwi.admin.text import count_text, size_text
from suwi.cli.output import complain, json_line, say
from suwi.cli.session import local_command


@local_command
def dump(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Files of a data directory, or directories.")
    ],
    records: Annotated[
        bool, typer.Option("--records", "-r", help="Show the records of each batch too.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per entry.")] = False,
) -> int:
    """Show the files of a broker, and any damage in them.

    Reads .log, .index, .timeindex, .txnindex and .snapshot files, checkpoints, partition.metadata
    and meta.properties, of Suwi and of Apache Kafka. No running broker is required.

    \b
    suwi dump suwi-data/orders-0/00000000000000000000.log --records
    """
    damages = failures = 0
    for number, path in enumerate(files_in(files)):
        try:
            os.stat(path)
            described = reader_of(path, records)
            if described is None:
                raise Failure(f"{path}: not a known file of a broker")
            kind, read = described
            if json:
                damages += _print_json(path, read(path))
            else:
                if number:
                    say()
                say(f"{path}: {kind}, {size_text(os.path.getsize(path))}")
                damages += _print(read(path))
        except OSError as error:
            complain(f"{path}: {error.strerror}")
            failures += 1
        except Failure as failure:
            complain(str(failure))
            failures += 1
    if damages:
        complain(f"found {count_text(damages, 'problem')}")
    return 1 if damages or failures else 0


def _print(findings: Findings) -> int:
    """Returns the number of problems."""
    damages = entries = 0
    for finding in findings:
        match finding:
            case Entry():
                entries += 1
                say(finding.text())
            case Note(text):
                say(f"({text})")
            case Damage(text):
                damages += 1
                say(f"!! {text}")
    if not entries and not damages:
        say("(empty)")
    return damages


def _print_json(path: str, findings: Findings) -> int:
    damages = 0
    for finding in findings:
        if isinstance(finding, Entry):
            json_line({"file": path, "type": finding.kind, **finding.fields})
            continue
        damages += isinstance(finding, Damage)
        json_line({"file": path, "type": type(finding).__name__.lower(), "text": finding.text})
    return damages
