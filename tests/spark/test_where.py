"""`where`: what is understood, what is refused, and that nothing wanted is passed over."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suwi.spark.where import BadWhere, Bounds, Condition, expression, may_match, parse_where, typed

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("a b", pa.int32()),
    ]
)


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("", []),
        ("n = 5", [Condition("n", "=", 5)]),
        ("n>=-5 and s <> 'it''s'", [Condition("n", ">=", -5), Condition("s", "!=", "it's")]),
        ("f < 3", [Condition("f", "<", 3.0)]),
        ("f <= 1.5 AND b == TRUE", [Condition("f", "<=", 1.5), Condition("b", "=", True)]),
        ("s IN ('a', 'b')", [Condition("s", "in", ("a", "b"))]),
        ("s is null AND n IS NOT NULL", [Condition("s", "null"), Condition("n", "not null")]),
        ("day > '2026-01-31'", [Condition("day", ">", date(2026, 1, 31))]),
        ("day = DATE '2026-01-31'", [Condition("day", "=", date(2026, 1, 31))]),
        (
            "at >= TIMESTAMP '2026-01-31T12:00:00Z'",
            [Condition("at", ">=", datetime(2026, 1, 31, 12, tzinfo=UTC))],
        ),
        ("`a b` = 1", [Condition("a b", "=", 1)]),
    ],
)
def test_what_is_understood(text: str, conditions: list[Condition]) -> None:
    assert list(typed(parse_where(text), SCHEMA)) == conditions


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("n", "it ends where a comparison"),
        ("n = ", "it ends where a value"),
        ("n LIKE 'x'", "allowed are ="),
        ("n = 1 OR n = 2", "joined by AND only"),
        ("n = m", "a number, 'text', true or false"),
        ("5 = n", "a column is expected"),
        ("n = 'five'", "n: 'five' is no int64"),
        ("s = 5", "s: 5 is no string"),
        ("at > 'soon'", "at: 'soon' is no timestamp"),
        ("m = 1", "there is no column 'm': n, f, s"),
        ("n = #", "'#' is not understood"),
    ],
)
def test_what_is_not_understood_is_named(text: str, problem: str) -> None:
    with pytest.raises(BadWhere, match=problem):
        typed(parse_where(text), SCHEMA)


@given(
    values=st.lists(st.none() | st.integers(-3, 3), min_size=1),
    operator=st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "in", "null", "not null"]),
    value=st.integers(-4, 4),
)
def test_what_is_passed_over_has_no_row_that_is_wanted(
    values: list[int | None], operator: str, value: int
) -> None:
    wanted: Any = {"in": (value, value + 2), "null": None, "not null": None}.get(operator, value)
    one = Condition("n", operator, wanted)
    there = [number for number in values if number is not None]
    bounds = Bounds(min(there, default=None), max(there, default=None), None in values, bool(there))
    table = pa.table({"n": pa.array(values, pa.int64())})
    found = table.filter(expression([one], table.schema)).num_rows
    assert found == 0 or may_match(one, bounds)
    if not may_match(one, bounds):
        assert found == 0
