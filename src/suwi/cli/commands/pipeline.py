"""`suwi pipeline`."""

from typing import Annotated

import typer

from suwi.cli.options import LOG_LEVELS, Json, Yes

app = typer.Typer(
    rich_markup_mode=None,
    help="Run Spark pipelines from topics to tables and topics, from a pipeline.yaml.",
    no_args_is_help=True,
)

_RETRIES = 10

_File = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline, as YAML.")]
_Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark master. Default: from the file, or local[*]."),
]
_SENT_BY_SPARK = (".py", ".zip", ".egg", ".jar")


def _check_py_files(paths: list[str] | None) -> list[str] | None:
    for path in paths or []:
        if not path.lower().endswith(_SENT_BY_SPARK):
            # Spark would send the file, but not add it to the Python path.
            hint = ". A wheel is a zip: copy it to a .zip file" * path.endswith(".whl")
            raise typer.BadParameter(f"{path}: Spark takes {', '.join(_SENT_BY_SPARK)}{hint}")
    return paths


_PyFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--py-files",
        metavar="PATH",
        callback=_check_py_files,
        help="Python code for executors, as .py or .zip; repeatable.",
    ),
]
_Retries = Annotated[
    int, typer.Option(metavar="N", min=0, help="How often to restart after consecutive failures.")
]


def _check_log_level(level: str) -> str:
    if level.lower() not in LOG_LEVELS:
        raise typer.BadParameter(f"{level}: allowed: {', '.join(LOG_LEVELS)}")
    return level


_LogLevel = Annotated[
    str,
    typer.Option(metavar="LEVEL", callback=_check_log_level, help="debug, info, warning or error."),
]


@app.command()
def run(
    file: _File,
    master: _Master = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process the available records, then exit.")
    ] = False,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the earliest records; refused if there is a checkpoint.",
        ),
    ] = False,
    new_checkpoint: Annotated[
        bool,
        typer.Option("--new-checkpoint", help="Set the checkpoint aside and start a new one."),
    ] = False,
    retries: _Retries = _RETRIES,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this port."
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="The address of the metrics.")
    ] = "127.0.0.1",
    py_files: _PyFiles = None,
    log_level: _LogLevel = "warning",
) -> None:
    """Run a pipeline, until Ctrl-C or SIGTERM.

    \b
    suwi pipeline run orders.yaml --once
    suwi pipeline run orders.yaml --master spark://host:7077

    Exit code: 0 when done or stopped by SIGTERM, 1 after a permanent failure, 2 for errors in the
    file, 3 when refused, 4 if records were deleted before they were read, 130 after Ctrl-C.
    """
    from suwi.cli import pipeline

    options = pipeline.RunOptions(
        master=master,
        once=once,
        from_beginning=from_beginning,
        new_checkpoint=new_checkpoint,
        retries=retries,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        py_files=py_files or [],
        log_level=log_level,
    )
    raise typer.Exit(pipeline.run(file, options))


@app.command()
def check(
    file: _File,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also check topics with the brokers, and SQL with Spark."),
    ] = False,
    master: _Master = None,
) -> None:
    """Show every error in a pipeline file, with its line."""
    from suwi.cli import pipeline

    raise typer.Exit(pipeline.check(file, deep=deep, master=master))


@app.command()
def show(
    file: _File,
    once: Annotated[bool, typer.Option("--once", help="As `run --once`.")] = False,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="As `run --from-beginning`.")
    ] = False,
) -> None:
    """Print the pipeline as an equivalent Python program.

    \b
    suwi pipeline show orders.yaml > orders.py
    python orders.py

    It has no secrets: it looks them up when it runs, as the pipeline does.
    """
    from suwi.cli import pipeline

    raise typer.Exit(pipeline.show(file, once=once, from_beginning=from_beginning))


@app.command()
def backfill(
    file: _File,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="As 2026-01-31T12:00:00Z; included.")
    ],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Not included.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be read; read nothing.")
    ] = False,
    master: _Master = None,
    retries: _Retries = _RETRIES,
    py_files: _PyFiles = None,
    json: Json = False,
    log_level: _LogLevel = "warning",
) -> None:
    """Process the records of a time range again.

    The checkpoint is neither read nor changed. A Delta table gets the same range only once, however
    often the command is run; rows that the stream wrote are duplicated unless the sink has keys.
    """
    from suwi.cli import pipeline

    options = pipeline.BackfillOptions(start, end, dry_run, master, retries, py_files or [], json)
    raise typer.Exit(pipeline.backfill(file, options, log_level))


@app.command()
def reset(
    file: _File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would happen; change nothing.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Discard the progress of a pipeline: the next run starts anew.

    The checkpoint is set aside, not deleted. Tables and topics are not changed.
    """
    from suwi.cli import pipeline

    raise typer.Exit(pipeline.reset(file, dry_run=dry_run, is_confirmed=yes, json=json))
