"""`suwi produce` and `suwi consume`."""

import base64
import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest

from suwi.records.compression import Compression
from tests.broker_process import BrokerProcess, unique_name
from tests.cli.support import Suwi, write_lines
from tests.decoders.fake_registry import running_registry

READ = ("--from-beginning", "--no-follow")


@pytest.fixture
def topic(suwi: Suwi) -> str:
    """A topic with one partition, from which retention deletes no old records."""
    name = unique_name("topic")
    suwi.ok("topics", "create", name, "--config", "retention.ms=-1")
    return name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "lines", "a:1", "b:2", "a:3")


# -- produce ---------------------------------------------------------------------------------------


def test_lines_of_stdin_become_records(suwi: Suwi, topic: str) -> None:
    ended = suwi.run("produce", topic, stdin=b"one\ntwo\nlast without an end")
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode() == f"wrote 3 records: {topic}-0 offsets 0 to 2\n"
    read = suwi.run("consume", topic, *READ)
    assert read.stdout == b"one\ntwo\nlast without an end\n"


def test_keys_are_split_off_and_choose_the_partition(suwi: Suwi, lines: Path) -> None:
    topic = unique_name("keyed")
    suwi.ok("topics", "create", topic, "-p", 4)
    suwi.ok("produce", topic, "--file", lines, "--key-separator", ":")
    records = suwi.json_lines("consume", topic, *READ)
    assert sorted((r["key"], r["value"]) for r in records) == [("a", "1"), ("a", "3"), ("b", "2")]
    assert len({r["partition"] for r in records if r["key"] == "a"}) == 1


def test_a_tab_can_be_given_as_backslash_t(suwi: Suwi, topic: str, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "tabs", "k\tv")
    suwi.ok("produce", topic, "--file", lines, "-k", "\\t")
    assert suwi.ok("consume", topic, *READ, "--keys") == "k\tv\n"


@pytest.mark.parametrize("codec", [codec.name.lower() for codec in Compression])
def test_batches_are_compressed(
    suwi: Suwi, broker: BrokerProcess, topic: str, lines: Path, codec: str
) -> None:
    suwi.ok("produce", topic, "--file", lines, "--compression", codec)
    (batch,) = broker.stored_batches(topic)
    assert batch.codec.name.lower() == codec
    assert suwi.ok("consume", topic, *READ) == "a:1\nb:2\na:3\n"


@pytest.mark.parametrize(("acks", "producer"), [("all", True), ("1", False)])
def test_with_acks_all_a_producer_is_idempotent(
    suwi: Suwi, broker: BrokerProcess, topic: str, lines: Path, acks: str, producer: bool
) -> None:
    suwi.ok("produce", topic, "--file", lines, "--acks", acks)
    (batch,) = broker.stored_batches(topic)
    assert batch.has_producer_id is producer


def test_with_acks_0_the_offsets_are_unknown(suwi: Suwi, topic: str, lines: Path) -> None:
    assert suwi.ok("produce", topic, "--file", lines, "--acks", "0") == "wrote 3 records\n"
    assert suwi.ok("consume", topic, "--from-beginning", "-n", 3).count("\n") == 3


def test_json_lines_have_all_parts_of_a_record(suwi: Suwi, topic: str, tmp_path: Path) -> None:
    given = {
        "key": "k",
        "value": "v",
        "headers": [{"name": "h", "value": "1"}, {"name": "h", "value": None}],
        "partition": 0,
        "timestamp": 1_700_000_000_000,
    }
    deletion = {"key_base64": "/w==", "value": None}
    document = {"value": {"an": ["object"]}, "headers": {"n": "2"}}
    file = write_lines(tmp_path / "json", *(json.dumps(r) for r in (given, deletion, document)))
    summary = suwi.json("produce", topic, "--file", file, "-H", "x=y")
    assert summary == {
        "topic": topic,
        "records": 3,
        "partitions": [{"partition": 0, "records": 3, "first_offset": 0, "last_offset": 2}],
    }
    first, second, third = suwi.json_lines("consume", topic, *READ)
    common = {"name": "x", "value": "y"}
    assert first == given | {
        "topic": topic,
        "offset": 0,
        "headers": [{"name": "h", "value": "1"}, {"name": "h", "value": None}, common],
    }
    assert (second["key_base64"], second["value"]) == ("/w==", None)
    assert third["value"] == '{"an": ["object"]}'
    assert third["headers"] == [{"name": "n", "value": "2"}, common]


