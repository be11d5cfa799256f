"""The option `where`: which rows are read, of topics and of tables.

Comparisons of a column with a value, joined by AND: `day = '2026-01-31' AND offset >= 5 AND shop IN
('a', 'b') AND at IS NOT NULL`. An option, because Spark remembers for a DataFrame what the last of
its queries pushed down and plans others by it (ADR 11); an option belongs to the DataFrame.
`parse_where` understands the text, `typed` fits the values to the columns, `may_match` judges a
file by its bounds, `expression` is for Arrow, which checks every row. Pure.
Invariant: what `may_match` refuses has no row for which `expression` is true.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?)|(?P<op><=|>=|<>|!=|==|=|<|>|\(|\)|,)"
    r"|`(?P<quoted>[^`]+)`|(?P<word>[A-Za-z_][\w.]*))"
)
_OPERATORS: Final = {"==": "=", "<>": "!=", **{one: one for one in "= != < <= > >=".split()}}


class BadWhere(ValueError):
    """A condition that cannot be understood or does not fit the columns."""


class Condition(NamedTuple):
    column: str
    operator: str
    """=, !=, <, <=, >, >=, in, null, not null"""
    value: Any = None


def parse_where(text: str) -> tuple[Condition, ...]:
    """Raises `BadWhere`."""
    if not text.strip():
        return ()
    parser = _Parser(list(_tokens(text)))
    found = [parser.condition()]
    while not parser.is_done:
        parser.word("AND")
        found.append(parser.condition())
    return tuple(found)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadWhere(f"{text[at:].strip()!r} is not understood")
        assert found.lastgroup is not None
        yield found.lastgroup, found[found.lastgroup]
        at = found.end()


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens

    @property
    def is_done(self) -> bool:
        return not self._tokens

    def condition(self) -> Condition:
        kind, column = self._next("a column")
        if kind not in ("word", "quoted"):
            raise BadWhere(f"{column!r}: a column is expected")
        kind, what = self._next("a comparison")
        if kind == "op" and what in _OPERATORS:
            return Condition(column, _OPERATORS[what], self._value())
        if what.upper() == "IS":
            is_not = bool(self._tokens) and self._tokens[0][1].upper() == "NOT"
            if is_not:
                self._tokens.pop(0)
            self.word("NULL")
            return Condition(column, "not null" if is_not else "null")
        if what.upper() == "IN":
            return Condition(column, "in", self._values())
        raise BadWhere(f"{what!r}: allowed are =, !=, <, <=, >, >=, IN (…), IS NULL, IS NOT NULL")

    def word(self, wanted: str) -> None:
        _, found = self._next(wanted)
        if found.upper() != wanted:
            raise BadWhere(f"{found!r}: {wanted} is expected; conditions are joined by AND only")

    def _values(self) -> tuple[Any, ...]:
        found: list[Any] = []
        separator = self._next("(")[1]
        if separator != "(":
            raise BadWhere(f"{separator!r}: a list in parentheses is expected")
        while separator != ")":
            found.append(self._value())
            separator = self._next(")")[1]
            if separator not in (",", ")"):
                raise BadWhere(f"{separator!r}: a comma or ) is expected")
        return tuple(found)

    def _value(self) -> Any:
        kind, found = self._next("a value")
        if kind == "word" and found.upper() in ("TIMESTAMP", "DATE") and self._tokens:
            kind, found = self._next("a value")
        if kind == "text":
            return found[1:-1].replace("''", "'")
        if kind == "number":
            return Decimal(found) if "." in found else int(found)
        if found.lower() in ("true", "false"):
            return found.lower() == "true"
        raise BadWhere(f"{found!r}: a number, 'text', true or false is expected")

    def _next(self, wanted: str) -> tuple[str, str]:
        if not self._tokens:
            raise BadWhere(f"it ends where {wanted} is expected")
        return self._tokens.pop(0)


def typed(conditions: Iterable[Condition], schema: "pa.Schema") -> tuple[Condition, ...]:
    """With values of the columns' types. Raises `BadWhere`."""
    return tuple(_typed(one, schema) for one in conditions)


def _typed(one: Condition, schema: "pa.Schema") -> Condition:
    if one.column not in schema.names:
        raise BadWhere(f"there is no column {one.column!r}: {', '.join(schema.names)}")
    kind = schema.field(one.column).type
    match one.operator:
        case "null" | "not null":
            return one
        case "in":
            return one._replace(value=tuple(_fit(one.column, v, kind) for v in one.value))
    return one._replace(value=_fit(one.column, one.value, kind))


def _fit(column: str, value: Any, kind: "pa.DataType") -> Any:
    """The value as Python has values of that type."""
    import pyarrow as pa

    try:
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            moment = datetime.fromisoformat(value)
            if kind.tz is None:
                return moment.replace(tzinfo=None)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        if pa.types.is_date(kind) and isinstance(value, str):
            return date.fromisoformat(value)
        if pa.types.is_floating(kind) and isinstance(value, int | Decimal):
            return pa.scalar(float(value), kind).as_py()
        if pa.types.is_binary(kind) and isinstance(value, str):
            return value.encode()
        fitted = pa.scalar(value, kind).as_py()
    except (ValueError, pa.ArrowException, TypeError):
        fitted = None
    if fitted is None or isinstance(value, str) != isinstance(fitted, str):
        raise BadWhere(f"{column}: {value!r} is no {kind}")
    return fitted


def expression(conditions: Iterable[Condition], schema: "pa.Schema") -> "pc.Expression | None":
    """All conditions, typed before, as one of Arrow's; None where there are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = None
    for column, operator, value in conditions:
        field, kind = pc.field(column), schema.field(column).type
        match operator:
            case "null":
                each = field.is_null()
            case "not null":
                each = field.is_valid()
            case "in":
                each = field.isin(pa.array(value, kind))
            case _:
                each = COMPARE[operator](field, pa.scalar(value, kind))
        whole = each if whole is None else whole & each
    return whole


COMPARE: Final[Mapping[str, Any]] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Bounds(NamedTuple):
    """What is known of a column in a unit that is read or skipped as a whole, as a file."""

    lowest: Any = None
    highest: Any = None
    """None: not known."""
    has_nulls: bool = True
    has_values: bool = True


def may_match(one: Condition, bounds: Bounds) -> bool:
    """Whether there may be a row for which the condition holds."""
    if one.operator == "null":
        return bounds.has_nulls
    if not bounds.has_values:
        return False
    low, high = bounds.lowest, bounds.highest
    match one.operator:
        case "=":
            return (low is None or low <= one.value) and (high is None or one.value <= high)
        case "in":
            return any(may_match(Condition(one.column, "=", value), bounds) for value in one.value)
        case "!=":
            # Bounds say nothing of NaN, which differs from everything.
            return isinstance(low, float) or low is None or not low == high == one.value
        case "<":
            return low is None or bool(low < one.value)
        case "<=":
            return low is None or bool(low <= one.value)
        case ">":
            return high is None or bool(high > one.value)
        case ">=":
            return high is None or bool(high >= one.value)
    return True
