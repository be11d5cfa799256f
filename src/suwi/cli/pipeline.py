"""`suwi pipeline`: runs what `suwi.spark.pipeline` does, and shows it on the terminal.

Modules that need the extra `spark` are imported by the commands that use them.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from suwi.admin.text import count_text, parse_time_ms, printable, time_text
from suwi.cli.output import LOG_LEVELS, complain, document, say, set_up_logging, table
from suwi.cli.session import Json, MetricsHost, MetricsPort, Yes, guarded
from suwi.env import local_env

if TYPE_CHECKING:
    from suwi.spark.pipeline.checkpoint import Checkpoint
    from suwi.spark.pipeline.progress import Watch
    from suwi.spark.pipeline.spec import Pipeline
    from suwi.spark.pipeline.steps import Between

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_DONE, _FAILED, _MISTAKE, _REFUSED = 0, 1, 2, 3
_RETRIES = 10
_PROGRESS_EVERY_MS = 10_000
_PROGRESS_WIDTH = 160

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


# -- run -------------------------------------------------------------------------------------------


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
        bool, typer.Option("--new-checkpoint", help="Set the checkpoint aside and start a new one.")
    ] = False,
    retries: _Retries = _RETRIES,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = "127.0.0.1",
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
    set_up_logging(log_level)
    options = RunOptions(
        master, once, from_beginning, new_checkpoint, retries, metrics_host, metrics_port, py_files
    )
    _with_pipeline(file, lambda pipeline: _run(pipeline, options))


class RunOptions(NamedTuple):
    master: str | None
    once: bool
    from_beginning: bool
    new_checkpoint: bool
    retries: int
    metrics_host: str
    metrics_port: int | None
    py_files: list[str] | None


def _run(pipeline: "Pipeline", options: RunOptions) -> int:
    from suwi.spark.pipeline.program import check_function, load_program
    from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
    from suwi.spark.pipeline.steps import Variation

    refusal = _prepare_checkpoint(pipeline, options)
    if refusal is not None:
        complain(refusal)
        return _REFUSED
    variation = Variation(once=options.once, from_beginning=options.from_beginning)
    check_function(pipeline, has_session=False)
    with closing(Progress(pipeline.name)) as progress:
        progress.say("starting Spark")
        with _session(pipeline, options.master, options.py_files) as spark:
            if _complain_of_settings(pipeline, spark):
                return _MISTAKE
            progress.say(_session_text(pipeline, spark))
            if options.from_beginning and _exists_elsewhere(spark, pipeline):
                complain(_exists_text(_checkpoint(pipeline).path))
                return _REFUSED
            runner = Runner(
                pipeline,
                load_program(pipeline, variation),
                spark,
                lags_of(pipeline),
                RunSettings(retries=options.retries),
                say=progress.say,
                show=progress.show,
            )
            return _run_with_metrics(runner, options, progress)


@contextmanager
def _session(
    pipeline: "Pipeline", master: str | None, py_files: Iterable[str] | None = None
) -> Iterator[Any]:
    from suwi.spark.pipeline.program import resolve
    from suwi.spark.spark_session import close_session, open_session

    settings, folder = resolve(pipeline.spark), pipeline.folder
    spark = open_session(
        pipeline.name, settings, master=master, py_files=py_files or (), folder=folder
    )
    try:
        yield spark
    finally:
        close_session(spark)


def _complain_of_settings(pipeline: "Pipeline", spark: Any) -> bool:
    from suwi.spark.pipeline.checks import check_settings
    from suwi.spark.pipeline.nodes import Problems

    problems = Problems()
    check_settings(pipeline, spark, problems)
    for _, text in problems.found:
        complain(text)
    return bool(problems.found)


def _session_text(pipeline: "Pipeline", spark: Any) -> str:
    """The properties of the Spark session that determine how long a batch takes."""
    from suwi.spark.spark_session import SHUFFLE_PARTITIONS

    master = spark.sparkContext.master
    partitions = spark.conf.get(SHUFFLE_PARTITIONS)
    where = "" if SHUFFLE_PARTITIONS in pipeline.spark else f" ({SHUFFLE_PARTITIONS})"
    return f"Spark {spark.version} on {master}, {partitions} shuffle partitions{where}"


def _run_with_metrics(runner: Any, options: RunOptions, progress: "Progress") -> int:
    host, port, server = options.metrics_host, options.metrics_port, None
    if port is not None:
        from suwi.spark.pipeline.metrics import MetricsServer, PipelineCollector

        server = MetricsServer(PipelineCollector(runner), host, port)
        progress.say(f"metrics on http://{host}:{server.port}/metrics")
    try:
        code: int = asyncio.run(runner.run())
        progress.say(" · ".join(watch.line() for watch in runner.watches))
        return code
    finally:
        if server is not None:
            server.close()


def _checkpoint(pipeline: "Pipeline") -> "Checkpoint":
    from suwi.spark.pipeline.checkpoint import Checkpoint

    return Checkpoint(pipeline.checkpoint.resolve(os.environ, local_env().disk))


def _prepare_checkpoint(pipeline: "Pipeline", options: RunOptions) -> str | None:
    """Set the checkpoint aside if requested. Returns why the run is refused, or None."""
    from suwi.spark.pipeline.checkpoint import NotLocal

    checkpoint = _checkpoint(pipeline)
    try:
        if not checkpoint.exists():
            return None
        if options.new_checkpoint:
            new_path = checkpoint.set_aside()
            complain(
                f"the checkpoint {checkpoint.path} is now {new_path}; {_duplicates_text(pipeline)}"
            )
        elif options.from_beginning:
            return _exists_text(checkpoint.path)
    except NotLocal as error:
        if options.new_checkpoint:
            return f"{error}: set it aside with the tools of its store, or configure another one"
    return None


def _exists_text(path: str) -> str:
    return (
        f"there is a checkpoint at {path}; the run would continue there. --new-checkpoint sets it "
        "aside and starts from the beginning"
    )


def _exists_elsewhere(spark: Any, pipeline: "Pipeline") -> bool:
    from suwi.spark.pipeline.checkpoint import NotLocal, exists_for_spark

    checkpoint = _checkpoint(pipeline)
    try:
        _ = checkpoint.folder
        return False  # it was checked before
    except NotLocal:
        return exists_for_spark(spark, checkpoint.path)


def _duplicates_text(pipeline: "Pipeline") -> str:
    from suwi.spark.pipeline.spec import DeltaSpec

    sink = pipeline.sink
    if isinstance(sink, DeltaSpec) and sink.keys:
        return "rows are written by their keys, so there will be no duplicates"
    return "what is read again will be written again"


class Progress:
    """On stderr: one line that is overwritten on a terminal, otherwise a line every 10 seconds.

    Permanent lines are never overwritten.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._width = 0
        self._shown_ms = 0
        self._shown = ""

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self.close()
        prefix = "" if text.startswith(self._name) else f"{self._name}: "
        sys.stderr.write(f"{prefix}{printable(text)}\n")
        sys.stderr.flush()

    def show(self, watches: "list[Watch]") -> None:
        text = " · ".join(watch.line() for watch in watches)
        if self._is_terminal:
            self.close()
            text = text[:_PROGRESS_WIDTH]
            sys.stderr.write(text)
            self._width = len(text)
            sys.stderr.flush()
            return
        now_ms = local_env().clock.now_ms()
        if now_ms - self._shown_ms >= _PROGRESS_EVERY_MS and text != self._shown:
            self._shown_ms, self._shown = now_ms, text
            self.say(text)

    def close(self) -> None:
        """Remove the line that is overwritten."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            self._width = 0


# -- check and show --------------------------------------------------------------------------------


@app.command()
def check(
    file: _File,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also check topics with the brokers, and SQL with Spark.")
    ] = False,
    master: _Master = None,
) -> None:
    """Show every error in a pipeline file, with its line."""

    def work(pipeline: "Pipeline") -> int:
        if deep:
            from suwi.spark.pipeline.checks import check_deeply

            with _session(pipeline, master) as spark:
                problems = check_deeply(pipeline, spark)
            for line, text in problems:
                _print_problem(file, line, text)
            if problems:
                return _MISTAKE
        say(f"{file}: no mistakes found")
        return _DONE

    _with_pipeline(file, work)


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

    def work(pipeline: "Pipeline") -> int:
        from suwi.spark.pipeline.script import script
        from suwi.spark.pipeline.steps import Variation

        say(script(pipeline, Variation(once=once, from_beginning=from_beginning)).rstrip("\n"))
        return _DONE

    _with_pipeline(file, work)


# -- backfill --------------------------------------------------------------------------------------


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
    set_up_logging(log_level)

    def work(pipeline: "Pipeline") -> int:
        from suwi.spark.pipeline.checkpoint import ask_between
        from suwi.spark.pipeline.spec import TableSource
        from suwi.spark.pipeline.steps import Between

        between = Between(_instant_ms(start, "--from"), _instant_ms(end, "--to"))
        if between.start_ms >= between.end_ms:
            raise typer.BadParameter("must be later than --from", param_hint="--to")
        if isinstance(pipeline.source, TableSource):
            complain("a range of time is for topics: backfill the pipeline that reads them")
            return _REFUSED
        extents = ask_between(pipeline.source, between)
        total = sum(one.end - one.start for one in extents)
        if json:
            document({"offsets": total, "partitions": [one.as_json() for one in extents]})
        else:
            rows = [(one.partition, one.start, one.end, one.end - one.start) for one in extents]
            table(("PARTITION", "FROM", "TO", "OFFSETS"), rows, numbers="FROM TO OFFSETS")
            first, last = time_text(between.start_ms), time_text(between.end_ms)
            say(f"{count_text(total, 'offset')} from {first} to {last}")
        return _DONE if dry_run else _backfill(pipeline, between, master, retries, py_files)

    _with_pipeline(file, work)


def _backfill(
    pipeline: "Pipeline",
    between: "Between",
    master: str | None,
    retries: int,
    py_files: list[str] | None,
) -> int:
    from suwi.spark.pipeline.running import Backfill, NotForBatches

    with closing(Progress(pipeline.name)) as progress:
        try:
            job = Backfill(pipeline, between)
        except NotForBatches as error:
            complain(str(error))
            return _REFUSED
        progress.say("starting Spark")
        with _session(pipeline, master, py_files) as spark:
            return asyncio.run(job.run(spark, retries, progress.say))


def _instant_ms(text: str, option: str) -> int:
    """Milliseconds since 1970, from such a number or from ISO 8601; UTC if no zone is given."""
    time_ms = int(text) if text.isdecimal() else parse_time_ms(text)
    if time_ms is None:
        raise typer.BadParameter(
            f"{text!r}: as 2026-01-31T12:00:00Z, or in milliseconds since 1970", param_hint=option
        )
    return time_ms


# -- reset -----------------------------------------------------------------------------------------


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
    _with_pipeline(
        file, lambda pipeline: _reset(pipeline, dry_run=dry_run, is_confirmed=yes, json=json)
    )


def _reset(pipeline: "Pipeline", *, dry_run: bool, is_confirmed: bool, json: bool) -> int:
    from suwi.spark.pipeline.checkpoint import NotLocal, ask_beginnings
    from suwi.spark.pipeline.spec import TableSource

    checkpoint = _checkpoint(pipeline)
    try:
        position = checkpoint.position() if checkpoint.exists() else None
    except NotLocal as error:
        complain(f"{error}: set it aside with the tools of its store")
        return _REFUSED
    if position is None:
        say(f"there is no checkpoint at {checkpoint.path}: the next run starts anew anyway")
        return _DONE
    begins = f"at {pipeline.source.start.shown}" if pipeline.source.start else "at earliest"
    if isinstance(pipeline.source, TableSource):
        extents = []
        begins = begins.replace("at earliest", "with the table as it then is")
    else:
        extents = ask_beginnings(pipeline.source, position.offsets)
    if json:
        document(
            {
                "checkpoint": checkpoint.path,
                "batch": position.batch,
                "begins": begins.removeprefix("at "),
                "partitions": [one.as_json() for one in extents],
            }
        )
    else:
        done = "done" if position.is_done else "begun, and not done"
        say(f"{checkpoint.path}: batch {position.batch} is {done}")
        table(
            ("PARTITION", "EARLIEST", "AT", "LATEST", "DONE"),
            [
                (one.partition, one.earliest, one.start, one.end, max(0, one.start - one.earliest))
                for one in extents
            ],
            numbers="EARLIEST AT LATEST DONE",
        )
        say(f"the next run would begin {begins}; {_duplicates_text(pipeline)}")
    if dry_run:
        return _DONE
    if not is_confirmed and sys.stdin is None:
        complain("setting it aside needs --yes without stdin")
        return _REFUSED
    if not is_confirmed and not typer.confirm("Set the checkpoint aside?", err=True):
        return _REFUSED
    complain(f"the checkpoint is now {checkpoint.set_aside()}")
    return _DONE


# -- every command ---------------------------------------------------------------------------------


def _with_pipeline(file: str, work: "Callable[[Pipeline], int]") -> NoReturn:
    """Read the file, do the work and exit."""
    try:
        import yaml  # noqa: F401 - fail early if it is missing

        from suwi.spark.pipeline.nodes import BadPipeline
        from suwi.spark.pipeline.reading import read_pipeline
    except ImportError as error:
        complain(f"pipelines need the extra `spark`: pip install suwi[spark] ({error.name})")
        raise typer.Exit(_FAILED) from None
    try:
        pipeline = read_pipeline(file)
    except BadPipeline as bad:
        for line, text in bad.problems:
            _print_problem(file, line, text)
        raise typer.Exit(_MISTAKE) from None
    except OSError as error:
        complain(f"{file}: {error.strerror}")
        raise typer.Exit(_MISTAKE) from None
    raise typer.Exit(guarded(lambda: _run_reporting_errors(work, pipeline)))


def _run_reporting_errors(work: "Callable[[Pipeline], int]", pipeline: "Pipeline") -> int:
    from suwi.spark.java import NoJava
    from suwi.spark.pipeline.program import BadFunction
    from suwi.spark.spark_session import NoSpark

    try:
        return work(pipeline)
    except (NoJava, NoSpark) as error:
        complain(str(error))
    except BadFunction as error:
        complain(f"python: {error}")
        return _MISTAKE
    except ImportError as error:
        complain(f"pipelines need the extra `spark`: pip install suwi[spark] ({error})")
    return _FAILED


def _print_problem(file: str, line: int, text: str) -> None:
    sys.stderr.write(f"{file}:{line}: {printable(text)}\n")