def test_produce_accepts_the_output_of_consume(suwi: Suwi, topic: str, lines: Path) -> None:
    suwi.ok("produce", topic, "--file", lines, "-k", ":")
    copy = unique_name("copy")
    suwi.ok("topics", "create", copy)
    printed = suwi.run("consume", topic, *READ, "--json").stdout
    assert suwi.run("produce", copy, "--json", stdin=printed).returncode == 0
    kept = ("key", "value", "headers", "timestamp", "offset")
    assert [[r[k] for k in kept] for r in suwi.json_lines("consume", copy, *READ)] == [
        [r[k] for k in kept] for r in suwi.json_lines("consume", topic, *READ)
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no json", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"key": "k"}', "no value"),
        ('{"value": "v", "partition": "0"}', "partition is not a number"),
        ('{"value": "v", "timestamp": -1}', "timestamp is not a number"),
        ('{"value_base64": "?"}', "base 64"),
        ('{"value": "v", "headers": 1}', "headers"),
        ('{"value": "v", "headers": [{"value": "x"}]}', "a header is"),
        ('{"value": "v", "partition": 9}', "has no partition 9"),
    ],
)
def test_an_invalid_line_is_reported_with_its_number(
    suwi: Suwi, topic: str, tmp_path: Path, line: str, problem: str
) -> None:
    file = write_lines(tmp_path / "bad", '{"value": "good"}', line, '{"value": "after"}')
    result = suwi("produce", topic, "--json", "--file", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("suwi: line 2: ")
    assert problem in result.stderr
    assert [r["value"] for r in suwi.json_lines("consume", topic, *READ)] == ["good"]


def test_a_line_without_the_separator_is_reported(suwi: Suwi, topic: str, lines: Path) -> None:
    result = suwi("produce", topic, "--file", lines, "-k", "=")
    assert result.exit_code == 1
    assert "line 1: there is no '=' between key and value" in result.stderr


def test_a_refused_record_is_reported_with_its_line_number(suwi: Suwi, tmp_path: Path) -> None:
    topic = unique_name("small")
    suwi.ok("topics", "create", topic, "-c", "max.message.bytes=300")
    file = write_lines(tmp_path / "lines", "fits", "x" * 1000, "fits too")
    result = suwi("produce", topic, "--file", file)
    assert result.exit_code == 1
    assert "line 2 was not delivered" in result.stderr
    assert "max.message.bytes 300" in result.stderr
    assert suwi.ok("consume", topic, *READ) == "fits\nfits too\n"


def test_a_missing_file_and_an_unknown_partition_are_reported(
    suwi: Suwi, topic: str, lines: Path
) -> None:
    assert "No such file" in suwi.refusal("produce", topic, "--file", "/no/file")
    message = suwi.refusal("produce", topic, "--file", lines, "--partition", 3)
    assert message == f"topic '{topic}' has no partition 3: it has partition 0 only"


def test_an_unknown_topic_is_not_created(suwi: Suwi, lines: Path) -> None:
    assert "`suwi topics create zzz`" in suwi.refusal("produce", "zzz", "--file", lines)
    assert "zzz" not in suwi.ok("topics", "list")


# -- consume ---------------------------------------------------------------------------------------


@pytest.fixture
def filled(suwi: Suwi, tmp_path: Path) -> str:
    """A topic with two partitions: 0 has a0 to a4, a second apart, and 1 has b0 to b2."""
    topic = unique_name("filled")
    # The records are old: the default retention would delete them.
    suwi.ok("topics", "create", topic, "-p", 2, "--config", "retention.ms=-1")
    records = [
        {"value": f"{letter}{n}", "partition": index, "timestamp": 1_700_000_000_000 + n * 1000}
        for index, letter, count in ((0, "a", 5), (1, "b", 3))
        for n in range(count)
    ]
    file = write_lines(tmp_path / "filled", *(json.dumps(record) for record in records))
    suwi.ok("produce", topic, "--json", "--file", file)
    return topic


def values(suwi: Suwi, *arguments: object) -> list[str]:
    return sorted(suwi.ok("consume", *arguments).split())


def test_the_start_position_can_be_given_in_many_ways(suwi: Suwi, filled: str) -> None:
    end = "--no-follow"
    everything = ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]
    assert values(suwi, filled, end) == []
    assert values(suwi, filled, end, "--offset", "latest") == []
    assert values(suwi, filled, end, "--from-beginning") == everything
    assert values(suwi, filled, end, "--offset", "earliest") == everything
    assert values(suwi, filled, end, "-p", 1, "-o", "earliest") == ["b0", "b1", "b2"]
    assert values(suwi, filled, end, "-p", 0, "-p", 1, "-o", 2) == ["a2", "a3", "a4", "b2"]
    assert values(suwi, filled, end, "-o", "-1") == ["a4", "b2"]
    assert values(suwi, filled, end, "-o", "-99") == everything
    assert values(suwi, filled, end, "-p", 0, "-o", 5) == []
    for time in ("1700000002500", "2023-11-14T22:13:22.5", "2023-11-14T23:13:22.5+01:00"):
        assert values(suwi, filled, end, "-t", time) == ["a3", "a4"]
    assert values(suwi, filled, end, "-t", "1h") == []


