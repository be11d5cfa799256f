"""Implementation of `suwi pipeline`: terminal output and exit codes.

The work itself is done in `suwi.spark.pipeline`, which needs the extra `spark`.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from suwi.cli.log_format import set_up_logging
from suwi.cli.output import complain, count_text, document, printable, say, table, time_text
from suwi.cli.pipeline_progress import Progress
from suwi.cli.session import guarded
from suwi.cli.times import parse_time_ms
from suwi.env import local_env

if TYPE_CHECKING:
    from suwi.spark.pipeline.checkpoint import Checkpoint, Extent
    from suwi.spark.pipeline.spec import Pipeline

_DONE, _FAILED, _MISTAKE, _REFUSED = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class RunOptions:
    master: str | None = None
    once: bool = False
    from_beginning: bool = False
    new_checkpoint: bool = False
    retries: int = 10
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    py_files: list[str] = field(default_factory=list)
    log_level: str = "warning"


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    start: str
    end: str
    dry_run: bool
    master: str | None
    retries: int
    py_files: list[str]
    json: bool


def check(file: str, *, deep: bool, master: str | None) -> int:
    def work(pipeline: "Pipeline") -> int:
        if deep:
            from suwi.spark.pipeline.checks import check_deeply
            from suwi.spark.spark_session import close_session

            spark = _session(pipeline, master)
            try:
                problems = check_deeply(pipeline, spark)
            finally:
                close_session(spark)
            for line, text in problems:
                _print_problem(file, line, text)
            if problems:
                return _MISTAKE
        say(f"{file}: no mistakes found")
        return _DONE

    return _with_pipeline(file, work)


def show(file: str, *, once: bool, from_beginning: bool) -> int:
    def work(pipeline: "Pipeline") -> int:
        from suwi.spark.pipeline.script import script
        from suwi.spark.pipeline.steps import Variation

        say(script(pipeline, Variation(once=once, from_beginning=from_beginning)).rstrip("\n"))
        return _DONE

    return _with_pipeline(file, work)


def run(file: str, options: RunOptions) -> int:
    set_up_logging(options.log_level)
    return _with_pipeline(file, lambda pipeline: _run(pipeline, options))


def _run(pipeline: "Pipeline", options: RunOptions) -> int:
    from suwi.spark.pipeline.program import check_function, load_program
    from suwi.spark.pipeline.running import Runner, RunSettings, lags_of
    from suwi.spark.pipeline.steps import Variation
    from suwi.spark.spark_session import close_session

    refusal = _prepare_checkpoint(pipeline, options)
    if refusal is not None:
        complain(refusal)
        return _REFUSED
    variation = Variation(once=options.once, from_beginning=options.from_beginning)
    check_function(pipeline, has_session=False)
    with Progress(pipeline.name) as progress:
        progress.say("starting Spark")
        spark = _session(pipeline, options.master, options.py_files)
        try:
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
        finally:
            close_session(spark)


def _session(pipeline: "Pipeline", master: str | None, py_files: Iterable[str] = ()) -> Any:
    from suwi.spark.pipeline.program import resolve
    from suwi.spark.spark_session import open_session

    settings = resolve(pipeline.spark)
    return open_session(
        pipeline.name, settings, master=master, py_files=py_files, folder=pipeline.folder
    )


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


def _run_with_metrics(runner: Any, options: RunOptions, progress: Progress) -> int:
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


# -- checkpoints -----------------------------------------------------------------------------------


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


def reset(file: str, *, dry_run: bool, is_confirmed: bool, json: bool) -> int:
    return _with_pipeline(
        file,
        lambda pipeline: _reset(pipeline, dry_run=dry_run, is_confirmed=is_confirmed, json=json),
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
        _print_extents(extents, ("PARTITION", "EARLIEST", "AT", "LATEST", "DONE"))
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


def _print_extents(extents: "list[Extent]", columns: tuple[str, ...]) -> None:
    table(
        columns,
        [
            (one.partition, one.earliest, one.start, one.end, max(0, one.start - one.earliest))
            for one in extents
        ],
        numbers=" ".join(columns[1:]),
    )


# -- backfill --------------------------------------------------------------------------------------


def backfill(file: str, options: BackfillOptions, log_level: str) -> int:
    set_up_logging(log_level)
    return _with_pipeline(file, lambda pipeline: _backfill(pipeline, options))


def _backfill(pipeline: "Pipeline", options: BackfillOptions) -> int:
    from suwi.spark.pipeline.checkpoint import ask_between
    from suwi.spark.pipeline.running import Backfill, NotForBatches
    from suwi.spark.pipeline.spec import TableSource
    from suwi.spark.pipeline.steps import Between

    between = Between(_instant_ms(options.start, "--from"), _instant_ms(options.end, "--to"))
    if between.start_ms >= between.end_ms:
        raise typer.BadParameter("must be later than --from", param_hint="--to")
    if isinstance(pipeline.source, TableSource):
        complain("a range of time is for topics: backfill the pipeline that reads them")
        return _REFUSED
    extents = ask_between(pipeline.source, between)
    total = sum(one.end - one.start for one in extents)
    if options.json:
        document({"offsets": total, "partitions": [one.as_json() for one in extents]})
    else:
        rows = [(one.partition, one.start, one.end, one.end - one.start) for one in extents]
        table(("PARTITION", "FROM", "TO", "OFFSETS"), rows, numbers="FROM TO OFFSETS")
        start, end = time_text(between.start_ms), time_text(between.end_ms)
        say(f"{count_text(total, 'offset')} from {start} to {end}")
    if options.dry_run:
        return _DONE
    from suwi.spark.spark_session import close_session

    with Progress(pipeline.name) as progress:
        try:
            job = Backfill(pipeline, between)
        except NotForBatches as error:
            complain(str(error))
            return _REFUSED
        progress.say("starting Spark")
        spark = _session(pipeline, options.master, options.py_files)
        try:
            return asyncio.run(job.run(spark, options.retries, progress.say))
        finally:
            close_session(spark)


def _instant_ms(text: str, option: str) -> int:
    """Milliseconds since 1970, from such a number or from ISO 8601; UTC if no zone is given."""
    time_ms = int(text) if text.isdecimal() else parse_time_ms(text)
    if time_ms is None:
        raise typer.BadParameter(
            f"{text!r}: as 2026-01-31T12:00:00Z, or in milliseconds since 1970", param_hint=option
        )
    return time_ms


# -- helpers ---------------------------------------------------------------------------------------


def _with_pipeline(file: str, work: "Callable[[Pipeline], int]") -> int:
    try:
        import yaml  # noqa: F401 - fail early if it is missing

        from suwi.spark.pipeline.nodes import BadPipeline
        from suwi.spark.pipeline.reading import read_pipeline
    except ImportError as error:
        complain(f"pipelines need the extra `spark`: pip install suwi[spark] ({error.name})")
        return _FAILED
    try:
        pipeline = read_pipeline(file)
    except BadPipeline as bad:
        for line, text in bad.problems:
            _print_problem(file, line, text)
        return _MISTAKE
    except OSError as error:
        complain(f"{file}: {error.strerror}")
        return _MISTAKE
    return guarded(lambda: _run_reporting_errors(work, pipeline))


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
