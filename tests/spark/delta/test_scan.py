"""Files that are passed over: none of them has a row that is wanted."""

import json
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install .[spark]")
pytest.importorskip("deltalake", reason="deltalake is not installed: pip install .[spark]")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from suwi.spark.delta.log import DataFile, parse_commit
from suwi.spark.delta.scan import bounds_of, wanted_files
from suwi.spark.options import Choice
from suwi.spark.where import expression, parse_where, typed
from tests.spark.delta.tables import schema_of

KINDS = {
    "long": pa.int64(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,10)": pa.decimal128(38, 10),
    "float": pa.float32(),
    "double": pa.float64(),
}


def file_of(column: pa.Array, *, as_float: bool) -> DataFile:
    """Statistics as Spark writes them, or with decimals as floats, as delta-rs does."""
    there = [one for one in column.to_pylist() if one is not None and one == one]

    def text(value: Any) -> str:
        if isinstance(value, Decimal):
            return repr(float(value)) if as_float else format(value, "f")
        return repr(value)

    bounds = [f'{{"n":{text(pick(there))}}}' if there else "{}" for pick in (min, max)]
    stats = (
        f'{{"numRecords":{len(column)},"nullCount":{{"n":{column.null_count}}},'
        f'"minValues":{bounds[0]},"maxValues":{bounds[1]}}}'
    )
    add = {"path": "a", "dataChange": True, "stats": stats}
    (file,) = parse_commit(1, [json.dumps({"add": add})]).added
    return file


@pytest.mark.parametrize("kind", list(KINDS))
@given(
    cents=st.lists(st.none() | st.integers(-300, 300) | st.integers(-(10**9), 10**9), min_size=1),
    operator=st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "in"]),
    value=st.integers(-300, 300),
    at=st.integers(0),
    as_float=st.booleans(),
    nan=st.booleans(),
)
def test_a_file_that_is_passed_over_has_no_row_that_is_wanted(
    kind: str,
    cents: list[int | None],
    operator: str,
    value: int,
    at: int,
    as_float: bool,
    nan: bool,
) -> None:
    arrow, schema = KINDS[kind], schema_of(f"n {kind}")
    is_whole = kind == "long"

    def number(cent: int) -> Any:
        exact = cent if is_whole else Decimal(cent) / 100
        return float(exact) if pa.types.is_floating(arrow) else exact

    column = [None if one is None else number(one) for one in cents]
    if nan and pa.types.is_floating(arrow):
        column.append(float("nan"))
    picked = cents[at % len(cents)]
    wanted = value if picked is None or at % 2 else picked  # Often one that is there.
    shown = str(wanted) if is_whole else format(Decimal(wanted) / 100, ".2f")
    where = parse_where(f"n IN ({shown})" if operator == "in" else f"n {operator} {shown}")
    table = pa.table({"n": pa.array(column, arrow)})
    found = table.filter(expression(typed(where, table.schema), table.schema)).num_rows
    files = [file_of(table.column("n").combine_chunks(), as_float=as_float)]
    assert found == 0 or wanted_files(files, Choice((), where), schema)


def test_bounds_of_decimals_that_were_rounded_to_floats_are_wide_enough() -> None:
    value = Decimal("12345678901234567.89")
    column = pa.array([value], pa.decimal128(38, 2))
    bounds = bounds_of(file_of(column, as_float=True), "n", pa.schema([("n", column.type)]))
    assert bounds.lowest < value < bounds.highest
