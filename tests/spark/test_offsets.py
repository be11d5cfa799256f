"""Offsets of a query as Spark keeps them."""

import json

import pytest

from suwi.model.ids import Offset, PartitionIndex, TopicPartition
from suwi.spark.offsets import CheckpointMismatch, beginning, from_json, to_json, with_beginning

OFFSETS = {
    TopicPartition("b", PartitionIndex(10)): Offset(5),
    TopicPartition("b", PartitionIndex(9)): Offset(2**40),
    TopicPartition("a", PartitionIndex(0)): Offset(0),
}


def test_they_are_written_as_the_connector_writes_them() -> None:
    assert json.dumps(to_json(OFFSETS)) == '{"a": {"0": 0}, "b": {"9": 1099511627776, "10": 5}}'
    assert from_json(to_json(OFFSETS)) == OFFSETS


def test_the_offset_of_a_table_is_refused_by_name() -> None:
    table = {"table": "id", "version": 3, "index": 0, "snapshot": False}
    for offset in (table, with_beginning(table, table), {"logOffset": 3}):
        with pytest.raises(CheckpointMismatch, match="belongs to a table or another source"):
            from_json(offset)
    named = {"table": {"0": 5}, "version": {"0": 1}}
    assert len(from_json(named)) == 2


def test_the_end_of_the_first_batch_says_where_it_began() -> None:
    """Spark asks for the initial offset anew when it was stopped in its first batch."""
    start, end = {"a": {"0": 7}}, with_beginning({"a": {"0": 9}}, {"a": {"0": 7}})
    assert beginning({"a": {"0": 9}}, end) == start  # "latest" is later by now
    assert from_json(end) == {TopicPartition("a", PartitionIndex(0)): Offset(9)}


def test_a_later_batch_begins_where_the_last_one_ended() -> None:
    first = with_beginning({"a": {"0": 9}}, {"a": {"0": 7}})
    assert beginning(first, {"a": {"0": 12}}) == first
    # PySpark 4.1 does not say which batch is the first: every end says where the query began.
    assert beginning(first, with_beginning({"a": {"0": 12}}, {"a": {"0": 7}})) == first
    assert beginning({"a": {"0": 12}}, {"a": {"0": 15}}) == {"a": {"0": 12}}