def test_reading_stops_after_count_records(suwi: Suwi, filled: str) -> None:
    assert suwi.ok("consume", filled, "-p", 0, "-o", 1, "-n", 2) == "a1\na2\n"


def test_an_offset_out_of_range_is_reported_with_the_range(
    suwi: Suwi, filled: str, topic: str
) -> None:
    message = suwi.refusal("consume", filled, "-p", 0, "-o", 6)
    assert message == f"--offset 6: {filled}-0 has offsets 0 to 4"
    assert "is empty" in suwi.refusal("consume", topic, "-o", 1)
    assert "--partition" in suwi.refusal("consume", filled, "-o", 1)
    assert "its partitions are 0 to 1" in suwi.refusal("consume", filled, "-p", 2)


def test_more_than_the_value_is_printed_with_options(
    suwi: Suwi, topic: str, tmp_path: Path
) -> None:
    record = {"key": "k", "value": "v", "headers": {"h": "1"}, "timestamp": 1_700_000_000_000}
    suwi.ok("produce", topic, "--json", "-f", write_lines(tmp_path / "r", json.dumps(record)))
    assert suwi.ok("consume", topic, *READ, "-v") == (
        f"{topic}-0\t0\t2023-11-14T22:13:20.000Z\th=1\tk\tv\n"
    )
    assert suwi.ok("consume", topic, *READ, "--keys") == "k\tv\n"
    assert suwi.ok("consume", topic, *READ, "--offsets") == f"{topic}-0\t0\tv\n"
    assert suwi.ok("consume", topic, *READ, "--headers") == "h=1\tv\n"


def test_bytes_are_printed_unchanged(suwi: Suwi, topic: str) -> None:
    raw = bytes(range(256)).replace(b"\n", b"")
    suwi.run("produce", topic, stdin=raw + b"\n")
    assert suwi.run("consume", topic, *READ).stdout == raw + b"\n"


def test_values_are_decoded_by_their_format(suwi: Suwi, topic: str, tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "lines", '7:{"a": "\\u00e9"}', "8:{")
    suwi.ok("produce", topic, "--file", lines, "-k", ":")
    read = suwi.run("consume", topic, *READ, "--keys", "--value-format", "json")
    assert read.stdout.decode() == '7\t{"a":"é"}\n8\t{\n'
    assert read.stderr.decode().startswith(f"suwi: value of {topic}-0 offset 1: not JSON: ")
    first, second = suwi.json_lines(
        "consume", topic, *READ, "--value-format", "auto", "--key-format", "json"
    )
    assert (first["key"], first["value"]) == (7, {"a": "é"})
    assert second["value"] == "{"
    refused = suwi.run("consume", topic, *READ, "--value-format", "avro")
    assert refused.returncode == 2
    assert b"needs a schema" in refused.stderr


def test_values_are_decoded_by_the_schemas_of_a_registry(suwi: Suwi, topic: str) -> None:
    pytest.importorskip("fastavro")
    with running_registry() as registry:
        schema_id = registry.register("orders-value", '"string"')
        data = b"\0" + schema_id.to_bytes(4, "big") + b"\x06abc"
        for value in (data, data[:-1]):
            line = {"value_base64": base64.b64encode(value).decode()}
            suwi.run("produce", topic, "--json", stdin=json.dumps(line).encode())
        good, bad = suwi.json_lines("consume", topic, *READ, "--schema-registry", registry.url)
    assert good["value"] == "abc"
    assert good["value_schema"] == f"string, schema {schema_id}"
    assert bad["value"] == data[:-1].decode()
    assert "3 bytes are expected where 2 are left" in bad["value_problem"]


