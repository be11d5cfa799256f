"""`suwi pipeline`."""

from typing import Annotated

import typer

from suwi.cli.options import Json

app = typer.Typer(
    rich_markup_mode=None,
    help="Topics through Spark into tables and topics, from a pipeline.yaml.",
    no_args_is_help=True,
)

_RETRIES = 10

_File = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline, as YAML.")]
_Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs. Default: the file's, else local[*]."),
]
_SENT_BY_SPARK = (".py", ".zip", ".egg", ".jar")


def _check_py_files(paths: list[str] | None) -> list[str] | None:
    for path in paths or []:
        if not path.lower().endswith(_SENT_BY_SPARK):
            # Spark would send it, and put it on no path.
            hint = ". A wheel is a zip: copy it to a name that says so" * path.endswith(".whl")
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
    int, typer.Option(metavar="N", min=0, help="How often to start again after failures in a row.")
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
_LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]


@app.command()
def run(
    file: _File,
    master: _Master = None,
    once: Annotated[bool, typer.Option("--once", help="Process what there is, and end.")] = False,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Start at the earliest records; refused where there is a checkpoint.",
        ),
    ] = False,
    new_checkpoint: Annotated[
        bool,
        typer.Option("--new-checkpoint", help="Set a checkpoint aside, and begin with a new one."),
    ] = False,
    retries: _Retries = _RETRIES,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on 127.0.0.1:PORT."
        ),
    ] = None,
    py_files: _PyFiles = None,
    log_level: _LogLevel = "warning",
) -> None:
    """Run a pipeline, until Ctrl-C or SIGTERM.

    \b
    suwi pipeline run orders.yaml --once
    suwi pipeline run orders.yaml --master spark://host:7077

    Ends with 0 when done or stopped by SIGTERM, 1 when it failed for good, 2 for mistakes in the
    file, 3 when refused, 4 when records are gone before they were read, 130 after Ctrl-C.
    """
    from suwi.cli import pipeline

    options = pipeline.RunOptions(
        master=master,
        once=once,
        from_beginning=from_beginning,
        new_checkpoint=new_checkpoint,
        retries=retries,
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
        typer.Option("--deep", help="Also ask the brokers for the topics, and Spark for the SQL."),
    ] = False,
    master: _Master = None,
) -> None:
    """Name every mistake in a pipeline, with its line."""
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
    """Print the pipeline as Python that does the same.

    \b
    suwi pipeline show orders.yaml > orders.py
    python orders.py

    Secrets are not in it: it looks them up when it runs, as the pipeline does.
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
        bool, typer.Option("--dry-run", help="Say what would be read, and read nothing.")
    ] = False,
    master: _Master = None,
    retries: _Retries = _RETRIES,
    py_files: _PyFiles = None,
    json: Json = False,
    log_level: _LogLevel = "warning",
) -> None:
    """Process the records of a range of time again.

    The checkpoint is neither read nor changed. Into a Delta table the same range is written once,
    however often it is asked for; rows that the stream wrote are there twice unless the sink has
    keys.
    """
    from suwi.cli import pipeline

    options = pipeline.BackfillOptions(start, end, dry_run, master, retries, py_files or [], json)
    raise typer.Exit(pipeline.backfill(file, options, log_level))


@app.command()
def reset(
    file: _File,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")
    ] = False,
    yes: _Yes = False,
    json: Json = False,
) -> None:
    """Forget how far a pipeline has come: the next run begins anew.

    The checkpoint is set aside, not deleted. Tables and topics keep what was written.
    """
    from suwi.cli import pipeline

    raise typer.Exit(pipeline.reset(file, dry_run=dry_run, is_sure=yes, json=json))
