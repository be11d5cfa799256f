"""Log lines: one per event, whatever a peer puts into the fields."""

import logging

import pytest

from suwi.cli.output import FieldFormatter


def line(**facts: object) -> str:
    record = logging.makeLogRecord({"name": "suwi.net", "levelname": "INFO", "msg": "closed"})
    record.__dict__.update(facts)
    return FieldFormatter().format(record)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("word", "word"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a\nb", r'"a\nb"'),
        ("a\r\x1b[31m", r'"a\r\u001b[31m"'),
        ("a=b", '"a=b"'),
        (7, "7"),
        ([1, 2], "[1, 2]"),
        ({"k": "a\nb"}, r'{"k": "a\nb"}'),
    ],
)
def test_a_field_is_written_on_one_line(value: object, written: str) -> None:
    assert line(fact=value).endswith(f" info net: closed fact={written}")
    assert "\n" not in line(fact=value)