def test_following_waits_for_records_and_ends_quietly_with_ctrl_c(
    suwi: Suwi, topic: str, lines: Path
) -> None:
    with suwi.start(
        "consume", topic, "--from-beginning", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        for _ in range(2):
            suwi.ok("produce", topic, "--file", lines)
            assert [reader.stdout.readline() for _ in range(3)] == [b"a:1\n", b"b:2\n", b"a:3\n"]
        reader.send_signal(signal.SIGINT)
        rest, said = reader.communicate(timeout=120)
    assert (reader.returncode, rest, said) == (0, b"", b"")


def test_following_ends_when_the_output_is_closed(suwi: Suwi, filled: str) -> None:
    with suwi.start(
        "consume", filled, "--from-beginning", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.readline()
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait(timeout=120) == 0


def test_following_survives_a_broker_that_comes_back(tmp_path: Path, lines: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        suwi = Suwi(broker.address)
        suwi.ok("topics", "create", "t")
        with suwi.start("consume", "t", "--from-beginning", stdout=subprocess.PIPE) as reader:
            assert reader.stdout is not None
            suwi.ok("produce", "t", "--file", lines)
            assert reader.stdout.readline() == b"a:1\n"
            broker.kill()
            broker.start()
            suwi.ok("produce", "t", "--file", lines)
            assert [reader.stdout.readline() for _ in range(5)][2:] == [
                b"a:1\n",
                b"b:2\n",
                b"a:3\n",
            ]
            reader.send_signal(signal.SIGINT)
            assert reader.wait(timeout=120) == 0


def test_following_reads_partitions_that_are_added_meanwhile(suwi: Suwi, lines: Path) -> None:
    topic = unique_name("growing")
    suwi.ok("topics", "create", topic)
    suwi.ok("produce", topic, "--file", lines)
    with suwi.start(
        "consume", topic, "--from-beginning", "--offsets", stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        before = [reader.stdout.readline() for _ in range(3)]
        assert before[0] == f"{topic}-0\t0\ta:1\n".encode()
        suwi.ok("topics", "alter", topic, "--partitions", 3)
        # Records written before a new partition is noticed must not be missed either.
        for partition in (2, 1):
            suwi.ok("produce", topic, "--file", lines, "--partition", partition)
        shown = sorted(reader.stdout.readline().decode() for _ in range(6))
        assert shown == [
            f"{topic}-{partition}\t{offset}\t{line}\n"
            for partition in (1, 2)
            for offset, line in enumerate(["a:1", "b:2", "a:3"])
        ]
        reader.send_signal(signal.SIGINT)
        assert reader.wait(timeout=120) == 0


def test_following_a_topic_that_is_deleted_reports_it(suwi: Suwi, filled: str) -> None:
    with suwi.start(
        "consume", filled, "--from-beginning", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        for _ in range(8):
            reader.stdout.readline()
        suwi.ok("topics", "delete", filled, "--yes")
        _, said = reader.communicate(timeout=120)
    assert reader.returncode == 1
    assert said.decode() == f"suwi: topic '{filled}' does not exist\n"


# -- at a terminal ---------------------------------------------------------------------------------


def at_terminal(suwi: Suwi, *arguments: object, typed: bytes = b"") -> tuple[str, int]:
    """Run a command in a terminal of 80 columns. Returns its output and exit code."""
    main, end = pty.openpty()
    with suwi.start(*arguments, stdin=end, stdout=end, stderr=end) as command:
        os.close(end)
        os.write(main, typed)
        shown = b""
        try:
            while chunk := os.read(main, 4096):
                shown += chunk
        except OSError:  # Linux: the other end is closed
            pass
        code = command.wait(timeout=120)
    os.close(main)
    return shown.decode().replace("\r\n", "\n"), code


def test_a_terminal_is_safe_from_the_content_of_records(suwi: Suwi, topic: str) -> None:
    suwi.run("produce", topic, stdin=b"\x1b[2Jcleared?\xff\xc2\x9b\n")
    shown, _ = at_terminal(suwi, "consume", topic, *READ)
    assert shown == "\\x1b[2Jcleared?\\xff\\x9b\n"


def test_a_terminal_shows_tables_with_headings(suwi: Suwi, topic: str) -> None:
    shown, code = at_terminal(suwi, "topics", "describe", topic)
    assert code == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown)
    assert re.search(r"^Partition +Leader +Replicas", plain, re.MULTILINE)
    assert "\x1b[1m" in shown


def test_producing_at_a_terminal_shows_how_to_end(suwi: Suwi, topic: str) -> None:
    shown, code = at_terminal(suwi, "produce", topic, typed=b"typed\n\x04")
    assert code == 0
    assert "Ctrl-D ends" in shown
    assert suwi.ok("consume", topic, *READ) == "typed\n"


def test_deleting_at_a_terminal_asks(suwi: Suwi, topic: str) -> None:
    shown, code = at_terminal(suwi, "topics", "delete", topic, typed=b"n\n")
    assert code == 1
    assert f"Delete topic {topic} with all records? [y/N]" in shown
    assert "nothing was deleted" in shown
    _, code = at_terminal(suwi, "topics", "delete", topic, typed=b"y\n")
    assert code == 0
    assert topic not in suwi.ok("topics", "list")
