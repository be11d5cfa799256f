"""What the tasks of a sink do with rows that break rules."""

import json
from collections import Counter
from collections.abc import Mapping

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")

import pyarrow as pa

from suwi.spark.options import BadOption, read_sink_options, read_table_options
from suwi.spark.rules import BROKEN, RowRules, RuleBroken

BATCH = pa.record_batch(
    {"n": [1, 2, 3], BROKEN: pa.array([[], ["a"], ["a", "b"]], pa.list_(pa.string()))}
)


class Sent:
    """What was sent, instead of a topic."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str, bytes]] = []

    def append_to(self, options: Mapping[str, str], batch: pa.RecordBatch) -> None:
        for row in batch.to_pylist():
            ((_, reason),) = (header.values() for header in row["headers"])
            self.records.append((options["topic"], row["value"], reason))


SENT = Sent()


def apply(**actions: str) -> tuple[list[int], dict[str, int]]:
    counts: Counter[str] = Counter()
    (rows,) = RowRules(actions, {"topic": "bad"}).apply(iter([BATCH]), counts, SENT.append_to)
    assert rows.schema.names == ["n"]
    return rows.column("n").to_pylist(), dict(counts)


def test_rows_are_counted_by_rule_and_dropped_where_a_rule_says_so() -> None:
    counts = {"a": 2, "b": 1}
    assert apply(a="warn", b="warn") == ([1, 2, 3], counts)
    assert apply(a="warn", b="drop") == ([1, 2], counts)
    assert apply(a="drop", b="warn") == ([1], counts)
    assert apply(a="warn", b="dead_letters") == ([1, 2], counts)
    assert SENT.records == [("bad", '{"n": 3}', b"breaks rule a, b")]


def test_a_rule_that_fails_names_the_row() -> None:
    with pytest.raises(RuleBroken, match=r'a row breaks rule b: \{"n": 3\}'):
        apply(a="warn", b="fail")


def test_actions_are_options_of_both_sinks_and_dead_letters_need_a_topic() -> None:
    servers = {"kafka.bootstrap.servers": "a:1", "rules": '{"x": "dead_letters"}'}
    dead = {"dead.topic": "bad", "dead.kafka.bootstrap.servers": "b:2"}
    found = read_sink_options({**servers, **dead}).rules
    assert found == (
        {"x": "dead_letters"},
        {"topic": "bad", "kafka.bootstrap.servers": "b:2"},
    )
    with pytest.raises(BadOption, match="the action dead_letters needs options"):
        read_sink_options(servers)
    with pytest.raises(BadOption, match=r"option 'dead.topic' is missing"):
        read_sink_options({**servers, "dead.kafka.bootstrap.servers": "b:2"})
    # Earlier a mistake was found by the first task that had a row to send.
    for option in ("dead.topc", "dead.kafka.bootstrap.severs"):
        with pytest.raises(BadOption, match=r"after `dead.`: there is no option .*did you mean"):
            read_sink_options({**servers, **dead, option: "x"})
    with pytest.raises(BadOption, match="allowed: JSON with warn, drop, dead_letters"):
        read_table_options({"path": "/t", "rules": '{"x": "stop"}'})


def test_a_rule_without_an_action_is_a_mistake() -> None:
    with pytest.raises(RuleBroken, match="no action for rule b"):
        apply(a="drop")


def test_a_dead_letter_is_json_whatever_the_row_has() -> None:
    far = pa.array([2**60], pa.int64()).cast(pa.timestamp("us"))
    row = {"at": far, "raw": [b"\xff\x00"], "f": [float("nan")], "l": [[1.0, float("inf")]]}
    marks = pa.array([["a"]], pa.list_(pa.string()))
    rules, sent = RowRules({"a": "dead_letters"}, {"topic": "far"}), Sent()
    (left,) = rules.apply(
        iter([pa.record_batch({**row, BROKEN: marks})]), Counter(), sent.append_to
    )
    assert left.num_rows == 0
    ((_, value, _),) = sent.records
    found = json.loads(value)
    assert found.pop("at")
    assert found == {"raw": "/wA=", "f": "nan", "l": [1.0, "inf"]}
