"""`suwi pipeline`: runs what `suwi.spark.pipeline` does, and shows it on the terminal.

Modules that need the extra `spark` are imported by the commands that use them.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from json import dumps as to_json
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from suwi.admin.text import count_text, duration_text, parse_time_ms, printable, time_text
from suwi.cli.output import LOG_LEVELS, complain, document, or_dash, say, set_up_logging, table
from suwi.cli.session import Json, MetricsHost, MetricsPort, Yes, guarded, on_cluster
from suwi.client.cluster import Cluster
from suwi.client.pipeline_status import STATUS_TOPIC, read_statuses
from suwi.env import SystemClock, local_env

if TYPE_CHECKING:
    from suwi.spark.pipeline.brokers import Extent, TopicCheck
    from suwi.spark.pipeline.checkpoint import Checkpoint
    from suwi.spark.pipeline.deep_check import Sample
    from suwi.spark.pipeline.nodes import Problem
    from suwi.spark.pipeline.progress import Watch
    from suwi.spark.pipeline.running import Runner
    from suwi.spark.pipeline.spec import Pipeline

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True, add_completion=False)

_DONE, _FAILED, _MISTAKE, _REFUSED = 0, 1, 2, 3
_RETRIES = 10
_PROGRESS_EVERY_MS = 10_000
_PROGRESS_WIDTH = 160
_SAMPLE_ROWS = 10

_File = Annotated[str, typer.Argument(metavar="FILE", help="The pipeline, as YAML.")]
_Path = Annotated[
    str, typer.Argument(metavar="PATH", help="A pipeline, as YAML, or a directory of them.")
]
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
    typer.Option(
        metavar="LEVEL",
        callback=_check_log_level,
        help="debug, info, warning or error. debug also shows Spark's errors with their traces.",
    ),
]


def _set_up_logging(level: str) -> None:
    set_up_logging(level)
    if level.lower() == "debug":
        os.environ.setdefault("SPARK_LOG_LEVEL", "error")


# -- run -------------------------------------------------------------------------------------------


@app.command()
def run(
    path: _Path,
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
    """Run a pipeline, or all of a directory in one Spark session, until Ctrl-C or SIGTERM.

    \b
    suwi pipeline run orders.yaml --once
    suwi pipeline run medallion/ --once
    suwi pipeline run orders.yaml --master spark://host:7077

    Exit code: 0 when done or stopped by SIGTERM, 1 after a permanent failure, 2 for errors in the
    file, 3 when refused, 4 if records were deleted before they were read, 130 after Ctrl-C.
    """
    _set_up_logging(log_level)
    options = RunOptions(
        master, once, from_beginning, new_checkpoint, retries, metrics_host, metrics_port, py_files
    )
    _with_pipelines(_files(path), lambda pipelines: _run(pipelines, options))


class RunOptions(NamedTuple):
    master: str | None
    once: bool
    from_beginning: bool
    new_checkpoint: bool
    retries: int
    metrics_host: str
    metrics_port: int | None
    py_files: list[str] | None


def _run(pipelines: "list[Pipeline]", options: RunOptions) -> int:
    from suwi.spark.pipeline.program import check_function

    for pipeline in pipelines:
        check_function(pipeline, has_session=False)
    has_topics = [_prepare_topics(pipeline) for pipeline in pipelines]
    if not all(has_topics):
        return _MISTAKE
    for pipeline in pipelines:
        refusal = _prepare_checkpoint(pipeline, options)
        if refusal is not None:
            complain(refusal)
            return _REFUSED
    with closing(Progress(pipelines[0].name if len(pipelines) == 1 else "")) as progress:
        progress.say("starting Spark")
        with _session(pipelines, options.master, options.py_files) as spark:
            wrong = [one.name for one in pipelines if _complain_of_settings(one, spark)]
            if wrong:
                return _MISTAKE
            progress.say(_session_text(pipelines, spark))
            for pipeline in pipelines:
                if options.from_beginning and _exists_elsewhere(spark, pipeline):
                    complain(_exists_text(_checkpoint(pipeline).path))
                    return _REFUSED
            runners: list[Runner] = []
            code = _run_with_metrics(pipelines, spark, runners, options, progress)
        for runner in runners:
            if runner.reason:
                progress.say(_named(runner, runner.reason))
        return code


def _runner(
    pipeline: "Pipeline",
    spark: Any,
    options: RunOptions,
    progress: "Progress",
    beside: "list[Runner]",
) -> "Runner":
    from suwi.spark.pipeline.program import load_program
    from suwi.spark.pipeline.publishing import Publisher
    from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
    from suwi.spark.pipeline.steps import Variation

    variation = Variation(once=options.once, from_beginning=options.from_beginning)
    runner = Runner(
        pipeline,
        load_program(pipeline, variation),
        spark,
        lags_of(pipeline),
        RunSettings(retries=options.retries),
        say=lambda text: progress.say(_named(runner, text)),
        show=lambda watches: progress.show(
            watches if options.once else [watch for one in beside for watch in one.watches]
        ),
        publisher=Publisher(pipeline),
    )
    return runner


def _named(runner: "Runner", text: str) -> str:
    return f"{runner.watches[0].name}: {text}"


def _prepare_topics(pipeline: "Pipeline") -> bool:
    """Whether the topics exist, as far as the brokers can be asked. Creates those that it may."""
    from suwi.spark.pipeline.brokers import check_topics

    topics = check_topics(pipeline, is_start=True)
    for _, text in _notes(topics):
        complain(text)
    for name in topics.created:
        complain(f"topic {name} is created")
    for _, text in topics.missing:
        complain(text)
    return not topics.missing


def _notes(topics: "TopicCheck") -> "Iterator[tuple[int, str]]":
    """What is no mistake, and should be known."""
    yield from topics.awaited
    yield from ((line, f"topics are not checked: {text}") for line, text in topics.not_asked)


@contextmanager
def _session(
    pipelines: "list[Pipeline]", master: str | None, py_files: Iterable[str] | None = None
) -> Iterator[Any]:
    from suwi.spark.pipeline.program import resolve
    from suwi.spark.spark_session import close_session, is_of_session, open_session

    settings = {name: text for one in pipelines for name, text in resolve(one.spark).items()}
    if len(pipelines) > 1:
        settings = {n: text for n, text in settings.items() if not is_of_session(n)}
    name, folder = "+".join(one.name for one in pipelines), pipelines[0].folder
    spark = open_session(name, settings, master=master, py_files=py_files or (), folder=folder)
    try:
        yield spark
    finally:
        close_session(spark)


def _complain_of_settings(pipeline: "Pipeline", spark: Any) -> bool:
    from suwi.spark.pipeline.deep_check import check_settings
    from suwi.spark.pipeline.nodes import Problems

    problems = Problems()
    check_settings(pipeline, spark, problems)
    for _, text in problems.found:
        complain(text)
    return bool(problems.found)


def _session_text(pipelines: "list[Pipeline]", spark: Any) -> str:
    """The properties of the Spark session that determine how long a batch takes."""
    from suwi.spark.spark_session import SHUFFLE_PARTITIONS

    master = spark.sparkContext.master
    partitions = spark.conf.get(SHUFFLE_PARTITIONS)
    is_given = any(SHUFFLE_PARTITIONS in one.spark for one in pipelines)
    where = "" if is_given else f" ({SHUFFLE_PARTITIONS})"
    return f"Spark {spark.version} on {master}, {partitions} shuffle partitions{where}"


def _run_with_metrics(
    pipelines: "list[Pipeline]",
    spark: Any,
    runners: "list[Runner]",
    options: RunOptions,
    progress: "Progress",
) -> int:
    """Beside each other; with --once one after the other, up to the first that fails."""
    from suwi.spark.pipeline.running import run_all
    from suwi.spark.spark_session import is_of_session, session_beside

    host, port, server = options.metrics_host, options.metrics_port, None
    if port is not None:
        from suwi.spark.pipeline.metrics import MetricsServer, PipelineCollector

        server = MetricsServer(PipelineCollector(runners), host, port)
        progress.say(f"metrics on http://{host}:{server.port}/metrics")
    code = _DONE
    try:
        for pipeline in pipelines:
            settings = {n: text.value for n, text in pipeline.spark.items() if is_of_session(n)}
            own = session_beside(spark, settings) if len(pipelines) > 1 else spark
            runners.append(_runner(pipeline, own, options, progress, runners))
            if options.once or pipeline is pipelines[-1]:
                under_way = runners[-1:] if options.once else runners
                code = asyncio.run(run_all(under_way))
                for runner in under_way:
                    if not runner.reason or any(watch.batches for watch in runner.watches):
                        progress.say(" · ".join(watch.line() for watch in runner.watches))
                if code != _DONE or runners[-1].is_stopped:
                    break
        return code
    finally:
        if server is not None:
            server.close()


def _checkpoint(pipeline: "Pipeline") -> "Checkpoint":
    from suwi.spark.pipeline.checkpoint import Checkpoint

    return Checkpoint(pipeline.checkpoint.value)


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


def _has_keys(pipeline: "Pipeline") -> bool:
    from suwi.spark.pipeline.spec import DeltaSpec

    sinks = [output.sink for output in pipeline.outputs.values()]
    return all(isinstance(sink, DeltaSpec) and sink.keys for sink in sinks)


def _duplicates_text(pipeline: "Pipeline") -> str:
    if _has_keys(pipeline):
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
        bool, typer.Option("--deep", help="Also check settings, schema, SQL and sink with Spark.")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Process the last N records and show what would be written."
        ),
    ] = None,
    master: _Master = None,
) -> None:
    """Show every error in a pipeline file, with its line, and topics that do not exist."""

    def work(pipeline: "Pipeline") -> int:
        from suwi.spark.pipeline.brokers import check_topics

        if deep or sample is not None:
            with _session([pipeline], master) as spark:
                return _check_with_spark(file, pipeline, spark, sample)
        topics = check_topics(pipeline)
        for line, text in _notes(topics):
            _print_problem(file, line, text)
        return _print_problems(file, pipeline, topics.missing)

    _with_pipeline(file, work)


def _check_with_spark(file: str, pipeline: "Pipeline", spark: Any, sample: int | None) -> int:
    from suwi.spark.pipeline.deep_check import check_deeply

    code = _print_problems(file, pipeline, check_deeply(pipeline, spark))
    if code != _DONE or sample is None:
        return code
    from suwi.spark.pipeline.deep_check import take_sample
    from suwi.spark.pipeline.failures import failure_of

    try:
        found = take_sample(pipeline, spark, sample)
    except Exception as error:  # of Spark, or of the user's own code
        complain(f"the sample failed: {failure_of(error).text}")
        return _FAILED
    for line in sample_lines(pipeline, found):
        say(line)
    return _DONE


def sample_lines(pipeline: "Pipeline", sample: "Sample") -> Iterator[str]:
    from suwi.spark.pipeline.spec import sink_text

    written, bad, broken = sample
    for name, rows in written.items():
        where = sink_text(pipeline.outputs[name].sink)
        yield f"{count_text(len(rows), 'row')} would be written to {where}"
        yield from _first_rows(rows)
    for name, rule in pipeline.expect.items():
        taken = [row for which, row in broken if which == name]
        if taken:
            yield f"{count_text(len(taken), 'row')} would break rule {name} ({rule.action})"
            yield from _first_rows(taken)
    if bad:
        dead = pipeline.dead_letters
        where = "dropped" if dead is None else f"written to {sink_text(dead)}"
        yield f"{count_text(sum(bad.values()), 'record')} cannot be decoded and would be {where}"
        yield from (f"  {count} × {printable(reason)}" for reason, count in bad.items())


def _first_rows(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows[:_SAMPLE_ROWS]:
        yield f"  {printable(to_json(row, ensure_ascii=False, default=str))}"
    if len(rows) > _SAMPLE_ROWS:
        yield f"  and {len(rows) - _SAMPLE_ROWS} more"


def _print_problems(file: str, pipeline: "Pipeline", problems: "Iterable[Problem]") -> int:
    from suwi.spark.pipeline.plan import check_checkpoint, plan_lines

    found = sorted({*problems, *check_checkpoint(pipeline)})
    if pipeline.is_joint:
        for text in plan_lines(pipeline):
            say(printable(text))
    for line, text in found:
        _print_problem(file, line, text)
    if not found:
        say(f"{file}: no mistakes found")
    return _MISTAKE if found else _DONE


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


@app.command()
def graph(
    path: _Path,
    svg: Annotated[bool, typer.Option("--svg", help="As a picture.")] = False,
) -> None:
    """Show what pipelines read and write, and in which order they run.

    \b
    suwi pipeline graph medallion/
    suwi pipeline graph medallion/ --svg > medallion.svg
    """

    def work(pipelines: "list[Pipeline]") -> int:
        from suwi.spark.pipeline.plan import lineage_lines, lineage_svg

        for line in [lineage_svg(pipelines)] if svg else map(printable, lineage_lines(pipelines)):
            say(line)
        return _DONE

    _with_pipelines(_files(path), work)


# -- status ----------------------------------------------------------------------------------------


@app.command()
@on_cluster
async def status(cluster: Cluster, json: Json = False) -> int:
    """Show the pipelines that publish their status in the cluster.

    \b
    suwi pipeline status --broker 127.0.0.1:9092

    A pipeline whose state is `silent` was running, and has published nothing for half a minute.
    """
    now_ms = SystemClock().now_ms()
    statuses = await read_statuses(cluster, now_ms)
    if json:
        document(statuses)
        return _DONE
    if not statuses:
        say(f"no pipeline publishes its status here (topic {STATUS_TOPIC})")
        return _DONE
    rows = [
        (
            query.query,
            each.state,
            query.batch if query.batch >= 0 else "-",
            f"{query.rows:,}",
            f"{query.rows_per_s:,.0f}",
            or_dash(query.lag),
            "-" if query.done_ms is None else duration_text(max(0, now_ms - query.done_ms)),
            query.about,
        )
        for each in statuses
        for query in each.queries
    ]
    heads = ("Query", "State", "Batch", "Rows", "Rows/s", "Lag", "Last batch", "From, to")
    table(heads, rows, numbers="Batch Rows Rows/s Lag")
    for each in statuses:
        if each.error is not None and each.error_ms is not None:
            say(printable(f"{each.pipeline}: {time_text(each.error_ms)} {each.error}"))
    return _DONE


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
    yes: Yes = False,
    json: Json = False,
    log_level: _LogLevel = "warning",
) -> None:
    """Process the records of a time range again, beside a stream that may run.

    The checkpoint is not changed. Rows that a Delta table has of the range are replaced, by the
    columns _topic, _partition and _offset or by keys. Where they cannot be replaced, the command
    says why and asks.
    """
    _set_up_logging(log_level)
    start_ms, end_ms = _instant_ms(start, "--from"), _instant_ms(end, "--to")
    if start_ms >= end_ms:
        raise typer.BadParameter("must be later than --from", param_hint="--to")

    def work(pipeline: "Pipeline") -> int:
        from suwi.spark.pipeline.backfill import Backfill, NotForBatches

        try:
            job = Backfill(pipeline, start_ms, end_ms)
        except NotForBatches as error:
            complain(str(error))
            return _REFUSED
        if json:
            parts = [one.as_json() for one in job.extents]
            document({"offsets": job.offsets, "later": job.later, "partitions": parts})
        else:
            rows = [(one.partition, one.start, one.end, one.end - one.start) for one in job.extents]
            table(("PARTITION", "FROM", "TO", "OFFSETS"), rows, numbers="FROM TO OFFSETS")
            say(
                f"{count_text(job.offsets, 'offset')} from {time_text(start_ms)} to "
                f"{time_text(end_ms)}"
            )
            if job.later:
                say(f"{count_text(job.later, 'offset')} more: the pipeline has not done them yet")
        if dry_run or not job.offsets:
            return _DONE
        for doubt in job.doubts:
            complain(doubt)
        is_agreed = yes or not job.doubts
        if not is_agreed and not _confirm(
            "Backfill anyway?", "a backfill needs --yes without stdin"
        ):
            return _REFUSED
        if not _prepare_topics(pipeline):
            return _MISTAKE
        with closing(Progress(pipeline.name)) as progress:
            progress.say("starting Spark")
            with _session([pipeline], master, py_files) as spark:
                return job.run(spark, retries, progress.say)

    _with_pipeline(file, work)


def _confirm(question: str, refusal: str) -> bool:
    if sys.stdin is None:
        complain(refusal)
        return False
    return typer.confirm(question, err=True)


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
    from suwi.spark.pipeline.brokers import ask_beginnings
    from suwi.spark.pipeline.checkpoint import NotLocal
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
    extents: list[Extent] = []
    if len(pipeline.inputs) > 1:
        begins = "where each input begins"
    elif isinstance(pipeline.source, TableSource):
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
    if not is_confirmed and not _confirm(
        "Set the checkpoint aside?", "setting it aside needs --yes without stdin"
    ):
        return _REFUSED
    complain(f"the checkpoint is now {checkpoint.set_aside()}")
    return _DONE


# -- every command ---------------------------------------------------------------------------------


def _with_pipeline(file: str, work: "Callable[[Pipeline], int]") -> NoReturn:
    _with_pipelines([file], lambda pipelines: work(pipelines[0]))


def _with_pipelines(files: list[str], work: "Callable[[list[Pipeline]], int]") -> NoReturn:
    """Read the files, do the work in the order of what depends on what, and exit."""
    try:
        import yaml  # noqa: F401 - fail early if it is missing

        from suwi.spark.pipeline.plan import check_together, in_order
    except ImportError as error:
        complain(f"pipelines need the extra `spark`: pip install suwi[spark] ({error.name})")
        raise typer.Exit(_FAILED) from None
    pipelines = [one for one in map(_read, files) if one is not None]
    problems = check_together(pipelines) if len(pipelines) == len(files) else []
    for text in problems:
        complain(text)
    if problems or len(pipelines) < len(files):
        raise typer.Exit(_MISTAKE)
    raise typer.Exit(guarded(lambda: _run_reporting_errors(work, in_order(pipelines))))


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    names = sorted(name for name in os.listdir(path) if name.endswith((".yaml", ".yml")))
    if not names:
        complain(f"{path}: there is no pipeline (*.yaml) in this directory")
        raise typer.Exit(_MISTAKE)
    return [os.path.join(path, name) for name in names]


def _read(file: str) -> "Pipeline | None":
    """None: what is wrong is told."""
    from suwi.spark.pipeline.nodes import BadPipeline
    from suwi.spark.pipeline.reading import read_pipeline

    try:
        return read_pipeline(file)
    except BadPipeline as bad:
        for line, text in bad.problems:
            _print_problem(file, line, text)
    except OSError as error:
        complain(f"{file}: {error.strerror}")
    return None


def _run_reporting_errors(
    work: "Callable[[list[Pipeline]], int]", pipelines: "list[Pipeline]"
) -> int:
    from suwi.spark.java import NoJava
    from suwi.spark.pipeline.program import BadFunction
    from suwi.spark.spark_session import NoSpark

    try:
        return work(pipelines)
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
