"""`suwi pipeline` without Spark: checks, Python output, times, checkpoints, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed: pip install .[spark]")

from suwi.cli.pipeline import RunOptions
from tests.broker_process import COMMAND, BrokerProcess, unique_name
from tests.cli.support import Suwi

PIPELINE = """\
name: orders
source:
  servers: {broker}
  topics: {topic}
decode:
  json: id BIGINT
sink:
  delta: {folder}/table
checkpoint: {folder}/checkpoint
dead_letters: drop
"""


@pytest.fixture
def suwi(broker: BrokerProcess) -> Suwi:
    return Suwi(broker.address)


@pytest.fixture
def file(suwi: Suwi, tmp_path: Path) -> Path:
    topic = unique_name("orders")
    suwi.ok("topics", "create", topic, "--partitions", "2")
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE.format(broker=suwi.broker, topic=topic, folder=tmp_path))
    return path


def topic_of(file: Path) -> str:
    return file.read_text().partition("topics: ")[2].splitlines()[0]


def checkpoint(folder: Path, topic: str) -> Path:
    for kind in ("offsets", "commits"):
        (folder / "checkpoint" / kind).mkdir(parents=True)
    offsets = json.dumps({topic: {"0": 2, "1": 0}})
    (folder / "checkpoint" / "offsets" / "3").write_text(f"v1\n{{}}\n{offsets}")
    (folder / "checkpoint" / "commits" / "3").write_text("v1\n{}")
    return folder / "checkpoint"


def test_a_file_without_mistakes_is_reported_as_valid(suwi: Suwi, file: Path) -> None:
    assert suwi.ok("pipeline", "check", file) == f"{file}: no mistakes found\n"


def test_mistakes_are_listed_with_file_and_line(suwi: Suwi, file: Path) -> None:
    file.write_text(file.read_text().replace("topics:", "topcs:").replace("delta:", "dleta:"))
    for command in ("check", "show", "run"):
        result = suwi("pipeline", command, file)
        assert result.exit_code == 2
        assert result.stderr.splitlines() == [
            f"{file}:3: source: no topics are named: give topics, pattern or delta",
            f"{file}:4: there is no 'topcs' in source: did you mean 'topics'?",
            f"{file}:8: sink: say where to: one of delta, iceberg, topic, parquet",
            f"{file}:8: there is no 'dleta' in sink: did you mean 'delta'?",
        ]


OUTPUTS = """\
sink:
  topic: {good}
dead_letters:
  topic: {bad}
"""


def test_check_shows_the_plan_of_several_outputs_and_refuses_another_checkpoint(
    suwi: Suwi, file: Path
) -> None:
    folder, topic = file.parent, topic_of(file)
    several = "outputs:\n  all: {delta: %s/all}\n  few: {delta: %s/few, when: id < 3}\n"
    kept, _, after = file.read_text().partition("sink:\n")
    file.write_text(kept + several % (folder, folder) + after.partition("\n")[2])
    assert suwi.ok("pipeline", "check", file).splitlines() == [
        f"one query, with the checkpoint {folder}/checkpoint",
        f"  reads   records: topic {topic}, json",
        f"  writes  all: {folder}/all",
        f"  writes  few: {folder}/few, when id < 3",
        "what needs state of its own is a pipeline of its own, which reads a table of this one",
        f"{file}: no mistakes found",
    ]
    record = folder / "checkpoint" / "suwi-outputs" / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"first": "all", "plan": {"inputs": ["topics clicks"]}}')
    result = suwi("pipeline", "check", file)
    assert result.exit_code == 2
    assert f"began with the inputs topics clicks, and the query has topics {topic}" in result.stderr


def with_outputs(file: Path, more: str = "") -> tuple[str, str]:
    """Let the pipeline write to two topics that do not exist."""
    good, bad = unique_name("good"), unique_name("bad")
    text = file.read_text().replace("dead_letters: drop\n", "")
    kept, _, after = text.partition("sink:\n")
    checkpoint = after.partition("\n")[2]
    file.write_text(kept + checkpoint + OUTPUTS.format(good=good, bad=bad) + more)
    return good, bad


def without_spark(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The sessions that were opened: each ends the command at once."""
    sessions: list[object] = []

    def open_session(*arguments: object, **_: object) -> None:
        sessions.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr("suwi.spark.spark_session.open_session", open_session)
    return sessions


def test_topics_that_do_not_exist_are_found_by_check_and_before_spark_is_started(
    suwi: Suwi, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier Spark was started, and the first batch failed."""
    good, bad = with_outputs(file)
    topic = topic_of(file)
    file.write_text(file.read_text().replace(topic, f"{topic}x"))
    lines = [
        f"4: source.topics: there is no topic '{topic}x'; did you mean '{topic}'?",
        f"9: sink.topic: there is no topic '{good}'",
        f"11: dead_letters.topic: there is no topic '{bad}'",
    ]
    result = suwi("pipeline", "check", file)
    assert result.exit_code == 2
    for line, expected in zip(result.stderr.splitlines(), lines, strict=True):
        assert line.startswith(f"{file}:{expected}")
    assert "create it, or set create_topics: true" in result.stderr
    sessions = without_spark(monkeypatch)
    result = suwi("pipeline", "run", file)
    assert result.exit_code == 2
    assert [line.split(": ")[1] for line in result.stderr.splitlines()] == [
        "source.topics",
        "sink.topic",
        "dead_letters.topic",
    ]
    assert sessions == []


def second_layer(file: Path, more: str = "") -> Path:
    """Beside the file, and named so that it is read first: what reads the file's table."""
    folder = file.parent
    path = folder / "first.yaml"
    path.write_text(
        f"name: second\nsource: {{delta: {folder}/table}}\nsink: {{delta: {folder}/second}}\n"
        f"checkpoint: {folder}/second-checkpoint\n{more}"
    )
    return path


def test_a_directory_is_run_in_one_session_and_shown_in_order(
    suwi: Suwi, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_layer(file, "spark: {spark.driver.memory: 1g, spark.sql.shuffle.partitions: 3}\n")
    lines = suwi.ok("pipeline", "graph", file.parent).splitlines()
    assert (lines[0], lines[3]) == ("orders", "second, after orders")
    assert suwi.ok("pipeline", "graph", file.parent, "--svg").startswith("<svg ")
    sessions = without_spark(monkeypatch)
    assert suwi("pipeline", "run", file.parent, "--once").exit_code == 0
    ((name, settings),) = sessions
    assert (name, settings) == ("orders+second", {"spark.driver.memory": "1g"})


def test_mistakes_in_a_directory_are_told_with_their_files(suwi: Suwi, file: Path) -> None:
    second = second_layer(file, "trigger: x\n")
    file.write_text(file.read_text().replace("topics:", "topcs:"))
    result = suwi("pipeline", "run", file.parent)
    assert result.exit_code == 2
    assert {line.partition(":")[0] for line in result.stderr.splitlines()} == {
        str(file),
        str(second),
    }
    empty = file.parent / "empty"
    empty.mkdir()
    assert "there is no pipeline (*.yaml)" in suwi("pipeline", "run", empty).stderr
    assert "Is a directory" in suwi("pipeline", "check", file.parent).stderr


def test_a_run_waits_for_the_first_topic_of_a_pattern(
    suwi: Suwi, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier it was refused."""
    file.write_text(file.read_text().replace("topics: ", "pattern: later-"))
    said = "source.pattern: no topic matches it yet: a run waits for the first"
    result = suwi("pipeline", "check", file)
    assert (result.exit_code, result.stderr) == (0, f"{file}:4: {said}\n")
    sessions = without_spark(monkeypatch)
    assert said in suwi("pipeline", "run", file).stderr
    assert len(sessions) == 1


def test_a_topic_that_was_deleted_under_a_checkpoint_says_what_to_do(
    suwi: Suwi, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path, "deleted")
    file.write_text(file.read_text().replace(topic_of(file), "deleted"))
    result = suwi("pipeline", "run", file)
    assert result.exit_code == 2
    assert "there is no topic 'deleted' any more, and the checkpoint has offsets" in result.stderr
    assert "With failOnDataLoss: false" in result.stderr
    assert "`suwi pipeline reset`" in result.stderr
    options = "  options: {failOnDataLoss: false}\ndecode:"
    file.write_text(file.read_text().replace("decode:", options))
    sessions = without_spark(monkeypatch)
    suwi("pipeline", "run", file)
    assert len(sessions) == 1


def test_topics_that_are_written_to_are_created_if_the_file_says_so(
    suwi: Suwi, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = with_outputs(file, "create_topics: true\n")
    assert suwi.ok("pipeline", "check", file) == f"{file}: no mistakes found\n"
    listed = [topic["topic"] for topic in suwi.json("topics", "list")]
    assert not set(outputs) & set(listed)
    sessions = without_spark(monkeypatch)
    result = suwi("pipeline", "run", file)
    for name in outputs:
        assert f"topic {name} is created" in result.stderr
    assert len(sessions) == 1
    listed = [topic["topic"] for topic in suwi.json("topics", "list")]
    assert set(outputs) <= set(listed)


def test_check_says_that_brokers_do_not_answer_and_finds_no_mistake_in_that(
    suwi: Suwi, file: Path
) -> None:
    file.write_text(file.read_text().replace(suwi.broker, "127.0.0.1:1"))
    result = suwi("pipeline", "check", file)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"{file}:3: topics are not checked: source.servers: ")


def send_hours(suwi: Suwi, file: Path, partition: int, hours: range) -> None:
    """A record for each hour since 1970."""
    lines = [{"value": '{"id": 1}', "timestamp": hour * 3_600_000} for hour in hours]
    path = file.parent / "lines"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    suwi.ok("produce", topic_of(file), "--partition", str(partition), "--json", "--file", path)


def test_a_backfill_asks_before_it_duplicates_rows(
    suwi: Suwi, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")
    sessions = without_spark(monkeypatch)
    times = ("--from", "0", "--to", str(4 * 3_600_000))
    suwi.ok("pipeline", "backfill", file, *times)
    assert sessions == []  # There is nothing in the range.
    send_hours(suwi, file, 0, range(4))
    suwi("pipeline", "backfill", file, *times)
    assert len(sessions) == 1  # The pipeline has not run: there is nothing to duplicate.
    checkpoint(tmp_path, topic_of(file))
    result = suwi("pipeline", "backfill", file, *times)
    assert result.exit_code != 0
    assert "2 offsets more: the pipeline has not done them yet" in result.stdout
    assert f"{tmp_path}/table: rows of the range would be there twice: it has neither keys" in (
        result.stderr
    )
    assert len(sessions) == 1
    suwi("pipeline", "backfill", file, *times, "--yes")
    assert len(sessions) == 2
    keys = "/table\n  keys: [id]\n  order_by: id\n"
    file.write_text(file.read_text().replace("/table\n", keys))
    suwi("pipeline", "backfill", file, *times)
    assert len(sessions) == 3


def test_a_backfill_does_not_ask_where_rows_say_where_they_come_from(
    suwi: Suwi, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake", reason="pip install .[spark]")
    sessions = without_spark(monkeypatch)
    kinds = {"id": "long", "_topic": "string", "_partition": "integer", "_offset": "long"}
    fields = [deltalake.Field(name, kind) for name, kind in kinds.items()]
    deltalake.DeltaTable.create(str(tmp_path / "table"), deltalake.Schema(fields))
    send_hours(suwi, file, 0, range(4))
    checkpoint(tmp_path, topic_of(file))
    times = ("--from", "0", "--to", str(4 * 3_600_000))
    suwi("pipeline", "backfill", file, *times)
    assert len(sessions) == 1
    suwi.ok("configs", "set", "topic", topic_of(file), "cleanup.policy=compact")
    result = suwi("pipeline", "backfill", file, *times)
    assert f"topic {topic_of(file)} is compacted" in result.stderr
    assert len(sessions) == 1


def test_a_file_that_is_not_there_is_named(suwi: Suwi, tmp_path: Path) -> None:
    result = suwi("pipeline", "check", tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert result.stderr == f"suwi: {tmp_path / 'none.yaml'}: No such file or directory\n"


def test_show_prints_python(suwi: Suwi, file: Path) -> None:
    shown = suwi.ok("pipeline", "show", file, "--once")
    compile(shown, "orders.py", "exec")
    assert 'trigger={"availableNow": True}' in shown


def test_from_the_beginning_is_refused_if_there_is_a_checkpoint(
    suwi: Suwi, file: Path, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, topic_of(file))
    result = suwi("pipeline", "run", file, "--from-beginning")
    assert result.exit_code == 3
    assert "--new-checkpoint" in result.stderr
    assert folder.exists()


def test_from_the_beginning_with_a_new_checkpoint_renames_the_old_one_and_continues(
    suwi: Suwi, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path, topic_of(file))
    sessions = without_spark(monkeypatch)
    result = suwi("pipeline", "run", file, "--from-beginning", "--new-checkpoint")
    assert result.exit_code == 0
    assert len(sessions) == 1
    (aside,) = tmp_path.glob("checkpoint.before-*")
    assert f"the checkpoint {folder} is now {aside}; what is read again" in result.stderr
    assert (aside / "offsets" / "3").exists()
    assert not folder.exists()


def test_reset_of_a_checkpoint_whose_topic_is_gone(suwi: Suwi, file: Path, tmp_path: Path) -> None:
    checkpoint(tmp_path, "no-such-topic")
    said = suwi.ok("pipeline", "reset", file, "--dry-run")
    assert "batch 3 is done" in said
    assert "no-such-topic-0" in said


def test_reset_says_what_it_would_do_and_then_does_it(
    suwi: Suwi, file: Path, tmp_path: Path
) -> None:
    assert "the next run starts anew anyway" in suwi.ok("pipeline", "reset", file)
    topic = topic_of(file)
    (tmp_path / "lines").write_text("a\nb\nc\n")
    suwi.ok("produce", topic, "--partition", "0", "--file", tmp_path / "lines")
    folder = checkpoint(tmp_path, topic)
    said = suwi.ok("pipeline", "reset", file, "--dry-run")
    assert f"{folder}: batch 3 is done" in said
    assert [line.split() for line in said.splitlines() if line.startswith(topic)] == [
        [f"{topic}-0", "0", "2", "3", "2"],
        [f"{topic}-1", "0", "0", "0", "0"],
    ]
    assert "would begin at earliest; what is read again will be written again" in said
    assert folder.exists()
    assert suwi.json("pipeline", "reset", file, "--dry-run")["batch"] == 3

    result = suwi("pipeline", "reset", file, "--yes")
    assert result.exit_code == 0, result.stderr
    assert not folder.exists()
    (aside,) = tmp_path.glob("checkpoint.before-*")
    assert str(aside) in result.stderr


def test_reset_without_stdin_needs_yes(suwi: Suwi, file: Path, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, topic_of(file))
    ended = subprocess.run(
        ["bash", "-c", '"$0" "$@" <&-', *COMMAND, "pipeline", "reset", file],
        env=suwi.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, folder.exists()) == (3, True)
    assert ended.stderr == "suwi: setting it aside needs --yes without stdin\n"


def test_a_backfill_says_first_what_it_would_read(suwi: Suwi, file: Path) -> None:
    pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")
    topic = topic_of(file)
    send_hours(suwi, file, 1, range(4))
    said = suwi.ok(
        *("pipeline", "backfill", file, "--dry-run"),
        *("--from", "1970-01-01T01:00:00Z", "--to", "1970-01-01T04:00+01:00"),
    )
    assert [line.split() for line in said.splitlines() if line.startswith(topic)] == [
        [f"{topic}-0", "0", "0", "0"],
        [f"{topic}-1", "1", "3", "2"],
    ]
    assert "2 offsets from 1970-01-01T01:00:00.000Z to 1970-01-01T03:00:00.000Z" in said


@pytest.mark.parametrize(
    ("start", "end", "problem"),
    [("yesterday", "0", "2026-01-31T12:00:00Z"), ("5", "5", "must be later than --from")],
)
def test_invalid_times_are_refused(
    suwi: Suwi, file: Path, start: str, end: str, problem: str
) -> None:
    text = " ".join(suwi.misuse("pipeline", "backfill", file, "--from", start, "--to", end).split())
    assert problem in text


def test_without_the_extra_the_error_says_what_to_install(
    suwi: Suwi, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "pip install suwi[spark] (yaml)" in suwi.refusal("pipeline", "check", file)


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (None, "ModuleNotFoundError: No module named 'own_{}'"),
        ("def other(): pass\n", "there is no such function in the module"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_missing_function_is_reported_before_spark_starts(
    suwi: Suwi, file: Path, tmp_path: Path, module: str | None, problem: str
) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install .[spark]")
    name = topic_of(file).replace("-", "_")
    file.write_text(file.read_text() + f"python: own_{name}:clean\n")
    if module is not None:
        (tmp_path / f"own_{name}.py").write_text(module)
    for command in (["run"], ["backfill", "--from", "0", "--to", "1", "--json"]):
        result = suwi("pipeline", command[0], file, *command[1:])
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert line == f"suwi: python: own_{name}:clean: {problem.format(name)}"


def test_help_works_without_spark(suwi: Suwi) -> None:
    loaded = "import sys; from suwi.cli.main import app; import suwi.cli.pipeline; "
    check = "print([m for m in ('pyspark', 'pyarrow', 'yaml', 'suwi.spark') if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", loaded + check],
        env=suwi.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "[]\n"


def test_a_wheel_is_refused_because_spark_would_not_import_it(suwi: Suwi, file: Path) -> None:
    result = suwi("pipeline", "run", file, "--py-files", "mine.zip", "--py-files", "suwi-1.whl")
    assert result.exit_code == 2
    assert "suwi-1.whl: Spark takes .py, .zip, .egg, .jar. A wheel is a zip" in result.stderr


@pytest.mark.parametrize("command", ["run", "backfill --from 0 --to 1"])
def test_an_unknown_log_level_is_refused(suwi: Suwi, file: Path, command: str) -> None:
    said = suwi.misuse("pipeline", *command.split(), file, "--log-level", "loud")
    assert "loud: allowed: debug, info, warning, error" in " ".join(said.split())


def test_metrics_have_an_address_and_a_port(
    suwi: Suwi, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[RunOptions] = []

    def run(_: object, options: RunOptions) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr("suwi.cli.pipeline._run", run)
    suwi.ok("pipeline", "run", file, "--metrics-port", 9100)
    suwi.ok("pipeline", "run", file, "--metrics-port", 9100, "--metrics-host", "0.0.0.0")
    found = [(options.metrics_host, options.metrics_port) for options in given]
    assert found == [("127.0.0.1", 9100), ("0.0.0.0", 9100)]


def test_the_status_of_pipelines_needs_a_broker() -> None:
    done = Suwi("127.0.0.1:1")("pipeline", "status")
    assert done.exit_code != 0
    assert "no broker at 127.0.0.1:1" in done.output
